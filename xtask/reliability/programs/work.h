/* Calls that others are made below. */
#include "kept.h"

#define WORK (40 * 41 / 2)

static volatile int sink;

/* Not a tail call, and not a loop. */
KEPT static int work(int n) {
    int sum = n == 0 ? 0 : work(n - 1) + n;
    sink = sum;
    return sum;
}

/* Returns the result of `inner`, called below `calls` calls, plus their number. */
KEPT static int below(int calls, int (*inner)(void)) {
    int result = calls == 0 ? inner() : below(calls - 1, inner) + 1;
    sink = result;
    return result;
}
