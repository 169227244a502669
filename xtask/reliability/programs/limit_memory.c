/* Threads that find no memory. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "work.h"

#define STACK (256 << 10)

static pthread_barrier_t barrier;

/* Works twice: in between the others let it have memory. */
KEPT static void *works(void *unused) {
    (void)unused;
    int first = work(40);
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    int second = work(40);
    return (void *)(intptr_t)(first == WORK && second == WORK ? 77 : 1);
}

/* Lets no more memory be mapped, or again. */
static int limit(int is_on) {
    static struct rlimit before;
    struct rlimit now;
    long pages = 0;
    if (is_on) {
        FILE *file = fopen("/proc/self/statm", "r");
        if (file == NULL || fscanf(file, "%ld", &pages) != 1)
            return 0;
        fclose(file);
        getrlimit(RLIMIT_AS, &before);
        now = before;
        now.rlim_cur = (pages + 256) * sysconf(_SC_PAGESIZE);
    } else {
        now = before;
    }
    return setrlimit(RLIMIT_AS, &now) == 0;
}

int main(void) {
    static char stacks[3][STACK] __attribute__((aligned(4096)));
    pthread_t threads[3];
    int right = 0;
    pthread_barrier_init(&barrier, NULL, 4);
    printf("%d\n", work(40));
    if (!limit(1))
        return 1;
    for (int i = 0; i < 3; i++) {
        pthread_attr_t how;
        pthread_attr_init(&how);
        if (pthread_attr_setstack(&how, stacks[i], STACK) ||
            pthread_create(&threads[i], &how, works, NULL))
            return 1;
    }
    pthread_barrier_wait(&barrier);
    if (!limit(0))
        return 1;
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < 3; i++) {
        void *result;
        right += pthread_join(threads[i], &result) == 0 && result == (void *)77;
    }
    printf("%d of 3 were right\n", right);
    return right == 3 ? 0 : 1;
}
