/* Calls with every mix of arguments and results, checked bit by bit.
 *
 * Callees and callers are made by src/generate.rs. Without further macros both are in this file, half of
 * the callees are static, and the compiler may know what they do with registers. With -DPART=1 this file has the
 * callees only, with -DPART=2 the callers only. They are all run, twice. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef PART
#define PART 0
#endif
#define CALLEES (PART != 2)
#define CALLERS (PART != 1)

#if defined(__AVX512F__)
#define WIDEST 64
#elif defined(__AVX__)
#define WIDEST 32
#else
#define WIDEST 16
#endif

/* True if callers and callees are built by different compilers. */
#ifndef MIXED
#define MIXED 0
#endif
/* gcc has them from 12 on. */
#if defined(__clang__) || MIXED || __GNUC__ < 12
#define HALF_FLOATS 0
#else
#define HALF_FLOATS 1
#endif

/* noipa would hide from gcc's callers what their callees do. */
#define CALLER __attribute__((noinline))
#define GLOBAL __attribute__((noinline))
#if PART
#define LOCAL GLOBAL
#else
#define LOCAL static GLOBAL
#endif

struct kind {
    const char *name;
    struct { unsigned short from, len; char what; } parts[2];
};

/* Never null: the compiler does not see what is called. */
#define HIDDEN(f) (__extension__({ __typeof__(&f) volatile hidden = f; hidden; }))

extern int depth;
extern long checks, failures;
void make(void *to, int kind, unsigned seed);
void check(const void *value, int kind, unsigned seed, int function, int at);
void check_errno(int function);

#define NESTED(f) \
    do { \
        if (depth < 3) { \
            int error = errno; \
            depth++, f(), depth--; \
            errno = error; \
        } \
    } while (0)

#include "generated_calls.h"

#if CALLERS
int depth;
long checks, failures;

static unsigned long next(unsigned long *state) {
    unsigned long z = *state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

__attribute__((noinline)) void make(void *to, int kind, unsigned seed) {
    unsigned long state = seed;
    for (int i = 0; i < 2 && kinds[kind].parts[i].len; i++) {
        unsigned char *bytes = (unsigned char *)to + kinds[kind].parts[i].from;
        int len = kinds[kind].parts[i].len;
        for (int j = 0; j < len; j++) bytes[j] = next(&state) >> 24;
        if (kinds[kind].parts[i].what == 't') bytes[0] &= 1;
        if (kinds[kind].parts[i].what == 'x') {
            /* A number: the integer bit is set, and it is not infinite. */
            bytes[7] |= 0x80;
            bytes[9] = (bytes[9] & 0x80) | 0x3f;
        }
    }
}

__attribute__((noinline)) void check(const void *value, int kind, unsigned seed, int function, int at) {
    unsigned char right[256];
    int error = errno;
    make(right, kind, seed);
    checks++;
    for (int i = 0; i < 2 && kinds[kind].parts[i].len; i++) {
        int from = kinds[kind].parts[i].from, len = kinds[kind].parts[i].len;
        const unsigned char *bytes = value;
        if (!memcmp(bytes + from, right + from, len)) continue;
        if (failures++ > 20) break;
        printf("f%d, %s %d:", function, kinds[kind].name, at);
        for (int j = 0; j < len; j++) printf(" %02x", bytes[from + j]);
        printf("\n  is not");
        for (int j = 0; j < len; j++) printf(" %02x", right[from + j]);
        printf("\n");
    }
    errno = error;
}

__attribute__((noinline)) void check_errno(int function) {
    checks++;
    if (errno == function + 1000) return;
    if (failures++ < 20) printf("f%d leaves errno at %d\n", function, errno);
}

static int is_able(void) {
    __builtin_cpu_init();
#if WIDEST == 64
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#elif WIDEST == 32
    return __builtin_cpu_supports("avx2");
#else
    return 1;
#endif
}

int main(void) {
    if (!is_able()) {
        printf("this machine has no vectors of %d bytes\n", WIDEST);
        return 0;
    }
    for (int round = 0; round < 2; round++) {
#define CALL(c) c();
        EACH_CALLER(CALL)
    }
    printf("%ld values checked\n", checks);
    return failures != 0 || checks < 1000;
}
#endif
