//! Callers that keep values in registers which the ABI lets any function change.
//!
//! gcc lets a caller keep a value in any register that the code of a local callee does not use
//! (`-fipa-ra`, on at `-O2`). So a traced call must leave every register alone that the ABI calls
//! scratch: here the callbacks fill all of them with garbage.

// Long strings: C code.

use std::path::Path;
use std::process::Command;

use crate::common::clobber;
use fgraph::{Entry, FgraphOps, Return};
use fgraph_needs::{GCC, Missing, OBJDUMP, needs, skip};
use fgraph_scenario::{
    Library, Paired, bounded, build_library, code, library, plain, scenario, traceable,
};

/// A user whose callbacks leave garbage in all scratch registers.
struct Clobber {
    wants_returns: bool,
}

impl FgraphOps for Clobber {
    type Data = ();

    fn entry(&self, _call: &mut Entry<'_, ()>) -> Option<()> {
        clobber::at_entry();
        self.wants_returns.then_some(())
    }

    fn ret(&self, _call: &mut Return<'_, ()>, (): ()) {
        clobber::at_return();
    }
}

/// The instructions of a function, as objdump prints them: mnemonic and operands.
fn disassembly(library: &Path, function: &str) -> Result<Vec<String>, Missing> {
    let objdump = OBJDUMP.find()?;
    let mut command = Command::new(objdump);
    command
        .args(["-d", "--no-show-raw-insn"])
        .arg(format!("--disassemble={function}"))
        .arg(library);
    let output = bounded(&mut command);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = text.lines().filter_map(|line| line.split_once(":\t"));
    Ok(lines
        .map(|(_, instruction)| instruction.to_owned())
        .collect())
}

/// Returns true if an instruction in AT&T syntax, with the result last, reads a register.
fn reads(line: &str, register: &str) -> bool {
    const ALSO_READ_RESULT: [&str; 6] = ["vfmadd", "add", "sub", "xor", "imul", "mulsd"];
    let (sources, result) = line.rsplit_once(',').unwrap_or(("", line));
    sources.contains(register)
        || result.contains(register)
            && (result.contains('(') || ALSO_READ_RESULT.iter().any(|name| line.starts_with(name)))
}

/// The first of the registers that the caller reads after its first call of `callee`, before it
/// writes to it. None of them is one that a function preserves.
fn kept<'a>(code: &[String], callee: &str, registers: &[&'a str]) -> Option<&'a str> {
    let calls = |line: &String| line.contains("call") && line.contains(callee);
    let first = code.iter().position(calls)?;
    registers.iter().copied().find(|register| {
        let mut behind = code[first + 1..].iter();
        let use_of = behind.find(|line| line.contains(register));
        use_of.is_some_and(|line| reads(line, register))
    })
}

/// Builds the library and says whether gcc does what the test is about.
fn build(
    name: &str,
    source: &str,
    options: &[&str],
    functions: &[(&str, &str, &[&str])],
) -> Result<Library, Missing> {
    let file = format!("{name}.c");
    let options = [&["-O2", "-fno-inline", "-fipa-ra"], options].concat();
    let path = build_library(&GCC, &file, source, &options)?;
    for (caller, callee, registers) in functions {
        let code = disassembly(&path, caller)?;
        if kept(&code, callee, registers).is_none() {
            return Err(Missing::new(format_args!(
                "this gcc keeps nothing in scratch registers: {}",
                code.join("; ")
            )));
        }
    }
    Ok(Library::open(&path))
}

/// Calls `work` untraced; traced with callbacks that leave garbage behind, on entries only and on
/// returns as well; with two such users; and untraced again. The results must be the same.
fn same_while_traced<R: PartialEq + std::fmt::Debug>(
    filter: &str,
    callee: *const (),
    work: impl Fn() -> R,
) {
    let before: [u8; 16] = code(callee);
    let untraced = work();
    let paired = fgraph_scenario::register(Paired::default(), filter).unwrap();
    assert_eq!(
        paired.report().unwrap().traced,
        1,
        "{:?}",
        paired.report().unwrap()
    );
    for wants_returns in [false, true] {
        let first = fgraph_scenario::register(Clobber { wants_returns }, filter).unwrap();
        assert_eq!(work(), untraced);
        let second = fgraph_scenario::register(Clobber { wants_returns }, filter).unwrap();
        assert_eq!(work(), untraced);
        drop((first, second));
    }
    let alone = fgraph_scenario::register(
        Clobber {
            wants_returns: true,
        },
        filter,
    )
    .unwrap();
    let calls = paired.unregister().unwrap().calls();
    assert!(calls.is_exact() && calls.entries >= 4, "{calls:?}");
    // Only entries, for the trampoline that leaves the return address alone.
    assert_eq!(work(), untraced);
    drop(alone);
    let alone = fgraph_scenario::register(
        Clobber {
            wants_returns: false,
        },
        filter,
    )
    .unwrap();
    assert_eq!(work(), untraced);
    drop(alone);
    assert_eq!(work(), untraced);
    assert_eq!(code::<16>(callee), before);
}

