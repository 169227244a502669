/* Functions that keep to other conventions than the ABI of the system.
 *
 * value_conventions WHAT. Callers in assembly put known values into all registers that their convention says survive,
 * and check them after the call; ordinary calls check what compilers rely on. */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#if defined(__clang__)
#define NOINLINE __attribute__((noinline))
#else
#define NOINLINE __attribute__((noipa))
#endif

static long failures;

static void expect(int right, const char *what) {
    if (!right && failures++ < 20) printf("%s\n", what);
}

/* All registers before and behind a call: those that `call` is to get are in `in`. */
struct registers {
    uint64_t general[16]; /* rax rcx rdx rbx (rsp) rbp rsi rdi r8 to r15 */
    uint64_t vector[16][2];
    uint64_t flags;
};
void call_with(void *function, const struct registers *in, struct registers *out);
__asm__(
    ".text\n.globl call_with\n.type call_with, @function\n"
    "call_with:\n"
    " push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n"
    " push %rdx\n"              /* out */
    " sub $48, %rsp\n"          /* shadow space of ms_abi, aligned */
    " mov %rdi, 32(%rsp)\n"
    " mov %rsi, %rax\n"
    " movups 128(%rax), %xmm0\n movups 144(%rax), %xmm1\n movups 160(%rax), %xmm2\n movups 176(%rax), %xmm3\n"
    " movups 192(%rax), %xmm4\n movups 208(%rax), %xmm5\n movups 224(%rax), %xmm6\n movups 240(%rax), %xmm7\n"
    " movups 256(%rax), %xmm8\n movups 272(%rax), %xmm9\n movups 288(%rax), %xmm10\n movups 304(%rax), %xmm11\n"
    " movups 320(%rax), %xmm12\n movups 336(%rax), %xmm13\n movups 352(%rax), %xmm14\n movups 368(%rax), %xmm15\n"
    " mov 8(%rax), %rcx\n mov 16(%rax), %rdx\n mov 24(%rax), %rbx\n mov 40(%rax), %rbp\n mov 48(%rax), %rsi\n"
    " mov 56(%rax), %rdi\n mov 64(%rax), %r8\n mov 72(%rax), %r9\n mov 80(%rax), %r10\n mov 88(%rax), %r11\n"
    " mov 96(%rax), %r12\n mov 104(%rax), %r13\n mov 112(%rax), %r14\n mov 120(%rax), %r15\n"
    " pushq 384(%rax)\n popfq\n"
    " mov (%rax), %rax\n"
    " call *32(%rsp)\n"
    " mov %rax, 40(%rsp)\n"
    " pushfq\n pop %rax\n mov %rax, 32(%rsp)\n"
    " mov 48(%rsp), %rax\n"
    " movups %xmm0, 128(%rax)\n movups %xmm1, 144(%rax)\n movups %xmm2, 160(%rax)\n movups %xmm3, 176(%rax)\n"
    " movups %xmm4, 192(%rax)\n movups %xmm5, 208(%rax)\n movups %xmm6, 224(%rax)\n movups %xmm7, 240(%rax)\n"
    " movups %xmm8, 256(%rax)\n movups %xmm9, 272(%rax)\n movups %xmm10, 288(%rax)\n movups %xmm11, 304(%rax)\n"
    " movups %xmm12, 320(%rax)\n movups %xmm13, 336(%rax)\n movups %xmm14, 352(%rax)\n movups %xmm15, 368(%rax)\n"
    " mov %rcx, 8(%rax)\n mov %rdx, 16(%rax)\n mov %rbx, 24(%rax)\n mov %rbp, 40(%rax)\n mov %rsi, 48(%rax)\n"
    " mov %rdi, 56(%rax)\n mov %r8, 64(%rax)\n mov %r9, 72(%rax)\n mov %r10, 80(%rax)\n mov %r11, 88(%rax)\n"
    " mov %r12, 96(%rax)\n mov %r13, 104(%rax)\n mov %r14, 112(%rax)\n mov %r15, 120(%rax)\n"
    " mov 40(%rsp), %rcx\n mov %rcx, (%rax)\n mov 32(%rsp), %rcx\n mov %rcx, 384(%rax)\n"
    " add $56, %rsp\n"
    " pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n ret\n"
    ".size call_with, .-call_with\n");

enum { RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8, R9, R10, R11, R12, R13, R14, R15 };

static const char *const names[] = { "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi",
                                     "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15" };

static struct registers numbered(void) {
    struct registers in;
    for (int i = 0; i < 16; i++) in.general[i] = 0x1111111111111111u * i + 1;
    for (int i = 0; i < 16; i++) {
        double a = i + 0.5, b = i + 100.25;
        memcpy(&in.vector[i][0], &a, 8);
        memcpy(&in.vector[i][1], &b, 8);
    }
    in.flags = 0x202;
    return in;
}

