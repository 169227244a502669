/* Threads that come and go in every way. */
#define _GNU_SOURCE
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "work.h"

/* A thread that gives 77 if all is right. */
KEPT static int right_in(void *(*start)(void *), void *argument, const pthread_attr_t *how) {
    pthread_t thread;
    void *result;
    if (pthread_create(&thread, how, start, argument) || pthread_join(thread, &result))
        return 0;
    return result == (void *)77;
}

KEPT static void *works(void *unused) {
    (void)unused;
    /* Not by way of `sink`, which the other threads write to. */
    int sum = work(40);
    return (void *)(intptr_t)(sum == WORK ? 77 : 1);
}

/* KiB of address space, and mappings. */
KEPT static void measure(long *memory, long *mappings) {
    FILE *file = fopen("/proc/self/statm", "r");
    long all = 0;
    if (file == NULL || fscanf(file, "%ld", &all) != 1)
        exit(3);
    fclose(file);
    *memory = all * (sysconf(_SC_PAGESIZE) / 1024);
    *mappings = 0;
    file = fopen("/proc/self/maps", "r");
    for (int c; file != NULL && (c = getc(file)) != EOF;)
        *mappings += c == '\n';
    fclose(file);
}

/* Many short threads, two at once. */
KEPT static int many(int threads) {
    int right = 0;
    long memory = 0, mappings = 0, memory_after, mappings_after;
    for (int i = 0; i < threads / 2; i++) {
        pthread_t thread;
        void *result = NULL;
        if (pthread_create(&thread, NULL, works, NULL))
            return 1;
        right += right_in(works, NULL, NULL);
        right += pthread_join(thread, &result) == 0 && result == (void *)77;
        if (i == threads / 20)
            measure(&memory, &mappings);
    }
    measure(&memory_after, &mappings_after);
    printf("%d of %d were right\n", right, threads);
    /* Shadow stacks of 16 MiB that one thread in ten leaves behind would be more. Memory that is left to
       threads to come is less. */
    if (memory_after - memory > 16384 * threads / 20 || mappings_after - mappings > threads / 100) {
        printf("%ld KiB and %ld mappings, then %ld KiB and %ld\n", memory, mappings, memory_after,
               mappings_after);
        return 1;
    }
    return right == threads ? 0 : 1;
}

KEPT static int ends_by_pthread_exit(void) {
    int sum = work(40);
    pthread_exit((void *)(intptr_t)(sum == WORK ? 77 : 1));
}

KEPT static int ends_by_system_call(void) {
    sink = work(40);
    syscall(SYS_exit, 0);
    return 1;
}

/* Below ten calls. */
KEPT static void *exits(void *inner) {
    int (*call)(void);
    memcpy(&call, inner, sizeof call);
    sink = below(10, call);
    return NULL;
}

/* Twenty threads that end inside twelve calls, and others in between. */
KEPT static int exiting(int (*inner)(void)) {
    int right = 0;
    for (int i = 0; i < 20; i++) {
        pthread_t thread;
        void *result;
        if (pthread_create(&thread, NULL, exits, &inner) || pthread_join(thread, &result))
            return 1;
        right += inner == ends_by_system_call || result == (void *)77;
        right += right_in(works, NULL, NULL);
    }
    printf("%d of 40 were right\n", right);
    return right == 40 ? 0 : 1;
}

static pthread_key_t keys[3];
static int destroyed[3];

/* Sets its own data again, so that it is called in every round. */
KEPT static void destroys(void *key) {
    intptr_t index = (intptr_t)key - 1;
    if (work(40) == WORK)
        __atomic_add_fetch(&destroyed[index], 1, __ATOMIC_SEQ_CST);
    pthread_setspecific(keys[index], key);
}

KEPT static void *has_keys(void *argument) {
    for (intptr_t i = 0; i < 3; i++)
        pthread_setspecific(keys[i], (void *)(i + 1));
    return works(argument);
}

/* Destructors of thread-specific data. */
KEPT static int with_keys(void) {
    int right = 0;
    for (int i = 0; i < 3; i++)
        if (pthread_key_create(&keys[i], destroys))
            return 1;
    for (int i = 0; i < 20; i++)
        right += right_in(has_keys, NULL, NULL);
    printf("%d of 20 were right, destroyed %d, %d and %d times\n", right, destroyed[0],
           destroyed[1], destroyed[2]);
    return right != 20 || destroyed[0] != 20 * PTHREAD_DESTRUCTOR_ITERATIONS;
}

