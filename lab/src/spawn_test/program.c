// Starts processes with two threads until CHILDREN have ended, or for SECONDS.
//
//     program posix_spawn|vfork|system|popen CHILDREN SECONDS

#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static char *const PROGRAM[] = {"/bin/true", NULL};

static int status_of(pid_t child) {
    int status = -1;
    return waitpid(child, &status, 0) == child ? status : -1;
}

static int by_posix_spawn(void) {
    pid_t child;
    int error = posix_spawn(&child, PROGRAM[0], NULL, NULL, PROGRAM, environ);
    return error == 0 ? status_of(child) : -1;
}

// As shells and interpreters do: the child resets what it must with all signals blocked.
static int by_vfork(void) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    pid_t child = vfork();
    if (child == 0) {
        for (int number = 1; number < 32; number++)
            signal(number, SIG_DFL);
        dup2(0, 0);
        setpgid(0, 0);
        execve(PROGRAM[0], PROGRAM, environ);
        _exit(127);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return child > 0 ? status_of(child) : -1;
}

static int by_system(void) {
    return system("exit 0");
}

static int by_popen(void) {
    FILE *output = popen("exit 0", "r");
    return output != NULL ? pclose(output) : -1;
}

static int (*start)(void);
static atomic_long left, children, bad;
static time_t end;

static void *starts(void *argument) {
    while (atomic_fetch_sub(&left, 1) > 0 && time(NULL) < end) {
        int status = start();
        if (status != 0) {
            atomic_fetch_add(&bad, 1);
            fprintf(stderr, "a child has ended with %#x\n", status);
        }
        atomic_fetch_add(&children, 1);
    }
    return argument;
}

int main(int count, char **arguments) {
    if (count != 4)
        return 2;
    const char *way = arguments[1];
    start = strcmp(way, "vfork") == 0    ? by_vfork
            : strcmp(way, "system") == 0 ? by_system
            : strcmp(way, "popen") == 0  ? by_popen
                                         : by_posix_spawn;
    atomic_store(&left, atol(arguments[2]));
    end = time(NULL) + atol(arguments[3]);
    puts("begun");
    fflush(stdout);
    pthread_t threads[2];
    for (int number = 0; number < 2; number++)
        if (pthread_create(&threads[number], NULL, starts, NULL) != 0)
            return 2;
    for (int number = 0; number < 2; number++)
        pthread_join(threads[number], NULL);
    printf("ended %ld %ld\n", atomic_load(&children), atomic_load(&bad));
    return 0;
}
