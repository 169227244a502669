/* Other programs, and this one anew, in new processes and in this one. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "work.h"

extern char **environ;

static char *self;

KEPT static int exited(int status) {
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

KEPT static int awaited(pid_t child) {
    int status;
    return waitpid(child, &status, 0) == child ? exited(status) : -1;
}

/* The call in which the child becomes another program never returns. */
KEPT static int becomes(const char *script) {
    execl("/bin/sh", "sh", "-c", script, (char *)NULL);
    sink = work(1);
    return sink;
}

/* vfork, calls in the child, and exec there; the parent goes on with the same stack. */
KEPT static int vforks(void) {
    pid_t child = vfork();
    if (child == 0) {
        if (work(40) == WORK)
            becomes("exit 7");
        _exit(1);
    }
    return awaited(child) == 7 && work(40) == WORK;
}

KEPT static int ten_vforks(void) {
    int right = 0;
    for (int i = 0; i < 10; i++)
        right += vforks();
    return right;
}

KEPT static int vforks_and_leaves(void) {
    pid_t child = vfork();
    if (child == 0)
        _exit(work(40) == WORK ? 7 : 1);
    return awaited(child) == 7 && work(40) == WORK ? 10 : 0;
}

/* As shells and libraries do that start programs. */
KEPT static int blocks_and_vforks(void) {
    sigset_t all, before;
    int right = 0;
    sigfillset(&all);
    for (int i = 0; i < 200; i++) {
        sigprocmask(SIG_SETMASK, &all, &before);
        right += vforks_and_leaves() == 10;
        sigprocmask(SIG_SETMASK, &before, NULL);
        /* Patching begins while nothing is blocked. */
        usleep(500);
    }
    return right / 20;
}

/* Becomes another program, which is traced as this one is, and starts others that are not. */
KEPT static int becomes_one_that_starts_others(const char *path, const char *script) {
    char *name = realpath(path, NULL);
    if (name == NULL) {
        fprintf(stderr, "no %s\n", path);
        return 77;
    }
    setenv("FGRAPH_PROGRAM", name, 1);
    execl(name, name, "-c", script, (char *)NULL);
    return 1;
}

KEPT static int tries(const char *path) {
    char *args[] = {"none", NULL};
    int result = execv(path, args);
    sink = work(40);
    return result == -1 && errno == ENOENT && sink == WORK;
}

/* An exec that fails, here and in the child of a vfork. */
KEPT static int fails(void) {
    int right = tries("/nonexistent/program") * 5;
    pid_t child = vfork();
    if (child == 0)
        _exit(tries("/nonexistent/program") ? 7 : 1);
    return right + (awaited(child) == 7 ? 5 : 0);
}

KEPT static int spawned(const char *path, char *const args[]) {
    pid_t child;
    if (posix_spawn(&child, path, NULL, NULL, args, environ))
        return -1;
    return awaited(child);
}

KEPT static int spawns(void) {
    char *shell[] = {"sh", "-c", "exit 7", NULL}, *anew[] = {self, "child", NULL};
    int right = 0;
    for (int i = 0; i < 4; i++)
        right += spawned("/bin/sh", shell) == 7;
    for (int i = 0; i < 4; i++)
        right += spawned(self, anew) == 77;
    right += spawned("/nonexistent/program", anew) == -1;
    return right + (work(40) == WORK);
}

KEPT static int spawns_often(void) {
    char *args[] = {"true", NULL};
    int right = 0;
    unsetenv("LD_PRELOAD");
    for (int i = 0; i < 200; i++)
        right += spawned("/bin/true", args) == 0;
    return right / 20;
}

KEPT static int shells(void) {
    int right = 0;
    for (int i = 0; i < 4; i++)
        right += exited(system("exit 7")) == 7;
    for (int i = 0; i < 5; i++) {
        char line[16] = "";
        FILE *pipe = popen("echo hello", "r");
        if (pipe == NULL || fgets(line, sizeof line, pipe) == NULL)
            return 0;
        right += pclose(pipe) == 0 && !strcmp(line, "hello\n");
    }
    return right + (work(40) == WORK);
}

