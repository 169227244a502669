/* Asks for SIGSEGV where it reads the time stamp counter, and then goes on: calls, threads, a child,
 * a library. The argument says by which function it asks. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define KEPT __attribute__((noinline))

static volatile long sink;

KEPT static long dive(long n) {
    long below = n > 0 ? dive(n - 1) + 1 : 0;
    sink = sink - 1;
    return below;
}

KEPT static void nap(void) {
    usleep(20000);
    sink = sink + 1;
}

static void *works(void *unused) {
    sink = dive(10);
    return unused;
}

int main(int argc, char **argv) {
    pthread_t thread;
    int mode = 0, status = 0;
    nap();
    if (argc > 1 && !strcmp(argv[1], "syscall"))
        syscall(SYS_prctl, PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0);
    else
        prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0);
    nap();
    if (pthread_create(&thread, NULL, works, NULL) || pthread_join(thread, NULL))
        return 1;
    pid_t child = fork();
    if (child == 0)
        _exit(dive(10) == 10 ? 7 : 1);
    if (waitpid(child, &status, 0) != child)
        return 2;
    void *library = dlopen("libm.so.6", RTLD_NOW);
    prctl(PR_GET_TSC, &mode);
    printf("%ld %d %d %d\n", dive(10), WEXITSTATUS(status), library != NULL, mode);
    return 0;
}
