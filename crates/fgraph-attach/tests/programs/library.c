// The library that the tests load: it appends what it is given to the file named before the first
// newline.
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <errno.h>
#include <time.h>

static int calls;

__attribute__((constructor)) static void begin(void)
{
    // Takes the locks that a badly chosen thread would hold.
    free(malloc(100000));
}

int loaded(const void *argument, size_t len)
{
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
