/* C++ exceptions: "caught N" throws N frames below the function that catches. */
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define KEPT __attribute__((noinline))

static volatile int sink;

/* Not a tail call, and not a loop. */
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

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "caught")) {
        int thrown = caught(atoi(argv[2]));
        printf("caught %d\n", thrown);
        return thrown == 42 ? 0 : 1;
    }
    return 2;
}