const INTEGERS: &str = "
    /* The address of the static function, for the test. */
    static __attribute__((noinline, noclone)) unsigned long leaf(unsigned long a) {
        return a * 3 + 1;
    }
    const void *address(void) { return (const void *)leaf; }
    unsigned long caller(unsigned long a, unsigned long b, unsigned long c, unsigned long d,
                         unsigned long e, unsigned long f) {
        unsigned long g = a ^ b;
        unsigned long x = leaf(a);
        unsigned long y = leaf(x ^ b);
        unsigned long z = leaf(y + c);
        return x + y * 5 + z * 7 + b * 11 + c * 13 + d * 17 + e * 19 + f * 23 + g * 29;
    }
";

#[scenario]
fn integers_in_scratch_registers_survive() {
    let checks = [(
        "caller",
        "leaf",
        &["%r8", "%r9", "%r10", "%r11", "%rsi"][..],
    )];
    let library = needs!(build("integers", INTEGERS, &[], &checks));
    type Caller = extern "C" fn(u64, u64, u64, u64, u64, u64) -> u64;
    // SAFETY: their types.
    let (caller, address): (Caller, extern "C" fn() -> *const ()) =
        unsafe { (library.get("caller"), library.get("address")) };
    let leaf = |n: u64| n * 3 + 1;
    let (x, y) = (leaf(1), leaf(leaf(1) ^ 2));
    let z = leaf(y + 3);
    let right = x + y * 5 + z * 7 + 2 * 11 + 3 * 13 + 4 * 17 + 5 * 19 + 6 * 23 + 3 * 29;
    assert_eq!(caller(1, 2, 3, 4, 5, 6), right);
    same_while_traced("leaf:mod:libintegers.so", address(), || {
        (0..100)
            .map(|n| caller(n, n + 1, n * 2, n ^ 5, n << 40, !n >> 8))
            .collect::<Vec<_>>()
    });
}

