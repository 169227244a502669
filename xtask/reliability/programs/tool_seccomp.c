/* Forbids itself, once it runs, system calls that others may want to make in it:
 *   files    opening files, and writing at an offset
 *   writes   writing at an offset
 *   reads    reading memory of processes, where stacks are given up in the middle of calls */
#define _GNU_SOURCE
#include "sandbox.h"
#include "signal_common.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <ucontext.h>

KEPT static long toggled(long n) {
    sink = sink + n;
    return n + 1;
}

static void *thread(void *argument) {
    for (long n = 0; n < 1000; n++)
        CHECK(toggled(n) == n + 1 && dive(3) == 10);
    return argument;
}

static void works(void) {
    for (int n = 0; n < 20; n++) {
        pthread_t other;
        CHECK(!pthread_create(&other, NULL, thread, NULL));
        for (long i = 0; i < 100; i++)
            CHECK(toggled(i) == i + 1 && dive(3) == 10);
        usleep(2000);
        CHECK(!pthread_join(other, NULL));
    }
}

static ucontext_t outside, inside;

/* Never comes back. */
KEPT static void give_up(long n) {
    sink = sink + n;
    if (n > 0)
        give_up(n - 1);
    CHECK(dive(4) == 13);
    swapcontext(&inside, &outside);
    _exit(5);
}

static void body(int n) { give_up(n); }

KEPT static void gives_up(int n, void *stack, size_t size) {
    getcontext(&inside);
    inside.uc_stack.ss_sp = stack;
    inside.uc_stack.ss_size = size;
    inside.uc_link = NULL;
    makecontext(&inside, (void (*)(void))body, 1, n);
    swapcontext(&outside, &inside);
}

static void stacks(void) {
    enum { SIZE = 1 << 18 };
    char *stack = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int n = 0; n < 1000; n++) {
        /* Above and below those before. */
        gives_up(n % 7, stack, SIZE - (size_t)(n * 37 % 11) * 4096);
        CHECK(dive(3) == 10);
    }
}

int main(int argc, char **argv) {
    const char *what = argc == 2 ? argv[1] : "";
    CHECK(dive(3) == 10);
    if (!strcmp(what, "files")) {
        forbid((int[]){SYS_open, SYS_openat, SYS_pwrite64, -1});
        CHECK(open("/proc/self/mem", O_RDONLY) < 0 && errno == EPERM);
        works();
    } else if (!strcmp(what, "writes")) {
        forbid((int[]){SYS_pwrite64, -1});
        CHECK(pwrite(1, "", 1, 0) < 0 && errno == EPERM);
        works();
    } else if (!strcmp(what, "reads")) {
        forbid((int[]){SYS_process_vm_readv, -1});
        CHECK(process_vm_readv(getpid(), NULL, 0, NULL, 0, 0) < 0 && errno == EPERM);
        stacks();
    } else
        return 2;
    printf("right\n");
    return 0;
}
