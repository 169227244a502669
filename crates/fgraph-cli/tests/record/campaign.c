/* Calls that can fail; the program takes each failure in another way. */

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define APART __attribute__((noinline, noipa))

static void text(const char *it)
{
    if (write(1, it, strlen(it)) < 0)
        _exit(9);
}

APART int reports(void)
{
    int fd = open("input", O_RDONLY);
    if (fd < 0) {
        const char *message = "input cannot be opened\n";
        if (write(2, message, strlen(message)) < 0)
            _exit(9);
        exit(2);
    }
    return fd;
}

APART void ignores(int fd)
{
    fsync(fd);
}

APART void crashes(void)
{
    volatile char *memory = malloc(100);
    memory[0] = 1;
    free((void *)memory);
}

APART void hangs(int fd)
{
    if (pwrite(fd, "data", 4, 0) != 4) {
        signal(SIGTERM, SIG_IGN);
        /* A child that leaves the group must not stay either. */
        if (fork() == 0)
            setsid();
        for (;;)
            pause();
    }
}

APART void leaves_another_file(void)
{
    rename("new", "data");
}

APART void writes_another_output(void)
{
    text(access("input", R_OK) == 0 ? "yes\n" : "no\n");
}

APART int reads(int fd)
{
    char byte;
    return read(fd, &byte, 1) == 1;
}

/* Bears it that the first of its calls fail, but not the last. */
static void reads_thrice(void)
{
    int fd = reports();
    for (volatile int nth = 0; nth < 3; nth++)
        if (!reads(fd) && nth == 2)
            exit(3);
}

/* Another behaviour in each run. */
static void varies(void)
{
    char line[32];
    int fd = open("varies", O_CREAT | O_WRONLY | O_TRUNC, 0600);
    int len = snprintf(line, sizeof line, "%d\n", (int)getpid());
    if (write(fd, line, len) != len)
        exit(4);
    text(line);
    fsync(fd);
    close(fd);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "thrice") == 0) {
        reads_thrice();
        return 0;
    }
    if (strcmp(what, "varies") == 0) {
        varies();
        return 0;
    }
    if (strcmp(what, "once") == 0) {
        /* Only the first run makes the directory. */
        if (access("made", F_OK) != 0)
            mkdir("made", 0700);
        int fd = reports();
        ignores(fd);
        return 0;
    }
    close(reports());
    int fd = open("new", O_CREAT | O_WRONLY | O_TRUNC, 0600);
    ignores(fd);
    crashes();
    hangs(fd);
    leaves_another_file();
    writes_another_output();
    return 0;
}
