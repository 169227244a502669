/* A conservative collector: it looks on the machine stack for objects that may be in use. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define NOINLINE __attribute__((noinline))
#define OBJECTS 200

/* The address of the object that is in use, with all its bits inverted. */
uintptr_t hidden;
static uintptr_t base;
static long found;
static volatile long sink;

/* Saves the registers that callers rely on, then looks at all words up to where the stack begins. */
static NOINLINE void mark(void) {
    __builtin_unwind_init();
    uintptr_t *low = __builtin_frame_address(0);
    /* They are right below the address of the frame. */
    for (uintptr_t *word = low - 6; word < (uintptr_t *)base; word++)
        if (~*(volatile uintptr_t *)word == hidden) {
            found++;
            return;
        }
}
NOINLINE void collect(void) {
    mark();
    sink++;
}
NOINLINE long deeper(long depth) {
    if (depth == 0) collect();
    else sink += deeper(depth - 1);
    return sink++;
}

/* holds_R has the object's address in the register R alone, as compilers have a variable that lives across a call. */
#define HOLDS(reg) \
    long holds_##reg(long depth); \
    __asm__(".text\n.type holds_" #reg ", @function\nholds_" #reg ":\n" \
            " push %" #reg "\n mov hidden@GOTPCREL(%rip), %" #reg "\n mov (%" #reg "), %" #reg "\n not %" #reg "\n" \
            " call deeper@PLT\n mov %" #reg ", %rax\n not %rax\n pop %" #reg "\n ret\n" \
            ".size holds_" #reg ", .-holds_" #reg "\n");
HOLDS(rbp)
HOLDS(rbx)
HOLDS(r12)
HOLDS(r15)

int main(void) {
    static long (*const holders[])(long) = {holds_rbp, holds_rbx, holds_r12, holds_r15};
    base = (uintptr_t)__builtin_frame_address(0);
    /* Made before, so that no register has an object's address when a holder is called. */
    static uintptr_t objects[OBJECTS];
    for (long n = 0; n < OBJECTS; n++) objects[n] = ~(uintptr_t)malloc(16);
    long changed = 0;
    for (long n = 0; n < OBJECTS; n++) {
        hidden = objects[n];
        changed += (uintptr_t)holders[n % 4](n % 3) != hidden;
    }
    printf("%ld of %d, %ld\n", found, OBJECTS, changed);
    return found != OBJECTS || changed;
}
