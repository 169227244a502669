// A thread may make a few system calls only: each other one is the end of the process. The first
// argument says which thread: "worker", which waits where it disturbs least, "main", or "all".
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static int ends[2];

static int lock_up(void)
{
    static const int allowed[] = {SYS_read, SYS_write, SYS_futex, SYS_poll, SYS_restart_syscall,
        SYS_exit, SYS_exit_group, SYS_munmap, SYS_madvise, SYS_rt_sigprocmask, SYS_fstat,
        SYS_newfstatat};
    enum { COUNT = sizeof allowed / sizeof *allowed };
    struct sock_filter filter[2 * COUNT + 2] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    };
    for (int i = 0; i < COUNT; i++) {
        struct sock_filter is_it = BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i], 0, 1);
        struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
        filter[2 * i + 1] = is_it;
        filter[2 * i + 2] = allow;
    }
    struct sock_filter trap = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP);
    filter[2 * COUNT + 1] = trap;
    struct sock_fprog program = {2 * COUNT + 2, filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
        || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0;
}

// Without memory for a buffer.
static void say_ready(void)
{
    if (write(1, "ready\n", 6) != 6)
        _exit(4);
}

static void *works(void *which)
{
    char byte;
    if (strcmp(which, "worker") == 0) {
        if (lock_up() != 0)
            return which;
        say_ready();
    }
    return read(ends[0], &byte, 1) == 1 ? 0 : which;
}

int main(int argc, char **argv)
{
    if (argc < 2 || pipe(ends) != 0)
        return 1;
    int is_alone = strcmp(argv[1], "all") == 0;
    pthread_t thread;
    if (!is_alone && pthread_create(&thread, 0, works, argv[1]) != 0)
        return 1;
    if (strcmp(argv[1], "worker") != 0) {
        if (lock_up() != 0)
            return 2;
        say_ready();
    }
    struct pollfd end = {0, POLLIN, 0};
    while (poll(&end, 1, -1) < 1 || !(end.revents & POLLHUP)) {
    }
    void *result = 0;
    if (write(ends[1], "x", 1) != 1 || (!is_alone && pthread_join(thread, &result) != 0))
        return 3;
    return result != 0;
}