/* The registers of two sets survive, by number. */
static void survive(const struct registers *in, const struct registers *out, unsigned general, unsigned vector,
                    const char *what) {
    for (int i = 0; i < 16; i++) {
        if (general >> i & 1 && in->general[i] != out->general[i] && failures++ < 20)
            printf("%s: %s does not survive\n", what, names[i]);
        if (vector >> i & 1 && memcmp(in->vector[i], out->vector[i], 16) && failures++ < 20)
            printf("%s: xmm%d does not survive\n", what, i);
    }
}

/* Through pointers nobody sees what callers rely on: that shows where direct callers rely on it, too, which they
 * do if they are optimised; or, of ms_abi, in where the function's arguments are. */
#if defined(__OPTIMIZE__)
enum { IS_SEEN = 1 };
#else
enum { IS_SEEN = 0 };
#endif

#define ALWAYS (1 << RBX | 1 << RBP | 1 << R12 | 1 << R13 | 1 << R14 | 1 << R15)
#define MS_KEPT (ALWAYS | 1 << RSI | 1 << RDI)

/* ---- ms_abi ---- */

#define MS __attribute__((ms_abi))

NOINLINE MS uint64_t ms_leaf(uint64_t a, double b, uint64_t c, double d) { return a + (uint64_t)b + c + (uint64_t)d; }
NOINLINE uint64_t sys_callee(uint64_t a, double b) { return a * 3 + (uint64_t)b; }
/* Calls a function of the other convention, and so saves what that may change. */
NOINLINE MS uint64_t ms_outer(uint64_t a, double b, uint64_t c, double d) {
    uint64_t sum = sys_callee(a, b);
    return sum + sys_callee(c, d) + ms_leaf(a, b, c, d);
}
struct large { uint64_t a[5]; };
NOINLINE MS struct large ms_struct(struct large a, uint64_t b) {
    for (int i = 0; i < 5; i++) a.a[i] += b;
    return a;
}
NOINLINE MS uint64_t ms_varies(int count, ...) {
    __builtin_ms_va_list list;
    uint64_t sum = 0;
    __builtin_ms_va_start(list, count);
    for (int i = 0; i < count; i++) sum = sum * 7 + va_arg(list, uint64_t);
    __builtin_ms_va_end(list);
    return sum;
}
/* Keeps values across calls. */
NOINLINE MS double ms_caller(uint64_t a, double b, uint64_t c, double d) {
    double e = b * 3, f = d * 5, g = b - d;
    uint64_t h = ms_leaf(a, b, c, d), i = ms_leaf(a + 1, e, c, f);
    return (double)(h + i + a * 2 + c * 3) + b + d * 2 + e * 3 + f * 5 + g;
}
NOINLINE double sys_caller(uint64_t a, double b, uint64_t c, double d) {
    double e = b * 3, f = d * 5, g = b - d;
    uint64_t h = ms_leaf(a, b, c, d), i = ms_leaf(a + 1, e, c, f);
    return (double)(h + i + a * 2 + c * 3) + b + d * 2 + e * 3 + f * 5 + g;
}

static void ms(void) {
    void *functions[] = { (void *)ms_leaf, (void *)ms_outer };
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 2; i++) {
            struct registers in = numbered(), out;
            in.general[RCX] = 5, in.general[R8] = 9;
            call_with(functions[i], &in, &out);
            survive(&in, &out, MS_KEPT, 0xffc0, i ? "ms_abi" : "ms_abi, a leaf");
            uint64_t leaf = 5 + 1 + 9 + 3;
            expect(out.general[RAX] == (i ? 5 * 3 + 1 + 9 * 3 + 3 + leaf : leaf), "ms_abi: another result");
        }
        struct large large = ms_struct((struct large){ { 1, 2, 3, 4, 5 } }, round);
        for (int i = 0; i < 5; i++) expect(large.a[i] == (uint64_t)(i + 1 + round), "ms_abi: another struct");
        expect(ms_varies(6, 1L, 2L, 3L, 4L, 5L, 6L) == 22875, "ms_abi: other variable arguments");
        uint64_t h = 7 + 2 + 11 + 4, i = 8 + 7 + 11 + 20;
        double right = (double)(h + i + 14 + 33) + 2.5 + 8 + 22.5 + 100 - 1.5;
        expect(ms_caller(7, 2.5, 11, 4) == right, "ms_abi: a caller of it finds other values");
        expect(sys_caller(7, 2.5, 11, 4) == right, "a caller of ms_abi finds other values");
    }
}