#define STACK (256 << 10)

KEPT static int on_own_stack(void *unused) {
    (void)unused;
    return below(20, vforks_and_leaves) == 30 ? 77 : 1;
}

/* A process with our memory on a stack of its own. */
KEPT static int cloned(int flags) {
    static char *stack;
    if (stack == NULL)
        stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pid_t child = clone(on_own_stack, stack + STACK, flags | CLONE_VM | SIGCHLD, NULL);
    return child > 0 && awaited(child) == 77 && work(40) == WORK;
}

KEPT static int clones(void) {
    int right = 0;
    for (int i = 0; i < 5; i++)
        right += cloned(CLONE_VFORK) + cloned(0);
    return right;
}

static volatile int is_working;

KEPT static int works_often(void *unused) {
    (void)unused;
    int right = 1;
    for (int i = 0; i < 20000; i++)
        right &= work(4) == 4 * 5 / 2;
    is_working = 0;
    return right ? 77 : 1;
}

/* The same, with us at work at the same time. */
KEPT static int at_once(char *stack) {
    is_working = 1;
    pid_t child = clone(works_often, stack + STACK, CLONE_VM | SIGCHLD, NULL);
    int own = child > 0;
    while (is_working)
        own &= work(4) == 4 * 5 / 2;
    return own && awaited(child) == 77;
}

KEPT static int beside(void) {
    char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int right = 0;
    for (int i = 0; i < 10; i++)
        right += at_once(stack);
    return right;
}

/* The same, on an array in this frame. */
KEPT static int within(void) {
    char stack[STACK] __attribute__((aligned(64)));
    int right = 0;
    for (int i = 0; i < 10; i++)
        right += at_once(stack);
    return right;
}

/* Prints how often it may still begin anew; the last one becomes another program. */
KEPT static int becomes_itself(void) {
    char left[] = "3";
    const char *before = getenv("LEFT");
    if (before)
        left[0] = before[0] - 1;
    printf("%s to go, %d\n", left, work(40));
    fflush(stdout);
    if (left[0] == '0')
        return becomes("echo the end; exit 5");
    setenv("LEFT", left, 1);
    char *args[] = {self, "anew", NULL};
    execv(self, args);
    return 1;
}

KEPT static int ten_right(int (*inner)(void)) {
    int right = below(10, inner) - 10;
    printf("%d of 10 were right\n", right);
    return right == 10 ? 0 : 1;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    int result = 2;
    self = argv[0];
    if (!strcmp(what, "child"))
        result = work(40) == WORK ? 77 : 1;
    else if (!strcmp(what, "vfork"))
        result = ten_right(ten_vforks);
    else if (!strcmp(what, "vfork-exit"))
        result = ten_right(vforks_and_leaves);
    else if (!strcmp(what, "vfork-blocked"))
        result = ten_right(blocks_and_vforks);
    else if (!strcmp(what, "dash"))
        result = becomes_one_that_starts_others(
            "/bin/dash", "i=200; while [ $i -gt 0 ]; do LD_PRELOAD= /bin/true || echo $?; "
                         "i=$((i - 1)); done");
    else if (!strcmp(what, "python"))
        result = becomes_one_that_starts_others(
            "/usr/bin/python3", "import subprocess\n"
                                "for _ in range(200):\n"
                                "    subprocess.run(['/bin/true'], env={}, check=True)");
    else if (!strcmp(what, "spawn-often"))
        result = ten_right(spawns_often);
    else if (!strcmp(what, "fails"))
        result = ten_right(fails);
    else if (!strcmp(what, "spawn"))
        result = ten_right(spawns);
    else if (!strcmp(what, "shell"))
        result = ten_right(shells);
    else if (!strcmp(what, "clone"))
        result = ten_right(clones);
    else if (!strcmp(what, "beside"))
        result = ten_right(beside);
    else if (!strcmp(what, "within"))
        result = ten_right(within);
    else if (!strcmp(what, "anew"))
        result = below(10, becomes_itself);
    sink = result;
    return result;
}