/// Traces `leaf` of [`INTEGERS`], which gcc has compiled with these options.
fn integers_by_other_ways(name: &str, options: &[&str]) -> Result<(), Missing> {
    const THUNK: &str = "
        __asm__(\".pushsection .text; .globl __x86_return_thunk; .hidden __x86_return_thunk;\"
                \"__x86_return_thunk: ret; int3; .popsection\");
    ";
    let usual = ["-O2", "-fno-inline", "-fipa-ra", "-fcf-protection=none"];
    let source = match options
        .iter()
        .any(|option| option.ends_with("=thunk-extern"))
    {
        true => format!("{THUNK}{INTEGERS}"),
        false => INTEGERS.to_owned(),
    };
    let file = format!("{name}.c");
    let library = library(&GCC, &file, &source, &[&usual, options].concat())?;
    type Caller = extern "C" fn(u64, u64, u64, u64, u64, u64) -> u64;
    // SAFETY: their types.
    let (caller, address): (Caller, extern "C" fn() -> *const ()) =
        unsafe { (library.get("caller"), library.get("address")) };
    same_while_traced(&format!("leaf:mod:lib{name}.so"), address(), || {
        (0..100)
            .map(|n| caller(n, n + 1, n * 2, n ^ 5, n << 40, !n >> 8))
            .collect::<Vec<_>>()
    });
    Ok(())
}

#[scenario]
fn integers_survive_calls_through_constants_and_returns_by_thunks() {
    for (name, options) in [
        ("large", &["-mcmodel=large"][..]),
        (
            "large_inline",
            &["-mcmodel=large", "-mindirect-branch=thunk-inline"],
        ),
        ("medium", &["-mcmodel=medium"]),
        ("no_plt", &["-fno-plt", "-fno-semantic-interposition"]),
        ("through", &["-mforce-indirect-call"]),
        (
            "through_thunks",
            &["-mforce-indirect-call", "-mindirect-branch=thunk"],
        ),
        (
            "through_inline",
            &["-mforce-indirect-call", "-mindirect-branch=thunk-inline"],
        ),
        ("returns", &["-mfunction-return=thunk"]),
        ("returns_inline", &["-mfunction-return=thunk-inline"]),
        ("returns_extern", &["-mfunction-return=thunk-extern"]),
    ] {
        println!("{name}");
        needs!(integers_by_other_ways(name, options));
    }
}

#[scenario]
fn integers_in_scratch_registers_survive_a_skipped_call() {
    let kept = &["%r8", "%r9", "%r10", "%r11", "%rsi"][..];
    let checks = [("caller", "leaf", kept)];
    let library = needs!(build("skipped", INTEGERS, &[], &checks));
    type Caller = extern "C" fn(u64, u64, u64, u64, u64, u64) -> u64;
    // SAFETY: its type.
    let caller: Caller = unsafe { library.get("caller") };
    let filter = "leaf:mod:libskipped.so";
    let right = |x, y, z| x + y * 5 + z * 7 + 2 * 11 + 3 * 13 + 4 * 17 + 5 * 19 + 6 * 23 + 3 * 29;
    let leaf = |n: u64| n * 3 + 1;
    let (x, y) = (leaf(1), leaf(leaf(1) ^ 2));
    assert_eq!(caller(1, 2, 3, 4, 5, 6), right(x, y, leaf(y + 3)));
    for wants_returns in [false, true] {
        let _clobber = fgraph_scenario::register(Clobber { wants_returns }, filter).unwrap();
        let skip = fgraph_scenario::user(
            |call: &mut Entry<'_, ()>| {
                // SAFETY: the scenario knows what comes of it.
                unsafe { call.rewrite() }.skip(7u64).unwrap();
                None
            },
            |_, ()| (),
        );
        let _skip = fgraph_scenario::register(skip, filter).unwrap();
        let _clobber = fgraph_scenario::register(Clobber { wants_returns }, filter).unwrap();
        assert_eq!(caller(1, 2, 3, 4, 5, 6), right(7, 7, 7));
    }
}

/// Calls through which the flags, too, could be kept: gcc knows which functions change them.
const LOOP: &str = "
    static __attribute__((noinline, noclone)) long step(long a) { return a + 1; }
    const void *address(void) { return (const void *)step; }
    long caller(const long *from, long *to, long n, long scale, long bias) {
        long sum = 0;
        for (long i = 0; i < n; i++) {
            to[i] = step(from[i]) * scale + bias;
            sum ^= to[i];
        }
        return sum;
    }
";

#[scenario]
fn the_state_of_a_loop_in_scratch_registers_survives() {
    let checks = [("caller", "step", &["%r8", "%rsi", "%rcx", "%rdx"][..])];
    let library = needs!(build("loop", LOOP, &[], &checks));
    type Caller = extern "C" fn(*const i64, *mut i64, i64, i64, i64) -> i64;
    // SAFETY: their types.
    let (caller, address): (Caller, extern "C" fn() -> *const ()) =
        unsafe { (library.get("caller"), library.get("address")) };
    let from: Vec<i64> = (0..200).map(|n| n * n).collect();
    same_while_traced("step:mod:libloop.so", address(), || {
        let mut to = vec![0; from.len()];
        let sum = caller(from.as_ptr(), to.as_mut_ptr(), 200, 7, -3);
        (sum, to)
    });
}

const DOUBLES: &str = "
    static __attribute__((noinline, noclone)) double leaf(double a) { return a * 3 + 1; }
    const void *address(void) { return (const void *)leaf; }
    double caller(const double *v) {
        double a = v[0], b = v[1], c = v[2], d = v[3], e = v[4], f = v[5], g = v[6], h = v[7];
        double i = v[8], j = v[9], k = v[10], l = v[11];
        double x = leaf(a);
        double y = leaf(b + x);
        return x + 2 * y + 3 * c + 5 * d + 7 * e + 11 * f + 13 * g + 17 * h + 19 * i + 23 * j
            + 29 * k + 31 * l + a + b;
    }
";

