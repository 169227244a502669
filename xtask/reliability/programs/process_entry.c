/* A program that begins in functions of other names than the linker's. */
#include "kept.h"

#include <stdio.h>

__asm__(".text\n"
        ".type begins_here, @function\n.globl begins_here\nbegins_here:\n\t"
        "endbr64\n\txorl %ebp, %ebp\n\tmovq (%rsp), %rdi\n\tjmp goes_on_here\n"
        ".size begins_here, . - begins_here\n"
        ".type goes_on_here, @function\ngoes_on_here:\n\t"
        "movq (%rsp), %rax\n\tcmpq %rax, %rdi\n\tje 1f\n\tud2\n1:\tjmp _start\n"
        ".size goes_on_here, . - goes_on_here\n");

static volatile int sink;

KEPT static int counts(int n) {
    sink = n;
    return n + 1;
}

int main(int argc, char **argv) {
    printf("%d %s\n", counts(argc), argv[1]);
    return 0;
}
