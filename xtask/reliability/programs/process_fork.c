/* Children that go on in the middle of what their parent was doing. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/sched.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "work.h"

/* The end of a child: its exit code, or 1000 and its signal. */
KEPT static int awaited(pid_t child) {
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static pthread_barrier_t all_here;

KEPT static void *works_with_others(void *unused) {
    (void)unused;
    pthread_barrier_wait(&all_here);
    sink = work(40);
    pthread_barrier_wait(&all_here);
    return NULL;
}

/* Many threads at once: whatever seems to be nobody's is taken over. */
KEPT static int crowd(void) {
    pthread_t threads[40];
    pthread_barrier_init(&all_here, NULL, 40);
    for (int i = 0; i < 40; i++)
        if (pthread_create(&threads[i], NULL, works_with_others, NULL))
            return 1;
    for (int i = 0; i < 40; i++)
        if (pthread_join(threads[i], NULL))
            return 1;
    return 0;
}

static pid_t forked;

KEPT static int forks(void) {
    forked = fork();
    sink = work(40);
    if (sink != WORK || (forked == 0 && crowd()))
        return 1;
    return 0;
}

/* Ways to fork that no handler is told of. */
enum { BARE_FORK, BARE_CLONE, BARE_CLONE3, INSTRUCTION, WITHOUT_HANDLERS, WAYS };
static int way;
pid_t _Fork(void) __attribute__((weak)); /* since glibc 2.34 */

KEPT static pid_t forks_untold(void) {
    struct clone_args arguments = {.exit_signal = SIGCHLD};
    long result = SYS_fork;
    switch (way) {
    case BARE_CLONE:
        return syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    case BARE_CLONE3:
        return syscall(SYS_clone3, &arguments, sizeof arguments);
    case WITHOUT_HANDLERS:
        if (_Fork)
            return _Fork();
        /* fallthrough */
    case INSTRUCTION:
        __asm__ volatile("syscall" : "+a"(result) : : "rcx", "r11", "memory");
        return result;
    }
    return syscall(SYS_fork);
}

/* The first calls of the child are those of threads that it makes. */
KEPT static int forks_to_threads(void) {
    forked = forks_untold();
    if (forked == 0 && crowd())
        return 1;
    sink = work(40);
    return sink != WORK;
}

/* A fork below twenty calls, which return in both. */
KEPT static int frames(int (*forks)(void)) {
    int result = below(20, forks);
    if (forked == 0)
        return result == 20 && work(40) == WORK ? 77 : 1;
    int ended = awaited(forked);
    printf("the parent has %d, the child ended with %d\n", result, ended);
    return result == 20 && ended == 77 ? 0 : 1;
}

KEPT static int frames_each_way(void) {
    for (way = 0; way < WAYS; way++) {
        int result = frames(forks_to_threads);
        fflush(stdout);
        if (result)
            return result;
    }
    return 0;
}

static volatile int is_over;

KEPT static void *works(void *failures) {
    while (!is_over)
        if (work(40) != WORK)
            ++*(int *)failures;
    return NULL;
}

/* Forks while three threads call all the time. */
KEPT static int threads(int forks) {
    pthread_t threads[3];
    int failures[3] = {0};
    for (int i = 0; i < 3; i++)
        if (pthread_create(&threads[i], NULL, works, &failures[i]))
            return 1;
    int right = 0;
    for (int i = 0; i < forks; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(50);
            /* With a thread of its own, now that the others are gone. */
            int failure = 0;
            pthread_t thread;
            is_over = 1;
            if (pthread_create(&thread, NULL, works, &failure) || pthread_join(thread, NULL))
                return 1;
            return work(40) == WORK && !failure ? 77 : 1;
        }
        right += awaited(child) == 77;
    }
    is_over = 1;
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        right -= failures[i];
    }
    printf("%d of %d children were right\n", right, forks);
    return right == forks ? 0 : 1;
}

static volatile int forks_left, in_child, bad;

/* The child goes on where the signal came. */
KEPT static void on_signal(int signal) {
    (void)signal;
    if (in_child || forks_left == 0)
        return;
    forks_left--;
    if (work(40) != WORK)
        bad++;
    pid_t child = fork();
    if (child == 0)
        in_child = 1;
    else if (awaited(child) != 77)
        bad++;
}

static void handle(int signal) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigaction(signal, &action, NULL);
}

KEPT static int raises(void) {
    raise(SIGUSR1);
    sink = work(40);
    return sink == WORK ? 0 : 1;
}

/* Forks in a signal handler below ten calls. */
KEPT static int in_handler(void) {
    forks_left = 1;
    handle(SIGUSR1);
    int result = below(10, raises);
    if (in_child)
        return result == 10 ? 77 : 1;
    printf("%d, %d bad\n", result, bad);
    return result != 10 || bad;
}

