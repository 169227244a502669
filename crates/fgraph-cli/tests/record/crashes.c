/* Programs that end with a core file. The first argument selects one. */

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOT_INLINED __attribute__((noinline))

volatile long sum;
static int *volatile cache;

NOT_INLINED long leaf(long n)
{
    for (int i = 0; i < 100; i++)
        sum += n;
    return sum;
}

NOT_INLINED long middle(long n)
{
    long all = 0;
    for (int i = 0; i < 5; i++)
        all += leaf(n + i);
    return all + sum;
}

NOT_INLINED long tree(long n)
{
    return n ? tree(n - 1) + middle(n) : 1;
}

NOT_INLINED void handle(long n)
{
    sum += tree(n % 7);
}

static void *work(void *start)
{
    for (long n = (long)start;; n++)
        handle(n);
    return NULL;
}

/* The cause: later calls read what it leaves. */
NOT_INLINED void drop_cache(void)
{
    cache = NULL;
    sum++;
}

NOT_INLINED long read_cache(long n)
{
    sum += n;
    return cache[n % 4] + sum;
}

NOT_INLINED void serve(long n)
{
    sum += read_cache(n);
}

NOT_INLINED void crash(long calls)
{
    static int values[4] = { 1, 2, 3, 4 };
    cache = values;
    for (long n = 0; n < calls; n++)
        serve(n);
    drop_cache();
    middle(3);
    serve(7);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "crash";
    alarm(300);
    if (strcmp(what, "run") == 0) {
        /* Threads that run until they are killed. */
        for (long thread = 1; thread < 4; thread++) {
            pthread_t id;
            if (pthread_create(&id, NULL, work, (void *)thread) != 0)
                return 1;
        }
        puts("ready");
        fflush(stdout);
        work(NULL);
    }
    if (strcmp(what, "fork") == 0) {
        /* A child crashes, and the program ends well. */
        leaf(1);
        pid_t child = fork();
        if (child == 0)
            crash(100);
        int status;
        return waitpid(child, &status, 0) == child && WIFSIGNALED(status) ? 0 : 1;
    }
    if (strcmp(what, "execute") == 0) {
        /* The program that is executed crashes. */
        leaf(1);
        execl(argv[0], argv[0], "crash", (char *)NULL);
        return 1;
    }
    if (strcmp(what, "main") == 0) {
        leaf(1);
        *(volatile int *)0 = 0;
    }
    crash(argc > 2 ? atol(argv[2]) : 100);
    return 0;
}
