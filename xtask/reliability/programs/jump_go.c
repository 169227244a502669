/* Does what Go does: its functions run on small stacks, with others' memory beneath, and call the kernel's library
 * (vDSO) on threads that the C library does not know. These functions are in a part of the program (-DPART), which is
 * known by a section of Go's; the program itself has the note of that section. */
#define _GNU_SOURCE
#include <asm/prctl.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "kept.h"

#define ROOM 1024

#ifdef PART
#define SECTION ".note.go.buildid"
#else
#define SECTION ".note.other"
#endif

__asm__(".pushsection " SECTION ", \"a\", @note\n"
        ".balign 4\n"
        ".long 4, 4, 4\n"
        ".asciz \"Go\\0\"\n"
        ".ascii \"none\"\n"
        ".popsection\n");

extern long (*clock_function)(long, void *);
long small(long number, void *unused);
long asks_clock(long base, void *time);
/* Calls `function` on another stack. */
long on_stack(void *top, long (*function)(long, void *), long number, void *pointer);

#ifdef PART
__asm__(".pushsection .text\n"
        ".globl on_stack\n"
        ".type on_stack, @function\n"
        "on_stack:\n"
        "push %rbp\n"
        "mov %rsp, %rbp\n"
        "mov %rdi, %rsp\n"
        "mov %rsi, %rax\n"
        "mov %rdx, %rdi\n"
        "mov %rcx, %rsi\n"
        "call *%rax\n"
        "mov %rbp, %rsp\n"
        "pop %rbp\n"
        "ret\n"
        ".size on_stack, . - on_stack\n"
        ".popsection\n");

long (*clock_function)(long, void *);
static volatile long sink;

static KEPT long leaf(long number, void *unused) {
    sink = sink + number;
    return unused ? 0 : number + 1;
}

long small(long number, void *unused) {
    long result = leaf(number, unused);
    return result + leaf(number, unused);
}

/* The vDSO's function, while what the C library has for a thread is rubbish. */
long asks_clock(long base, void *time) {
    static char rubbish[1 << 16];
    memset(rubbish, 0xa5, sizeof rubbish);
    unsigned long place = (unsigned long)rubbish + sizeof rubbish / 2, kept = base;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_arch_prctl), "D"(ARCH_SET_FS), "S"(place) : "rcx", "r11", "memory");
    long failed = clock_function(CLOCK_MONOTONIC, time);
    __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_arch_prctl), "D"(ARCH_SET_FS), "S"(kept) : "rcx", "r11", "memory");
    return failed;
}

#else
static char memory[1 << 16] __attribute__((aligned(64)));

KEPT long on_small_stack(char *top, long number) { return on_stack(top, small, number, NULL); }

int main(void) {
    memset(memory, 0xa5, sizeof memory);
    char *top = memory + sizeof memory / 2;
    long result = 0;
    for (int i = 0; i < 100; i++)
        result += on_small_stack(top, i);
    int broken = 0;
    for (char *at = memory; at < top - ROOM; at++)
        broken += *at != (char)0xa5;
    void *library = dlopen("linux-vdso.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (library)
        clock_function = (long (*)(long, void *))dlsym(library, "__vdso_clock_gettime");
    struct timespec time = {0, 0};
    unsigned long base;
    syscall(SYS_arch_prctl, ARCH_GET_FS, &base);
    if (clock_function)
        broken += asks_clock((long)base, &time) != 0;
    printf("%ld, %d broken\n", result, broken);
    return broken != 0;
}
#endif