/* Threads whose stacks are this long, one right above the other, given by us or by the library. */
KEPT static int with_stacks(size_t length, int ours) {
    int right = 0;
    char *stacks = mmap(NULL, 3 * length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int round = 0; round < 10; round++) {
        pthread_t threads[3];
        for (int i = 0; i < 3; i++) {
            pthread_attr_t how;
            pthread_attr_init(&how);
            if (ours ? pthread_attr_setstack(&how, stacks + i * length, length)
                     : pthread_attr_setstacksize(&how, length))
                return 1;
            if (pthread_create(&threads[i], &how, works, NULL))
                return 1;
            pthread_attr_destroy(&how);
        }
        for (int i = 0; i < 3; i++) {
            void *result;
            right += pthread_join(threads[i], &result) == 0 && result == (void *)77;
        }
    }
    printf("%d of 30 were right\n", right);
    return right == 30 ? 0 : 1;
}

/* Prints how many bytes of a stack a thread touches: not the same in every run. */
KEPT static int touched(void) {
    size_t length = 1 << 20;
    char *stack = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_attr_t how;
    memset(stack, 0xa5, length);
    pthread_attr_init(&how);
    pthread_attr_setstack(&how, stack, length);
    int right = right_in(works, NULL, &how);
    size_t unused = 0;
    while (stack[unused] == (char)0xa5)
        unused++;
    printf("%zu bytes touched\n", length - unused);
    return !right;
}

static pthread_barrier_t barrier;

KEPT static int sleeps(void) {
    sink = work(40);
    pthread_barrier_wait(&barrier);
    while (sink >= 0)
        pause();
    return 1;
}

KEPT static void *sleeps_on(void *unused) {
    (void)unused;
    sink = below(5, sleeps);
    return NULL;
}

KEPT static void *works_on(void *unused) {
    (void)unused;
    pthread_barrier_wait(&barrier);
    while (work(40) == WORK)
        ;
    abort();
}

/* Three threads that are still there when the process ends. */
KEPT static int detached(void *(*start)(void *)) {
    pthread_attr_t how;
    pthread_attr_init(&how);
    pthread_attr_setdetachstate(&how, PTHREAD_CREATE_DETACHED);
    pthread_barrier_init(&barrier, NULL, 4);
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        if (pthread_create(&thread, &how, start, NULL))
            return 1;
    }
    pthread_barrier_wait(&barrier);
    printf("%d\n", work(40));
    return 0;
}

KEPT static void *goes_on(void *main_thread) {
    void *result;
    int right = pthread_join(*(pthread_t *)main_thread, &result) == 0 && result == (void *)77;
    right += right_in(works, NULL, NULL);
    printf("%d of 2 were right\n", right);
    return NULL;
}

/* The main thread ends inside calls, and others go on. */
KEPT static int main_exits(void) {
    static pthread_t main_thread;
    pthread_t thread;
    main_thread = pthread_self();
    if (pthread_create(&thread, NULL, goes_on, &main_thread))
        return 1;
    return below(10, ends_by_pthread_exit);
}

static int order;

KEPT static void at_exit(void) {
    sink = work(40);
    printf("exit handler %d: %d\n", ++order, sink);
}

KEPT static void at_the_very_end(int status, void *unused) {
    (void)status, (void)unused;
    at_exit();
}

/* Before any library is set up, so that its handler runs when all of them are taken down. */
KEPT static void before_all(int argc, char **argv, char **environment) {
    (void)environment;
    if (argc > 1 && !strcmp(argv[1], "exit-handlers"))
        on_exit(at_the_very_end, NULL);
}

__attribute__((section(".preinit_array"), used)) static void (*const first)(int, char **, char **) =
    before_all;

__attribute__((destructor)) KEPT static void at_unload(void) {
    if (order)
        at_exit();
}

KEPT static int exit_handlers(void) {
    atexit(at_exit);
    atexit(at_exit);
    sink = work(40);
    return sink == WORK ? 0 : 1;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    size_t number = argc > 2 ? atoi(argv[2]) : 0;
    int result = 2;
    if (!strcmp(what, "many"))
        result = many(number);
    else if (!strcmp(what, "pthread-exit"))
        result = exiting(ends_by_pthread_exit);
    else if (!strcmp(what, "system-call"))
        result = exiting(ends_by_system_call);
    else if (!strcmp(what, "keys"))
        result = with_keys();
    else if (!strcmp(what, "own-stacks"))
        result = with_stacks(number, 1);
    else if (!strcmp(what, "small-stacks"))
        result = with_stacks(sysconf(_SC_THREAD_STACK_MIN) + number, 0);
    else if (!strcmp(what, "touched"))
        result = touched();
    else if (!strcmp(what, "asleep"))
        result = detached(sleeps_on);
    else if (!strcmp(what, "busy"))
        result = detached(works_on);
    else if (!strcmp(what, "main-exits"))
        result = main_exits();
    else if (!strcmp(what, "exit-handlers"))
        result = exit_handlers();
    sink = result;
    return result;
}
