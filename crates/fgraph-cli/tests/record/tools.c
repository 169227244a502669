// A program for tools to look at: the first argument says what it does.
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))
// A shorter function has no room for a jump.
#define ROOM ".skip 16, 0x90"

static int calls(char *self)
{
    char bytes[64];
    int file = open("/no/such\nfile", O_RDONLY);
    file = open("/proc/self/comm", O_RDONLY);
    long len = read(file, bytes, sizeof bytes);
    write(1, "hello\n", 6);
    lseek(file, 0, SEEK_SET);
    dup2(file, 99);
    close(file);
    unlink("/no/such/file");
    pid_t child = fork();
    if (child == 0) {
        access("/forked", F_OK);
        execl(self, self, "executed", (char *)0);
    }
    waitpid(child, 0, 0);
    kill(getpid(), 0);
    return len > 0 ? 3 : 4;
}

static void wait_for_end(void)
{
    char byte;
    while (read(0, &byte, 1) > 0)
        ;
}

NOINLINE void slow(void)
{
    wait_for_end();
    __asm__ volatile("");
}

NOINLINE void around(void)
{
    slow();
    __asm__ volatile("");
}

static pthread_mutex_t first = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t second = PTHREAD_MUTEX_INITIALIZER;

NOINLINE void forwards(void)
{
    pthread_mutex_lock(&first);
    pthread_mutex_lock(&second);
    pthread_mutex_unlock(&second);
    pthread_mutex_unlock(&first);
}

NOINLINE void *backwards(void *unused)
{
    pthread_mutex_lock(&second);
    pthread_mutex_lock(&first);
    pthread_mutex_unlock(&first);
    pthread_mutex_unlock(&second);
    return unused;
}

/* 1 if it fails to open a file. */
NOINLINE int reads_comm(void)
{
    int file = open("/proc/self/comm", O_RDONLY);
    close(file);
    return file < 0;
}

NOINLINE int opens_directly(void)
{
    int file = open("/proc/self/comm", O_RDONLY);
    close(file);
    return file < 0;
}

NOINLINE int opens_through_another(void)
{
    int failed = reads_comm();
    __asm__ volatile("");
    return failed;
}

NOINLINE long leaf(long n)
{
    __asm__ volatile(ROOM : "+r"(n));
    return n;
}

NOINLINE long deep(long n)
{
    volatile char room[4096];
    room[n] = 1;
    return n ? deep(n - 1) + room[n] : leaf(n);
}

static void *goes_deep(void *unused)
{
    deep(8);
    return unused;
}

NOINLINE void of_main(void)
{
    __asm__ volatile(ROOM);
}

NOINLINE void of_workers(void)
{
    __asm__ volatile(ROOM);
}

static void *works(void *unused)
{
    for (int i = 0; i < 10; i++)
        of_main();
    of_workers();
    return unused;
}

static void in_thread(void *(*function)(void *))
{
    pthread_t thread;
    pthread_create(&thread, 0, function, 0);
    pthread_join(thread, 0);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "calls"))
        return calls(argv[0]);
    if (!strcmp(what, "executed"))
        return access("/executed", F_OK) == 0;
    if (!strcmp(what, "ticks")) {
        struct pollfd in = {.fd = 0, .events = POLLIN};
        while (poll(&in, 1, 10) == 0)
            access("/ticked", F_OK);
    }
    if (!strcmp(what, "slow"))
        around();
    if (!strcmp(what, "locks")) {
        forwards();
        in_thread(backwards);
    }
    if (!strcmp(what, "deeper"))
        deep(99);
    if (!strcmp(what, "deep")) {
        in_thread(goes_deep);
        deep(2);
    }
    if (!strcmp(what, "threads")) {
        of_main();
        in_thread(works);
        of_workers();
    }
    if (!strcmp(what, "opens from")) {
        int failed = 0;
        for (int i = 0; i < 10; i++)
            failed += opens_directly() + 100 * opens_through_another() + 10000 * reads_comm();
        printf("%d\n", failed);
    }
    if (!strcmp(what, "opens")) {
        int failed = 0;
        for (int i = 0; i < 100; i++) {
            int file = open("/proc/self/comm", O_RDONLY);
            failed += file < 0;
            close(file);
        }
        printf("%d failed\n", failed);
        fflush(stdout);
        if (argc > 2)
            kill(getpid(), SIGKILL);
    }
    return 0;
}
