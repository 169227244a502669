/* Forks while all threads throw and catch, whose children do so, too. The second argument says how often. */
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "throws.h"

static volatile bool is_over;

KEPT static void *throws(void *failures) {
    while (!is_over)
        *static_cast<int *>(failures) += caught(10) != 42;
    return nullptr;
}

/* The alarm kills a child that waits for a lock that nobody has. */
KEPT static int child() {
    alarm(20);
    for (int i = 0; i < 10; i++)
        if (caught(10) != 42)
            return 1;
    return 77;
}

KEPT static int awaited(pid_t child) {
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* While three other threads throw. */
KEPT static int threads(int forks) {
    pthread_t threads[3];
    int failures[3] = {0, 0, 0};
    for (int i = 0; i < 3; i++)
        if (pthread_create(&threads[i], nullptr, throws, &failures[i]))
            return 1;
    int right = 0, ended = 77;
    /* One that hangs is enough. */
    for (int i = 0; i < forks && ended == 77; i++) {
        pid_t forked = fork();
        if (forked == 0)
            return child();
        ended = awaited(forked);
        right += ended == 77;
    }
    is_over = true;
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], nullptr);
        right -= failures[i];
    }
    printf("%d of %d children were right, the last one ended with %d\n", right, forks, ended);
    return right == forks ? 0 : 1;
}

static volatile int forks_left, in_child, bad;

static void on_signal(int) {
    if (in_child || forks_left == 0)
        return;
    forks_left = forks_left - 1;
    pid_t forked = fork();
    if (forked == 0)
        in_child = 1;
    else if (awaited(forked) != 77)
        bad = bad + 1;
}

/* In the handler of a timer that interrupts throwing anywhere. The child goes on there, and then throws, too. */
KEPT static int timer(int forks) {
    forks_left = forks;
    struct sigaction action = {};
    action.sa_handler = on_signal;
    sigaction(SIGALRM, &action, nullptr);
    itimerval interval = {{0, 1000}, {0, 1000}};
    setitimer(ITIMER_REAL, &interval, nullptr);
    int wrong = 0;
    while (forks_left && !in_child)
        wrong += caught(10) != 42;
    if (in_child) {
        signal(SIGALRM, SIG_DFL);
        return wrong ? 1 : child();
    }
    printf("%d wrong, %d bad\n", wrong, bad);
    return wrong || bad;
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    needs_unwinder_without_locks();
    return strcmp(argv[1], "timer") ? threads(atoi(argv[2])) : timer(atoi(argv[2]));
}
