// Threads that do nothing but load a library: all but one of them wait for the linker's lock. Ends
// with 0 once the first byte of standard input, a file, is not zero.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>

static volatile char *end;
static volatile int failed;

static void *loads(void *library)
{
    while (!*end) {
        void *handle = dlopen(library, RTLD_NOW);
        if (!handle || !dlsym(handle, "compress"))
            failed = 1;
        else
            dlclose(handle);
    }
    return 0;
}

int main(int argc, char **argv)
{
    end = mmap(0, 4096, PROT_READ, MAP_SHARED, 0, 0);
    if (argc < 2 || end == MAP_FAILED)
        return 2;
    pthread_t threads[7];
    for (int i = 0; i < 7; i++)
        pthread_create(&threads[i], 0, loads, argv[1]);
    puts("ready");
    fflush(stdout);
    loads(argv[1]);
    for (int i = 0; i < 7; i++)
        pthread_join(threads[i], 0);
    return failed;
}
