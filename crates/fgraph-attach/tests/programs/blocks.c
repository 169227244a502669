// One thread blocks all signals and waits for a condition, as those of allocators do that work in
// the background; another one waits for events, as servers do; a third one for a signal. Fails if
// one of them was woken before standard input ends.
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int is_over;

static void *waits(void *unused)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, 0);
    struct timespec late;
    clock_gettime(CLOCK_REALTIME, &late);
    late.tv_sec += 60;
    int result = 0;
    pthread_mutex_lock(&mutex);
    while (!is_over && result == 0)
        result = pthread_cond_timedwait(&changed, &mutex, &late);
    pthread_mutex_unlock(&mutex);
    return result == 0 ? unused : (void *)1;
}

static int ends[2];

static void *waits_for_events(void *unused)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, 0);
    struct epoll_event event = {.events = EPOLLIN};
    int epoll = epoll_create1(0);
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event) != 0)
        return (void *)1;
    return epoll_wait(epoll, &event, 1, 60000) == 1 ? unused : (void *)1;
}

static void *takes_signals(void *unused)
{
    sigset_t all, one;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, 0);
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    int signal;
    return sigwait(&one, &signal) == 0 && signal == SIGUSR1 ? unused : (void *)1;
}

int main(void)
{
    pthread_t threads[3];
    if (pipe(ends) != 0)
        return 1;
    pthread_create(&threads[0], 0, waits, 0);
    pthread_create(&threads[1], 0, takes_signals, 0);
    pthread_create(&threads[2], 0, waits_for_events, 0);
    puts("ready");
    fflush(stdout);
    char byte;
    if (read(0, &byte, 1) != 0)
        return 1;
    pthread_mutex_lock(&mutex);
    is_over = 1;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&mutex);
    pthread_kill(threads[1], SIGUSR1);
    if (write(ends[1], "", 1) != 1)
        return 1;
    for (int i = 0; i < 3; i++) {
        void *result;
        if (pthread_join(threads[i], &result) != 0 || result != 0)
            return 2;
    }
    return 0;
}
