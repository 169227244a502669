// Threads that do nothing but what takes the locks of allocator and linker, fork, handle signals and
// wait. Ends with 0 when standard input does.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile int end, failed;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long guarded;

static void *allocates(void *unused)
{
    while (!end) {
        size_t len = 1 + random() % 5000;
        char *block = malloc(len);
        memset(block, len, len);
        block = realloc(block, 2 * len);
        if (block[len - 1] != (char)len)
            failed = 1;
        free(block);
    }
    return unused;
}

static void *loads(void *library)
{
    while (!end) {
        void *handle = dlopen(library, RTLD_NOW);
        if (!handle || !dlsym(handle, "compress"))
            failed = 2;
        else
            dlclose(handle);
    }
    return 0;
}

static void *forks(void *unused)
{
    while (!end) {
        pid_t child = fork();
        if (child == 0) {
            free(malloc(100));
            _exit(7);
        }
        int status;
        if (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 7)
            failed = 3;
    }
    return unused;
}

static void *locks(void *unused)
{
    while (!end) {
        pthread_mutex_lock(&lock);
        long before = guarded++;
        if (guarded != before + 1)
            failed = 4;
        pthread_mutex_unlock(&lock);
    }
    return unused;
}

static void handler(int signal)
{
    (void)signal;
    // In the middle of anything, an allocator too.
    char byte = 0;
    static int pipe_[2] = {-1, -1};
    if (pipe_[0] < 0 && pipe(pipe_) != 0)
        return;
    if (write(pipe_[1], &byte, 1) != 1 || read(pipe_[0], &byte, 1) != 1)
        failed = 5;
}

static void *signals(void *target)
{
    while (!end) {
        pthread_kill(*(pthread_t *)target, SIGUSR1);
        struct timespec moment = {0, 200000};
        nanosleep(&moment, 0);
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, 0);
    pthread_t threads[8];
    int count = 0;
    pthread_create(&threads[count++], 0, allocates, 0);
    pthread_create(&threads[count++], 0, allocates, 0);
    pthread_create(&threads[count++], 0, forks, 0);
    pthread_create(&threads[count++], 0, locks, 0);
    pthread_create(&threads[count++], 0, locks, 0);
    pthread_create(&threads[count++], 0, signals, &threads[0]);
    if (argc > 1)
        pthread_create(&threads[count++], 0, loads, argv[1]);
    puts("ready");
    fflush(stdout);
    // Not where the program's main thread can be held.
    while (getchar() != EOF)
        ;
    end = 1;
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], 0);
    return failed;
}
