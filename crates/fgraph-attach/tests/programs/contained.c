// Allows itself the system calls whose names are in the file of the first argument, a line each, as
// the filters of containers do: others fail.
#include <errno.h>
#include <seccomp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    FILE *names = argc == 2 ? fopen(argv[1], "r") : 0;
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ERRNO(ENOSYS));
    char name[64];
    int count = 0;
    while (names && filter && fgets(name, sizeof name, names)) {
        name[strcspn(name, "\n")] = 0;
        int number = seccomp_syscall_resolve_name(name);
        count += number >= 0 && seccomp_rule_add(filter, SCMP_ACT_ALLOW, number, 0) == 0;
    }
    if (count < 100 || seccomp_load(filter) != 0)
        return 1;
    puts("ready");
    fflush(stdout);
    char byte;
    return read(0, &byte, 1) != 0;
}
