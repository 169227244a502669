/* State of the processor that is neither argument nor result.
 *
 * value_state WHAT: x87, mxcsr, flags, alignment, redzone or chain. */
#define _GNU_SOURCE
#include <fenv.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xmmintrin.h>

#include "kept.h"

static long failures;

static void expect(int right, const char *what) {
    if (!right && failures++ < 20) printf("%s\n", what);
}

static uint16_t control_word(void) {
    uint16_t word;
    __asm__ volatile("fnstcw %0" : "=m"(word));
    return word;
}

static uint16_t status_word(void) {
    uint16_t word;
    __asm__ volatile("fnstsw %0" : "=m"(word));
    return word;
}

/* ---- x87: control and status word, results on the stack ---- */

static void set_control_word(uint16_t word) { __asm__ volatile("fldcw %0" : : "m"(word)); }

KEPT long double divide(long double a, long double b) { return a / b; }
KEPT _Complex long double turn(_Complex long double z) { return __builtin_complex(-__imag__ z, __real__ z); }
KEPT long double through(long double (*f)(long double, long double), long double a, long double b) { return f(a, b); }

static void x87(void) {
    /* Each rounding mode with each precision. */
    for (int mode = 0; mode < 4; mode++) {
        for (int precision = 0; precision < 4; precision++) {
            if (precision == 1) continue;
            uint16_t word = 0x7f | precision << 8 | mode << 10;
            __asm__ volatile("fnclex");
            set_control_word(word);
            /* Read after the control word is set: a compiler that knows what `divide` does may move the call. */
            volatile long double one = 1, three = 3;
            long double third = divide(one, three), same = one / three;
            expect(!memcmp(&third, &same, 10), "x87 rounds otherwise");
            expect(control_word() == word, "the x87 control word is another");
            expect((status_word() & 0x3f) == 0x20, "x87 has other exception flags than that of being inexact");
            expect(!(status_word() >> 11 & 7), "the x87 stack is not empty");
            _Complex long double z = turn(__builtin_complex(1.5L + mode, 2.5L));
            expect(__real__ z == -2.5L && __imag__ z == 1.5L + mode, "a complex result is another");
            expect(through(divide, 6, 2) == 3, "a result through two calls is another");
            expect(!(status_word() >> 11 & 7), "the x87 stack is not empty");
        }
    }
    set_control_word(0x37f);
    __asm__ volatile("fnclex");
    /* 10,000 results, none left on the stack of eight. */
    long double sum = 0;
    for (int i = 0; i < 10000; i++) sum += divide(i, 2);
    expect(sum == 24997500, "a sum of results is another");
}

/* ---- MXCSR ---- */

static volatile float sink;
KEPT float quotient(float a, float b) { return a / b; }
KEPT unsigned mxcsr_inside(void) { return _mm_getcsr(); }

static void mxcsr(void) {
    static const float thirds[] = { 0x1.555556p-2f, 0x1.555554p-2f, 0x1.555556p-2f, 0x1.555554p-2f };
    for (unsigned mode = 0; mode < 4; mode++) {
        for (unsigned flush = 0; flush < 4; flush++) {
            /* Rounding, flush to zero, denormals are zero; all exceptions masked, no flags. */
            unsigned word = 0x1f80 | mode << 13 | (flush & 1) << 15 | (flush & 2) << 5;
            _mm_setcsr(word);
            expect(mxcsr_inside() == word, "MXCSR is another in a call");
            expect(_mm_getcsr() == word, "MXCSR is another behind a call");
            volatile float one = 1, three = 3;
            expect(quotient(one, three) == thirds[mode], "SSE rounds otherwise");
            expect(_mm_getcsr() == (word | 0x20), "MXCSR has other flags than that of being inexact");
            /* A flag that was raised before stays. */
            _mm_setcsr(word | 1);
            expect(quotient(6, 3) == 2, "a quotient is another");
            expect(_mm_getcsr() == (word | 1), "a flag in MXCSR is lost, or a new one there");
            volatile float tiny = 0x1p-126f, two = 2;
            expect((quotient(tiny, two) == 0) == (flush != 0), "tiny numbers are taken otherwise");
        }
    }
    _mm_setcsr(0x1f80);
    feclearexcept(FE_ALL_EXCEPT);
    for (int i = 1; i < 1000; i++) sink = quotient(i, 1);
    expect(!fetestexcept(FE_ALL_EXCEPT), "exact results raise exceptions");
    sink = quotient(1, 0);
    expect(fetestexcept(FE_ALL_EXCEPT) == FE_DIVBYZERO, "a division by zero raises another exception");
    /* Unmasked exceptions are not raised by fgraph. */
    feclearexcept(FE_ALL_EXCEPT);
    feenableexcept(FE_DIVBYZERO | FE_INVALID | FE_OVERFLOW | FE_UNDERFLOW | FE_INEXACT);
    for (int i = 1; i < 1000; i++) sink = quotient(i, 1);
    fedisableexcept(FE_ALL_EXCEPT);
}

/* ---- direction flag, alignment ---- */

static uint64_t processor_flags(void) { return __builtin_ia32_readeflags_u64(); }

