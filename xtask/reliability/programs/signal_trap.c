/* Two handlers of SIGTRAP take turns: each that gets the program's own trap sets the other. They hand on other traps
 * to the handler that was there before. Threads call functions meanwhile. */
#define _GNU_SOURCE
#include "signal_common.h"

#include <ucontext.h>

enum { TRAPS = 1000, THREADS = 2 };

/* Not a function to anyone who looks. */
__asm__(".pushsection .text\nown_trap:\n\tint3\n\tret\n.popsection");
extern const char own_trap[];

typedef void handler(int, siginfo_t *, void *);

static struct sigaction before;
static volatile int own[2];
static volatile int ready, done;

static void set(int which);

KEPT static long toggled_leaf(long n) {
    sink = sink + 1;
    return n + 1;
}

KEPT static long toggled_outer(long n) {
    long result = toggled_leaf(n);
    sink = sink + 1;
    return toggled_leaf(result) + 1;
}

KEPT static void on_trap(int which, int signal, siginfo_t *info, void *context) {
    ucontext_t *at = context;
    if (info->si_code == SI_KERNEL &&
        at->uc_mcontext.gregs[REG_RIP] - 1 == (long)own_trap) {
        set(!which);
        CHECK(toggled_outer(which) == which + 3);
        own[which]++;
    } else {
        CHECK(before.sa_flags & SA_SIGINFO);
        before.sa_sigaction(signal, info, context);
    }
}

static void on_trap_0(int signal, siginfo_t *info, void *context) {
    on_trap(0, signal, info, context);
}

static void on_trap_1(int signal, siginfo_t *info, void *context) {
    on_trap(1, signal, info, context);
}

/* Not deferred: what a handler calls may trap, too. */
KEPT static void set(int which) {
    struct sigaction action = {.sa_sigaction = which ? on_trap_1 : on_trap_0,
                               .sa_flags = SA_SIGINFO | SA_NODEFER};
    CHECK(sigaction(SIGTRAP, &action, NULL) == 0);
    sink = sink + 1;
}

static void *thread(void *argument) {
    (void)argument;
    __sync_fetch_and_add(&ready, 1);
    while (!done)
        for (long n = 0; n < 100; n++)
            CHECK(toggled_outer(n) == n + 3);
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    CHECK(sigaction(SIGTRAP, NULL, &before) == 0);
    set(0);
    for (int n = 0; n < THREADS; n++)
        CHECK(!pthread_create(&threads[n], NULL, thread, NULL));
    while (ready < THREADS)
        usleep(1000);
    for (int n = 0; n < TRAPS; n++) {
        /* A call that the compiler knows nothing of: nothing may be in the red zone. */
        __asm__ volatile("lea -128(%%rsp), %%rsp\n\tcall own_trap\n\t"
                         "lea 128(%%rsp), %%rsp" ::: "memory", "cc");
        CHECK(toggled_outer(n) == n + 3);
        if (n % 10 == 0)
            usleep(300);
    }
    done = 1;
    for (int n = 0; n < THREADS; n++)
        CHECK(!pthread_join(threads[n], NULL));
    printf("%d traps, and %d\n", own[0], own[1]);
    return 0;
}
