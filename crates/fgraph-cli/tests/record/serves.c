// Serves a file system that the recorder writes its data file to, while it is recorded itself:
//   serves DIRECTORY FILE COMMAND...   mounts it at DIRECTORY, and serves it while COMMAND runs
//   serves serve                       serves it in place of the other one, until some writes are
//                                      answered, and makes more calls than its ring has room for
// The recorder waits for the answer to a write then, and the program for the recorder. FILE has
// what is written to `fgraph.data`, the only file of the file system.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    CALLS = 200000,
    // Writes that the program answers.
    WRITES = 3,
    // Open in all processes.
    DEVICE = 100,
    BACKING = 101,
    SAYS = 102,
    // The node of the file; the directory is node 1.
    FILE_NODE = 2,
    MOST = 1 << 17,
};

__attribute__((noinline)) void leaf(void) { __asm__ volatile("nop; nop; nop; nop; nop; nop"); }

static void calls(void) {
    for (int n = 0; n < CALLS; n++)
        leaf();
}

static long sleeps(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_nvcsw;
}

// Tells the other process that this one serves, or does no more.
static void say(char byte) {
    if (write(SAYS, &byte, 1) != 1)
        exit(2);
}

static struct fuse_attr attributes(uint64_t node) {
    struct fuse_attr attr = {.ino = node, .nlink = 1, .uid = getuid(), .gid = getgid()};
    struct stat file;
    if (node != FILE_NODE) {
        attr.mode = S_IFDIR | 0700;
    } else if (fstat(BACKING, &file) == 0) {
        attr.mode = S_IFREG | 0600;
        attr.size = file.st_size;
        attr.blocks = file.st_blocks;
    }
    return attr;
}

static void answer(uint64_t request, int error, const void *body, size_t len) {
    struct fuse_out_header header = {sizeof header + len, error, request};
    struct iovec parts[] = {{&header, sizeof header}, {(void *)body, len}};
    // It fails where the process that has asked was interrupted.
    if (writev(DEVICE, parts, 2) < 0 && errno != ENOENT)
        exit(3);
}

// Takes a request, and returns its kind.
static uint32_t serve(void) {
    static char request[MOST + 4096];
    ssize_t len = read(DEVICE, request, sizeof request);
    if (len < 0)
        return errno == EINTR || errno == EAGAIN || errno == ENOENT ? 0 : (exit(4), 0);
    struct fuse_in_header *in = (void *)request;
    void *body = in + 1;
    struct fuse_entry_out entry = {.nodeid = FILE_NODE, .attr = attributes(FILE_NODE)};
    struct fuse_attr_out attr = {.attr = attributes(in->nodeid)};
    switch (in->opcode) {
    case FUSE_INIT: {
        struct fuse_init_in *asked = body;
        struct fuse_init_out out = {
            .major = FUSE_KERNEL_VERSION,
            .minor = FUSE_KERNEL_MINOR_VERSION,
            .max_readahead = asked->max_readahead,
            .flags = asked->flags & FUSE_BIG_WRITES,
            .max_write = MOST,
        };
        answer(in->unique, 0, &out, sizeof out);
        break;
    }
    case FUSE_GETATTR:
        answer(in->unique, 0, &attr, sizeof attr);
        break;
    case FUSE_SETATTR: {
        struct fuse_setattr_in *set = body;
        if (set->valid & FATTR_SIZE && ftruncate(BACKING, set->size) != 0)
            exit(5);
        attr.attr = attributes(in->nodeid);
        answer(in->unique, 0, &attr, sizeof attr);
        break;
    }
    case FUSE_LOOKUP:
        if (strcmp(body, "fgraph.data") == 0)
            answer(in->unique, 0, &entry, sizeof entry);
        else
            answer(in->unique, -ENOENT, NULL, 0);
        break;
    case FUSE_OPEN:
    case FUSE_OPENDIR: {
        struct fuse_open_out out = {.open_flags = FOPEN_DIRECT_IO};
        answer(in->unique, 0, &out, sizeof out);
        break;
    }
    case FUSE_WRITE: {
        struct fuse_write_in *asked = body;
        struct fuse_write_out out = {.size = asked->size};
        if (pwrite(BACKING, asked + 1, asked->size, asked->offset) != (ssize_t)asked->size)
            exit(6);
        answer(in->unique, 0, &out, sizeof out);
        break;
    }
    case FUSE_FLUSH:
    case FUSE_FSYNC:
    case FUSE_RELEASE:
    case FUSE_RELEASEDIR:
    case FUSE_ACCESS:
        answer(in->unique, 0, NULL, 0);
        break;
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
        break;
    default:
        answer(in->unique, -ENOSYS, NULL, 0);
    }
    return in->opcode;
}

static const char *directory;

static void too_late(int signal) {
    (void)signal;
    static const char said[] = "it has not ended after two minutes\n";
    (void)!write(STDERR_FILENO, said, sizeof said - 1);
    umount2(directory, MNT_FORCE | MNT_DETACH);
    // The recorder and the program, too.
    kill(0, SIGKILL);
}

static int serve_while_recorded(void) {
    struct pollfd device = {DEVICE, POLLIN, 0};
    int has_waited = 0;
    say('1');
    for (int writes = 0; writes < WRITES;) {
        long before = sleeps();
        calls();
        // A writer that waits sleeps eight times before it gives up.
        has_waited |= sleeps() - before >= 8;
        if (poll(&device, 1, 0) > 0)
            writes += serve() == FUSE_WRITE;
    }
    say('0');
    printf(has_waited ? "waited\n" : "not waited\n");
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "serve") == 0)
        return serve_while_recorded();
    if (argc < 4)
        return 2;
    directory = argv[1];
    char options[128];
    int pipes[2], device = open("/dev/fuse", O_RDWR | O_NONBLOCK);
    int backing = open(argv[2], O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (device < 0 || backing < 0 || pipe(pipes) != 0) {
        perror("/dev/fuse");
        return 77;
    }
    if (dup2(device, DEVICE) < 0 || dup2(backing, BACKING) < 0 || dup2(pipes[1], SAYS) < 0)
        return 2;
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=%d,group_id=%d", DEVICE,
             getuid(), getgid());
    if (mount("serves", directory, "fuse", MS_NOSUID | MS_NODEV, options) != 0) {
        perror("mount");
        return 77;
    }
    setpgid(0, 0);
    signal(SIGALRM, too_late);
    alarm(120);
    pid_t child = fork();
    if (child == 0) {
        execv(argv[3], argv + 3);
        _exit(126);
    }
    int is_served = 0, status;
    while (waitpid(child, &status, WNOHANG) == 0) {
        // A poll that is too short only looks at the child again.
        struct pollfd ready[] = {{pipes[0], POLLIN, 0}, {is_served ? -1 : DEVICE, POLLIN, 0}};
        char said;
        if (poll(ready, 2, 10) <= 0)
            continue;
        if (ready[0].revents & POLLIN && read(pipes[0], &said, 1) == 1)
            is_served = said == '1';
        else if (ready[1].revents & POLLIN)
            serve();
    }
    umount2(directory, MNT_FORCE | MNT_DETACH);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
