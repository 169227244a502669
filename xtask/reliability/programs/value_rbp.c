/* Functions that do not keep rbp, or look at their return address or their caller's frame: value_rbp WHAT.
 *
 * lost      Assembly that returns with anything in rbp, in its own code or in that of what it calls.
 * address   Functions that look at their return address, in C and in assembly.
 * aligned   A function that aligns its stack, and looks at the copy of the return address.
 * frame     Functions that look at their caller's frame through the frame pointer that they have saved. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define NOINLINE __attribute__((noinline))

static volatile long sink;

/* Calls a function that does not keep rbp. */
uint64_t call_lost(uint64_t (*function)(uint64_t), uint64_t argument);
uint64_t lost_number(uint64_t), lost_address(uint64_t), lost_below(uint64_t), lost_in_data(uint64_t), lost_twice(uint64_t);
__asm__(
    ".text\n.type call_lost, @function\n"
    "call_lost:\n push %rbp\n push %rbx\n sub $8, %rsp\n mov %rdi, %rax\n mov %rsi, %rdi\n mov %rsp, %rbx\n"
    " call *%rax\n cmp %rsp, %rbx\n jne 1f\n add $8, %rsp\n pop %rbx\n pop %rbp\n ret\n1: ud2\n.size call_lost, .-call_lost\n"
    /* Seen in the code. */
    ".type lost_number, @function\n"
    "lost_number:\n mov $7, %ebp\n lea 1(%rdi), %rax\n nop\n ret\n.size lost_number, .-lost_number\n"
    /* Not seen: the code is another function's. */
    ".type set_rbp, @function\n"
    "set_rbp:\n mov %rsi, %rbp\n lea 1(%rdi), %rax\n nop\n ret\n.size set_rbp, .-set_rbp\n"
    ".type lost_address, @function\n"
    "lost_address:\n movabs $0xdead00000000dead, %rsi\n sub $8, %rsp\n call set_rbp\n add $8, %rsp\n ret\n"
    ".size lost_address, .-lost_address\n"
    ".type lost_below, @function\n"
    "lost_below:\n lea -64(%rsp), %rsi\n sub $8, %rsp\n call set_rbp\n add $8, %rsp\n ret\n.size lost_below, .-lost_below\n"
    ".type lost_in_data, @function\n"
    "lost_in_data:\n lea lost_in_data(%rip), %rsi\n sub $8, %rsp\n call set_rbp\n add $8, %rsp\n ret\n"
    ".size lost_in_data, .-lost_in_data\n"
    ".type lost_twice, @function\n"
    "lost_twice:\n sub $8, %rsp\n call lost_address\n mov %rax, %rdi\n call lost_below\n add $8, %rsp\n ret\n"
    ".size lost_twice, .-lost_twice\n");

static NOINLINE int lost(void) {
    uint64_t (*functions[])(uint64_t) = {lost_number, lost_address, lost_below, lost_in_data, lost_twice};
    uint64_t sum = 0;
    for (int n = 0; n < 100; n++)
        sum += call_lost(functions[n % 5], n);
    printf("%lu\n", sum);
    return sum != 4950 + 120;
}

/* True if the address is in the function that begins at `function`. */
static int is_in(const void *address, const void *function) {
    return (uintptr_t)address - (uintptr_t)function < 1024;
}

static NOINLINE int asks_address(const void *caller) {
    sink++;
    return is_in(__builtin_return_address(0), caller);
}
const void *pops_address(void), *reads_address(void);
__asm__(
    ".type pops_address, @function\n"
    "pops_address:\n pop %rax\n nop\n nop\n nop\n nop\n jmp *%rax\n.size pops_address, .-pops_address\n"
    ".type reads_address, @function\n"
    "reads_address:\n push %rbx\n push %rbx\n mov 16(%rsp), %rax\n pop %rbx\n pop %rbx\n ret\n"
    ".size reads_address, .-reads_address\n");

static NOINLINE int address(void) {
    int ours = 0;
    for (int n = 0; n < 10; n++) {
        ours += is_in(pops_address(), (void *)address);
        ours += is_in(reads_address(), (void *)address);
        ours += asks_address((void *)address);
    }
    printf("%d\n", ours);
    return ours != 30;
}

/* gcc keeps the CFA in a register and copies the return address to the frame, for the arguments on the stack. */
#define ALIGNED float line[8] __attribute__((aligned(64))); char *more = __builtin_alloca(size + 1); fill(line, more)
static NOINLINE void fill(volatile float *line, volatile char *more) {
    line[0] = more[0] = 1;
    sink++;
}
static NOINLINE int asks_aligned(int size, long b, long c, long d, long e, long f, const void *caller) {
    ALIGNED;
    return is_in(__builtin_return_address(0), caller);
}
static NOINLINE long asks_nothing(int size, long b, long c, long d, long e, long f, long g) {
    ALIGNED;
    return g - size;
}

static NOINLINE int aligned(void) {
    int right = 0;
    for (int n = 0; n < 10; n++) {
        right += asks_aligned(n, 1, 2, 3, 4, 5, (void *)aligned);
        right += asks_nothing(n, 1, 2, 3, 4, 5, 2 * n) == n;
    }
    printf("%d\n", right);
    return right != 20;
}

/* A callee that reads a variable of its caller: eight bytes below the caller's frame pointer. */
uint64_t reads_frame(uint64_t), has_frame(uint64_t);
__asm__(
    ".type reads_frame, @function\n"
    "reads_frame:\n push %rbp\n mov %rsp, %rbp\n mov (%rbp), %rax\n mov -8(%rax), %rax\n add %rdi, %rax\n pop %rbp\n ret\n"
    ".size reads_frame, .-reads_frame\n"
    ".type has_frame, @function\n"
    "has_frame:\n push %rbp\n mov %rsp, %rbp\n sub $16, %rsp\n mov %rdi, -8(%rbp)\n call reads_frame\n leave\n ret\n"
    ".size has_frame, .-has_frame\n");

static NOINLINE int frame(void) {
    uint64_t sum = 0;
    for (uint64_t n = 0; n < 100; n++)
        sum += has_frame(n);
    printf("%lu\n", sum);
    return sum != 9900;
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    if (!strcmp(argv[1], "lost")) return lost();
    if (!strcmp(argv[1], "address")) return address();
    if (!strcmp(argv[1], "aligned")) return aligned();
    return frame();
}
