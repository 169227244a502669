/* Some calls of `handle` are slow; the first word selects the reason. With a second word the
   program lives on for a second. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifndef DELAY
#define DELAY 30000 /* microseconds */
#endif
enum { CALLS = 60, SLOW = 3 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t begin, held, end;
static int channel[2];
static volatile long sum;
static const char *reason;
static long long planted;
static int is_long;

/* By default no function of its own: only `hash` is called more often where a call is slow. */
#ifndef NOW
#define NOW inline __attribute__((always_inline))
#endif
static NOW long long now(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

__attribute__((noinline)) void hash(void) {
    for (int i = 0; i < 1000; i++)
        sum += i;
}

__attribute__((noinline)) void rehash(long long until) {
    long long from = now(CLOCK_THREAD_CPUTIME_ID);
    do
        hash();
    while (now(CLOCK_THREAD_CPUTIME_ID) - from < until);
}

__attribute__((noinline)) void cache_get(void) {
    pthread_mutex_lock(&lock);
    hash();
    pthread_mutex_unlock(&lock);
}

__attribute__((noinline)) void load(void) {
    char byte;
    if (read(channel[0], &byte, 1) != 1)
        abort();
}

__attribute__((noinline)) void back_off(void) {
    usleep(DELAY);
}

/* Another thread runs on this processor meanwhile. */
__attribute__((noinline)) void compress(void) {
    rehash(DELAY * 1000LL / 2);
}

__attribute__((noinline)) void flush(void) {
    pthread_mutex_lock(&lock);
    pthread_barrier_wait(&held);
    usleep(DELAY);
    pthread_mutex_unlock(&lock);
}

static void plant(void) {
    long long wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_THREAD_CPUTIME_ID);
    if (!strcmp(reason, "lock"))
        cache_get();
    else if (!strcmp(reason, "input"))
        load();
    else if (!strcmp(reason, "sleep"))
        back_off();
    else if (!strcmp(reason, "computes"))
        rehash(DELAY * 1000LL);
    else
        compress();
    wall = now(CLOCK_MONOTONIC) - wall;
    cpu = now(CLOCK_THREAD_CPUTIME_ID) - cpu;
    planted += !strcmp(reason, "computes") ? cpu : wall - cpu;
}

#ifdef TREE
/* Defines functions that call each other; one of them calls `plant`. */
#include TREE
#else
static void tree(int is_slow) {
    if (is_slow)
        plant();
}
#endif

__attribute__((noinline)) void handle(int is_slow) {
    hash();
    tree(is_slow);
    cache_get();
}

static void *helper(void *unused) {
    pthread_setname_np(pthread_self(), "flusher");
    for (int i = 0; i < SLOW; i++) {
        pthread_barrier_wait(&begin);
        if (!strcmp(reason, "lock")) {
            flush();
        } else if (!strcmp(reason, "input")) {
            usleep(DELAY);
            if (write(channel[1], "x", 1) != 1)
                abort();
        } else if (!strcmp(reason, "processor")) {
            rehash(DELAY * 1000LL);
        }
        pthread_barrier_wait(&end);
    }
    if (is_long)
        usleep(1000000);
    return unused;
}

int main(int count, char **words) {
    pthread_t thread;
    alarm(60);
    reason = count > 1 ? words[1] : "lock";
    is_long = count > 2;
    if (!strcmp(reason, "processor")) {
        /* Both threads on the first of the allowed processors. */
        cpu_set_t allowed, one;
        int first = 0;
        sched_getaffinity(0, sizeof allowed, &allowed);
        while (!CPU_ISSET(first, &allowed))
            first++;
        CPU_ZERO(&one);
        CPU_SET(first, &one);
        sched_setaffinity(0, sizeof one, &one);
    }
    if (pipe(channel) != 0)
        return 1;
    pthread_barrier_init(&begin, 0, 2);
    pthread_barrier_init(&held, 0, 2);
    pthread_barrier_init(&end, 0, 2);
    pthread_create(&thread, 0, helper, 0);
    for (int i = 0; i < CALLS; i++) {
        int is_slow = i % (CALLS / SLOW) == 7;
        if (is_slow)
            pthread_barrier_wait(&begin);
        if (is_slow && !strcmp(reason, "lock"))
            pthread_barrier_wait(&held);
        handle(is_slow);
        if (is_slow)
            pthread_barrier_wait(&end);
    }
    pthread_join(thread, 0);
    printf("%lld\n", planted / SLOW);
    return 0;
}
