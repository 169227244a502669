/* longjmp out of FRAMES calls, TIMES times, without memory that grows: jump_frames FRAMES TIMES */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>

static jmp_buf back;
static volatile long sink;

static __attribute__((noinline, noclone)) int leave(int depth) {
    if (depth == 0)
        longjmp(back, 7);
    int below = leave(depth - 1);
    sink = sink + 1;
    return below + 1;
}

static __attribute__((noinline, noclone)) int returns(int depth) {
    int below = depth == 0 ? 0 : returns(depth - 1);
    sink = sink + 1;
    return below + 1;
}

static __attribute__((noinline, noclone)) int once(int frames) {
    int code = setjmp(back);
    if (code == 0)
        leave(frames - 1);
    sink = sink + 1;
    return code;
}

static long resident(void) {
    long size = 0, pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld %ld", &size, &pages) != 2)
        exit(2);
    fclose(file);
    return pages;
}

int main(int argc, char **argv) {
    int frames = atoi(argv[1]), times = atoi(argv[2]);
    long jumps = 0, others = 0, before = 0;
    for (int n = 0; n < times; n++) {
        jumps += once(frames);
        if (n % 100 == 0)
            others += returns(10);
        if (n == times / 10)
            before = resident();
    }
    printf("%ld %ld\n", jumps, others);
    printf("%s\n", resident() - before < 256 ? "no growth" : "growth");
    return argc != 3;
}
