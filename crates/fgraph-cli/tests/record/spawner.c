// Executes itself in every way that the C library has; each child calls `leaf` once.
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

// The C library has `execveat` from glibc 2.34 on.
#if defined __GLIBC__ && !__GLIBC_PREREQ(2, 34)
#define execveat(directory, path, args, environment, flags) execve(path, args, environment)
#endif

__attribute__((noinline)) void leaf(void) { __asm__ volatile("nop; nop; nop; nop; nop; nop"); }

static void reap(pid_t child) {
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
        fprintf(stderr, "a child has failed\n");
        exit(1);
    }
}

int main(int argc, char **argv) {
    if (argc > 1) {
        leaf();
        return getenv("LD_PRELOAD") != NULL || getenv("FGRAPH_AGENT") != NULL ||
               getenv("ASAN_OPTIONS") != NULL;
    }
    char path[4096];
    path[readlink("/proc/self/exe", path, sizeof path - 1)] = 0;
    char *name = strrchr(path, '/') + 1;
    char *args[] = {path, "child", NULL};
    char *few[] = {"A=1", "LD_PRELOAD=", NULL};
    char command[4200];
    snprintf(command, sizeof command, "%s child", path);
    pid_t child;
    // 1, 2: with a shell, which executes the child.
    if (system(command) != 0)
        return 1;
    if (pclose(popen(command, "r")) != 0)
        return 1;
    // 3, 4
    if (posix_spawn(&child, path, NULL, NULL, args, environ) != 0)
        return 1;
    reap(child);
    char directory[4096];
    strcpy(directory, path);
    *strrchr(directory, '/') = 0;
    setenv("PATH", directory, 1);
    if (posix_spawnp(&child, name, NULL, NULL, args, environ) != 0)
        return 1;
    reap(child);
    // 5 to 8
    if ((child = fork()) == 0)
        _exit(execv(path, args));
    reap(child);
    if ((child = fork()) == 0)
        _exit(execlp(name, name, "child", NULL));
    reap(child);
    if ((child = vfork()) == 0)
        _exit(execve(path, args, environ));
    reap(child);
    if ((child = vfork()) == 0)
        _exit(execve(path, args, NULL));
    reap(child);
    // 9, 10
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if ((child = fork()) == 0)
        _exit(fexecve(file, args, environ));
    reap(child);
    if ((child = fork()) == 0)
        _exit(execveat(AT_FDCWD, path, args, environ, 0));
    reap(child);
    // 11: a variable of its own, which is there again behind the agent.
    if ((child = fork()) == 0)
        _exit(execve(path, args, few));
    int status;
    waitpid(child, &status, 0);
    if (WEXITSTATUS(status) != 1)
        return 1;
    // 12 to 15: with a list of libraries of its own, which is gone afterwards, from one thread.
    for (int i = 0; i < 2; i++) {
        setenv("LD_PRELOAD", "libm.so.6:libdl.so.2", 1);
        if (posix_spawn(&child, path, NULL, NULL, args, environ) != 0)
            return 1;
        waitpid(child, &status, 0);
        unsetenv("LD_PRELOAD");
        if (posix_spawn(&child, path, NULL, NULL, args, environ) != 0)
            return 1;
        reap(child);
    }
    return 0;
}
