/* Functions of several conventions call one another, with values that are live across calls. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef uint64_t u64;

#define SYSTEM
#define MS __attribute__((ms_abi))
#if defined(__clang__)
#define NOINLINE __attribute__((noinline))
#define MOST __attribute__((preserve_most))
#define ALL __attribute__((preserve_all))
#else
#define NOINLINE __attribute__((noipa))
#define MOST
#define ALL
#endif

static volatile u64 place;
static volatile double float_place;

/* By table, where the compiler likes. */
#define CHOICE(a, b) ({ u64 r_; switch ((a) & 7) { \
    case 0: r_ = (b) + 1; break; case 1: r_ = (a) * 5; break; case 2: r_ = (b) ^ (a); break; \
    case 3: r_ = (a) - (b); break; case 4: r_ = (b) * 9; break; case 5: r_ = (a) >> 3; break; default: r_ = (b); } r_; })

static u64 sum;
static double float_sum;
static void took(u64 value) { sum = sum * 31 + value; }
static void took_float(double value) { float_sum = float_sum * 0.5 + value; }

#include "generated_conventions.h"

int main(void) {
    for (u64 n = 1; n < 20; n++) {
        place = n, float_place = (double)n;
        each(n);
        printf("%llx %llx %a %a\n", (unsigned long long)sum, (unsigned long long)place, float_sum, float_place);
    }
}
