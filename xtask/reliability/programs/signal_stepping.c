/* Runs calls instruction by instruction. After each, the handler of SIGTRAP looks for every real caller:
 *   now    with the handler just set
 *   later  with one that another handler has replaced, which passes on the steps */
#define _GNU_SOURCE
#include "signal_common.h"

#include <ucontext.h>

enum { TRAP_FLAG = 0x100 };
enum { MAIN, DRIVER, OUTER, MIDDLE, INNER, FUNCTIONS };

static uintptr_t functions[FUNCTIONS];
/* The innermost function that has begun, and has not said that it ends. */
static volatile int level = DRIVER;
static volatile long steps;
static volatile int finished;

struct chain {
    int found[16];
    int count;
    int frames;
};

static _Unwind_Reason_Code each_caller(struct _Unwind_Context *context,
                                       void *argument) {
    struct chain *chain = argument;
    uintptr_t start = _Unwind_GetRegionStart(context);
    if (++chain->frames > 200)
        return _URC_END_OF_STACK;
    for (int n = 0; n < FUNCTIONS; n++)
        if (start == functions[n] && chain->count < 16)
            chain->found[chain->count++] = n;
    return _URC_NO_REASON;
}

/* Ends the program unless the processor has raised a debug exception, as after each step. A hypervisor
 * may lose its reason; the kernel's code is that of a breakpoint then, whose exception is another one. */
static void check_step(int signal, const siginfo_t *info, const greg_t *registers) {
    enum { DEBUG_EXCEPTION = 1 };
    int code = info->si_code, exception = registers[REG_TRAPNO];
    if (signal == SIGTRAP && (code == TRAP_TRACE ||
                              (code == TRAP_BRKPT && exception == DEBUG_EXCEPTION)))
        return;
    dprintf(1, "wrong: signal %d with code %d, exception %d at %#llx\n", signal, code,
            exception, registers[REG_RIP]);
    _exit(3);
}

static void on_step(int signal, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    check_step(signal, info, registers);
    if (finished) {
        registers[REG_EFL] &= ~TRAP_FLAG;
        return;
    }
    struct chain chain = {.count = 0};
    _Unwind_Backtrace(each_caller, &chain);
    CHECK(chain.frames < 200);
    /* One more may be about to begin, or to end. */
    CHECK(chain.count == level + 1 || chain.count == level + 2);
    for (int n = 0; n < chain.count; n++)
        CHECK(chain.found[n] == chain.count - 1 - n);
    steps++;
}

/* Each begins with something that does not say so yet, which may be displaced. */
KEPT static long inner(long a, double b) {
    sink = sink + 1;
    level = INNER;
    sink = sink + a;
    level = MIDDLE;
    return a + (long)b;
}

KEPT static long middle(long a, double b) {
    sink = sink + 1;
    level = MIDDLE;
    long result = inner(a, b) + inner(a + 1, b);
    sink = sink + result;
    level = OUTER;
    return result + 1;
}

KEPT static long outer(long a) {
    sink = sink + 1;
    level = OUTER;
    long result = middle(a, 2.0);
    sink = sink + result;
    level = DRIVER;
    return result + 1;
}

KEPT static long driver(void) {
    long result = 0;
    /* Below the red zone. The first step is when the stack is as it was. */
    __asm__ volatile("lea -128(%%rsp), %%rsp\n\tpushfq\n\torq %0, (%%rsp)\n\tpopfq\n\t"
                     "lea 128(%%rsp), %%rsp" ::"i"(TRAP_FLAG) : "memory", "cc");
    for (int n = 0; n < 3; n++)
        result += outer(n);
    finished = 1;
    return result;
}

/* Waits until fgraph has put its handler first, so that no trap of its own comes here. */
static void wait_for_other_handler(void) {
    struct sigaction now = {.sa_sigaction = on_step};
    while (getenv("LD_PRELOAD") && now.sa_sigaction == on_step) {
        usleep(1000);
        CHECK(sigaction(SIGTRAP, NULL, &now) == 0);
    }
}

KEPT static long toggled(long n) {
    sink = sink + n;
    return n + 1;
}

int main(int argc, char **argv) {
    functions[MAIN] = (uintptr_t)main;
    functions[DRIVER] = (uintptr_t)driver;
    functions[OUTER] = (uintptr_t)outer;
    functions[MIDDLE] = (uintptr_t)middle;
    functions[INNER] = (uintptr_t)inner;
    struct sigaction action = {.sa_sigaction = on_step,
                               .sa_flags = SA_SIGINFO | SA_NODEFER};
    CHECK(sigaction(SIGTRAP, &action, NULL) == 0);
    if (argc == 2 && !strcmp(argv[1], "later")) {
        wait_for_other_handler();
        CHECK(toggled(1) == 2);
    }
    printf("result %ld\n", driver());
    CHECK(steps > 100);
    printf("every caller found\n");
    return 0;
}
