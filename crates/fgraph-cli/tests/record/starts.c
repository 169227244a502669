// Executes itself in one way from one stack, as its first traced call; the
// child calls `leaf` once.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

extern char **environ;

// The C library has `_Fork` from glibc 2.34 on.
#if defined __GLIBC__ && !__GLIBC_PREREQ(2, 34)
#define _Fork fork
#endif

__attribute__((noinline)) void leaf(void) { __asm__ volatile("nop; nop; nop; nop; nop; nop"); }

static char *way;
static char path[4096];
static char stack[1 << 18];
static ucontext_t outer, inner;

static void start(void) {
    char *args[] = {path, "child", NULL};
    pid_t child = -1;
    if (strcmp(way, "spawn") == 0 && posix_spawn(&child, path, NULL, NULL, args, environ) != 0)
        exit(1);
    if (strcmp(way, "vfork") == 0 && (child = vfork()) == 0)
        _exit(execve(path, args, environ));
    if (strcmp(way, "fork") == 0 && (child = fork()) == 0)
        _exit(execve(path, args, environ));
    if (strcmp(way, "_Fork") == 0 && (child = _Fork()) == 0)
        _exit(execve(path, args, environ));
    if (strcmp(way, "clone") == 0 && (child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)) == 0)
        _exit(execve(path, args, environ));
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
        exit(1);
}

static void *in_thread(void *argument) {
    start();
    return argument;
}

static void in_coroutine(void) { start(); }

static void in_handler(int signal) { start(); }

int main(int argc, char **argv) {
    if (argc == 2) {
        leaf();
        return 0;
    }
    way = argv[1];
    path[readlink("/proc/self/exe", path, sizeof path - 1)] = 0;
    if (strcmp(argv[2], "main") == 0)
        start();
    if (strcmp(argv[2], "thread") == 0) {
        pthread_t thread;
        pthread_create(&thread, NULL, in_thread, NULL);
        pthread_join(thread, NULL);
    }
    if (strcmp(argv[2], "coroutine") == 0) {
        getcontext(&inner);
        inner.uc_stack.ss_sp = stack;
        inner.uc_stack.ss_size = sizeof stack;
        inner.uc_link = &outer;
        makecontext(&inner, in_coroutine, 0);
        swapcontext(&outer, &inner);
    }
    if (strcmp(argv[2], "handler") == 0) {
        stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
        struct sigaction action = {.sa_handler = in_handler, .sa_flags = SA_ONSTACK};
        sigaltstack(&alternate, NULL);
        sigaction(SIGUSR1, &action, NULL);
        raise(SIGUSR1);
    }
    return 0;
}
