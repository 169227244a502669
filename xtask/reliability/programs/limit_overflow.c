/* Overflows stacks, and goes on each time: the main thread's, those of threads, a coroutine's. */
#define _GNU_SOURCE
#include <alloca.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <ucontext.h>

#include "kept.h"

#define ROUNDS 50
#define ALTERNATE (64 << 10)
/* The recursion begins as far above the end of a stack. */
#define ROOM (96 << 10)

static volatile long sink;
static _Thread_local sigjmp_buf place;
static _Thread_local uintptr_t low;
static volatile int went_wrong;

/* Jumps out of the function that has hit the end of the stack, wherever the fault is. */
static void on_fault(int number, siginfo_t *info, void *context) {
    uintptr_t address = (uintptr_t)info->si_addr;
    (void)context;
    if (address >= low || low - address > 16384)
        went_wrong = number;
    siglongjmp(place, 1);
}

/* Not tail calls, and not loops. */
#define DIVES(bytes)                                                                              \
    KEPT static long dives_##bytes(long calls) {                                                  \
        volatile char frame[bytes];                                                               \
        if (calls < 0)                                                                            \
            return 0;                                                                             \
        frame[0] = calls;                                                                         \
        long result = dives_##bytes(calls + 1) + frame[0];                                        \
        sink = result;                                                                            \
        return result;                                                                            \
    }

DIVES(1)
DIVES(16)
DIVES(32)
DIVES(48)
DIVES(4096)
DIVES(6000)

static long (*const dives[])(long) = {dives_1,  dives_16,   dives_32,
                                      dives_48, dives_4096, dives_6000};

KEPT static long leaf(long number) {
    sink = number;
    return 3 * number + 1;
}

/* A round that returns: the thread is traced as before. */
KEPT static int is_right(long number) {
    long result = leaf(number);
    return result == 3 * number + 1;
}

/* Calls `dive` near the end of the stack. */
KEPT static void near_end(long (*dive)(long)) {
    uintptr_t here = (uintptr_t)__builtin_frame_address(0);
    volatile char *skipped = alloca(here - low > ROOM ? here - low - ROOM : 1);
    skipped[0] = 1;
    sink = dive(0) + skipped[0];
}

KEPT static int overflows(int round) {
    if (sigsetjmp(place, 1) == 0) {
        near_end(dives[round % (sizeof dives / sizeof *dives)]);
        return 0;
    }
    return 1;
}

/* The end of the calling thread's stack. */
static uintptr_t lowest(void) {
    pthread_attr_t attributes;
    void *start;
    size_t size;
    if (pthread_getattr_np(pthread_self(), &attributes) ||
        pthread_attr_getstack(&attributes, &start, &size))
        return 0;
    pthread_attr_destroy(&attributes);
    return (uintptr_t)start;
}

KEPT static void *rounds(void *name) {
    static _Thread_local char alternate[ALTERNATE];
    stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};
    int caught = 0, right = 0;
    low = lowest();
    if (sigaltstack(&stack, NULL))
        return NULL;
    for (int round = 0; round < ROUNDS; round++) {
        caught += overflows(round);
        right += is_right(round);
    }
    printf("%s: %d caught, %d right\n", (char *)name, caught, right);
    return caught == ROUNDS && right == ROUNDS ? name : NULL;
}

static ucontext_t caller, coroutine;

KEPT static void run(void) {
    sink = dives_16(0);
}

/* The same on the small stack of a coroutine. */
KEPT static void *switches(void *volatile name) {
    const size_t guard = 16384, size = 32 << 10;
    char *memory = mmap(NULL, guard + size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    volatile int caught = 0, right = 0;
    if (memory == MAP_FAILED || mprotect(memory, guard, PROT_NONE))
        return NULL;
    low = (uintptr_t)memory + guard;
    for (int round = 0; round < ROUNDS; round++) {
        if (sigsetjmp(place, 1) == 0) {
            getcontext(&coroutine);
            coroutine.uc_stack.ss_sp = memory + guard;
            coroutine.uc_stack.ss_size = size;
            coroutine.uc_link = &caller;
            makecontext(&coroutine, run, 0);
            swapcontext(&caller, &coroutine);
        } else {
            caught++;
        }
        right += is_right(round);
    }
    munmap(memory, guard + size);
    printf("%s: %d caught, %d right\n", (char *)name, caught, right);
    return caught == ROUNDS && right == ROUNDS ? name : NULL;
}

KEPT static int in_thread(void *(*what)(void *), char *name, size_t size) {
    pthread_attr_t attributes;
    pthread_t thread;
    void *result;
    pthread_attr_init(&attributes);
    return !pthread_attr_setstacksize(&attributes, size) &&
           !pthread_create(&thread, &attributes, what, name) && !pthread_join(thread, &result) &&
           result == name;
}

int main(void) {
    struct sigaction action = {.sa_sigaction = on_fault,
                               .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    char *name = "main thread";
    int right = !sigaction(SIGSEGV, &action, NULL) && rounds(name) == name;
    right &= in_thread(rounds, "thread", 8 << 20);
    right &= in_thread(rounds, "small thread", 160 << 10);
    name = "coroutine";
    right &= switches(name) == name;
    return right && !went_wrong ? 0 : 1;
}
