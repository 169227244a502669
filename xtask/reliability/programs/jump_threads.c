/* Two threads that go on with each other's own contexts, the ones that they began with: jump_threads ROUNDS. */
#define _GNU_SOURCE
#include "kept.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#define STACK 65536
#define DEPTH 12

struct side {
    /* Contexts of the thread's own stack, of its scheduler, and of the scheduler that goes on with the first. */
    ucontext_t own, scheduler, borrower;
    /* The own context waits to be borrowed; it was given back. */
    sem_t lent, back;
    int number;
    long rounds;
    /* One for the own context, one for the scheduler: two threads may be in them at once. */
    long own_sum, scheduler_sum;
};

static struct side sides[2];
static volatile long sink;

KEPT static long own_leaf(long n) {
    sink = n;
    return n + 1;
}

/* Comes back in the other thread. */
KEPT static long own_lends(struct side *self, int depth, long n) {
    if (depth == 0)
        swapcontext(&self->own, &self->scheduler);
    long below = depth == 0 ? 0 : own_lends(self, depth - 1, n + 1);
    sink = below;
    return below + own_leaf(n);
}

KEPT static void schedule(int number) {
    struct side *self = &sides[number], *other = &sides[!number];
    for (long round = 0;; round++) {
        sem_post(&self->lent);
        /* In some rounds nothing shows that the thread is elsewhere. */
        if (round % 3)
            self->scheduler_sum += own_leaf(round);
        sem_wait(&other->lent);
        swapcontext(&other->borrower, &other->own);
        if (round % 2)
            self->scheduler_sum += own_leaf(round);
        sem_post(&other->back);
        sem_wait(&self->back);
        swapcontext(&self->scheduler, &self->own);
    }
}

static void *begin(void *argument) {
    struct side *self = argument;
    getcontext(&self->scheduler);
    self->scheduler.uc_stack.ss_sp = malloc(STACK);
    self->scheduler.uc_stack.ss_size = STACK;
    self->scheduler.uc_link = NULL;
    makecontext(&self->scheduler, (void (*)(void))schedule, 1, self->number);
    for (long round = 0; round < self->rounds; round++) {
        self->own_sum += own_lends(self, (int)(round % DEPTH), round);
        swapcontext(&self->own, &self->borrower);
        self->own_sum += own_leaf(round);
    }
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t other;
    for (int n = 0; n < 2; n++) {
        sides[n].number = n;
        sides[n].rounds = argc > 1 ? atol(argv[1]) : 1000;
        sem_init(&sides[n].lent, 0, 0);
        sem_init(&sides[n].back, 0, 0);
    }
    pthread_create(&other, NULL, begin, &sides[1]);
    begin(&sides[0]);
    pthread_join(other, NULL);
    for (int n = 0; n < 2; n++)
        printf("%ld %ld\n", sides[n].own_sum, sides[n].scheduler_sum);
    return 0;
}
