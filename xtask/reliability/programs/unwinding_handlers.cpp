/* Backtraces in the handler of a timer that interrupts the unwinder, as profilers take them. */
#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unwind.h>

#include <cstdio>

#include "throws.h"

#define SIGNALS 50

static volatile int handled, empty;
/* The unwinder's function. */
static void *looking;

/* Where it looks for a frame. In other places, where it leaves for who catches, nobody can tell who has called it. */
KEPT static bool looks(const void *context) {
    const ucontext_t *interrupted = static_cast<const ucontext_t *>(context);
    void *at = reinterpret_cast<void *>(interrupted->uc_mcontext.gregs[REG_RIP]);
    return _Unwind_FindEnclosingFunction(at) == looking;
}

KEPT static void on_signal(int, siginfo_t *, void *context) {
    if (!looks(context))
        return;
    void *frames[64];
    if (backtrace(frames, 64) < 3)
        empty = empty + 1;
    handled = handled + 1;
}

int main() {
    needs_unwinder_without_locks();
    looking = dlsym(RTLD_DEFAULT, "_Unwind_Find_FDE");
    /* The first one loads what it needs. */
    void *frames[4];
    backtrace(frames, 4);
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGALRM, &action, nullptr);
    itimerval interval = {{0, 200}, {0, 200}};
    setitimer(ITIMER_REAL, &interval, nullptr);
    int wrong = 0;
    while (handled < SIGNALS)
        wrong += caught(10) != 42;
    signal(SIGALRM, SIG_IGN);
    printf("%d wrong, %d empty\n", wrong, empty);
    return wrong || empty;
}
