/* Contexts that swap in any order: jump_contexts STACKS THREADS, where STACKS is `static` (all in one array),
   `heap` (from malloc) or `mapped` (each with a page before it that cannot be touched). With a third argument
   it may not read memory of processes. */
#define _GNU_SOURCE
#include "sandbox.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#define CONTEXTS 12
#define STACK 65536
#define TURNS 4000

static char stacks[CONTEXTS][STACK];

struct coroutine {
    ucontext_t own, resumer;
    int number, done, left;
    unsigned random;
    long sum;
};

static struct coroutine all[CONTEXTS];

static unsigned next(unsigned *random) {
    *random = *random * 1664525u + 1013904223u;
    return *random >> 16;
}

static __attribute__((noinline, noclone)) void give_way(struct coroutine *self) {
    swapcontext(&self->own, &self->resumer);
}

static __attribute__((noinline, noclone)) long descend(struct coroutine *self, int depth) {
    volatile char room[128];
    unsigned choice = next(&self->random);
    room[choice % sizeof room] = (char)depth;
    self->left--;
    if (choice & 64)
        give_way(self);
    long sum = room[choice % sizeof room] + 1;
    if (depth < 8 && self->left > 0)
        for (unsigned n = choice % 3; n > 0; n--)
            sum += descend(self, depth + 1);
    if (choice & 128)
        give_way(self);
    return sum + room[choice % sizeof room];
}

static void body(int number) {
    struct coroutine *self = &all[number];
    while (self->left > 0)
        self->sum += descend(self, 0);
    self->done = 1;
    give_way(self);
}

static void make(struct coroutine *self, const char *where) {
    char *stack = stacks[self->number];
    if (!strcmp(where, "heap"))
        stack = malloc(STACK);
    if (!strcmp(where, "mapped")) {
        stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        mprotect(stack, 4096, PROT_NONE);
    }
    getcontext(&self->own);
    self->own.uc_stack.ss_sp = stack;
    self->own.uc_stack.ss_size = STACK;
    self->own.uc_link = NULL;
    self->random = 77u * (unsigned)self->number + 5;
    self->left = TURNS;
    makecontext(&self->own, (void (*)(void))body, 1, self->number);
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct coroutine *ready[CONTEXTS];
static int waiting, left;

static __attribute__((noinline, noclone)) void resume(struct coroutine *one) {
    swapcontext(&one->resumer, &one->own);
}

static void *work(void *seed) {
    unsigned random = (unsigned)(size_t)seed + 1;
    for (;;) {
        pthread_mutex_lock(&lock);
        struct coroutine *one = NULL;
        int over = left == 0;
        if (waiting > 0) {
            unsigned which = next(&random) % (unsigned)waiting;
            one = ready[which];
            ready[which] = ready[--waiting];
        }
        pthread_mutex_unlock(&lock);
        if (over)
            return NULL;
        if (!one) {
            sched_yield();
            continue;
        }
        resume(one);
        pthread_mutex_lock(&lock);
        if (one->done)
            left--;
        else
            ready[waiting++] = one;
        pthread_mutex_unlock(&lock);
    }
}

int main(int argc, char **argv) {
    int threads = atoi(argv[2]);
    if (argc > 3)
        forbid((int[]){SYS_process_vm_readv, -1});
    for (int n = 0; n < CONTEXTS; n++) {
        all[n].number = n;
        make(&all[n], argv[1]);
        ready[waiting++] = &all[n];
    }
    left = CONTEXTS;
    pthread_t others[16];
    for (int n = 1; n < threads; n++)
        pthread_create(&others[n], NULL, work, (void *)(size_t)n);
    work(NULL);
    for (int n = 1; n < threads; n++)
        pthread_join(others[n], NULL);
    for (int n = 0; n < CONTEXTS; n++)
        printf("%d: %ld\n", n, all[n].sum);
    return 0;
}
