// Uses functions that every library with malloc has.
#include <stdlib.h>

void *volatile kept;

__attribute__((noinline)) void *keep(void) { return malloc(100); }

__attribute__((noinline)) void use(void) {
    volatile char *block = calloc(3, 10);
    block[0] = 1;
    free((void *)block);
}

__attribute__((noinline)) void *grow(void *block, int i) { return realloc(block, i * 10); }

__attribute__((noinline)) void *aligned(void) {
    void *block;
    return posix_memalign(&block, 64, 64) ? NULL : block;
}

int main(void) {
    void *block = NULL;
    for (int i = 1; i <= 50; i++) {
        kept = keep();
        use();
        block = grow(block, i);
        kept = aligned();
    }
    return block == NULL;
}
