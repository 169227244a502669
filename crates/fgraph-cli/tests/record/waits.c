// Calls `leaf` until a byte comes, and says so each time that it is interrupted. Dies of that with
// an argument.
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

__attribute__((noinline)) int leaf(int n) { __asm__ volatile("nop; nop; nop; nop; nop; nop"); return n + 1; }

static void say(const char *text) {
    if (write(STDOUT_FILENO, text, strlen(text)) < 0)
        _exit(1);
}

static void interrupted(int signal) {
    (void)signal;
    say("interrupted\n");
}

int main(int argc, char **argv) {
    (void)argv;
    if (argc == 1)
        signal(SIGINT, interrupted);
    struct pollfd input = {STDIN_FILENO, POLLIN, 0};
    int sum = leaf(0);
    say("ready\n");
    while (poll(&input, 1, 10) != 1)
        for (int n = 0; n < 1000; n++)
            sum = leaf(sum);
    say("the end\n");
    return 7;
}
