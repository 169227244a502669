// Does what its argument says, then calls `leaf` ten times and says so.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

__attribute__((noinline)) int leaf(int n) { __asm__ volatile("nop; nop; nop; nop; nop; nop"); return n + 1; }

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

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    int pipes[2];
    if (strcmp(what, "close") == 0) {
        for (int file = 0; file < 1024; file++)
            if (file != STDOUT_FILENO)
                close(file);
    } else if (strcmp(what, "chroot") == 0) {
        if (chroot(argv[2]) != 0 || chdir("/") != 0)
            return 77;
    } else if (strcmp(what, "user") == 0) {
        if (setgid(65534) != 0 || setuid(65534) != 0)
            return 77;
    } else if (strcmp(what, "seccomp") == 0) {
        sandbox();
    } else if (strcmp(what, "fork") == 0) {
        // Ten calls of the parent's own come first.
        int sum = 0, status;
        for (int n = 0; n < 10; n++)
            sum = leaf(sum);
        if (sum != 10)
            return 1;
        pid_t child = fork();
        if (child != 0)
            return waitpid(child, &status, 0) == child && status == 0 ? 0 : 1;
    } else if (strcmp(what, "daemon") == 0) {
        if (pipe(pipes) != 0)
            return 77;
        if (fork() != 0) {
            // Not before the daemon is done.
            char byte;
            close(pipes[1]);
            return read(pipes[0], &byte, 1) == 1 ? 0 : 1;
        }
        setsid();
        if (fork() != 0)
            _exit(0);
    }
    int sum = 0;
    for (int n = 0; n < 10; n++)
        sum = leaf(sum);
    const char said[] = "ten calls\n";
    if (write(STDOUT_FILENO, said, sizeof said - 1) < 0)
        return 1;
    if (strcmp(what, "daemon") == 0)
        return write(pipes[1], "x", 1) == 1 ? 0 : 1;
    if (strcmp(what, "kill") == 0)
        kill(getpid(), SIGKILL);
    if (strcmp(what, "abort") == 0)
        abort();
    if (strcmp(what, "wait") == 0) {
        // Enough for several sub-buffers; then as many again when a byte comes.
        char byte;
        for (int round = 0; round < 2; round++) {
            for (int n = 0; n < 100000; n++)
                sum = leaf(sum);
            if (round == 0 && read(STDIN_FILENO, &byte, 1) != 1)
                return 1;
        }
        printf("%d\n", sum);
    }
    return sum == 0;
}
