/* More calls at once than there is room for. */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kept.h"

static volatile int sink;
static jmp_buf start;
static int jumps;

/* Not a tail call, and not a loop. */
KEPT static long dive(long calls) {
    if (calls == 0) {
        if (jumps)
            longjmp(start, 1);
        return 1;
    }
    long result = dive(calls - 1) + 1;
    sink = result;
    return result;
}

KEPT static int is_right(long calls) {
    long result = dive(calls);
    sink = result;
    return result == calls + 1;
}

/* Down and up again, and with less depth in between. */
KEPT static void *dives(void *argument) {
    long calls = *(long *)argument;
    int right = 0;
    for (int i = 0; i < 3; i++)
        right += is_right(calls) + is_right(10) + is_right(calls / 1000);
    printf("%d of 9 were right\n", right);
    return right == 9 ? argument : NULL;
}

KEPT static int leaves(long calls) {
    if (setjmp(start) == 0)
        dive(calls);
    return 1;
}

/* The same, but left by a jump from the deepest call. */
KEPT static void *jumps_out(void *argument) {
    long calls = *(long *)argument;
    int right = 0;
    for (int i = 0; i < 3; i++) {
        jumps = 1;
        right += leaves(calls);
        jumps = 0;
        right += is_right(10);
    }
    printf("%d of 6 were right\n", right);
    return right == 6 ? argument : NULL;
}

int main(int argc, char **argv) {
    size_t length = 1 << 30;
    long calls = argc > 2 ? atol(argv[2]) : 0;
    void *(*what)(void *) = argc > 1 && !strcmp(argv[1], "jump") ? jumps_out : dives;
    char *stack = mmap(NULL, length, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    pthread_attr_t how;
    pthread_t thread;
    void *result;
    pthread_attr_init(&how);
    if (pthread_attr_setstack(&how, stack, length) || pthread_create(&thread, &how, what, &calls) ||
        pthread_join(thread, &result))
        return 1;
    return result == &calls ? 0 : 1;
}
