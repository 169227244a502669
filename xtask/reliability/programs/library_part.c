/* A library that is loaded and unloaded: calls of its own functions, constructors and destructors, thread-local
 * variables, a function chosen when it is loaded. -DVALUE=N makes another one of the same names. */
#include <stdio.h>

#ifndef VALUE
#define VALUE 1
#endif
#include "kept.h"

extern void part_event(const char *name) __attribute__((weak));

/* Sometimes there is nobody who wants to know. */
KEPT static void event(const char *name) {
    if (part_event) part_event(name);
}

static int state;
/* Variables of the general dynamic model, and of the local dynamic one. */
__thread long part_tls = 100 * VALUE;
static __thread long part_local[20] = { 7 * VALUE };
#if defined(INITIAL_EXEC)
static __thread long part_initial __attribute__((tls_model("initial-exec"))) = 3 * VALUE;
#else
static __thread long part_initial = 3 * VALUE;
#endif

KEPT long part_leaf(long n) { return n * 3 + VALUE; }

KEPT long part_sum(long n) {
    long sum = state;
    for (long i = 0; i < n; i++) sum += part_leaf(i);
    return sum;
}

KEPT long part_thread(long n) {
    part_tls += n;
    part_local[n & 7] += n;
    part_initial += part_leaf(n);
    return part_tls * 1000000 + part_local[0] * 1000 + part_initial;
}

/* An interposed function: the library's own call may go elsewhere. */
long part_name(void);
KEPT long part_name(void) { return VALUE; }
KEPT long part_calls_name(void) { return part_name() * 10 + VALUE; }

/* Chosen by a resolver, which runs when the library is relocated. */
KEPT static long chosen(long n) { return part_leaf(n) + 1000; }
KEPT static long (*resolve(void))(long) { return chosen; }
long part_chosen(long n) __attribute__((ifunc("resolve")));
KEPT long part_calls_chosen(long n) { return part_chosen(n) + 1; }

/* Goes on elsewhere, and is not needed any more then: `go_on` may unload the library. */
long part_leaves(long (*go_on)(long), long n);
__asm__(".text\n.globl part_leaves\n.type part_leaves, @function\n.p2align 4\n"
        "part_leaves:\n mov %rdi, %rax\n mov %rsi, %rdi\n add $1, %rdi\n jmp *%rax\n"
        ".size part_leaves, .-part_leaves\n");

KEPT long part_waits(void (*wait)(void), long n) {
    wait();
    return part_leaf(n) + state;
}

__attribute__((constructor(101))) static void first(void) { state = 1; event("constructor 101"); }
__attribute__((constructor(102))) static void second(void) { state = state * 2 + 1; event("constructor 102"); }
__attribute__((constructor)) static void third(void) { state = state * 2 + (int)part_leaf(0); event("constructor"); }
__attribute__((destructor)) static void last_but_two(void) { state += 1; event("destructor"); }
__attribute__((destructor(102))) static void last_but_one(void) { state += 1; event("destructor 102"); }
__attribute__((destructor(101))) static void last(void) { state = (int)part_sum(3); event("destructor 101"); }
