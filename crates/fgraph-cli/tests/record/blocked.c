// Makes more calls than its ring has room for, and what its argument says:
//   nothing  nothing else
//   stop     stops the recorder before, which is its parent; has it go on, waits until the file that
//            its second argument names is longer and the recorder sleeps, and calls `later` as often
//   kill     kills the recorder before
//   handler  stops the recorder before, and makes the calls in a signal handler
//   child    stops the recorder before, and makes the calls in a forked child
//   sandbox  stops the recorder before, and may make no other system calls than the last ones
//   pipe     reads what the recorder writes to its standard input, until nothing comes
// It says when it has slept where it should not.
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CALLS = 200000 };

__attribute__((noinline)) void leaf(void) { __asm__ volatile("nop; nop; nop; nop; nop; nop"); }
__attribute__((noinline)) void later(void) { __asm__ volatile("nop; nop; nop; nop; nop; nop"); }

static void calls(void) {
    for (int n = 0; n < CALLS; n++)
        leaf();
}

static long sleeps(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_nvcsw;
}

// A writer that waits sleeps eight times before it gives up.
static void calls_without_sleep(void) {
    long before = sleeps();
    calls();
    if (sleeps() - before >= 4)
        printf("it has slept\n");
}

static void handle(int signal) {
    (void)signal;
    calls_without_sleep();
}

static void sandbox(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        _exit(77);
}

static off_t len(const char *path) {
    struct stat file;
    return stat(path, &file) == 0 ? file.st_size : 0;
}

// Returns 1 if a process sleeps: then it has made room for what it has written.
static int is_asleep(pid_t process) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", process);
    FILE *file = fopen(path, "r");
    if (!file)
        return 0;
    size_t len = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[len] = 0;
    // Its name is in brackets, and may have some in it.
    const char *state = strrchr(text, ')');
    return state && strncmp(state, ") S", 3) == 0;
}

// A process that has the recorder go on when this one has ended, if it may.
static void go_on_at_the_end(pid_t recorder) {
    int pipes[2];
    char byte;
    if (pipe(pipes) != 0)
        exit(77);
    if (fork() == 0) {
        close(pipes[1]);
        while (read(pipes[0], &byte, 1) > 0) {
        }
        kill(recorder, SIGCONT);
        _exit(0);
    }
    close(pipes[0]);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    pid_t recorder = getppid();
    if (strcmp(what, "stop") == 0) {
        kill(recorder, SIGSTOP);
        calls();
        off_t before = len(argv[2]);
        kill(recorder, SIGCONT);
        while (len(argv[2]) == before || !is_asleep(recorder))
            usleep(1000);
        for (int n = 0; n < CALLS; n++)
            later();
    } else if (strcmp(what, "kill") == 0) {
        kill(recorder, SIGKILL);
        calls();
    } else if (strcmp(what, "handler") == 0) {
        kill(recorder, SIGSTOP);
        signal(SIGUSR1, handle);
        raise(SIGUSR1);
        kill(recorder, SIGCONT);
    } else if (strcmp(what, "child") == 0) {
        kill(recorder, SIGSTOP);
        pid_t child = fork();
        if (child == 0) {
            calls_without_sleep();
            exit(0);
        }
        int status;
        if (waitpid(child, &status, 0) != child || status != 0)
            return 1;
        kill(recorder, SIGCONT);
    } else if (strcmp(what, "sandbox") == 0) {
        // Its first call takes a ring.
        leaf();
        go_on_at_the_end(recorder);
        kill(recorder, SIGSTOP);
        sandbox();
        calls();
    } else if (strcmp(what, "pipe") == 0) {
        calls();
        char bytes[4096];
        // The recorder may wait for each: then the calls wait for two seconds.
        for (int n = 0; n < 3 && read(STDIN_FILENO, bytes, sizeof bytes) > 0; n++)
            calls();
        fprintf(stderr, "done\n");
        _exit(0);
    } else {
        calls();
    }
    fflush(stdout);
    _exit(write(STDOUT_FILENO, "done\n", 5) != 5);
}
