/* Calls that end by an exception. */
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#include "kept.h"

/* Before glibc 2.35 the unwinder takes locks to find a frame. A handler that has interrupted it, or the child of a fork,
 * then waits for ever, also without tracing. */
[[maybe_unused]] static void needs_unwinder_without_locks() {
    if (dlsym(RTLD_DEFAULT, "_dl_find_object"))
        return;
    fprintf(stderr, "the unwinder takes locks (glibc before 2.35)\n");
    exit(77);
}

/* Work after a call makes it neither a tail call nor a loop. */
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