/* Forks in the handler of a timer, at any instruction. */
KEPT static int in_timer(int forks) {
    forks_left = forks;
    handle(SIGALRM);
    /* The first signal may come before the loop, and a child then never enters it. */
    int results = work(40);
    struct itimerval timer = {{0, 1000}, {0, 1000}};
    setitimer(ITIMER_REAL, &timer, NULL);
    while (forks_left && !in_child)
        results |= work(40);
    if (in_child)
        return results == WORK ? 77 : 1;
    memset(&timer, 0, sizeof timer);
    setitimer(ITIMER_REAL, &timer, NULL);
    printf("results %d, %d bad\n", results, bad);
    return results != WORK || bad;
}

/* One of `all` processes, which has the two of twice its number as its children. */
KEPT static int process(int number, int all) {
    int children[2], right = 1;
    for (int i = 0; i < 2; i++) {
        int next = 2 * number + 1 + i;
        children[i] = next < all ? fork() : -1;
        if (children[i] == 0)
            exit(process(next, all));
    }
    if (work(40) == WORK)
        right = 77;
    for (int i = 0; i < 2; i++)
        if (children[i] > 0 && awaited(children[i]) != 77)
            right = 1;
    return right;
}

KEPT static int tree(void) {
    int ended = process(0, 100);
    printf("the first of them has %d\n", ended);
    return ended == 77 ? 0 : 1;
}

/* Does what daemons do: a child whose child goes on alone. Its end is awaited by the pipe that it holds. */
KEPT static int daemonises(void) {
    int ends[2];
    if (pipe(ends))
        return 1;
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        if (setsid() < 0)
            return 1;
        child = fork();
        if (child != 0)
            _exit(child < 0);
        /* Sent before the last thing it does, which is to close the pipe by its end. */
        char right = below(20, forks) == 20 && (forked == 0 || awaited(forked) == 0);
        if (forked != 0 && write(ends[1], &right, 1) != 1)
            return 1;
        return 0;
    }
    close(ends[1]);
    int ended = awaited(child);
    char right = 0, more;
    if (read(ends[0], &right, 1) != 1)
        return 1;
    while (read(ends[0], &more, 1) > 0)
        ;
    printf("the child ended with %d, its child says %d\n", ended, right);
    return ended != 0 || !right;
}

KEPT static int leaves(void) {
    sink = work(40);
    _exit(sink == WORK ? 5 : 1);
}

KEPT static int leaves_quickly(void) {
    sink = work(40);
    quick_exit(sink == WORK ? 5 : 1);
}

KEPT static int leaves_in_order(void) {
    sink = work(40);
    exit(sink == WORK ? 5 : 1);
}

/* Five children that end inside calls, while their parent is inside of others. */
KEPT static int forks_leaving(void) {
    int right = 0;
    for (int i = 0; i < 5; i++) {
        pid_t child = fork();
        if (child == 0)
            below(10, leaves);
        right += awaited(child) == 5;
    }
    return right;
}

/* A fork that no handler is told of. */
KEPT static int forks_raw(void) {
    int right = 0;
    for (int i = 0; i < 5; i++) {
        pid_t child = syscall(SYS_fork);
        if (child == 0)
            _exit(work(40) == WORK ? 77 : 1);
        right += awaited(child) == 77;
    }
    return right;
}

KEPT static int five_right(int (*inner)(void)) {
    int right = below(10, inner) - 10;
    printf("%d of 5 children were right\n", right);
    return right == 5 ? 0 : 1;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    int number = argc > 2 ? atoi(argv[2]) : 0;
    int result = 2;
    if (!strcmp(what, "frames"))
        result = frames(forks);
    else if (!strcmp(what, "untold"))
        result = frames_each_way();
    else if (!strcmp(what, "threads"))
        result = threads(number);
    else if (!strcmp(what, "handler"))
        result = in_handler();
    else if (!strcmp(what, "timer"))
        result = in_timer(number);
    else if (!strcmp(what, "tree"))
        result = tree();
    else if (!strcmp(what, "daemon"))
        result = daemonises();
    else if (!strcmp(what, "leaves"))
        result = below(10, leaves);
    else if (!strcmp(what, "leaves-quickly"))
        result = below(10, leaves_quickly);
    else if (!strcmp(what, "leaves-in-order"))
        result = below(10, leaves_in_order);
    else if (!strcmp(what, "children-leave"))
        result = five_right(forks_leaving);
    else if (!strcmp(what, "raw"))
        result = five_right(forks_raw);
    sink = result;
    return result;
}
