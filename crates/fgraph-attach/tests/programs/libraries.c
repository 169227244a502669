// Keeps another C library beside its own, as the argument says. Ends with 0 when standard input
// does.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef EXPORTS
// None of them is for others than this program.
void *pthread_create(void) { abort(); }
void *pthread_attr_init(void) { abort(); }
void *pthread_attr_setdetachstate(void) { abort(); }
void *gnu_get_libc_version(void) { abort(); }
#endif

static int has_name(struct dl_phdr_info *info, size_t size, void *path)
{
    (void)size;
    if (strstr(info->dlpi_name, "/libc.so.6"))
        strcpy(path, info->dlpi_name);
    return 0;
}

// Maps the whole file of the C library below all others.
static int maps(int protection)
{
    char path[4096] = "";
    struct stat status;
    dl_iterate_phdr(has_name, path);
    int file = open(path, O_RDONLY);
    if (file < 0 || fstat(file, &status) != 0)
        return 0;
    return mmap((void *)0x40000000, status.st_size, protection, MAP_PRIVATE | MAP_FIXED, file, 0)
           != MAP_FAILED;
}

int main(int argc, char **argv)
{
    const char *kind = argc > 1 ? argv[1] : "";
    int is_made = 1;
    if (strcmp(kind, "data") == 0)
        is_made = maps(PROT_READ);
    if (strcmp(kind, "executable") == 0)
        is_made = maps(PROT_READ | PROT_EXEC);
    if (strcmp(kind, "namespace") == 0)
        is_made = dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW) != 0;
    puts(is_made ? "ready" : "failed");
    fflush(stdout);
    char byte;
    return read(0, &byte, 1) == 0 ? 0 : 1;
}
