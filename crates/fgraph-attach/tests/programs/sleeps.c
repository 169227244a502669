// Sleeps for as many milliseconds as it is told, and fails if that was cut short. With 0 it waits
// until standard input ends.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    (void)argc;
    int ms = atoi(argv[1]);
    struct timespec sleep = {ms / 1000, ms % 1000 * 1000000L}, from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    puts("ready");
    fflush(stdout);
    errno = 5;
    char byte;
    if (ms == 0)
        return read(0, &byte, 1) == 0 && errno == 5 ? 0 : 4;
    if (nanosleep(&sleep, 0) != 0 || errno != 5)
        return 2;
    clock_gettime(CLOCK_MONOTONIC, &to);
    long slept = (to.tv_sec - from.tv_sec) * 1000 + (to.tv_nsec - from.tv_nsec) / 1000000;
    return slept >= ms ? 0 : 3;
}
