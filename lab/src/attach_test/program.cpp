// Threads that do nothing but allocate, load, fork, throw, lock and start programs, and what the C
// library does with signals and threads of its own, and others that wait and call.
// Ends with 0 when standard input does, if every result was right.
#include <aio.h>
#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile int end, failed;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long guarded;

extern "C" __attribute__((noinline)) long work(long n)
{
    __asm__ volatile("" : "+r"(n));
    return n < 2 ? n : work(n - 1) + work(n - 2);
}

static void *allocates(void *)
{
    while (!end) {
        size_t len = 1 + random() % 5000;
        char *block = (char *)malloc(len);
        memset(block, (char)len, len);
        block = (char *)realloc(block, 2 * len);
        if (block[len - 1] != (char)len)
            failed = 1;
        free(block);
    }
    return 0;
}

static void *loads(void *library)
{
    while (!end) {
        void *handle = dlopen((char *)library, RTLD_NOW);
        if (!handle || !dlsym(handle, "loaded"))
            failed = 2;
        else
            dlclose(handle);
    }
    return 0;
}

static void *forks(void *)
{
    while (!end) {
        pid_t child = fork();
        if (child == 0)
            _exit(work(7));
        int status;
        if (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 13)
            failed = 3;
    }
    return 0;
}

static char *const program[] = {(char *)"/bin/true", 0};

static int status_of(pid_t child)
{
    int status = -1;
    return waitpid(child, &status, 0) == child ? status : -1;
}

static void *spawns(void *)
{
    while (!end) {
        pid_t child;
        if (posix_spawn(&child, program[0], 0, 0, program, environ) != 0 || status_of(child) != 0)
            failed = 8;
    }
    return 0;
}

// As shells and interpreters do: the child resets what it must with all signals blocked.
static void *executes(void *)
{
    while (!end) {
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, &before);
        pid_t child = vfork();
        if (child == 0) {
            for (int number = 1; number < 32; number++)
                signal(number, SIG_DFL);
            execve(program[0], program, environ);
            _exit(127);
        }
        pthread_sigmask(SIG_SETMASK, &before, 0);
        if (child < 0 || status_of(child) != 0)
            failed = 9;
    }
    return 0;
}

static void *runs_commands(void *)
{
    while (!end) {
        int status = system("exit 3");
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 3)
            failed = 10;
    }
    return 0;
}

static void *locks(void *)
{
    while (!end) {
        pthread_mutex_lock(&lock);
        long before = guarded++;
        if (guarded != before + 1)
            failed = 4;
        pthread_mutex_unlock(&lock);
    }
    return 0;
}

__attribute__((noinline)) static void raise_number(long n)
{
    throw work(n);
}

static void *throws(void *)
{
    while (!end) {
        try {
            raise_number(5);
            failed = 5;
        } catch (long n) {
            if (n != 5)
                failed = 6;
        }
    }
    return 0;
}

static void *waits(void *)
{
    while (!end) {
        struct timespec moment = {0, 2000000};
        nanosleep(&moment, 0);
        if (work(5) != 5)
            failed = 7;
    }
    return 0;
}

static void *is_cancelled(void *pipe)
{
    char byte;
    while (read(*(int *)pipe, &byte, 1) >= 0)
        ;
    return 0;
}

static void *cancels(void *)
{
    static int never[2];
    if (pipe(never) != 0)
        failed = 13;
    while (!end) {
        pthread_t thread;
        void *result;
        struct timespec moment = {0, 100000};
        if (pthread_create(&thread, 0, is_cancelled, never) != 0)
            failed = 14;
        nanosleep(&moment, 0);
        if (pthread_cancel(thread) != 0 || pthread_join(thread, &result) != 0)
            failed = 15;
        if (result != PTHREAD_CANCELED)
            failed = 16;
    }
    return 0;
}

static void expires(sigval) {}

