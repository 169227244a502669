// The library that the tests load: it appends what it is given to the file named before the first
// newline.
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <errno.h>
#include <time.h>

static int calls;

__attribute__((constructor)) static void begin(void)
{
    // Takes the locks that a badly chosen thread would hold.
    free(malloc(100000));
}

// True if the thread blocks a signal by which the C library interrupts threads, and may wait for
// them.
static int blocks_signals_of_the_c_library(void)
{
    unsigned long blocked = 0;
    syscall(SYS_rt_sigprocmask, SIG_BLOCK, 0, &blocked, sizeof blocked);
    return (blocked >> 31 & 3) != 0;
}

int loaded(const void *argument, size_t len)
{
    if (blocks_signals_of_the_c_library())
        return -2;
    const char *text = argument, *rest = memchr(text, '\n', len);
    char path[4096] = {0};
    memcpy(path, text, rest - text);
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    rest++;
    if (write(file, rest, len - (rest - text)) < 0)
        return -1;
    close(file);
    // A value that the thread must not see.
    errno = 77;
    return ++calls;
}

int loaded_slowly(const void *argument, size_t len)
{
    int result = loaded(argument, len);
    struct timespec left = {0, 300000000};
    nanosleep(&left, 0);
    return result;
}

int shares(const void *argument, size_t len)
{
    (void)len;
    int file = atoi(argument);
    int written = write(file, "here", 4);
    close(file);
    return written;
}
