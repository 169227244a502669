/* Code as GHC makes it of Haskell: functions behind info tables, without unwind information, that jump to each other.
 * No return address is on top of the machine stack, and rsp may not move: rbp is the stack of such functions. */
#include <stdio.h>

#define NOINLINE __attribute__((noinline))

static volatile long sink;

/* Called by such functions. */
NOINLINE long called(long number) {
    sink += number;
    return number + 1;
}

/* info(name): an info table, of a function or of what is returned to, and the symbol behind it. */
__asm__(".macro info name\n"
        ".p2align 3\n"
        ".quad 0\n" /* layout */
        ".long 14\n" /* type */
        ".long 0\n"
        ".globl \\name\n"
        ".type \\name, @function\n"
        "\\name:\n"
        ".endm\n"
        ".text\n"
        /* long run(long rounds, long *stack) */
        ".globl run\n"
        ".type run, @function\n"
        "run:\n"
        ".cfi_startproc\n"
        "push %rbp\n"
        ".cfi_adjust_cfa_offset 8\n"
        ".cfi_offset rbp, -16\n"
        "push %rbx\n"
        ".cfi_adjust_cfa_offset 8\n"
        ".cfi_offset rbx, -24\n"
        "sub $72, %rsp\n"
        ".cfi_adjust_cfa_offset 72\n"
        "mov %rdi, %rbx\n"
        "mov %rsi, %rbp\n"
        "movq $0, (%rsp)\n"
        "movq $0, 8(%rsp)\n"
        "lea tables_done_info(%rip), %rax\n"
        "mov %rax, (%rbp)\n"
        "jmp tables_loop_info\n"
        "tables_back:\n"
        "mov 8(%rsp), %rax\n"
        "add $72, %rsp\n"
        ".cfi_adjust_cfa_offset -72\n"
        "pop %rbx\n"
        ".cfi_adjust_cfa_offset -8\n"
        "pop %rbp\n"
        ".cfi_adjust_cfa_offset -8\n"
        "ret\n"
        ".cfi_endproc\n"
        ".size run, .-run\n"
        /* Calls C, which returns, and goes on with a continuation. */
        "info tables_loop_info\n"
        "mov %rbx, %rdi\n"
        "call called\n"
        "add %rax, 8(%rsp)\n"
        "lea tables_next_info(%rip), %rax\n"
        "sub $8, %rbp\n"
        "mov %rax, (%rbp)\n"
        "jmp *(%rbp)\n"
        ".size tables_loop_info, .-tables_loop_info\n"
        "info tables_next_info\n"
        "add $8, %rbp\n"
        "dec %rbx\n"
        "jnz tables_loop_slow\n"
        "jmp *(%rbp)\n"
        ".size tables_next_info, .-tables_next_info\n"
        /* Some have no info table. */
        ".p2align 3\n"
        ".globl tables_loop_slow\n"
        ".type tables_loop_slow, @function\n"
        "tables_loop_slow:\n"
        "mov %rbx, %rcx\n"
        "mov %rcx, %rbx\n"
        "jmp tables_loop_info\n"
        ".size tables_loop_slow, .-tables_loop_slow\n"
        "info tables_done_info\n"
        "jmp tables_back\n"
        ".size tables_done_info, .-tables_done_info\n");
long run(long rounds, long *stack);

int main(void) {
    long stack[64];
    long sum = run(1000, &stack[63]);
    printf("%ld %ld\n", sum, sink);
    return sum == 501500 && sink == 500500 ? 0 : 1;
}