/* ---- no_caller_saved_registers: all survives but arguments ---- */

#if !defined(__clang__) && __GNUC__ < 11
/* gcc compiles such functions only in files without vector instructions. */
__attribute__((used)) static volatile uint64_t place;
__attribute__((no_caller_saved_registers)) void keeps_all(uint64_t a, uint64_t b);
__asm__(".text\n.globl keeps_all\n.type keeps_all, @function\n.p2align 4\n"
        "keeps_all:\n push %rdi\n imul %rsi, %rdi\n add %rdi, place(%rip)\n pop %rdi\n ret\n"
        ".size keeps_all, .-keeps_all\n");
#else
static volatile uint64_t place;

#define NONE_CLOBBERED __attribute__((no_caller_saved_registers, target("general-regs-only")))
NOINLINE NONE_CLOBBERED void keeps_all(uint64_t a, uint64_t b) { place = a * b + place; }
#endif

/* Keeps values across calls, in whatever register. */
NOINLINE uint64_t kept_caller(uint64_t a, uint64_t b) {
    uint64_t c = a * 3, d = b * 5, e = a ^ b;
    keeps_all(a, b);
    keeps_all(b + 1, a);
    return a + b * 2 + c * 3 + d * 4 + e * 5 + place;
}

static void all_kept(void) {
    for (int round = 0; round < 20; round++) {
        uint64_t a = 7 + round, b = 11;
        place = 1;
        uint64_t right = a + b * 2 + a * 9 + b * 20 + (a ^ b) * 5 + 1 + a * b + (b + 1) * a;
        expect(kept_caller(a, b) == right, "no_caller_saved_registers: a caller finds other values");
    }
}

/* ---- clang's ---- */

#if defined(__clang__)
/* They have no results: clang 14 preserves the register for these, too. */
NOINLINE __attribute__((preserve_most)) void most(uint64_t a, uint64_t b) { place += a * 5 + b; }
NOINLINE __attribute__((preserve_all)) void everything(uint64_t a, double b) { place += a * 5 + (uint64_t)b; }
NOINLINE double most_caller(uint64_t a, uint64_t b, double c) {
    uint64_t d = a * 7, e = b * 11;
    most(a, b);
    most(b, a);
    return (double)(d + e * 2 + a * 3 + b * 5 + place) + c;
}
NOINLINE double all_caller(uint64_t a, double b, double c) {
    double d = b * c, e = b + c;
    everything(a, b);
    everything(a + 1, c);
    return (double)(place + a) + b + c * 3 + d * 5 + e * 7;
}

#define MOST_KEPT (0xffff & ~(1 << RSP | 1 << RAX | 1 << R11))

static void preserved(void) {
    for (int round = 0; round < 20; round++) {
        if (IS_SEEN) {
            struct registers in = numbered(), out;
            call_with((void *)most, &in, &out);
            survive(&in, &out, MOST_KEPT, 0, "preserve_most");
            call_with((void *)everything, &in, &out);
            survive(&in, &out, MOST_KEPT, 0xfffe, "preserve_all");
        }
        place = 0;
        expect(most_caller(2, 3, 0.5) == 14 + 66 + 6 + 15 + 13 + 17 + 0.5, "preserve_most: a caller finds other values");
        place = 0;
        expect(all_caller(2, 3.5, 4.5) == 13 + 19 + 2 + 3.5 + 4.5 * 3 + 15.75 * 5 + 8 * 7, "preserve_all: a caller finds other values");
    }
}

struct many { uint64_t a, b, c, d; };
#define REG __attribute__((regcall))
NOINLINE REG struct many reg_many(struct many x, struct many y, double a, double b, double c, double d, double e,
                                  double f, double g, double h, double i, double j, uint64_t k) {
    uint64_t sum = (uint64_t)(a + b * 2 + c * 3 + d * 4 + e * 5 + f * 6 + g * 7 + h * 8 + i * 9 + j * 10);
    return (struct many){ x.a + y.d + k, x.b + y.c + sum, x.c * y.b, x.d * y.a };
}
/* Gives more than it takes. */
NOINLINE REG struct many reg_more(uint64_t k) { return (struct many){ k + 1, k + 2, k + 3, k + 4 }; }
static void regcall(void) {
    for (uint64_t round = 0; round < 20; round++) {
        struct many x = { round, 2, 3, 4 }, y = { 5, 6, 7, 8 };
        struct many r = reg_many(x, y, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 99);
        expect(r.a == round + 107 && r.b == 2 + 7 + 385 && r.c == 18 && r.d == 20, "regcall: another result");
        r = reg_more(round);
        expect(r.a == round + 1 && r.b == round + 2 && r.c == round + 3 && r.d == round + 4, "regcall: another result of few arguments");
    }
}