#[scenario]
fn doubles_in_vector_registers_survive() {
    // Without the memory of the caller every value has to be loaded before the first call.
    let source = DOUBLES
        .replace("const double *v", "double *v, double *w")
        .replace(
            "double x = leaf(a);",
            "*w = a; asm volatile(\"\" ::: \"memory\"); double x = leaf(a);",
        );
    let checks = [(
        "caller",
        "leaf",
        &["%xmm8", "%xmm9", "%xmm10", "%xmm12", "%xmm15"][..],
    )];
    let library = needs!(build("doubles", &source, &[], &checks));
    type Caller = extern "C" fn(*mut f64, *mut f64) -> f64;
    // SAFETY: their types.
    let (caller, address): (Caller, extern "C" fn() -> *const ()) =
        unsafe { (library.get("caller"), library.get("address")) };
    same_while_traced("leaf:mod:libdoubles.so", address(), || {
        let mut values: [f64; 12] = std::array::from_fn(|n| n as f64 * 1.25 - 3.0);
        let mut stored = 0.0;
        caller(values.as_mut_ptr(), &mut stored).to_bits()
    });
}

/// Vectors of `SIZE` bytes: COUNT of them are kept across the calls.
const VECTORS: &str = "
    typedef double vector __attribute__((vector_size(SIZE), aligned(8)));
    static __attribute__((noinline, noclone)) vector leaf(vector a) { return a * 3 + 1; }
    const void *address(void) { return (const void *)leaf; }
    #define EACH(X) KEPT
    void caller(const vector *from, vector *to) {
    #define LOAD(n) vector v##n = from[n];
        EACH(LOAD)
        asm volatile(\"\" ::: \"memory\");
        vector x = leaf(v0);
        vector y = leaf(x + v1);
        #define STORE(n) to[n] = v##n * x + y;
        EACH(STORE)
    }
";

fn vectors(
    name: &str,
    size: usize,
    count: usize,
    options: &[&str],
    registers: &[&str],
) -> Result<(), Missing> {
    let kept: Vec<String> = (0..count).map(|n| format!("X({n})")).collect();
    let source = VECTORS
        .replace("SIZE", &size.to_string())
        .replace("KEPT", &kept.join(" "));
    let checks = [("caller", "leaf", registers)];
    let library = build(name, &source, options, &checks)?;
    type Caller = extern "C" fn(*const f64, *mut f64);
    // SAFETY: their types.
    let (caller, address): (Caller, extern "C" fn() -> *const ()) =
        unsafe { (library.get("caller"), library.get("address")) };
    let from: Vec<f64> = (0..count * size / 8)
        .map(|n| n as f64 * 0.75 - 11.0)
        .collect();
    same_while_traced(&format!("leaf:mod:lib{name}.so"), address(), || {
        let mut to = vec![0.0_f64; from.len()];
        caller(from.as_ptr(), to.as_mut_ptr());
        to.iter().map(|value| value.to_bits()).collect::<Vec<_>>()
    });
    Ok(())
}

#[scenario]
fn upper_halves_of_ymm_registers_survive() {
    if !is_x86_feature_detected!("avx2") {
        return skip!("this machine has no AVX2");
    }
    let registers = ["%ymm8", "%ymm9", "%ymm10", "%ymm11", "%ymm12"];
    needs!(vectors(
        "ymm",
        32,
        12,
        &["-mavx2", "-mno-avx512f"],
        &registers
    ));
}

#[scenario]
fn high_zmm_registers_survive() {
    if !is_x86_feature_detected!("avx512f") {
        return skip!("this machine has no AVX-512");
    }
    let registers = ["%zmm16", "%zmm17", "%zmm18", "%zmm20", "%zmm24"];
    needs!(vectors("zmm", 64, 24, &["-mavx512f"], &registers));
}

#[scenario]
fn high_registers_survive_with_xmm_and_ymm_width_only() {
    if !is_x86_feature_detected!("avx512vl") {
        return skip!("this machine has no AVX-512VL");
    }
    let registers = ["%ymm16", "%ymm17", "%ymm18", "%ymm20", "%ymm24"];
    needs!(vectors(
        "ymm_high",
        32,
        24,
        &["-mavx512f", "-mavx512vl"],
        &registers
    ));
    let registers = ["%xmm16", "%xmm17", "%xmm18", "%xmm20", "%xmm24"];
    needs!(vectors(
        "xmm_high",
        16,
        24,
        &["-mavx512f", "-mavx512vl"],
        &registers
    ));
}

/// A comparison of vectors leaves its result in an opmask, which gcc keeps there across the call.
const MASKS: &str = "
    #include <immintrin.h>
    static __attribute__((noinline, noclone)) int leaf(int a) { return a * 3 + 1; }
    const void *address(void) { return (const void *)leaf; }
    void caller(const void *from, void *to, int n) {
        __m512d a = _mm512_loadu_pd(from);
        __mmask8 low = _mm512_cmp_pd_mask(a, _mm512_set1_pd(0), _CMP_LT_OQ);
        asm volatile(\"\" : \"+k\"(low) :: \"memory\");
        int x = leaf(n);
        _mm512_mask_storeu_pd(to, low, _mm512_add_pd(a, _mm512_set1_pd(x)));
    }
";

#[scenario]
fn opmasks_survive() {
    if !is_x86_feature_detected!("avx512f") {
        return skip!("this machine has no AVX-512");
    }
    let checks = [("caller", "leaf", &["%k1", "%k2", "%k3"][..])];
    let library = needs!(build("masks", MASKS, &["-mavx512f"], &checks));
    type Caller = extern "C" fn(*const f64, *mut f64, i32);
    // SAFETY: their types.
    let (caller, address): (Caller, extern "C" fn() -> *const ()) =
        unsafe { (library.get("caller"), library.get("address")) };
    let from: [f64; 8] = [-1.0, 2.0, -3.0, -4.0, 5.0, 6.0, -7.0, 8.0];
    same_while_traced("leaf:mod:libmasks.so", address(), || {
        let mut to = [0.0_f64; 8];
        caller(from.as_ptr(), to.as_mut_ptr(), 2);
        assert_eq!((to[0], to[1]), (6.0, 0.0));
        to.map(f64::to_bits)
    });
}

// A caller that relies on what it must not: its callee says by its NOP that nobody does. It calls
// through a pointer, or it would be seen to rely on a convention.
plain!(
    "relies_on_scratch_registers",
    "sub rsp, 8",
    "mov r8, rdi",
    "movq xmm9, rdi",
    "lea rax, [rip + with_nop]",
    "call rax",
    "movq rax, xmm9",
    "add rsp, 8",
    "cmp rax, rdi",
    "sete al",
    "cmp r8, rdi",
    "sete ah",
    "movzx eax, ax",
    "ret",
);
traceable!("with_nop", "ret");

unsafe extern "C" {
    safe fn relies_on_scratch_registers(n: u64) -> u64;
    safe fn with_nop();
}

/// The tests above can fail: the callbacks do leave garbage behind, where it is allowed.
#[scenario]
fn the_callbacks_leave_garbage_in_scratch_registers() {
    assert_eq!(relies_on_scratch_registers(7), 0x101);
    let user = fgraph_scenario::register(
        Clobber {
            wants_returns: true,
        },
        "with_nop",
    )
    .unwrap();
    assert!(fgraph_scenario::is_patched(with_nop as *const ()));
    assert_ne!(relies_on_scratch_registers(7), 0x101);
    drop(user);
    assert_eq!(relies_on_scratch_registers(7), 0x101);
}

/// Functions in a chain: what `caller` keeps must survive `middle`, and so every function that it
/// calls.
const CHAIN: &str = "
    static __attribute__((noinline, noclone)) long leaf(long a) { return a * 3 + 1; }
    static __attribute__((noinline, noclone)) long middle(long a) { return leaf(a + 5) + 7; }
    const void *address(void) { return (const void *)leaf; }
    long caller(long a, long b, long c, long d, long e, long f) {
        long x = middle(a), y = middle(x);
        return x + y * 5 + b * 11 + c * 13 + d * 17 + e * 19 + f * 23;
    }
";

/// Program in which the function in the middle ends by a jump.
const TAIL_CALL: &str = "
    static __attribute__((noinline, noclone)) long leaf(long a) { return a * 3 + 1; }
    static __attribute__((noinline, noclone)) long middle(long a) { return leaf(a * 9 - 4); }
    const void *address(void) { return (const void *)leaf; }
    long caller(long a, long b, long c, long d, long e, long f) {
        long x = middle(a), y = middle(x);
        return x + y * 5 + b * 11 + c * 13 + d * 17 + e * 19 + f * 23;
    }
";

const RECURSION: &str = "
    static __attribute__((noinline, noclone)) long leaf(long a) {
        long b = a & 7;
        return b == 0 ? a : leaf(a - 1) * 3 + 1;
    }
    const void *address(void) { return (const void *)leaf; }
    long caller(long a, long b, long c, long d, long e, long f) {
        long x = leaf(a), y = leaf(x);
        return x + y * 5 + b * 11 + c * 13 + d * 17 + e * 19 + f * 23;
    }
";

/// gcc makes its own version of the function, with fewer arguments.
const CLONE: &str = "
    struct pair { long first, second; };
    static __attribute__((noinline)) long leaf(const struct pair *a, long unused) {
        return a->first * 3 + 1;
    }
    long caller(long a, long b, long c, long d, long e, long f) {
        struct pair p = { a, b };
        long x = leaf(&p, 2);
        p.first = x;
        long y = leaf(&p, 2);
        return x + y * 5 + b * 11 + c * 13 + d * 17 + e * 19 + f * 23;
    }
";

type Six = extern "C" fn(i64, i64, i64, i64, i64, i64) -> i64;

fn six(name: &str, source: &str, callee: &str) -> Result<(), Missing> {
    let registers = ["%r8", "%r9", "%r10", "%r11", "%rsi", "%rcx", "%rdx"];
    let checks = [("caller", callee, &registers[..])];
    let library = build(name, source, &[], &checks)?;
    // SAFETY: its type.
    let caller: Six = unsafe { library.get("caller") };
    let work = || {
        let calls = (0..100).map(|n| caller(n, n + 1, n * 2, n ^ 5, n << 40, !n >> 8));
        calls.collect::<Vec<_>>()
    };
    let untraced = work();
    // Each alone, and all of them.
    for filter in ["leaf*", "middle", "caller", "*"] {
        for wants_returns in [false, true] {
            let filter = format!("{filter}:mod:lib{name}.so");
            let user = fgraph_scenario::register(Clobber { wants_returns }, &filter).unwrap();
            assert_eq!(work(), untraced, "{filter}");
            drop(user);
        }
    }
    assert_eq!(work(), untraced);
    Ok(())
}

#[scenario]
fn registers_kept_across_a_chain_of_calls_survive() {
    needs!(six("chain", CHAIN, "middle"));
}

#[scenario]
fn registers_kept_across_a_tail_call_survive() {
    needs!(six("tail_call", TAIL_CALL, "middle"));
}

#[scenario]
fn registers_kept_across_a_recursion_survive() {
    needs!(six("recursion", RECURSION, "leaf"));
}

#[scenario]
fn registers_kept_across_a_clone_survive() {
    needs!(six("clone", CLONE, "leaf"));
}

/// Numbers for the programs below.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len() as u64) as usize]
    }
}

