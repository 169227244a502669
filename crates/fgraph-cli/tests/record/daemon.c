/* Becomes a daemon by two forks. The process in between calls nothing that is recorded, and ends. */

#include <sys/wait.h>
#include <unistd.h>

volatile long sum;

__attribute__((noinline)) void leaf(void)
{
    for (int i = 0; i < 10; i++)
        sum += i;
}

static int forks(void)
{
    int child = fork();
    if (child > 0)
        waitpid(child, NULL, 0);
    return child == 0;
}

int main(void)
{
    int ended[2], is_ready = pipe(ended) == 0;
    /* The first child describes what the daemon calls, too. */
    if (forks()) {
        leaf();
        if (forks()) {
            if (fork() == 0) {
                leaf();
                leaf();
            }
            _exit(0);
        }
        _exit(0);
    }
    char none;
    close(ended[1]);
    return !(is_ready && read(ended[0], &none, 1) == 0);
}
