// Starts two threads of the kernel's: one polls the queue of an io_uring, one reads from a pipe.
// The main thread waits for a semaphore until it gets SIGUSR1.
#include <linux/io_uring.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static sem_t over;

static void ends_it(int unused)
{
    (void)unused;
    sem_post(&over);
}

int main(void)
{
    sem_init(&over, 0, 0);
    signal(SIGUSR1, ends_it);
    struct io_uring_params polled = {.flags = IORING_SETUP_SQPOLL, .sq_thread_idle = 60000};
    struct io_uring_params plain = {0};
    int ends[2], ring = -1;
    if (pipe(ends) != 0 || syscall(SYS_io_uring_setup, 4, &polled) < 0
        || (ring = syscall(SYS_io_uring_setup, 4, &plain)) < 0) {
        puts("none");
        return 0;
    }
    unsigned *queue = mmap(0, plain.sq_off.array + plain.sq_entries * 4, PROT_READ | PROT_WRITE,
        MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQ_RING);
    struct io_uring_sqe *entries = mmap(0, plain.sq_entries * sizeof *entries,
        PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQES);
    if (queue == MAP_FAILED || entries == MAP_FAILED)
        return 1;
    static char into;
    entries[0] = (struct io_uring_sqe){.opcode = IORING_OP_READ, .fd = ends[0],
        .flags = IOSQE_ASYNC, .addr = (unsigned long)&into, .len = 1};
    queue[plain.sq_off.array / 4] = 0;
    __atomic_store_n(&queue[plain.sq_off.tail / 4], 1, __ATOMIC_RELEASE);
    if (syscall(SYS_io_uring_enter, ring, 1, 0, 0, 0, 0) != 1)
        return 2;
    puts("ready");
    fflush(stdout);
    while (sem_wait(&over) != 0) {
    }
    return 0;
}
