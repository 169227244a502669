// Calls `tiny` often, and `slow` now and then, until the text of `tiny` is as it is in the file;
// then only `slow`, until it is not. Prints the number of calls of `slow`. With `fork`, a forked
// child does it; with `once`, the first part is all; with `later`, too, and it is recorded later.
#include <elf.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

__attribute__((noinline)) long tiny(long n) {
    __asm__ volatile("nop; nop; nop; nop; nop; nop");
    return n + 1;
}

__attribute__((noinline)) long slow(long n) {
    for (int i = 0; i < 300000; i++)
        __asm__ volatile("" : "+r"(n));
    return n;
}

extern char __executable_start;
static unsigned char bytes[8];

// The program is linked so that offsets in its text are distances from where it is loaded.
static int is_plain(void) { return memcmp(bytes, (const void *)tiny, sizeof bytes) == 0; }

static int is_late(void) {
    static time_t begin;
    if (begin == 0)
        begin = time(NULL);
    return time(NULL) - begin > 120;
}

int main(int argc, char **argv) {
    int status;
    int is_later = argc > 1 && strcmp(argv[1], "later") == 0;
    int is_once = is_later || argc > 1 && strcmp(argv[1], "once") == 0;
    if (argc > 1 && !is_once) {
        pid_t child = fork();
        if (child != 0)
            return waitpid(child, &status, 0) == child ? WEXITSTATUS(status) : 1;
    }
    FILE *file = fopen("/proc/self/exe", "rb");
    if (file == NULL || fseek(file, (char *)tiny - &__executable_start, SEEK_SET) != 0 ||
        fread(bytes, sizeof bytes, 1, file) != 1)
        return 2;
    fclose(file);
    while (is_later && is_plain())
        if (is_late())
            return 3;
    if (is_plain())
        return 3;
    long calls = 0, sum = 0;
    for (; !is_plain(); calls++) {
        for (int i = 0; i < 100000; i++)
            sum = tiny(sum);
        slow(sum);
        if (is_late())
            return 4;
    }
    for (; is_plain() && !is_once; calls++) {
        slow(sum);
        if (is_late())
            return 5;
    }
    if (!is_once) {
        sum = tiny(sum);
        // The agent tells of it next.
        usleep(200000);
    }
    printf("%ld\n", calls);
    return sum % 100000 == !is_once ? 0 : 6;
}
