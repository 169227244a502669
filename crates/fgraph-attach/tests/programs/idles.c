// Waits for conditions and semaphores only. Ends with 0 at SIGUSR1, if nothing woke it before.
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>

static sem_t end;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t never = PTHREAD_COND_INITIALIZER;

static void ends(int signal)
{
    (void)signal;
    sem_post(&end);
}

static void *waits(void *unused)
{
    pthread_mutex_lock(&lock);
    for (;;)
        pthread_cond_wait(&never, &lock);
    return unused;
}

int main(void)
{
    struct sigaction action = {.sa_handler = ends, .sa_flags = SA_RESTART};
    sem_init(&end, 0, 0);
    sigaction(SIGUSR1, &action, 0);
    pthread_t thread;
    pthread_create(&thread, 0, waits, 0);
    puts("ready");
    fflush(stdout);
    return sem_wait(&end) == 0 ? 0 : 1;
}
