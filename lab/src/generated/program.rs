//! Text of a generated program, and how it is compiled.

use std::fmt::Write as _;

use fgraph_chores::figures::chosen;

/// Compiler for which a kind or an option is: either, gcc, or clang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Only {
    Either,
    Gcc,
    Clang,
}

use Only::{Clang, Either, Gcc};

/// Kind of function: its compilers, its name, its text, and the expression that calls it with `x`.
///
/// In the text, `@` is the number of the function, `FN` begins its definition, `COUNT` counts its
/// call, `CALLS` calls others with `x`, `HELPER` begins the definition of its helper `g@`, `HELPED`
/// counts a call of that helper, and `READ` is the return address.
type Kind = (Only, &'static str, &'static str, &'static str);

const PLAIN: &str = "f@(x)";

#[rustfmt::skip]
const KINDS: &[Kind] = &[
    (Either, "plain", "FN W f@(W x) { COUNT; return (CALLS) * 7 + x; }", PLAIN),
    (Either, "tail call", "FN W f@(W x) { COUNT; x += 3; return CALLS; }", PLAIN),
    (Either, "loop to the entry",
        "FN void f@(volatile W *p) { do *p += 3; while (*p & 7); COUNT; }",
        "({ volatile W v = (x); f@(&v); v; })"),
    (Either, "narrow", "FN unsigned char f@(signed char b, short c) { W x = b + c; COUNT; \
        return (CALLS) + c; }", "f@((signed char)(x), (short)(x))"),
    (Either, "stack arguments", "FN W f@(W x, W b, W c, W d, W e, W g, W h, double i, char j) { \
        COUNT; return (CALLS) + b * c + d * e + g * h + (W)i + j; }",
        "f@(x, 1, (x) + 2, 3, 4, 5, (x) + 6, 7.5, 8)"),
    (Either, "struct in registers", "struct s@ { W a; double d; };\n\
        FN struct s@ f@(W x) { COUNT; struct s@ s = { CALLS, x & 255 }; return s; }",
        "({ struct s@ s = f@(x); s.a + (W)s.d; })"),
    (Either, "struct in memory", "struct s@ { W a[5]; };\n\
        FN struct s@ f@(struct s@ s) { W x = s.a[1]; COUNT; s.a[2] += CALLS; return s; }",
        "({ struct s@ s = {{ 1, (x), 2, 3, 4 }}; s = f@(s); s.a[1] + s.a[2]; })"),
    (Either, "varargs", "FN W f@(int k, ...) { va_list l; va_start(l, k); COUNT; W x = 0; \
        while (k--) x = x * 3 + va_arg(l, W) + (W)va_arg(l, double); va_end(l); return CALLS; }",
        "f@(5, (W)(x), 1.5, (W)1, 2.5, (W)2, 3.5, (W)3, 4.5, (W)4, 5.5)"),
    (Either, "long double", "FN long double f@(long double d, W x) { COUNT; \
        return (d + (CALLS) % 1000) * 1.25L; }", "(W)f@((x) & 1023, x)"),
    (Either, "complex long double", "FN _Complex long double f@(_Complex long double d) { COUNT; \
        W x = (W)__real__ d; return d * 2.0L + (CALLS) % 1000; }",
        "({ _Complex long double d = (x) & 1023; d = f@(d); (W)__real__ d; })"),
    (Either, "int128", "FN unsigned __int128 f@(unsigned __int128 y) { W x = y >> 64; COUNT; \
        return y * 3 + (CALLS); }",
        "({ unsigned __int128 y = f@((unsigned __int128)(x) << 64 | 5); (W)(y >> 64) ^ (W)y; })"),
    (Either, "vector", "typedef W v@ __attribute__((vector_size(32)));\n\
        FN v@ f@(v@ a) { W x = a[1]; COUNT; a[2] += CALLS; return a * 3 + a[0]; }",
        "({ v@ a = { 7, (x), 2, 3 }; a = f@(a); a[0] ^ a[2]; })"),
    (Either, "float vector", "typedef float v@ __attribute__((vector_size(16)));\n\
        FN v@ f@(v@ a, W x) { COUNT; v@ b = { 1, (CALLS) & 255, 3, 4 }; return a * b + a; }",
        "({ v@ a = { 1, (x) & 255, 2, 3 }; a = f@(a, x); (W)(a[1] + a[2]); })"),
    (Either, "ms_abi", "FN __attribute__((ms_abi)) W f@(W x, double d, W y, W z, W u) { COUNT; \
        W r = CALLS; return r + (W)(d * 2) + (y ^ z) + u; }", "f@(x, 2.5, 3, (x) + 4, 5)"),
    (Clang, "regcall", "FN __attribute__((regcall)) W f@(W x, W b, W c, W d, W e, W g, W h, W i, \
        double j) { COUNT; return (CALLS) + b * c + d * e + g * h + i + (W)j; }",
        "f@(x, 1, 2, (x) + 3, 4, 5, 6, (x) + 7, 8.5)"),
    // clang 14 restores rax as well: these have no results.
    (Clang, "preserve_most", "FN __attribute__((preserve_most)) void f@(W x) { COUNT; \
        sink += x * 5; }", "(f@(x), sink)"),
    (Clang, "preserve_all", "FN __attribute__((preserve_all)) void f@(W x) { COUNT; \
        sink += x * 9; }", "(f@(x), sink)"),
    // These two call others before they jump: readers behind a table are not recognized
    // (docs/limits.md).
    (Either, "switch table", "FN W f@(W x) { COUNT; x ^= CALLS; \
        switch (x % 11) { case 0: return 3; case 1: return x ^ 5; case 2: x *= 3; \
        case 3: x += 7; break; case 4: return 9; \
        case 5: x >>= 2; break; case 6: return x - 1; case 7: x <<= 4; break; \
        case 8: x *= 5; break; case 9: return ~x; } return x * 11; }", PLAIN),
    (Either, "computed goto", "FN W f@(W x) { static void *const l[] = { &&a, &&b, &&c }; \
        COUNT; W k = 5; x ^= CALLS; goto *l[x % 3]; \
        a: x = x * 3 + 1; if (!k--) return x; goto *l[x % 3]; \
        b: x ^= 77; if (!k--) return x * 5; goto *l[x % 3]; \
        c: x = x * 5 + k; if (!k--) return 3; goto *l[x % 3]; }", PLAIN),
    (Gcc, "nested function", "FN W f@(W x) { COUNT; W s = x & 3; \
        W g@(W y) { HELPED; return y * s++ + 1; } W r = apply(g@, x) + apply(g@, s); \
        return r + (CALLS); }", PLAIN),
    (Either, "cleanup", "HELPER void g@(W *p) { HELPED; sink += *p; }\n\
        FN W f@(W x) { COUNT; W c __attribute__((cleanup(g@))) = x; return CALLS; }", PLAIN),
    (Either, "alloca", "FN W f@(W x) { COUNT; unsigned char *p = __builtin_alloca(x % 200 + 1); \
        memset(p, x, x % 200 + 1); keep(p); W r = CALLS; return r + p[x % 200]; }", PLAIN),
    (Either, "recursion", "FN W f@(W);\nstatic W (*volatile p@)(W) = f@;\n\
        W f@(W x) { COUNT; if (x & 7) return p@(x - 1); return CALLS; }", PLAIN),
    (Either, "longjmp", "static jmp_buf j@;\n\
        HELPER void g@(W x) { HELPED; if (x & 1) longjmp(j@, 1); }\n\
        FN W f@(W x) { COUNT; volatile W v = x; if (_setjmp(j@)) v += 5; else g@(v); x = v; \
        return CALLS; }", PLAIN),
    (Either, "reader", "FN W f@(W x) { COUNT; return x + READ; }", PLAIN),
    (Either, "reader that calls", "FN W f@(W x) { COUNT; W r = CALLS; return r + READ; }", PLAIN),
    (Either, "realigned reader", "FN W f@(W x) { COUNT; \
        char b[64] __attribute__((aligned(64))); memset(b, x, 64); keep(b); \
        return (CALLS) + READ + b[x % 64]; }", PLAIN),
    (Either, "aligning reader", "FN __attribute__((force_align_arg_pointer)) W f@(W x) { COUNT; \
        W r = CALLS; return r * 3 + READ; }", PLAIN),
    (Either, "tail call to a reader", "HELPER W g@(W x) { HELPED; return x + READ; }\n\
        FN W f@(W x) { COUNT; return g@(x * 3); }", PLAIN),
    (Either, "conditional tail call to a reader", "HELPER W g@(W x) { HELPED; return x + READ; }\n\
        static W (*volatile p@)(W) = g@;\n\
        FN W f@(W x) { COUNT; if (x & 1) return p@(x + 1); if (x & 2) return g@(x); \
        return CALLS; }", PLAIN),
];

/// Levels of optimisation.
const LEVELS: [&str; 6] = ["-O0", "-O1", "-O2", "-O3", "-Os", "-Og"];

/// Options. A program has each of them with a probability of a sixth.
pub(super) const OPTIONS: &[&str] = &[
    "-flto",
    "-fno-plt",
    "-fPIC",
    "-no-pie",
    "-mavx2",
    "-fomit-frame-pointer",
    "-fno-omit-frame-pointer",
    "-fcf-protection",
    "-fpatchable-function-entry=5",
    "-fpatchable-function-entry=16,8",
    "-fstack-protector-strong",
    "-fstack-clash-protection",
    "-fno-ipa-ra",
    "-mno-red-zone",
    "-fno-jump-tables",
    "-fsplit-stack",
    "-mcall-ms2sysv-xlogues",
    "-ffunction-sections",
    "-falign-functions=1",
    "-fno-optimize-sibling-calls",
    "-fno-shrink-wrap",
    "-mstackrealign",
    "-maccumulate-outgoing-args",
    "-fzero-call-used-regs=used-gpr",
    "-fno-asynchronous-unwind-tables",
];

/// The program without its functions, up to `main`.
const HEAD: &str = "\
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
typedef unsigned long W;
int main(void);
static W sink;
static inline void keep(void *p) { __asm__ volatile(\"\" :: \"r\"(p) : \"memory\"); }
__attribute__((noinline)) W apply(W (*g)(W), W x) { return g(x) + 1; }
";

/// Beginning of the function that calls all others, each by a function of its own: readers that
/// are inlined there read addresses in this function, which differ in no run.
const WORK: &str = "\
__attribute__((noinline)) W work(void) { W sum = 1;
for (W round = 0; round < 10; round++) {
";

/// End of that function, and the beginning of `main`.
const MAIN: &str = "\
} return sum; }
int main(void) { W sum = work();
printf(\"checksum %lu\\n\", sum ^ sink);
";

/// The return address as a distance from `main`, which is the same in each run.
const READ: &str = "(W)((char *)__builtin_return_address(0) - (char *)main)";

/// Beginning of a function that is called at each of its calls.
const NOINLINE: &str = "__attribute__((noinline)) static";

/// Most calls that one call of a function leads to.
const MOST_CALLS: u64 = 500;

/// A function of a program that counts its calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Function {
    pub(super) name: String,
    /// True if the compiler may inline it at some of its calls.
    pub(super) is_inlinable: bool,
}

/// A generated program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) text: String,
    pub(super) functions: Vec<Function>,
    pub(super) kinds: Vec<&'static str>,
}

/// Numbers that follow from a seed.
#[derive(Debug)]
pub(super) struct Random {
    seed: u64,
    drawn: u64,
}

impl Random {
    /// Returns the numbers of a program.
    pub(super) fn new(seed: u64, number: u32) -> Self {
        let seed = chosen(seed, number.into(), u64::MAX);
        Self { seed, drawn: 0 }
    }

    /// Returns a number below `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.drawn += 1;
        chosen(self.seed, self.drawn, end)
    }

    /// Chooses a level of optimisation, and some of these options.
    pub(super) fn options(&mut self, accepted: &[&'static str]) -> Vec<&'static str> {
        let mut options = vec![LEVELS[self.below(LEVELS.len() as u64) as usize]];
        options.extend(accepted.iter().filter(|_| self.below(6) == 0));
        options
    }
}

impl Program {
    /// Generates a program for gcc or clang: each function calls some that are defined before it.
    pub(super) fn generate(random: &mut Random, is_gcc: bool) -> Self {
        let other = if is_gcc { Clang } else { Gcc };
        let usable: Vec<&Kind> = KINDS.iter().filter(|kind| kind.0 != other).collect();
        let count = 8 + random.below(12) as usize;
        let volatile = ["", "volatile "][random.below(2) as usize];
        let mut program = Self {
            text: format!("{HEAD}static {volatile}W n[{}];\n", 2 * count),
            functions: Vec::new(),
            kinds: Vec::new(),
        };
        let mut costs: Vec<u64> = Vec::new();
        for at in 0..count {
            let (_, name, text, call) = usable[random.below(usable.len() as u64) as usize];
            let (calls, cost) = calls(random, &costs);
            let is_inlinable = random.below(4) == 0;
            let begin = if is_inlinable { "static" } else { NOINLINE };
            let counter = program.functions.len();
            let definition = text
                .replace("CALLS", &calls)
                .replace("COUNT", &format!("n[{counter}]++"))
                .replace("HELPED", &format!("n[{}]++", counter + 1))
                .replace("HELPER", NOINLINE)
                .replace("FN", begin)
                .replace("READ", READ)
                .replace('@', &at.to_string());
            let call = call.replace('@', &at.to_string());
            _ = writeln!(program.text, "{definition}\n#define C{at}(x) ({call})");
            _ = writeln!(
                program.text,
                "{NOINLINE} W w{at}(W x) {{ return C{at}(x); }}"
            );
            program.functions.push(Function {
                name: format!("f{at}"),
                is_inlinable,
            });
            if text.contains("HELPED") {
                program.functions.push(Function {
                    name: format!("g{at}"),
                    // A nested function has no attribute.
                    is_inlinable: !text.contains("HELPER"),
                });
            }
            program.kinds.push(name);
            // A function makes the calls in its text at most twice, and calls itself seven times.
            costs.push(9 + 2 * cost);
        }
        program.text += WORK;
        for at in 0..count {
            _ = writeln!(program.text, "sum = sum * 31 + w{at}(sum + round);");
        }
        program.text += MAIN;
        for (counter, function) in program.functions.iter().enumerate() {
            let print = format!("printf(\"{} %lu\\n\", (W)n[{counter}]);", function.name);
            _ = writeln!(program.text, "{print}");
        }
        program.text += "return sum % 100; }\n";
        program
    }
}

/// Returns an expression that calls some functions with `x`, and the calls that it leads to.
fn calls(random: &mut Random, costs: &[u64]) -> (String, u64) {
    let mut callee = |argument: &str| {
        let at = random.below(costs.len() as u64 + 1) as usize;
        match costs.get(at) {
            Some(&cost) if cost < MOST_CALLS => (format!("C{at}({argument})"), cost),
            _ => ("(x * 3 + 1)".to_owned(), 0),
        }
    };
    let ((one, cost), (other, more)) = (callee("x + 1"), callee("x ^ 9"));
    match random.below(3) {
        0 => (one, cost),
        1 => (format!("({one} ^ {other})"), cost + more),
        _ => (format!("(x & 4 ? {one} : {other})"), cost.max(more)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_seed_and_a_number_always_make_the_same_program() {
        let program = |seed, number| Program::generate(&mut Random::new(seed, number), true);
        for number in 0..20 {
            assert_eq!(program(1, number), program(1, number));
            assert_ne!(program(1, number), program(2, number));
            assert_ne!(program(1, number), program(1, number + 1));
        }
    }

    #[test]
    fn every_kind_level_and_option_is_in_the_first_hundred_programs() {
        let mut seen = BTreeSet::new();
        for number in 0..100 {
            let mut random = Random::new(1, number);
            seen.extend(random.options(OPTIONS));
            seen.extend(Program::generate(&mut random, number % 2 == 0).kinds);
        }
        let kinds = KINDS.iter().map(|kind| &kind.1);
        for wanted in kinds.chain(OPTIONS).chain(&LEVELS) {
            assert!(seen.contains(wanted), "{wanted}");
        }
    }

    #[test]
    fn only_gcc_gets_nested_functions_and_only_clang_regcall() {
        for (is_gcc, word) in [(true, "regcall"), (false, "apply(g")] {
            for number in 0..100 {
                let program = Program::generate(&mut Random::new(3, number), is_gcc);
                assert!(!program.text.contains(word), "{number}");
            }
        }
    }
}
