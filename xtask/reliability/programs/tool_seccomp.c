/* Forbids itself, once it runs, system calls that others may want to make in it: opening files, writing at an
 * offset, reading memory of processes. */
#define _GNU_SOURCE
#include "signal_common.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define ALLOW_UNLESS(number)                                                   \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),                         \
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM)

KEPT static long toggled(long n) {
    sink = sink + n;
    return n + 1;
}

static void *thread(void *argument) {
    for (long n = 0; n < 1000; n++)
        CHECK(toggled(n) == n + 1 && dive(3) == 10);
    return argument;
}

KEPT static int sandbox(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW_UNLESS(SYS_open),
        ALLOW_UNLESS(SYS_openat),
        ALLOW_UNLESS(SYS_pwrite64),
        ALLOW_UNLESS(SYS_process_vm_readv),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
}

int main(void) {
    CHECK(dive(3) == 10);
    if (!sandbox()) {
        fprintf(stderr, "no seccomp here\n");
        return 77;
    }
    CHECK(open("/proc/self/mem", O_RDONLY) < 0 && errno == EPERM);
    for (int n = 0; n < 20; n++) {
        pthread_t other;
        CHECK(!pthread_create(&other, NULL, thread, NULL));
        for (long i = 0; i < 100; i++)
            CHECK(toggled(i) == i + 1 && dive(3) == 10);
        usleep(2000);
        CHECK(!pthread_join(other, NULL));
    }
    printf("right\n");
    return 0;
}
