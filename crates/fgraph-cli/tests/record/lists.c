/* Lists in memory of a conservative collector, which frees what it does not find. A function holds the head of a list
 * in a register alone (rbp among them) while functions that it calls allocate. Prints how many lists lost elements. */
#include <gc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define NOINLINE __attribute__((noinline, noipa))

struct cell { struct cell *next; uintptr_t check; };
static volatile long sink;

static NOINLINE struct cell *cell(struct cell *next, uintptr_t number) {
    struct cell *made = GC_MALLOC(sizeof *made);
    made->next = next;
    made->check = number ^ (uintptr_t)made;
    return made;
}
static NOINLINE struct cell *list(long len, uintptr_t seed) {
    struct cell *head = NULL;
    for (long n = 0; n < len; n++) head = cell(head, seed + n);
    return head;
}
/* Collects, and allocates, so that what was freed is used again. */
static NOINLINE void litter(long rounds) {
    volatile uintptr_t room[512];
    for (long n = 0; n < 512; n++) room[n] = 0; /* where copies of what callers have may be */
    GC_enable();
    GC_gcollect();
    for (long n = 0; n < rounds; n++) sink += list(20, n)->check != 0;
}
static NOINLINE long is_whole(struct cell *head, long len, uintptr_t seed) {
    for (long n = len; n-- > 0; head = head->next)
        if (!head || head->check != (seed + n ^ (uintptr_t)head)) return 0;
    return head == NULL;
}
/* The address of a list, which is kept with its bits inverted, where the collector does not find it. */
static uintptr_t hidden[6];
static NOINLINE void hide(void) {
    GC_disable();
    for (long n = 0; n < 6; n++) hidden[n] = ~(uintptr_t)list(10, n);
}
static NOINLINE struct cell *show(long n) { return (struct cell *)~hidden[n]; }

/* Six lists live across the call, so that one is in each register that functions keep for their callers. */
static NOINLINE long keep(void) {
    struct cell *a = show(0), *b = show(1), *c = show(2), *d = show(3), *e = show(4), *f = show(5);
    litter(20);
    return !is_whole(a, 10, 0) + !is_whole(b, 10, 1) + !is_whole(c, 10, 2) + !is_whole(d, 10, 3) + !is_whole(e, 10, 4) +
           !is_whole(f, 10, 5);
}
int main(int argc, char **argv) {
    long milliseconds = argc > 1 ? atol(argv[1]) : 0, lost = 0, rounds = 300;
    GC_INIT();
    clock_t end = clock() + milliseconds * (CLOCKS_PER_SEC / 1000);
    for (long n = 0; n < rounds || clock() < end; n++) hide(), lost += keep();
    printf("%ld lists lost\n", lost);
    return lost != 0;
}
