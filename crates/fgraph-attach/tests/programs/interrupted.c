// Waits in a function whose stack holds what a signal handler left there that has long returned. With
// an argument it waits in the handler itself.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int waits_in_handler;

__attribute__((noinline)) static int waits(volatile char *unused)
{
    puts("ready");
    fflush(stdout);
    char byte;
    int result = read(0, &byte, 1);
    return unused[0] + 1 == 0 || result;
}

static void handles(int signal)
{
    (void)signal;
    if (waits_in_handler) {
        char none[1] = {0};
        _exit(waits(none));
    }
}

// The frame of the signal lies where `above` has its array, which it never writes to.
__attribute__((noinline)) static void interrupted(void)
{
    raise(SIGUSR1);
}

__attribute__((noinline)) static int above(void)
{
    volatile char unused[64 << 10];
    return waits(unused + sizeof unused - 1);
}

__attribute__((noinline)) static int below(void)
{
    volatile char room[8 << 10];
    room[0] = 0;
    interrupted();
    return room[0];
}

int main(int argc, char **argv)
{
    (void)argv;
    waits_in_handler = argc > 1;
    signal(SIGUSR1, handles);
    return below() || above();
}
