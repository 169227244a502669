/* Does in and about handlers what the first argument says. */
#define _GNU_SOURCE
#include "signal_common.h"

#include <sys/signalfd.h>

int main(int argc, char **argv);

static sigjmp_buf place;
static volatile int handled;
static volatile int went_wrong;

static void handle(int signal, void (*handler)(int), int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    CHECK(sigaction(signal, &action, NULL) == 0);
}

KEPT static void raised(int signal, int depth) {
    if (depth > 0)
        raised(signal, depth - 1);
    else
        CHECK(raise(signal) == 0);
    sink = sink + 1;
}

/* --- raise: in a function twenty calls deep */

static void on_raise(int signal) {
    uintptr_t wanted[] = {(uintptr_t)on_raise, (uintptr_t)raised, (uintptr_t)main};
    CHECK(leads_to(wanted, 3));
    CHECK(dive(signal) == 3 * signal + 1);
    handled++;
}

KEPT static int raises(void) {
    handle(SIGUSR1, on_raise, 0);
    for (int n = 0; n < 100; n++)
        raised(SIGUSR1, n % 20);
    return handled;
}

/* --- nested: the handler of one signal raises the next */

static void on_first(int signal), on_second(int signal);

static void on_third(int signal) {
    uintptr_t wanted[] = {(uintptr_t)on_third, (uintptr_t)on_second,
                          (uintptr_t)on_first, (uintptr_t)main};
    CHECK(leads_to(wanted, 4));
    CHECK(dive(2) == 7 && signal == SIGALRM);
    handled++;
}

static void on_second(int signal) {
    CHECK(dive(1) == 4 && signal == SIGUSR2);
    raised(SIGALRM, 2);
    handled++;
}

static void on_first(int signal) {
    CHECK(dive(1) == 4 && signal == SIGUSR1);
    raised(SIGUSR2, 2);
    handled++;
}

KEPT static int nests(void) {
    handle(SIGUSR1, on_first, 0);
    handle(SIGUSR2, on_second, 0);
    handle(SIGALRM, on_third, 0);
    for (int n = 0; n < 100; n++)
        raised(SIGUSR1, 3);
    return handled;
}

/* --- nodefer: a handler raises its own signal, fifty deep */

static void on_itself(int signal) {
    handled++;
    if (handled % 50 != 0)
        raised(signal, 1);
    else
        CHECK(dive(5) == 16);
    sink = sink + 1;
}

KEPT static int interrupts_itself(void) {
    handle(SIGUSR1, on_itself, SA_NODEFER);
    for (int n = 0; n < 20; n++)
        raised(SIGUSR1, 1);
    return handled;
}

/* --- altstack, altstack-jump: the handler runs on a stack of its own */

enum { STACK = 256 << 10 };

KEPT static void on_other_stack(void (*handler)(int)) {
    static char place_of_stack[STACK];
    stack_t stack = {.ss_size = STACK, .ss_sp = place_of_stack};
    CHECK(sigaltstack(&stack, NULL) == 0);
    handle(SIGUSR1, handler, SA_ONSTACK);
    handle(SIGUSR2, on_raise, SA_ONSTACK);
}

static void on_alternate(int signal) {
    char here;
    stack_t stack;
    CHECK(signal == SIGUSR1 && sigaltstack(NULL, &stack) == 0);
    CHECK(stack.ss_flags & SS_ONSTACK);
    CHECK(&here > (char *)stack.ss_sp && &here < (char *)stack.ss_sp + STACK);
    uintptr_t wanted[] = {(uintptr_t)on_alternate, (uintptr_t)raised, (uintptr_t)main};
    CHECK(leads_to(wanted, 3));
    raised(SIGUSR2, 1);
    CHECK(dive(5) == 16);
    handled++;
}

KEPT static int on_alternate_stack(void) {
    on_other_stack(on_alternate);
    for (int n = 0; n < 100; n++)
        raised(SIGUSR1, 3);
    return handled;
}

static void jumps_off(int signal) {
    CHECK(dive(5) == 16 && signal == SIGUSR1);
    handled++;
    siglongjmp(place, handled);
}