KEPT uint64_t flags_inside(void) { return processor_flags(); }

/* At the entry rsp is 8 above a multiple of 16. */
unsigned long rsp_inside(long on_stack[8]);
__asm__(".text\n.globl rsp_inside\n.type rsp_inside, @function\n.p2align 4\n"
        "rsp_inside:\n mov %rsp, %rax\n and $63, %rax\n nop\n ret\n.size rsp_inside, .-rsp_inside\n");
/* It is called with rsp at any multiple of 8. */
unsigned long rsp_misaligned(unsigned long offset);
__asm__(".text\n.globl rsp_misaligned\n.type rsp_misaligned, @function\n.p2align 4\n"
        "rsp_misaligned:\n push %rbp\n mov %rsp, %rbp\n and $-64, %rsp\n sub %rdi, %rsp\n"
        " call rsp_inside\n mov %rbp, %rsp\n pop %rbp\n ret\n.size rsp_misaligned, .-rsp_misaligned\n");

/* Sets the direction flag in its first five bytes, copies from the end behind them, and clears it. */
void copies_down(char *to_last, const char *from_last, unsigned long unused, unsigned long count);
__asm__(".text\n.globl copies_down\n.type copies_down, @function\n.p2align 4\n"
        "copies_down:\n std\n nop\n nop\n nop\n nop\n rep movsb\n cld\n ret\n.size copies_down, .-copies_down\n");

static void flags(void) {
    char text[] = "0123456789abcdef";
    copies_down(text + 12, text + 9, 0, 10);
    expect(!strcmp(text, "0120123456789def"), "a copy from the end is another");
    for (int i = 0; i < 100; i++) {
        expect(!(flags_inside() & 0x400), "the direction flag is set in a call");
        expect(!(processor_flags() & 0x400), "the direction flag is set behind a call");
    }
}

static void alignment(void) {
    for (unsigned long offset = 0; offset < 4096; offset += 8)
        expect(rsp_misaligned(offset) == ((0 - offset - 8) & 63), "the stack is aligned otherwise");
    expect(!(rsp_misaligned(0) == rsp_misaligned(8)), "the stack is always the same");
}

/* ---- red zone ---- */

/* Leaves with all 128 bytes below rsp in use, in a caller that has arguments on the stack. */
KEPT long leaf(long a, long b, long c, long d, long e, long f, long g, long h) {
    volatile long zone[12] = { a, b, c, d, e, f, g, h, a ^ b, c ^ d, e ^ f, g ^ h };
    long sum = 0;
    for (int i = 0; i < 12; i++) sum = sum * 31 + zone[i];
    return sum;
}

/* Fills the red zone, and finds it as it was although what its body begins with is displaced. */
unsigned long fills_red_zone(unsigned long seed);
__asm__(".text\n.globl fills_red_zone\n.type fills_red_zone, @function\n.p2align 4\n"
        "fills_red_zone:\n mov %rdi, -8(%rsp)\n mov %rdi, -16(%rsp)\n mov %rdi, -24(%rsp)\n mov %rdi, -128(%rsp)\n"
        " mov $0, %eax\n cmp %rdi, -8(%rsp)\n jne 1f\n cmp %rdi, -16(%rsp)\n jne 1f\n cmp %rdi, -24(%rsp)\n jne 1f\n"
        " cmp %rdi, -128(%rsp)\n jne 1f\n mov $1, %eax\n1: ret\n.size fills_red_zone, .-fills_red_zone\n");

static void redzone(void) {
    for (long i = 0; i < 1000; i++) {
        long values[8], sum = 0, all[12];
        for (int k = 0; k < 8; k++) all[k] = values[k] = i * (k + 3);
        for (int k = 0; k < 4; k++) all[8 + k] = values[2 * k] ^ values[2 * k + 1];
        for (int k = 0; k < 12; k++) sum = sum * 31 + all[k];
        expect(leaf(values[0], values[1], values[2], values[3], values[4], values[5], values[6], values[7]) == sum,
               "a leaf's red zone is not kept");
        expect(fills_red_zone(i) == 1, "the red zone is not kept");
    }
}

/* ---- static chain ---- */

static void chain(void) {
#if !defined(__clang__)
    long outer = 17;
    KEPT long inner(long a) { return a + outer++; }
    KEPT long call(long (*f)(long), long a) { return f(a) + outer; }
    for (long i = 0; i < 1000; i++) {
        expect(inner(i) == i + 17 + 2 * i, "a nested function finds another outer one");
        expect(call(inner, i) == i + 18 + 2 * i + 19 + 2 * i, "a nested function finds another through a pointer");
    }
#endif
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    if (!strcmp(argv[1], "x87")) x87();
    else if (!strcmp(argv[1], "mxcsr")) mxcsr();
    else if (!strcmp(argv[1], "flags")) flags();
    else if (!strcmp(argv[1], "alignment")) alignment();
    else if (!strcmp(argv[1], "redzone")) redzone();
    else if (!strcmp(argv[1], "chain")) chain();
    else return 2;
    printf("%ld failures\n", failures);
    return failures != 0;
}
