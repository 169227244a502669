// Program with an allocator for one thread. Says that it is ready, and waits for the end of its input.
// With THREADS the allocator has a lock, with DATA it has data of each thread.
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char memory[64 << 20] __attribute__((aligned(16)));
static size_t used;
#ifdef DATA
static __thread int calls;
#endif

void *malloc(size_t len)
{
#ifdef DATA
    calls++;
#endif
#ifdef THREADS
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
#endif
    size_t *block = (size_t *)(memory + used);
    used += (len + 31) & ~(size_t)15;
#ifdef THREADS
    pthread_mutex_unlock(&lock);
#endif
    *block = len;
    return block + 2;
}

void free(void *block) { (void)block; }

void *calloc(size_t count, size_t len)
{
    return malloc(count * len); // It is used once.
}

void *realloc(void *block, size_t len)
{
    void *other = malloc(len);
    if (block) {
        size_t before = ((size_t *)block)[-2];
        memcpy(other, block, before < len ? before : len);
    }
    return other;
}

int main(void)
{
    char end;
    puts("ready");
    fflush(stdout);
    return read(0, &end, 1) != 0;
}
