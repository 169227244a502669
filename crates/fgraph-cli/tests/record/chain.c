/* Some calls of `handle` wait for a thread that waits for another one, which sleeps. The
   threads live on for a second. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { CALLS = 60, SLOW = 3, DELAY = 100000 };

pthread_mutex_t first = PTHREAD_MUTEX_INITIALIZER, second = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t begin, held, end;
static volatile long sum;

__attribute__((noinline)) void commit(void) {
    pthread_mutex_lock(&second);
    sum++;
    pthread_mutex_unlock(&second);
}

__attribute__((noinline)) void store(void) {
    pthread_mutex_lock(&first);
    pthread_barrier_wait(&held);
    commit();
    pthread_mutex_unlock(&first);
}

__attribute__((noinline)) void flush(void) {
    pthread_mutex_lock(&second);
    pthread_barrier_wait(&held);
    usleep(DELAY);
    pthread_mutex_unlock(&second);
}

__attribute__((noinline)) void handle(void) {
    pthread_mutex_lock(&first);
    sum++;
    pthread_mutex_unlock(&first);
}

static void *helper(void *work) {
    for (int i = 0; i < SLOW; i++) {
        pthread_barrier_wait(&begin);
        ((void (*)(void))work)();
        pthread_barrier_wait(&end);
    }
    usleep(1000000);
    return 0;
}

static long long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

int main(void) {
    pthread_t middle, last;
    long long planted = 0;
    alarm(60);
    pthread_barrier_init(&begin, 0, 3);
    pthread_barrier_init(&held, 0, 3);
    pthread_barrier_init(&end, 0, 3);
    pthread_create(&middle, 0, helper, store);
    pthread_setname_np(middle, "middle");
    pthread_create(&last, 0, helper, flush);
    pthread_setname_np(last, "last");
    for (int i = 0; i < CALLS; i++) {
        int is_slow = i % (CALLS / SLOW) == 7;
        if (is_slow) {
            pthread_barrier_wait(&begin);
            pthread_barrier_wait(&held);
        }
        long long from = now();
        handle();
        planted += is_slow ? now() - from : 0;
        if (is_slow)
            pthread_barrier_wait(&end);
    }
    pthread_join(middle, 0);
    pthread_join(last, 0);
    printf("%lld\n", planted / SLOW);
    return 0;
}