KEPT static int jump_once(void) {
    if (sigsetjmp(place, 1) == 0)
        raised(SIGUSR1, 3);
    sink = sink + 1;
    return dive(2);
}

KEPT static int jumps_off_alternate_stack(void) {
    on_other_stack(jumps_off);
    for (int n = 0; n < 100; n++)
        CHECK(jump_once() == 7);
    int jumped = handled;
    /* Calls that the last one has left on that stack are seen to be over when the next one comes. */
    handle(SIGUSR1, on_raise, SA_ONSTACK);
    raised(SIGUSR1, 0);
    return jumped;
}

/* --- fault, fault-jump, fault-deadly: a page that is not there */

static char *page;

KEPT static char touches(int depth) {
    char result = depth > 0 ? touches(depth - 1) : *(volatile char *)page;
    sink = sink + 1;
    return result;
}

static void on_fault(int signal, siginfo_t *info, void *context) {
    (void)context;
    CHECK(signal == SIGSEGV && info->si_addr == page);
    CHECK(dive(3) == 10);
    uintptr_t wanted[] = {(uintptr_t)touches, (uintptr_t)main};
    CHECK(leads_to(wanted, 2));
    CHECK(mprotect(page, 4096, PROT_READ) == 0);
    handled++;
}

static void on_fault_jump(int signal, siginfo_t *info, void *context) {
    (void)context;
    CHECK(signal == SIGSEGV && info->si_addr == page);
    CHECK(dive(3) == 10);
    handled++;
    siglongjmp(place, 1);
}

KEPT static int fault_once(int jumps) {
    volatile int result = 1;
    if (sigsetjmp(place, 1) == 0)
        result = touches(5);
    else
        CHECK(jumps);
    CHECK(dive(2) == 7);
    CHECK(mprotect(page, 4096, PROT_NONE) == 0);
    return result;
}

KEPT static int faults(int jumps) {
    page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct sigaction action = {.sa_sigaction = jumps ? on_fault_jump : on_fault,
                               .sa_flags = SA_SIGINFO};
    CHECK(page != MAP_FAILED && sigaction(SIGSEGV, &action, NULL) == 0);
    for (int n = 0; n < 100; n++)
        CHECK(fault_once(jumps) == jumps);
    return handled;
}

KEPT static int faults_deadly(void) {
    page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return touches(5);
}

/* --- child: SIGCHLD */

static void on_child(int signal) {
    int saved = errno, status;
    CHECK(signal == SIGCHLD && dive(1) == 4);
    while (waitpid(-1, &status, WNOHANG) > 0) {
        went_wrong |= !WIFEXITED(status) || WEXITSTATUS(status) != 7;
        handled++;
    }
    errno = saved;
}

KEPT static int children(void) {
    sigset_t child, before;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    handle(SIGCHLD, on_child, SA_RESTART | SA_NOCLDSTOP);
    for (int n = 0; n < 10; n++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0)
            _exit(dive(2));
    }
    sigprocmask(SIG_BLOCK, &child, &before);
    while (handled < 10)
        sigsuspend(&before);
    sigprocmask(SIG_SETMASK, &before, NULL);
    CHECK(!went_wrong);
    return handled;
}

/* --- wait: threads that take signals without handlers */

enum { SENT = 1000 };
static volatile int taken;

KEPT static void take(int signal) {
    CHECK(signal == SIGUSR1);
    CHECK(dive(4) == 13);
    taken++;
}

static void *waits(void *argument) {
    sigset_t *set = argument;
    for (int n = 0, signal; n < SENT; n++) {
        CHECK(sigwait(set, &signal) == 0);
        take(signal);
    }
    return NULL;
}

static void *reads(void *argument) {
    sigset_t *set = argument;
    int file = signalfd(-1, set, SFD_CLOEXEC);
    struct signalfd_siginfo info;
    CHECK(file >= 0);
    for (int n = 0; n < SENT; n++) {
        CHECK(read(file, &info, sizeof info) == sizeof info);
        take(info.ssi_signo);
    }
    close(file);
    return NULL;
}

