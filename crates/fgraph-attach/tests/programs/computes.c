// Computes without any system call, with values in all registers, and fails if one changes. It ends
// when a page that it shares with its parent, standard input, says so.
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>

int main(void)
{
    volatile uint64_t *end = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, 0, 0);
    if (end == MAP_FAILED)
        return 3;
    puts("ready");
    fflush(stdout);
    while (!*end) {
        uint64_t wrong;
        __asm__ volatile(
            "mov $1001, %%rax; movq %%rax, %%xmm1; movq %%rax, %%xmm15\n"
            "mov $2, %%rcx; mov $3, %%rdx; mov $4, %%rsi; mov $5, %%rdi; mov $6, %%r8\n"
            "mov $7, %%r9; mov $8, %%r10; mov $9, %%r11; mov $10, %%r12; mov $11, %%r13\n"
            "mov $12, %%r14; mov $13, %%r15; mov $14, %%rbx\n"
            "movq $99, -128(%%rsp); movq $98, -8(%%rsp)\n"
            "fninit; fld1; fld1; std\n"
            "mov $2000000, %%rax\n"
            "1: dec %%rax; jnz 1b\n"
            "pushf; pop %%rax; cld; test $0x400, %%rax; mov $1, %%eax; jz 2f\n"
            // The popped flags are in the red zone's last word.
            "cmpq $99, -128(%%rsp); jne 2f\n"
            "add %%rcx, %%rdx; add %%rdx, %%rsi; add %%rsi, %%rdi; add %%rdi, %%r8\n"
            "add %%r8, %%r9; add %%r9, %%r10; add %%r10, %%r11; add %%r11, %%r12\n"
            "add %%r12, %%r13; add %%r13, %%r14; add %%r14, %%r15; add %%r15, %%rbx\n"
            "cmp $104, %%rbx; jne 2f\n"
            "movq %%xmm1, %%rbx; cmp $1001, %%rbx; jne 2f\n"
            "movq %%xmm15, %%rbx; cmp $1001, %%rbx; jne 2f\n"
            "faddp; fistpl -16(%%rsp); cmpl $2, -16(%%rsp); jne 2f\n"
            "xor %%eax, %%eax\n"
            "2: fninit\n"
            : "=a"(wrong)
            :
            : "rbx", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
              "r15", "xmm1", "xmm15", "memory", "cc");
        if (wrong)
            return 2;
    }
    return 0;
}
