// Fails to execute a program in each of so many threads, one after the other, and says by how many
// KiB its mappings have grown since the first hundred.
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

static void *thread(void *argument) {
    // The program is fine, its list of arguments is not.
    char **volatile bad = (char **)8;
    execve("/bin/sh", bad, environ);
    return errno == EFAULT ? argument : NULL;
}

static long size(void) {
    char line[256];
    long kib = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status))
        if (strncmp(line, "VmSize:", 7) == 0)
            kib = atol(line + 7);
    fclose(status);
    return kib;
}

int main(int argc, char **argv) {
    long first = 0;
    for (int n = 0; n < atoi(argv[argc - 1]); n++) {
        pthread_t other;
        void *result = NULL;
        if (pthread_create(&other, NULL, thread, &first) != 0 || pthread_join(other, &result) != 0 || !result)
            return 1;
        if (n == 100)
            first = size();
    }
    printf("%ld\n", size() - first);
    return 0;
}
