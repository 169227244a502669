/* A timer that goes off as often as the machine gives, in a program that only calls functions:
 *   timer    timer_create
 *   itimer   setitimer
 *   threads  a timer for each of four threads
 * The handler calls functions, looks for `main` in its callers each time, and allocates. */
#define _GNU_SOURCE
#include "signal_common.h"

#include <execinfo.h>
#include <sys/syscall.h>

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

enum { WANTED = 1000, THREADS = 4, CALLS = 40 };

static int use_itimer;
static __thread timer_t timer;
static __thread volatile int ticks;
static __thread uint32_t chance = 1;
/* Where this thread's calls begin. */
static __thread uintptr_t outermost;

/* Sets the timer to go off soon, but not always at once: nothing else would ever run. */
KEPT static void rearm(void) {
    chance = chance * 1664525 + 1013904223;
    long nanoseconds = 500 + (chance >> 16) % 30000;
    if (use_itimer) {
        struct itimerval when = {.it_value = {0, 1 + nanoseconds / 1000}};
        CHECK(setitimer(ITIMER_REAL, &when, NULL) == 0);
    } else {
        struct itimerspec when = {.it_value = {0, nanoseconds}};
        CHECK(timer_settime(timer, 0, &when, NULL) == 0);
    }
    sink = sink + 1;
}

static void on_tick(int signal) {
    int saved = errno;
    CHECK(signal == SIGALRM);
    CHECK(dive(3) == 10);
    CHECK(leads_to(&outermost, 1));
    if (ticks % 16 == 0) {
        void *frames[100];
        int count = backtrace(frames, 100);
        CHECK(count > 3 && count < 100);
    }
    size_t size = 1 + ticks % 300;
    char *memory = malloc(size);
    CHECK(memory != NULL);
    memset(memory, ticks, size);
    CHECK(memory[size - 1] == (char)ticks);
    free(memory);
    ticks++;
    errno = saved;
    if (ticks < WANTED)
        rearm();
}

/* Calls functions, and allocates nothing, until the storm is over. */
KEPT static int calls(void) {
    rearm();
    while (ticks < WANTED)
        for (int n = 0; n < CALLS; n++)
            CHECK(dive(n % 8) == 3 * (n % 8) + 1);
    return ticks;
}

KEPT static int storm(void) {
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID,
                             .sigev_signo = SIGALRM};
    event.sigev_notify_thread_id = syscall(SYS_gettid);
    CHECK(use_itimer || timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
    int result = calls();
    CHECK(use_itimer || timer_delete(timer) == 0);
    return result;
}

static void *thread(void *argument) {
    outermost = (uintptr_t)thread;
    *(int *)argument = storm();
    return NULL;
}

int main(int argc, char **argv) {
    /* The first call loads what later ones need. */
    void *first[4];
    backtrace(first, 4);
    struct sigaction action = {.sa_handler = on_tick, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    if (argc != 2)
        return 2;
    if (!strcmp(argv[1], "threads")) {
        pthread_t threads[THREADS];
        int results[THREADS];
        for (int n = 0; n < THREADS; n++)
            CHECK(!pthread_create(&threads[n], NULL, thread, &results[n]));
        for (int n = 0; n < THREADS; n++) {
            CHECK(!pthread_join(threads[n], NULL));
            printf("%d ticks\n", results[n]);
        }
        return 0;
    }
    outermost = (uintptr_t)main;
    use_itimer = !strcmp(argv[1], "itimer");
    printf("%d ticks\n", storm());
    return 0;
}
