/* Code that the programs about signals share. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <unwind.h>

#include "kept.h"

/* Results that must be right; the first that is not is the program's exit code, as a line. */
#define CHECK(right)                                                           \
    do {                                                                       \
        if (!(right)) {                                                        \
            static const char text[] = "wrong: " #right "\n";                  \
            if (write(1, text, sizeof text - 1))                               \
                _exit(3);                                                      \
            _exit(4);                                                          \
        }                                                                      \
    } while (0)

static volatile long sink;

/* Work for traced functions: dive(n) makes 2 n + 2 calls and returns 3 n + 1. */
KEPT static long leaf(long n) {
    sink = sink + n;
    return n > 0 ? 2 : 1;
}

KEPT static long dive(long n) {
    long below = n > 0 ? dive(n - 1) + 1 : 0;
    sink = sink - 1;
    return below + leaf(n);
}

/* Looks for functions in the callers of whoever asks. */
struct walk {
    uintptr_t wanted[8];
    int found; /* in order, so many of them */
    int frames;
};

static _Unwind_Reason_Code each_frame(struct _Unwind_Context *context,
                                      void *argument) {
    struct walk *walk = argument;
    walk->frames++;
    if (walk->frames > 1000)
        return _URC_END_OF_STACK;
    if (_Unwind_GetRegionStart(context) == walk->wanted[walk->found])
        walk->found++;
    return _URC_NO_REASON;
}

/* True if the calls lead back to all these, innermost first. */
KEPT static int leads_to(const uintptr_t *wanted, int count) {
    struct walk walk = {.frames = 0};
    for (int index = 0; index < count; index++)
        walk.wanted[index] = wanted[index];
    _Unwind_Backtrace(each_frame, &walk);
    return walk.found == count && walk.frames < 1000;
}
