// The kernel sends the main thread SIGSYS, which ends the program, for system calls that are made
// outside of the C library: with the argument `now and then` only while it calls `write`. With
// `thread` there is another thread, which sleeps. Ends with 77 where the kernel cannot do that.
#define _GNU_SOURCE
#include <link.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#endif

static unsigned long start, len;

static int find(struct dl_phdr_info *info, size_t size, void *function)
{
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        unsigned long at = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
        if ((unsigned long)function - at < info->dlpi_phdr[i].p_memsz) {
            start = at;
            len = info->dlpi_phdr[i].p_memsz;
        }
    }
    return 0;
}

static void *sleeps(void *unused)
{
    for (;;)
        pause();
    return unused;
}

int main(int count, char **arguments)
{
    static char blocks = 1;
    const char *how = count > 1 ? arguments[1] : "";
    pthread_t thread;
    if (strcmp(how, "thread") == 0)
        pthread_create(&thread, 0, sleeps, 0);
    dl_iterate_phdr(find, read);
    int is_off = prctl(PR_SET_SYSCALL_USER_DISPATCH, 1, start, len, &blocks);
    puts("ready");
    fflush(stdout);
    if (strcmp(how, "now and then") == 0) {
        char byte;
        fcntl(0, F_SETFL, O_NONBLOCK);
        for (unsigned i = 1; i % 1000 != 0 || read(0, &byte, 1) != 0; i++) {
            prctl(PR_SET_SYSCALL_USER_DISPATCH, 1, start, len, &blocks);
            if (write(-1, "", 0) >= 0)
                return 1;
            prctl(PR_SET_SYSCALL_USER_DISPATCH, 0, 0, 0, 0);
        }
    }
    while (getchar() != EOF)
        ;
    return is_off ? 77 : 0;
}
