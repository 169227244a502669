/* Calls `work` now and then until SIGTERM, a minute at most. Its status is 0 if all was right. */
#include <signal.h>
#include <unistd.h>

static volatile sig_atomic_t is_over;

static void end(int signal)
{
    (void)signal;
    is_over = 1;
}

__attribute__((noinline, noipa)) static long step(long n)
{
    __asm__ volatile("" : "+r"(n));
    return n + 1;
}

__attribute__((noinline, noipa)) static long work(long n)
{
    long sum = 0;
    for (int i = 0; i < 50; i++)
        sum = step(sum);
    return sum + n;
}

int main(void)
{
    int wrong = 0;
    signal(SIGTERM, end);
    alarm(60);
    while (!is_over) {
        wrong |= work(7) != 57;
        usleep(1000);
    }
    return wrong;
}
