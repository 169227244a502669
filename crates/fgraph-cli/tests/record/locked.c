// Calls `leaf` in the main thread and in as many others as its second argument says, and then:
//   abort    aborts
//   child    has a child abort that calls `leaf`, too
//   lock     has locked all its memory before, and says what it has
//   say      says what it has
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

__attribute__((noinline)) int leaf(int n) { __asm__ volatile("nop; nop; nop; nop; nop; nop"); return n + 1; }

static pthread_barrier_t barrier;

static void *thread(void *argument) {
    leaf(0);
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    return argument;
}

static void say(const char *path) {
    char line[256];
    FILE *file = fopen(path, "r");
    while (fgets(line, sizeof line, file))
        fputs(line, stdout);
    fclose(file);
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    int count = atoi(argv[2]), status;
    if (strcmp(argv[1], "lock") == 0 && mlockall(MCL_CURRENT | MCL_FUTURE) != 0)
        return 77;
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 1 << 16);
    pthread_barrier_init(&barrier, NULL, count + 1);
    for (int n = 0; n < count; n++) {
        pthread_t other;
        if (pthread_create(&other, &small, thread, NULL) != 0)
            return 1;
    }
    leaf(1);
    pthread_barrier_wait(&barrier);
    if (strcmp(argv[1], "child") == 0) {
        pid_t child = fork();
        if (child == 0) {
            leaf(2);
            abort();
        }
        return waitpid(child, &status, 0) == child && WIFSIGNALED(status) ? 0 : 1;
    }
    if (strcmp(argv[1], "abort") == 0)
        abort();
    say("/proc/self/status");
    say("/proc/self/smaps");
    pthread_barrier_wait(&barrier);
    return 0;
}