struct four { double a, b, c, d; };
#define VECTOR __attribute__((vectorcall))
NOINLINE VECTOR struct four vector_many(struct four x, double a, double b, uint64_t c) {
    return (struct four){ x.a + a, x.b + b, x.c * a, x.d * (double)c };
}
static void vectorcall(void) {
    for (int round = 0; round < 20; round++) {
        struct four r = vector_many((struct four){ round, 2, 3, 4 }, 5, 6, 7);
        expect(r.a == round + 5 && r.b == 8 && r.c == 15 && r.d == 28, "vectorcall: another result");
    }
}
#else
static void preserved(void) {}
static void regcall(void) {}
static void vectorcall(void) {}
#endif

/* ---- assembly ---- */

#define ASM(name, text) \
    void name(void); \
    __asm__(".text\n.globl " #name "\n.type " #name ", @function\n.p2align 4\n" #name ":\n" text ".size " #name ", .-" #name "\n")

/* Takes an argument in rbp. */
ASM(takes_rbp, " lea 5(%rbp), %rax\n add $0, %rax\n ret\n");
/* Takes the carry flag. */
ASM(takes_carry, " mov $0, %eax\n mov $3, %ecx\n adc $7, %eax\n ret\n");
/* Gives the carry flag, as system calls do elsewhere. */
ASM(gives_carry, " cmp $5, %rdi\n mov $2, %eax\n ja 1f\n clc\n ret\n1: stc\n ret\n");
/* Gives results in every register that a function may change. */
ASM(gives_many, " lea 1(%rdi), %rax\n lea 2(%rdi), %rcx\n lea 3(%rdi), %rdx\n lea 4(%rdi), %rsi\n lea 6(%rdi), %r8\n"
    " lea 7(%rdi), %r9\n lea 8(%rdi), %r10\n lea 9(%rdi), %r11\n movq %rax, %xmm9\n movq %rcx, %xmm15\n movq %rdx, %xmm2\n ret\n");
/* Takes arguments in registers that no function takes any in. */
ASM(takes_many, " lea (%rax,%r10), %rax\n add %r11, %rax\n movq %xmm8, %rcx\n add %rcx, %rax\n movq %xmm15, %rcx\n add %rcx, %rax\n ret\n");

static void assembly(const char *what) {
    for (int round = 0; round < 20; round++) {
        struct registers in = numbered(), out;
        in.general[RDI] = 8 + round % 2 * 16;
        if (!strcmp(what, "rbp")) {
            call_with((void *)takes_rbp, &in, &out);
            expect(out.general[RAX] == in.general[RBP] + 5, "an argument in rbp is another");
            survive(&in, &out, ALWAYS, 0, "an argument in rbp");
        } else if (!strcmp(what, "carry-in")) {
            in.flags = 0x202 | (round & 1);
            call_with((void *)takes_carry, &in, &out);
            expect(out.general[RAX] == 7u + (round & 1), "an argument in the carry flag is another");
        } else if (!strcmp(what, "carry-out")) {
            in.general[RDI] = round;
            call_with((void *)gives_carry, &in, &out);
            expect((int)(out.flags & 1) == (round > 5), "a result in the carry flag is another");
        } else {
            call_with((void *)gives_many, &in, &out);
            static const int where[] = { RAX, RCX, RDX, RSI, R8, R9, R10, R11 };
            static const int more[] = { 1, 2, 3, 4, 6, 7, 8, 9 };
            for (int i = 0; i < 8; i++)
                expect(out.general[where[i]] == in.general[RDI] + more[i], "one of many results is another");
            expect(out.vector[9][0] == in.general[RDI] + 1 && out.vector[15][0] == in.general[RDI] + 2
                   && out.vector[2][0] == in.general[RDI] + 3, "one of many results in vector registers is another");
            call_with((void *)takes_many, &in, &out);
            expect(out.general[RAX] == in.general[RAX] + in.general[R10] + in.general[R11] + in.vector[8][0] + in.vector[15][0],
                   "one of many arguments is another");
        }
    }
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    if (!strcmp(argv[1], "ms")) ms();
    else if (!strcmp(argv[1], "kept")) all_kept();
    else if (!strcmp(argv[1], "preserved")) preserved();
    else if (!strcmp(argv[1], "regcall")) regcall();
    else if (!strcmp(argv[1], "vectorcall")) vectorcall();
    else assembly(argv[1]);
    printf("%ld failures\n", failures);
    return failures != 0;
}
