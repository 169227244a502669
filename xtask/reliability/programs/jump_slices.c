/* Coroutines that share one piece of the machine stack: what one has there is copied away while another runs, as
 * greenlet does it. The library that tells of that is by its name only a greenlet. */
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOINLINE __attribute__((noinline))
#define COROUTINES 3

int greenlet_part(void);

struct coroutine {
    uintptr_t low;  /* its stack pointer while it is away */
    char *copy;     /* what was from there up to where all coroutines begin */
    int is_over;
};
static struct coroutine coroutines[COROUTINES], *running;
static struct coroutine scheduler;
static uintptr_t begin;
static volatile long sink;
static long sums[COROUTINES];

/* Saves the registers, calls `switches` on a stack of its own with the stack pointer, goes on with the one it gives. */
void switch_stacks(void);
static char other[65536] __attribute__((aligned(64)));
char *other_top = other + sizeof other;
static struct coroutine *from, *to;

/* Runs on `other`: nothing of the shared piece is in use. */
__attribute__((used)) uintptr_t switches(uintptr_t sp) {
    from->low = sp;
    if (from != &scheduler) {
        from->copy = realloc(from->copy, begin - sp);
        memcpy(from->copy, (void *)sp, begin - sp);
    }
    if (to != &scheduler && to->copy) memcpy((void *)to->low, to->copy, begin - to->low);
    running = to;
    return to->low;
}
__asm__(
    ".text\n.type switch_stacks, @function\n"
    "switch_stacks:\n push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
    " mov %rsp, %rdi\n mov other_top(%rip), %rsp\n call switches\n mov %rax, %rsp\n"
    " pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n"
    ".size switch_stacks, .-switch_stacks\n");

static NOINLINE void go(struct coroutine *next) {
    from = running;
    to = next;
    switch_stacks();
}

static NOINLINE long deeper(long depth) {
    sink += depth;
    if (depth == 0) {
        go(&scheduler);
        return 1;
    }
    long below = deeper(depth - 1);
    sink += below;
    return below + 1;
}

__attribute__((used)) void body(void) {
    long index = running - coroutines;
    for (int round = 0; round < 10; round++) sums[index] += deeper(round + 5 * index);
    running->is_over = 1;
    go(&scheduler);
    abort();
}
void enter_body(void);
__asm__(".type enter_body, @function\nenter_body:\n xor %ebp, %ebp\n call body\n ud2\n.size enter_body, .-enter_body\n");

static NOINLINE long at_depth(long depth) {
    sink += depth;
    long more = depth ? at_depth(depth - 1) : 0;
    sink += more;
    return more + 1;
}

static NOINLINE int schedule(void) {
    char *piece = __builtin_alloca(65536);
    memset(piece, 0, 65536);
    /* All of them begin here, below the frames of the scheduler. */
    begin = (uintptr_t)piece + 32768 & -64;
    for (int n = 0; n < COROUTINES; n++) {
        uintptr_t *top = (uintptr_t *)begin - 2;
        struct coroutine *it = &coroutines[n];
        it->copy = calloc(1, 16 * 8);
        it->low = begin - 16 * 8;
        ((uintptr_t *)it->copy)[6] = (uintptr_t)enter_body;
        (void)top;
    }
    running = &scheduler;
    int left = COROUTINES;
    long calls = 0;
    while (left) {
        left = 0;
        for (int n = 0; n < COROUTINES; n++) {
            if (coroutines[n].is_over) continue;
            go(&coroutines[n]);
            calls += at_depth(3);
            left += !coroutines[n].is_over;
        }
    }
    for (int n = 0; n < COROUTINES; n++) free(coroutines[n].copy);
    printf("%ld %ld %ld %d\n", sums[0], sums[1], sums[2], calls > 0);
    return 0;
}

int main(void) {
    return greenlet_part() + schedule();
}
