// System calls with all kinds of arguments, for a comparison with strace: the first argument is a
// directory to work in. The first call of access and the last one mark what is compared.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void files(void)
{
    char bytes[256] = "";
    struct stat found;
    int file = open("file", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0640);
    write(file, "one\ttwo\n\0013\"\\\377", 13);
    memset(bytes, 'x', sizeof bytes);
    write(file, bytes, sizeof bytes);
    write(-1, "lost", 4);
    write(file, (void *)8, 4);
    pwrite(file, "at", 2, 1 << 20);
    lseek(file, -4, SEEK_END);
    lseek(file, 0, SEEK_SET);
    read(file, bytes, 8);
    pread(file, bytes, 40, 0);
    struct iovec parts[] = {{"hello ", 6}, {"world", 5}};
    writev(file, parts, 2);
    stat("file", &found);
    stat("/dev/null", &found);
    lstat("no such\nfile", &found);
    stat("/tmp", &found);
    ftruncate(file, 100);
    fallocate(file, FALLOC_FL_KEEP_SIZE, 0, 4096);
    flock(file, LOCK_EX | LOCK_NB);
    fcntl(file, F_GETFL);
    fcntl(file, F_GETFD);
    fcntl(file, F_SETFD, 0);
    fcntl(file, F_SETFL, O_APPEND | O_NONBLOCK);
    close(fcntl(file, F_DUPFD_CLOEXEC, 50));
    ioctl(file, TIOCGWINSZ, bytes);
    ioctl(file, 0x12345678, 5);
    dup2(file, 60);
    dup3(file, 61, O_CLOEXEC);
    close(61);
    close(60);
    close(file);
    close(99);
    chmod("file", 04755);
    umask(027);
    mkdir("folder", 0);
    rename("file", "folder");
    renameat2(AT_FDCWD, "file", AT_FDCWD, "folder", RENAME_NOREPLACE);
    link("file", "linked");
    symlink("file", "symbolic");
    readlink("symbolic", bytes, sizeof bytes);
    unlink("linked");
    unlinkat(AT_FDCWD, "folder", AT_REMOVEDIR);
    openat(AT_FDCWD, "none", O_WRONLY | O_DIRECTORY | O_NOFOLLOW);
    open("/a/path/that/is/longer/than/strace/shows/data", O_RDONLY);
    access("file", R_OK | X_OK);
    chdir(".");
}

static void memory(void)
{
    void *at = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(at, 4096, PROT_NONE);
    madvise(at, 8192, MADV_DONTNEED);
    msync(at, 4096, MS_SYNC);
    mlock(at, 4096);
    mmap(0, 0, PROT_READ, MAP_SHARED, 99, 4096);
}

static void sockets(void)
{
    struct sockaddr_in host = {.sin_family = AF_INET};
    host.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    struct sockaddr_un path = {.sun_family = AF_UNIX, .sun_path = "socket"};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(9)};
    six.sin6_addr = in6addr_loopback;
    char bytes[64];
    int on = 1, pair[2];
    int stream = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
    setsockopt(stream, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(stream, IPPROTO_TCP, 1, &on, sizeof on);
    socklen_t len = sizeof on;
    getsockopt(stream, SOL_SOCKET, SO_TYPE, &on, &len);
    bind(stream, (struct sockaddr *)&host, sizeof host);
    listen(stream, 5);
    shutdown(stream, SHUT_RDWR);
    close(stream);
    int local = socket(AF_UNIX, SOCK_DGRAM, 0);
    connect(local, (struct sockaddr *)&path, sizeof path);
    len = sizeof path;
    getsockname(local, (struct sockaddr *)&path, &len);
    close(local);
    close(socket(AF_INET6, SOCK_DGRAM | SOCK_NONBLOCK, 0));
    connect(99, (struct sockaddr *)&six, sizeof six);
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    sendto(pair[0], "hello", 5, MSG_NOSIGNAL | MSG_DONTWAIT, 0, 0);
    struct pollfd polled[] = {{pair[1], POLLIN | POLLPRI, 0}, {-1, POLLOUT, 0}};
    poll(polled, 2, 1000);
    recvfrom(pair[1], bytes, sizeof bytes, MSG_PEEK, 0, 0);
    read(pair[1], bytes, sizeof bytes);
    poll(polled, 1, 0);
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {EPOLLIN | EPOLLET, {.u64 = 7}};
    epoll_ctl(epoll, EPOLL_CTL_ADD, pair[1], &event);
    write(pair[0], "x", 1);
    epoll_wait(epoll, &event, 1, 1000);
    close(epoll);
    close(pair[0]);
    close(pair[1]);
    pipe(pair);
    close(pair[0]);
    close(pair[1]);
    pipe2(pair, O_CLOEXEC | O_NONBLOCK);
    close(pair[0]);
    close(pair[1]);
}

static void others(void)
{
    struct rlimit limit = {1 << 20, RLIM_INFINITY};
    struct timespec time = {0, 1000};
    struct utsname system;
    setrlimit(RLIMIT_CORE, &limit);
    getrlimit(RLIMIT_CORE, &limit);
    nanosleep(&time, 0);
    uname(&system);
    kill(getpid(), 0);
    kill(1 << 30, SIGUSR1);
    eventfd(3, EFD_NONBLOCK);
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    prctl(PR_SET_NAME, "renamed");
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    pid_t child = fork();
    if (!child)
        _exit(3);
    int status;
    waitpid(child, 0, WNOHANG | WUNTRACED | __WCLONE);
    waitpid(child, &status, 0);
    child = fork();
    if (!child)
        raise(SIGKILL);
    waitpid(child, &status, 0);
    waitpid(-1, &status, 0);
}

int main(int argc, char **argv)
{
    if (argc != 2 || chdir(argv[1]))
        return 1;
    access("/begin", F_OK);
    files();
    memory();
    sockets();
    others();
    access("/end", F_OK);
    return 0;
}