/// Number of functions of a random program.
const FUNCTIONS: u64 = 14;

/// A program of static functions that call those before them, through which their callers keep
/// values.
fn random_program(random: &mut Random) -> String {
    let mut source = String::from(
        "#include <stdlib.h>\n#include <string.h>\n\
         #define F static __attribute__((noinline))\ntypedef unsigned long u;\n\
         struct s { u a, b; double d; };\nvolatile u sink;\n\
         typedef u (*pointer)(u, u);\nF u apply(pointer p, u a, u b);\n",
    );
    for n in 0..FUNCTIONS {
        let mut body = String::new();
        // A call of an earlier function that gives a u.
        let call = |random: &mut Random, a: &str, b: &str| {
            if n == 0 {
                return format!("({a} * 3 + {b})");
            }
            match random.below(n.min(6)) {
                _ if random.below(9) == 0 => format!("apply(f{}, {a}, {b})", random.below(n)),
                back => format!("f{}({a}, {b})", n - 1 - back),
            }
        };
        let count = 1 + random.below(6);
        body += "  u v0 = a ^ b, v1 = a + 3, v2 = b * 5, v3 = a >> 3, v4 = b ^ 77, v5 = a - b;\n";
        body += "  double d0 = (double)(a & 1023), d1 = (double)(b & 511) * 0.5, d2 = d0 + d1, d3 = d0 * 3;\n";
        match random.below(6) {
            // A leaf, which leaves most registers alone.
            0 | 1 => body += "  v0 += v1 * 3;\n",
            kind => {
                for step in 0..count {
                    let variables = ["v0", "v1", "v2", "v3", "v4", "v5", "a", "b"];
                    let (to, x, y) = (
                        random.below(6),
                        random.pick(&variables),
                        random.pick(&variables),
                    );
                    let call = call(random, x, y);
                    body += &match random.below(8) {
                        0 => format!("  if ({x} & 1) v{to} += {call};\n"),
                        1 => format!("  for (u i = 0; i < ({y} & 3); i++) v{to} += {call} ^ i;\n"),
                        2 => format!(
                            "  switch ({x} & 7) {{ case 0: v{to} += {call}; break; case 1: v1 ^= 9; break; \
                             case 2: v2 += {call}; break; case 3: v3--; break; case 4: v4 += v1; break; \
                             case 5: return {call}; case 6: v5 ^= {step}; break; default: v0 += {y}; }}\n"
                        ),
                        3 => format!(
                            "  d{} += (double)({call} & 255) * d{};\n",
                            to % 4,
                            random.below(4)
                        ),
                        4 if kind == 2 => format!(
                            "  {{ struct s *p = malloc(sizeof *p); p->a = {call}; v{to} += p->a; free(p); }}\n"
                        ),
                        5 => format!("  if ({x} % 61 == 5) sink = {call};\n"),
                        _ => format!("  v{to} = v{to} * 31 + {call};\n"),
                    };
                }
                if random.below(4) == 0 {
                    body += "  if (b > 3 && (b & 7) == 3) v1 += SELF(a ^ 1, b >> 3);\n";
                }
            }
        }
        let sum = "v0 + v1 * 3 + v2 * 5 + v3 * 7 + v4 * 11 + v5 * 13 + (u)(long)(d0 + d1 * 2 + d2 * 3 + d3)";
        body += &match random.below(3) {
            // By a jump, if the options are so.
            0 if n > 0 => format!("  return {};\n", call(random, &format!("({sum})"), "b")),
            1 => "  return v0 + v3;\n".to_owned(),
            _ => format!("  return {sum};\n"),
        };
        let body = body.replace("SELF", &format!("f{n}"));
        source += &format!("F u f{n}(u a, u b) {{\n{body}}}\n");
    }
    source += "F u apply(pointer p, u a, u b) { return p(a, b); }\nu run(u a) { u all = a;\n";
    for n in 0..FUNCTIONS {
        source += &format!("  all = all * 131 + f{n}(all & 0xffff, a + {n});\n");
    }
    source + "  return all;\n}\n"
}