// Each expiry makes a thread.
static void *sets_timers(void *)
{
    while (!end) {
        struct sigevent event = {};
        struct itimerspec often = {{0, 500000}, {0, 500000}};
        struct timespec moment = {0, 10000000};
        timer_t timer;
        event.sigev_notify = SIGEV_THREAD;
        event.sigev_notify_function = expires;
        if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0)
            failed = 17;
        timer_settime(timer, 0, &often, 0);
        nanosleep(&moment, 0);
        timer_delete(timer);
    }
    return 0;
}

static void *reads_later(void *library)
{
    FILE *file = fopen((char *)library, "r");
    while (!end) {
        char text[4];
        struct aiocb block = {};
        const struct aiocb *blocks[] = {&block};
        block.aio_fildes = fileno(file);
        block.aio_buf = text;
        block.aio_nbytes = sizeof text;
        if (aio_read(&block) != 0)
            failed = 18;
        while (aio_error(&block) == EINPROGRESS)
            aio_suspend(blocks, 1, 0);
        if (aio_return(&block) != 4 || memcmp(text, "\177ELF", 4) != 0)
            failed = 19;
    }
    fclose(file);
    return 0;
}

static void *looks_up_later(void *)
{
    while (!end) {
        struct addrinfo hints = {};
        struct gaicb request = {};
        struct gaicb *requests[] = {&request};
        hints.ai_flags = AI_NUMERICHOST;
        request.ar_name = "127.0.0.1";
        request.ar_request = &hints;
        if (getaddrinfo_a(GAI_WAIT, requests, 1, 0) != 0 || gai_error(&request) != 0)
            failed = 20;
        if (request.ar_result)
            freeaddrinfo(request.ar_result);
    }
    return 0;
}

static void *ends(void *)
{
    return 0;
}

// Makes a thread beside the others, `times` times, and prints how many microseconds that takes: each
// has a larger stack, as those of threads that have ended are used again.
static void measure(int times)
{
    for (int n = 0; n < times; n++) {
        struct timespec moment = {0, 20000000}, begin, done;
        nanosleep(&moment, 0);
        pthread_t made;
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        pthread_attr_setstacksize(&attributes, (2 << 20) + (n << 16));
        clock_gettime(CLOCK_MONOTONIC, &begin);
        pthread_create(&made, &attributes, ends, 0);
        clock_gettime(CLOCK_MONOTONIC, &done);
        pthread_join(made, 0);
        long seconds = done.tv_sec - begin.tv_sec;
        printf("%ld\n", seconds * 1000000 + (done.tv_nsec - begin.tv_nsec) / 1000);
    }
    fflush(stdout);
}

int main(int argc, char **argv)
{
    int waiting = argc > 2 ? atoi(argv[2]) : 0;
    int busy = argc > 3 ? atoi(argv[3]) : 1;
    int measured = argc > 4 ? atoi(argv[4]) : 0;
    static pthread_t threads[256];
    int count = 0;
    if (busy) {
        pthread_create(&threads[count++], 0, allocates, 0);
        pthread_create(&threads[count++], 0, loads, argv[1]);
        pthread_create(&threads[count++], 0, forks, 0);
        pthread_create(&threads[count++], 0, spawns, 0);
        pthread_create(&threads[count++], 0, executes, 0);
        pthread_create(&threads[count++], 0, runs_commands, 0);
        pthread_create(&threads[count++], 0, throws, 0);
        pthread_create(&threads[count++], 0, cancels, 0);
        pthread_create(&threads[count++], 0, sets_timers, 0);
        pthread_create(&threads[count++], 0, reads_later, argv[1]);
        pthread_create(&threads[count++], 0, looks_up_later, 0);
        pthread_create(&threads[count++], 0, locks, 0);
        pthread_create(&threads[count++], 0, locks, 0);
    }
    for (int i = 0; i < waiting && count < 256; i++)
        pthread_create(&threads[count++], 0, waits, 0);
    puts("ready");
    fflush(stdout);
    measure(measured);
    while (getchar() != EOF)
        ;
    end = 1;
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], 0);
    return failed;
}
