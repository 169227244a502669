// Leaves no free memory within reach of its text before any library is initialized, and calls `work`
// until its input ends.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define REACH (5ul << 29)

static void fill(unsigned long from, unsigned long to) {
    if (from < to)
        mmap((void *)from, to - from, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
}

__attribute__((noinline)) int work(int n) { return n * n + getchar(); }

static void fill_all(void) {
    unsigned long near = (unsigned long)&work & -4096ul, from = near > REACH ? near - REACH : 4096;
    unsigned long free_from = from, begin, end;
    static char line[4096];
    static struct { unsigned long from, to; } holes[1000];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps)) {
        sscanf(line, "%lx-%lx", &begin, &end);
        if (end <= free_from)
            continue;
        holes[count].from = free_from;
        holes[count++].to = begin < near + REACH ? begin : near + REACH;
        free_from = end;
    }
    fclose(maps);
    while (count--)
        fill(holes[count].from, holes[count].to);
}

__attribute__((section(".preinit_array"), used)) static void (*first)(void) = fill_all;

int main(void) {
    puts("full");
    fflush(stdout);
    while (work(3) != 8)
        ;
    return 0;
}
