// Puts another file where a new file of memory or socket is, all the time: the file that the first
// argument names, which this program may not write to, or a socket to who listens at that path.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

// The descriptors that come next.
enum { FIRST = 3, LAST = 9, OTHER = 100 };

static volatile int is_over;

static void *swaps(void *unused)
{
    while (!is_over)
        for (int fd = FIRST; fd <= LAST; fd++) {
            struct stat found;
            if (fstat(fd, &found) != 0)
                continue;
            int is_memory = S_ISREG(found.st_mode) && found.st_nlink == 0;
            if (is_memory || S_ISSOCK(found.st_mode))
                dup3(OTHER, fd, O_CLOEXEC);
        }
    return unused;
}

int main(int argc, char **argv)
{
    struct sockaddr_un place = {AF_UNIX, ""};
    strncpy(place.sun_path, argv[1], sizeof place.sun_path - 1);
    int other = socket(AF_UNIX, SOCK_DGRAM, 0);
    if (argc < 2 || connect(other, (struct sockaddr *)&place, sizeof place) != 0) {
        close(other);
        other = open(argv[1], O_PATH);
    }
    dup2(other, OTHER);
    close(other);
    pthread_t thread;
    pthread_create(&thread, 0, swaps, 0);
    puts("ready");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0) {
    }
    is_over = 1;
    return pthread_join(thread, 0);
}
