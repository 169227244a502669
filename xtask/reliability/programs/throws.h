/* Calls that end by an exception. */
#include "kept.h"

/* What is done after a call makes it neither a tail call nor a loop. */
static volatile int sink;

KEPT static int dive(int frames) {
    if (frames == 0)
        throw 42;
    int result = dive(frames - 1);
    sink = sink + 1;
    return result + 1;
}

KEPT static int caught(int frames) {
    try {
        return dive(frames);
    } catch (int thrown) {
        return thrown;
    }
}
