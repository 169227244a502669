// Allocates from a pool of its own, in one block of malloc's.
#include <stddef.h>
#include <stdlib.h>

struct pool {
    char *next;
    struct node { struct node *next; } *gone;
};

__attribute__((noinline)) void *pool_alloc(struct pool *pool, size_t size) {
    if (!pool->next) pool->next = malloc(1 << 20);
    struct node *found = pool->gone;
    if (found) {
        pool->gone = found->next;
        return found;
    }
    char *block = pool->next;
    pool->next += (size + 63) / 64 * 64;
    return block;
}

__attribute__((noinline)) void pool_free(struct pool *pool, int why, void *block) {
    struct node *gone = block;
    if (why < 0) abort();
    gone->next = pool->gone;
    pool->gone = gone;
}

__attribute__((noinline)) void *keep(struct pool *pool) { return pool_alloc(pool, 24); }
__attribute__((noinline)) void use(struct pool *pool) { pool_free(pool, 1, pool_alloc(pool, 40)); }

int main(void) {
    struct pool pool = {0};
    for (int i = 0; i < 100; i++) {
        use(&pool);
        if (!keep(&pool)) return 1;
    }
    return 0;
}
