/* Code that looks for its own return addresses on the machine stack, as runtimes of languages do: jump_runtimes WHAT.
 *
 * generated  The code is made at run time. The program has a function by the name that tells of a Java VM.
 * builtins   The code is in the program, and known by its functions' names, as V8's and OCaml's is.
 * late       The runtime's library is loaded when functions are traced already. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define NOINLINE __attribute__((noinline))

/* Where the runtime's code was when it made its last call. */
uintptr_t *last_sp;
static volatile long sink;

#ifndef LATE
__attribute__((visibility("default"))) int JNI_CreateJavaVM(void) { return 0; }
#endif

static uintptr_t low, high;
static long strays;

/* Looks for the return address of the call that the runtime's code has made. */
static NOINLINE void walk(void) {
    uintptr_t address = last_sp[-1];
    if (address < low || address >= high) strays++;
}

/* Called by the runtime's code. */
NOINLINE long called(long number) {
    sink += number;
    walk();
    return number + 1;
}

/* push rbp; mov rbp, rsp; movabs rax, last_sp; mov [rax], rsp; movabs rax, called; call rax; pop rbp; ret */
static long (*generate(void))(long) {
    unsigned char code[] = {0x55, 0x48, 0x89, 0xe5, 0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0x48, 0x89, 0x20,
                            0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xd0, 0x5d, 0xc3};
    uintptr_t *place = (uintptr_t *)&last_sp;
    long (*function)(long) = called;
    memcpy(code + 6, &place, 8);
    memcpy(code + 19, &function, 8);
    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(page, code, sizeof code);
    mprotect(page, 4096, PROT_READ | PROT_EXEC);
    low = (uintptr_t)page;
    high = low + sizeof code;
    return (long (*)(long))page;
}

long Builtins_Call(long);
__asm__(
    ".text\n.globl Builtins_Call\n.type Builtins_Call, @function\n"
    "Builtins_Call:\n push %rbp\n mov %rsp, %rbp\n"
    " mov last_sp@GOTPCREL(%rip), %rax\n mov %rsp, (%rax)\n call called@PLT\n pop %rbp\n ret\n"
    ".size Builtins_Call, .-Builtins_Call\n");

static NOINLINE long run(long (*function)(long)) {
    long sum = 0;
    for (long n = 0; n < 100; n++) sum += function(n);
    return sum;
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    long sum;
    if (!strcmp(argv[1], "builtins")) {
        low = (uintptr_t)Builtins_Call;
        high = low + 64;
        sum = run(Builtins_Call);
    } else {
        long (*function)(long) = generate();
        if (!strcmp(argv[1], "late") && !dlopen("libjvm.so", RTLD_NOW)) return 3;
        sum = run(function);
    }
    printf("%ld %ld\n", sum, strays);
    return strays != 0 || sum != 5050;
}
