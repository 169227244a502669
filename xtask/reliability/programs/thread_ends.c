/* Threads that end in the middle of calls. The first argument says how, the second how many frames deep. */
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kept.h"

#define ROUNDS 20

static enum { EXIT, DEFERRED, ASYNCHRONOUS, BUSY, PENDING } how;
static int frames;
static atomic_int cleaned;
static sem_t ready;
static volatile unsigned long spins;

KEPT static void leaf(int n) { cleaned += n; }

KEPT static void clean(void *number) {
    leaf(*(int *)number);
    leaf(1);
}

KEPT static void end(void) {
    switch (how) {
    case EXIT:
        pthread_exit("exited");
    case DEFERRED:
        sem_post(&ready);
        for (;;)
            pause();
    case ASYNCHRONOUS:
        pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
        sem_post(&ready);
        for (;;)
            spins++;
    case BUSY:
        pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
        sem_post(&ready);
        for (;;)
            leaf(0);
    case PENDING:
        sem_post(&ready);
        /* Only the program itself comes to a cancellation point, and seldom. */
        for (int n = 1;; n++) {
            leaf(0);
            if (n % 1000 == 0)
                pthread_testcancel();
        }
    }
}

/* Every other frame has something to clean up. */
KEPT static int dive(int n) {
    int number = n, result;
    if (n == 0) {
        end();
        result = 0;
    } else if (n % 2) {
        result = dive(n - 1);
    } else {
        pthread_cleanup_push(clean, &number);
        result = dive(n - 1);
        pthread_cleanup_pop(1);
    }
    spins++;
    return result + number;
}

KEPT static void *start(void *argument) {
    int result = dive(frames);
    spins += result;
    return argument;
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    frames = atoi(argv[2]);
    how = !strcmp(argv[1], "exit") ? EXIT  : !strcmp(argv[1], "deferred") ? DEFERRED : !strcmp(argv[1], "busy") ? BUSY
        : !strcmp(argv[1], "pending") ? PENDING : ASYNCHRONOUS;
    sem_init(&ready, 0, 0);
    int right = 0;
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t thread;
        void *result;
        if (pthread_create(&thread, NULL, start, NULL))
            return 3;
        if (how != EXIT) {
            sem_wait(&ready);
            pthread_cancel(thread);
        }
        pthread_join(thread, &result);
        right += how == EXIT ? !strcmp(result, "exited") : result == PTHREAD_CANCELED;
    }
    int expected = 0;
    for (int n = 2; n <= frames; n += 2)
        expected += (n + 1) * ROUNDS;
    printf("%s: %d threads, cleaned %d\n", argv[1], right, cleaned);
    return right == ROUNDS && cleaned == expected ? 0 : 1;
}
