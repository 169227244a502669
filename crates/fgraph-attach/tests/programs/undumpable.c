// May not be dumped, and is its user's in all else. Ends with its input.
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(void)
{
    char byte;
    if (prctl(PR_SET_DUMPABLE, 0) != 0)
        return 1;
    puts("ready");
    fflush(stdout);
    return read(0, &byte, 1) != 0;
}