#[scenario]
fn random_programs_give_the_same_results_while_all_is_traced() {
    let first: u64 = std::env::var("FGRAPH_TEST_SEED").map_or(1, |seed| seed.parse().unwrap());
    let (mut keeping, mut traced) = (0, 0);
    for seed in first..first + 8 {
        let source = random_program(&mut Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        for level in ["-O1", "-O2", "-O3"] {
            let name = format!("random{seed}{level}");
            let options = [level, "-fipa-ra"];
            let file = format!("{name}.c");
            let path = needs!(build_library(&GCC, &file, &source, &options));
            let library = Library::open(&path);
            // SAFETY: its type.
            let run: extern "C" fn(u64) -> u64 = unsafe { library.get("run") };
            let work = || (0..20).map(|n| run(n * 77)).collect::<Vec<_>>();
            let untraced = work();
            let filters = (0..FUNCTIONS).map(|n| format!("f{n}:mod:lib{name}.so"));
            for filter in filters.chain([format!("*:mod:lib{name}.so")]) {
                let user = Clobber {
                    wants_returns: true,
                };
                // A clone of it may be all there is.
                let Ok(user) = fgraph_scenario::register(user, &filter) else {
                    continue;
                };
                traced += user.report().unwrap().traced;
                assert_eq!(work(), untraced, "{filter} {source}");
                drop(user);
            }
            let checks = (0..FUNCTIONS).filter_map(|n| disassembly(&path, &format!("f{n}")).ok());
            let registers = ["%r8", "%r9", "%r10", "%r11", "%xmm8", "%xmm9", "%xmm5"];
            keeping += checks
                .filter(|code| kept(code, "<", &registers).is_some())
                .count();
        }
    }
    println!("{traced} sites; at least {keeping} functions keep something");
    assert!(traced > 100);
}
