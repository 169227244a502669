// Threads that do nothing but what the C library does with signals and threads of its own, of the
// kind that the argument names. Ends with 0 when standard input does, if all of it worked.
#define _GNU_SOURCE
#include <aio.h>
#include <errno.h>
#include <grp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static volatile int end, failed;
static int never[2];
static volatile long done, expired;

static void *waits(void *unused)
{
    char byte;
    while (read(never[0], &byte, 1) >= 0)
        ;
    return unused;
}

// Each makes all threads change, by a signal that it waits for.
static void *sets_users(void *unused)
{
    for (; !end; done++)
        if (setresuid(-1, -1, -1) != 0 || setgid(getgid()) != 0)
            failed = 1;
    return unused;
}

static void *sets_groups(void *unused)
{
    gid_t groups[64];
    int count = getgroups(64, groups);
    for (; !end; done++)
        if (setgroups(count, groups) != 0 && errno != EPERM)
            failed = 2;
    return unused;
}

// The thread that is cancelled waits in a call in which that may be at once.
static void *cancels(void *unused)
{
    for (; !end; done++) {
        pthread_t thread;
        void *result;
        struct timespec moment = {0, 100000};
        if (pthread_create(&thread, 0, waits, 0) != 0)
            failed = 3;
        nanosleep(&moment, 0);
        if (pthread_cancel(thread) != 0 || pthread_join(thread, &result) != 0)
            failed = 4;
        if (result != PTHREAD_CANCELED)
            failed = 5;
    }
    return unused;
}

static void expires(union sigval unused)
{
    (void)unused;
    expired++;
}

// Each expiry makes a thread.
static void *sets_timers(void *unused)
{
    for (; !end; done++) {
        struct sigevent event = {.sigev_notify = SIGEV_THREAD};
        struct itimerspec often = {{0, 200000}, {0, 200000}};
        struct timespec moment = {0, 5000000};
        timer_t timer;
        event.sigev_notify_function = expires;
        if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0)
            failed = 6;
        timer_settime(timer, 0, &often, 0);
        nanosleep(&moment, 0);
        timer_delete(timer);
    }
    return unused;
}

static void *reads_later(void *file)
{
    for (; !end; done++) {
        char text[16];
        struct aiocb block = {.aio_fildes = fileno(file), .aio_buf = text, .aio_nbytes = 16};
        const struct aiocb *blocks[] = {&block};
        if (aio_read(&block) != 0)
            failed = 7;
        while (aio_error(&block) == EINPROGRESS)
            aio_suspend(blocks, 1, 0);
        if (aio_return(&block) != 16 || strncmp(text, "0123456789abcdef", 16) != 0)
            failed = 8;
    }
    return 0;
}

int main(int argc, char **argv)
{
    const char *kind = argc > 1 ? argv[1] : "";
    FILE *file = tmpfile();
    fputs("0123456789abcdef", file);
    fflush(file);
    if (pipe(never) != 0)
        return 9;
    void *(*work)(void *) = strcmp(kind, "users") == 0     ? sets_users
                            : strcmp(kind, "groups") == 0  ? sets_groups
                            : strcmp(kind, "cancels") == 0 ? cancels
                            : strcmp(kind, "timers") == 0  ? sets_timers
                                                           : reads_later;
    pthread_t idle, worker;
    if (work != cancels)
        pthread_create(&idle, 0, waits, 0);
    pthread_create(&worker, 0, work, file);
    while (done == 0)
        sched_yield();
    puts("ready");
    fflush(stdout);
    struct pollfd input = {0, POLLIN, 0};
    while (poll(&input, 1, -1) != 1)
        ;
    end = 1;
    pthread_join(worker, 0);
    return failed;
}