KEPT static int takes(void *(*taker)(void *)) {
    sigset_t set;
    pthread_t thread;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
    CHECK(!pthread_create(&thread, NULL, taker, &set));
    for (int n = 0; n < SENT; n++) {
        CHECK(kill(getpid(), SIGUSR1) == 0);
        while (taken == n)
            usleep(50);
        CHECK(dive(1) == 4);
    }
    CHECK(!pthread_join(thread, NULL));
    return taken;
}

/* --- callback-jump: a handler leaves whatever the timer has interrupted */

enum { JUMPS = 2000 };
static volatile int may_jump;

static void on_late(int signal) {
    (void)signal;
    if (may_jump) {
        may_jump = 0;
        handled++;
        siglongjmp(place, 1);
    }
}

KEPT static void until_interrupted(void) {
    struct itimerval when = {.it_value = {0, 1 + handled % 50}};
    may_jump = 1;
    CHECK(setitimer(ITIMER_REAL, &when, NULL) == 0);
    for (;;)
        CHECK(dive(8) == 25);
}

KEPT static int leaves_anything(void) {
    handle(SIGALRM, on_late, 0);
    while (handled < JUMPS) {
        if (sigsetjmp(place, 1) == 0)
            until_interrupted();
        CHECK(dive(3) == 10);
    }
    return handled;
}

/* --- trap-jump: handlers of traps that are left, time and again */

static volatile int traps_itself;
static struct sigaction before_traps[2];

/* A trap that is not the program's own belongs to the handler before. */
static void on_trap(int signal, siginfo_t *info, void *context) {
    struct sigaction *before = &before_traps[signal == SIGILL];
    if (!traps_itself) {
        CHECK(before->sa_flags & SA_SIGINFO);
        before->sa_sigaction(signal, info, context);
        return;
    }
    traps_itself = 0;
    handled++;
    siglongjmp(place, 1);
}

KEPT static int leaves_traps(void) {
    struct sigaction action = {.sa_sigaction = on_trap,
                               .sa_flags = SA_SIGINFO | SA_NODEFER};
    CHECK(sigaction(SIGTRAP, NULL, &before_traps[0]) == 0);
    CHECK(sigaction(SIGILL, NULL, &before_traps[1]) == 0);
    CHECK(sigaction(SIGTRAP, &action, NULL) == 0);
    CHECK(sigaction(SIGILL, &action, NULL) == 0);
    for (volatile int n = 0; n < JUMPS; n++) {
        if (sigsetjmp(place, 1) == 0) {
            traps_itself = 1;
            if (n % 3)
                __asm__ volatile("int3");
            else
                __asm__ volatile("ud2");
        }
        CHECK(handled == n + 1);
        CHECK(dive(3) == 10);
        if (n % 10 == 0)
            usleep(300);
    }
    return handled;
}

int main(int argc, char **argv) {
    const char *what = argc == 2 ? argv[1] : "";
    int result;
    if (!strcmp(what, "raise"))
        result = raises();
    else if (!strcmp(what, "nested"))
        result = nests();
    else if (!strcmp(what, "nodefer"))
        result = interrupts_itself();
    else if (!strcmp(what, "altstack"))
        result = on_alternate_stack();
    else if (!strcmp(what, "altstack-jump"))
        result = jumps_off_alternate_stack();
    else if (!strcmp(what, "fault"))
        result = faults(0);
    else if (!strcmp(what, "fault-jump"))
        result = faults(1);
    else if (!strcmp(what, "fault-deadly"))
        result = faults_deadly();
    else if (!strcmp(what, "child"))
        result = children();
    else if (!strcmp(what, "sigwait"))
        result = takes(waits);
    else if (!strcmp(what, "signalfd"))
        result = takes(reads);
    else if (!strcmp(what, "callback-jump"))
        result = leaves_anything();
    else if (!strcmp(what, "trap-jump"))
        result = leaves_traps();
    else if (!strcmp(what, "deadly")) {
        printf("before\n");
        fflush(stdout);
        raised(SIGTERM, 5);
        result = 0;
    } else
        return 2;
    printf("handled %d\n", result);
    return 0;
}
