// Waits in a function whose stack holds what another one left there: an action of a signal, as
// `sigaction` hands it to the kernel.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct action {
    void *handler;
    unsigned long flags;
    void *restorer;
    unsigned long mask;
};

static void handles(int unused)
{
    (void)unused;
}

__attribute__((noinline)) static int waits(volatile struct action *action)
{
    puts("ready");
    fflush(stdout);
    char byte;
    int result = read(0, &byte, 1);
    return action->handler == 0 || result;
}

int main(void)
{
    struct sigaction set = {.sa_handler = handles};
    sigaddset(&set.sa_mask, SIGPIPE);
    volatile struct action action;
    if (sigaction(SIGINT, &set, 0) != 0
        || syscall(SYS_rt_sigaction, SIGINT, 0, &action, 8) != 0)
        return 1;
    return waits(&action);
}
