/* Calls that run, sleep, and wait for a lock that another thread holds. */
#include <pthread.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t held;
static volatile long sum;

__attribute__((noinline)) void runs(void) {
    for (long i = 0; i < 20000000; i++)
        sum += i;
}

__attribute__((noinline)) void sleeps(void) {
    usleep(50000);
}

__attribute__((noinline)) void waits(void) {
    pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&lock);
}

static void *holder(void *unused) {
    pthread_mutex_lock(&lock);
    pthread_barrier_wait(&held);
    usleep(100000);
    pthread_mutex_unlock(&lock);
    return unused;
}

int main(int count, char **words) {
    pthread_t thread;
    if (count > 1) {
        /* Until this process is attached to. */
        char byte;
        write(1, words[1], 1);
        read(0, &byte, 1);
    }
    pthread_barrier_init(&held, 0, 2);
    pthread_create(&thread, 0, holder, 0);
    pthread_barrier_wait(&held);
    waits();
    sleeps();
    runs();
    pthread_join(thread, 0);
    return 0;
}
