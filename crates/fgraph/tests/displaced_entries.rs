//! Functions that begin in every way there is: what is displaced does the same elsewhere.

// Long strings: C code.

use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use fgraph::{Handle, RefusalReason, RelocateError};
use fgraph_needs::{CC, CLANG, GCC, Missing, Need, needs, skip};
use fgraph_scenario::{Calls, Library, Paired, bounded, code, directory, plain, scenario};

/// The return address that `tells_return_address` was called with.
#[unsafe(no_mangle)]
static RETURN_ADDRESS: AtomicU64 = AtomicU64::new(0);

/// Value that functions here read relative to the instruction pointer.
#[unsafe(no_mangle)]
static ANSWER: u64 = 42;

/// Target of the call of `through_memory` and of the jump of `jumps_through_memory`.
#[unsafe(no_mangle)]
static POINTER: unsafe extern "C" fn() = tells_return_address;

plain!(
    "tells_return_address",
    "mov rax, [rsp]",
    "mov [rip + RETURN_ADDRESS], rax",
    "lea rax, [rdi + 1]",
    "ret",
);

// Operands relative to where the instruction is.
plain!("loads", "mov rax, [rip + ANSWER]", "add rax, rdi", "ret");
plain!(
    "loads_second",
    "mov eax, edi",
    "add rax, [rip + ANSWER]",
    "ret"
);
plain!(
    "compares",
    "cmp rdi, [rip + ANSWER]",
    "sete al",
    "movzx eax, al",
    "ret"
);
plain!(
    "compares_immediate",
    // The immediate is behind the displacement.
    "cmp qword ptr [rip + ANSWER], 42",
    "sete al",
    "movzx eax, al",
    "add rax, rdi",
    "ret",
);

// Branches.
plain!(
    "short_branch",
    "test edi, edi",
    "jne 2f",
    "mov eax, 7",
    "ret",
    "2:",
    "mov eax, 8",
    "ret",
);
plain!(
    "near_branch",
    "test edi, edi",
    ".byte 0x0f, 0x84",
    ".long 2f - (. + 4)",
    "mov eax, 8",
    "ret",
    ".zero 200, 0x90",
    "2:",
    "mov eax, 7",
    "ret",
);
plain!(
    "counting_branch",
    "mov ecx, edi",
    "jrcxz 2f",
    "mov eax, 8",
    "ret",
    "2:",
    "mov eax, 7",
    "ret",
);
plain!(
    "to_the_next_instruction",
    "test edi, edi",
    "je 2f",
    "2:",
    "lea rax, [rdi + 3]",
    "ret"
);
plain!("thunk", "jmp tells_return_address",);
plain!(
    "short_thunk",
    "jmp 2f",
    ".zero 20, 0x90",
    "2:",
    "lea rax, [rdi + 9]",
    "ret"
);
plain!("jumps_through_memory", "jmp qword ptr [rip + POINTER]",);
plain!(
    "jumps_through_register",
    "lea rax, [rip + tells_return_address]",
    "jmp rax",
);
plain!(
    "loops",
    "xor eax, eax",
    // Back to here, behind what is patched.
    "lea rcx, [rdi + 1]",
    "2:",
    "add rax, rcx",
    "dec rcx",
    "jnz 2b",
    "ret",
);
plain!(
    "loops_to_the_second_instruction",
    "xor eax, eax",
    "2:",
    "inc rax",
    "dec rdi",
    "jns 2b",
    "ret",
);

// Calls: who is called sees where it was called from.
plain!(
    "calls_first",
    "call tells_return_address",
    ".globl behind_calls_first",
    "behind_calls_first:",
    "ret",
);
plain!(
    "calls_second",
    "push rbx",
    "call tells_return_address",
    ".globl behind_calls_second",
    "behind_calls_second:",
    "pop rbx",
    "ret",
);
plain!(
    "calls_through_memory",
    "push rbx",
    "call qword ptr [rip + POINTER]",
    ".globl behind_calls_through_memory",
    "behind_calls_through_memory:",
    "pop rbx",
    "ret",
);
plain!(
    "calls_through_register",
    "mov rax, rsi",
    "call rax",
    ".globl behind_calls_through_register",
    "behind_calls_through_register:",
    "ret",
);
plain!(
    "calls_through_the_stack",
    "push rsi",
    "push rsi",
    "call qword ptr [rsp + 8]",
    ".globl behind_calls_through_the_stack",
    "behind_calls_through_the_stack:",
    "pop rcx",
    "pop rcx",
    "ret",
);

// Other beginnings.
plain!("landing_pad", "endbr64", "lea rax, [rdi + 4]", "ret");
plain!(
    "landing_pad_and_call",
    "endbr64",
    "push rbx",
    "call tells_return_address",
    "pop rbx",
    "ret"
);
plain!(
    "landing_pad_and_frame",
    "endbr64",
    "push rbp",
    "mov rbp, rsp",
    "mov rax, rdi",
    "leave",
    "ret"
);
plain!(
    "framed",
    "push rbp",
    "mov rbp, rsp",
    "push rdi",
    "mov rax, [rbp - 8]",
    "leave",
    "ret"
);
plain!(
    "saves_many",
    "push r15",
    "push r14",
    "push r13",
    "mov rax, rdi",
    "pop r13",
    "pop r14",
    "pop r15",
    "ret"
);
plain!(
    "makes_room",
    "sub rsp, 24",
    "mov [rsp], rdi",
    "mov rax, [rsp]",
    "add rsp, 24",
    "ret"
);
plain!(
    "makes_much_room",
    "sub rsp, 5000",
    "mov [rsp], rdi",
    "mov rax, [rsp]",
    "add rsp, 5000",
    "ret"
);
plain!(
    "long_instruction",
    "movabs rax, 0x123456789abcdef0",
    "add rax, rdi",
    "ret"
);
plain!(
    "with_prefixes",
    "mov rax, fs:[0]",
    "xor rax, fs:[0]",
    "add rax, rdi",
    "ret"
);
plain!(
    "notes_address",
    "lea rax, [rip + notes_address]",
    "lea rcx, [rip + notes_address]",
    "sub rax, rcx",
    "add rax, rdi",
    "ret"
);
plain!("flags_first", "cmp edi, 5", "mov eax, 0", "setb al", "ret");

// Shorter than a jump; behind each is padding up to a multiple of 16.
plain!("one_byte", "ret");
plain!("two_bytes", ".byte 0xf3", "ret");
plain!("three_bytes", "push rdi", "pop rax", "ret");
plain!("four_bytes", "mov rax, rdi", "ret");
// gcc's pads.
plain!(
    "pad",
    "nop; nop; nop; nop; nop",
    "lea rax, [rdi + 6]",
    "ret"
);
plain!(
    "long_pad",
    "nop; nop; nop; nop; nop; nop; nop",
    "lea rax, [rdi + 6]",
    "ret"
);

type Function = unsafe extern "C" fn(u64, u64) -> u64;

macro_rules! declare {
    ($($name:ident)*) => {
        unsafe extern "C" {
            fn tells_return_address();
            $(fn $name(a: u64, b: u64) -> u64;)*
        }

        /// All functions with their names.
        const ALL: &[(&str, Function)] = &[$((stringify!($name), $name)),*];
    };
}

declare! {
    loads loads_second compares compares_immediate
    short_branch near_branch counting_branch to_the_next_instruction
    thunk short_thunk jumps_through_memory jumps_through_register
    loops loops_to_the_second_instruction
    calls_first calls_second calls_through_memory calls_through_register calls_through_the_stack
    landing_pad landing_pad_and_call landing_pad_and_frame
    framed saves_many makes_room makes_much_room long_instruction with_prefixes notes_address
    flags_first one_byte two_bytes three_bytes four_bytes pad long_pad
}

/// Returns a function's results, each with its caller if it says so.
fn answers(function: Function) -> Vec<(u64, u64)> {
    [0, 1, 4, 42, 1 << 20]
        .map(|n| {
            RETURN_ADDRESS.store(0, SeqCst);
            // SAFETY: they keep to the ABI, and call at most the function that is passed.
            let answer = unsafe { function(n, tells_return_address as *const () as u64) };
            (answer, RETURN_ADDRESS.load(SeqCst))
        })
        .to_vec()
}

/// Answers of functions that leave rax alone are not the same every time.
fn is_comparable(name: &str) -> bool {
    !matches!(name, "one_byte" | "two_bytes")
}

/// Functions that leave by a jump to one that tells its return address.
const ENTRIES_ONLY: [&str; 3] = ["thunk", "jumps_through_memory", "jumps_through_register"];

fn paired(filter: &str) -> Handle<Paired> {
    fgraph_scenario::register(Paired::default(), filter).unwrap()
}

#[scenario]
fn every_kind_of_function_does_the_same_while_it_is_traced() {
    for &(name, function) in ALL {
        let before: [u8; 32] = code(function as *const ());
        let untraced = answers(function);
        for users in 1..=2 {
            let users: Vec<_> = (0..users)
                .map(|_| paired(&format!("{name}:mod:it-*")))
                .collect();
            let report = users[0].report().unwrap();
            assert_eq!(
                (report.traced, &*report.refused),
                (1, &[][..]),
                "{name}: {report:?}"
            );
            assert_ne!(code::<32>(function as *const ()), before, "{name}");
            let traced = answers(function);
            if is_comparable(name) {
                assert_eq!(traced, untraced, "{name}");
            }
            for user in users {
                let calls = user.unregister().unwrap().calls();
                let is_expected = match ENTRIES_ONLY.contains(&name) {
                    true => (calls.returns, calls.wrong) == (0, 0),
                    false => calls.is_exact(),
                };
                assert!(is_expected, "{name}: {calls:?}");
                assert_eq!(calls.entries, 5, "{name}");
            }
            assert_eq!(code::<32>(function as *const ()), before, "{name}");
        }
        let after = answers(function);
        if is_comparable(name) {
            assert_eq!(after, untraced, "{name}");
        }
    }
}

#[scenario]
fn all_kinds_of_functions_are_traced_together() {
    let names: Vec<String> = ALL
        .iter()
        .map(|(name, _)| format!("{name}:mod:it-*"))
        .collect();
    let before: Vec<[u8; 32]> = ALL
        .iter()
        .map(|&(_, function)| code(function as *const ()))
        .collect();
    let answers = || {
        let comparable = ALL.iter().filter(|(name, _)| is_comparable(name));
        comparable
            .map(|&(_, function)| answers(function))
            .collect::<Vec<_>>()
    };
    let untraced = answers();
    let users = [(); 2].map(|()| paired(&names.join(" ")));
    assert_eq!(
        users[0].report().unwrap().traced,
        ALL.len(),
        "{:?}",
        users[0].report().unwrap()
    );
    assert_eq!(answers(), untraced);
    for user in users {
        let calls = user.unregister().unwrap().calls();
        let without_return = ENTRIES_ONLY.len() as u64 * 5;
        assert_eq!(calls.entries - calls.returns, without_return, "{calls:?}");
        assert_eq!(calls.wrong, 0, "{calls:?}");
    }
    let after: Vec<[u8; 32]> = ALL
        .iter()
        .map(|&(_, function)| code(function as *const ()))
        .collect();
    assert_eq!(after, before);
}

#[scenario]
fn a_displaced_call_pushes_the_original_return_address() {
    unsafe extern "C" {
        fn behind_calls_first();
        fn behind_calls_second();
        fn behind_calls_through_memory();
        fn behind_calls_through_register();
        fn behind_calls_through_the_stack();
    }
    for (name, function, behind) in [
        (
            "calls_first",
            calls_first as Function,
            behind_calls_first as *const (),
        ),
        (
            "calls_second",
            calls_second,
            behind_calls_second as *const (),
        ),
        (
            "calls_through_memory",
            calls_through_memory,
            behind_calls_through_memory as *const (),
        ),
        (
            "calls_through_register",
            calls_through_register,
            behind_calls_through_register as *const (),
        ),
        (
            "calls_through_the_stack",
            calls_through_the_stack,
            behind_calls_through_the_stack as *const (),
        ),
    ] {
        let user = paired(name);
        assert_eq!(user.report().unwrap().traced, 1);
        for (answer, from) in answers(function) {
            assert_eq!(from, behind as u64, "{name}");
            assert!(answer > 0);
        }
        // The called function as well: it is told of the same place.
        let log = fgraph_scenario::Log::new();
        let callers = log.clone();
        let callee = fgraph_scenario::register(
            fgraph_scenario::user(
                move |call| {
                    callers.push(call.return_address());
                    Some(())
                },
                |_, ()| (),
            ),
            "tells_return_address",
        )
        .unwrap();
        // SAFETY: it keeps to the ABI.
        unsafe { function(1, tells_return_address as *const () as u64) };
        assert_eq!(log.take(), [behind as usize], "{name}");
        drop((callee, user));
    }
}

// `.p2align` pads what is defined with `plain!`; here nothing is.
std::arch::global_asm!(
    ".pushsection .text.crowded,\"ax\",@progbits",
    ".p2align 4",
    ".globl crowded_a",
    ".type crowded_a,@function",
    "crowded_a: mov rax, rdi",
    "ret",
    ".size crowded_a, . - crowded_a",
    ".globl crowded_b",
    ".type crowded_b,@function",
    "crowded_b: lea rax, [rdi + 1]",
    "ret",
    ".size crowded_b, . - crowded_b",
    ".popsection",
);
unsafe extern "C" {
    safe fn crowded_a(n: u64) -> u64;
    safe fn crowded_b(n: u64) -> u64;
}
/// A function of four bytes between others, with nothing to spare behind it.
#[scenario]
fn a_function_without_room_for_a_jump_is_refused_with_the_reason() {
    let before: [u8; 16] = code(crowded_a as *const ());
    let user = paired("crowded_?");
    let report = user.report().unwrap();
    assert_eq!((report.traced, report.refused.len()), (1, 1), "{report:?}");
    let refused = &report.refused[0];
    assert_eq!(
        refused.reason,
        RefusalReason::Displace(RelocateError::TooShort { have: 4 })
    );
    assert_eq!(
        (refused.name.as_str(), refused.address),
        ("crowded_a", crowded_a as *const () as usize)
    );
    assert_eq!((crowded_a(1), crowded_b(1)), (1, 2));
    assert_eq!(code::<4>(crowded_a as *const ()), before[..4]);
    assert_eq!(user.unregister().unwrap().calls().entries, 1);
    assert_eq!(code::<16>(crowded_a as *const ()), before);
}

const C: &str = "
    static long state = 5;
    void __attribute__((visibility(\"hidden\"))) instrumented_hook(void) {}
    long instrumented_one(long n) { return n + state; }
    static __attribute__((noinline)) long hidden(long n) { state += n; return state * 3; }
    long instrumented_two(long n) { return hidden(n) + hidden(n + 1) - 2 * state; }
    double instrumented_three(double x, long n) { double r = x; while (n-- > 0) r = r * x + state; return r; }
    long instrumented_four(const long *p, long n) { long s = 0; for (long i = 0; i < n; i++) s += p[i]; return s; }
";

/// Compiles with `compiler` and links with gcc, which needs no runtime of the compiler's.
fn instrumented(
    name: &str,
    compiler: &Need,
    source: &str,
    options: &[&str],
) -> Result<Library, Missing> {
    let (compiler, linker) = (compiler.find()?, CC.find()?);
    let directory = directory();
    let [input, object, library] =
        ["c", "o", "so"].map(|extension| directory.join(format!("lib{name}.{extension}")));
    std::fs::write(&input, source).unwrap();
    let mut compile = Command::new(compiler);
    compile
        .args(["-c", "-fPIC", "-O2", "-o"])
        .arg(&object)
        .args(options)
        .arg(&input);
    let mut link = Command::new(linker);
    link.args(["-shared", "-o"]).arg(&library).arg(&object);
    for command in [&mut compile, &mut link] {
        let output = bounded(command);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        if errors.contains("unsupported")
            || errors.contains("unrecognized")
            || errors.contains("unknown argument")
        {
            return Err(Missing::new(errors));
        }
        assert!(output.status.success(), "{command:?}: {errors}");
    }
    Ok(Library::open(&library))
}

/// Traces all that is instrumented, and compares.
fn check(name: &str, library: &Library, start: &[u8]) {
    type One = extern "C" fn(i64) -> i64;
    // SAFETY: their types.
    let (one, two, three, four): (
        One,
        One,
        extern "C" fn(f64, i64) -> f64,
        extern "C" fn(*const i64, i64) -> i64,
    ) = unsafe {
        (
            library.get("instrumented_one"),
            library.get("instrumented_two"),
            library.get("instrumented_three"),
            library.get("instrumented_four"),
        )
    };
    let work = || {
        let numbers: [i64; 9] = std::array::from_fn(|n| n as i64 * 7);
        // The state is as it was before each.
        let two = two(10) - two(-11) + two(1) - two(-2);
        (
            one(3) - one(2),
            two,
            (three(1.5, 6) - three(1.5, 6)).to_bits(),
            four(numbers.as_ptr(), 9),
        )
    };
    let untraced = work();
    let functions = [
        "instrumented_one",
        "instrumented_two",
        "instrumented_three",
        "instrumented_four",
    ]
    .map(|name| library.address(name));
    let before = functions.map(code::<32>);
    assert!(
        before[0].starts_with(start) || before[0][4..].starts_with(start),
        "{:x?}",
        before[0]
    );
    let filter = format!("instrumented_*:mod:lib{name}.so hidden:mod:lib{name}.so !*_hook");
    for _ in 0..2 {
        let users = [(); 2].map(|()| paired(&filter));
        let report = users[0].report().unwrap();
        assert_eq!(
            (report.traced, &*report.refused),
            (5, &[][..]),
            "{report:?}"
        );
        let traced = work();
        let calls = users.map(|user| user.unregister().unwrap().calls());
        assert_eq!(traced, untraced);
        assert_eq!(calls[0], calls[1]);
        // 2 and 4, 2 for each of these 4, 2, and 1.
        assert_eq!(
            calls[0],
            Calls {
                entries: 17,
                returns: 17,
                passed: 0,
                wrong: 0
            }
        );
        assert_eq!(functions.map(code::<32>), before);
    }
}

#[scenario]
fn functions_with_pads_of_gcc_are_traced() {
    let options = ["-fpatchable-function-entry=5"];
    let library = needs!(instrumented("pads", &GCC, C, &options));
    check("pads", &library, &[0x90; 5]);
}

#[scenario]
fn functions_with_pads_behind_an_endbr64_are_traced() {
    let options = ["-fpatchable-function-entry=5", "-fcf-protection=full"];
    let library = needs!(instrumented("endbr_pads", &GCC, C, &options));
    check("endbr_pads", &library, &[0x90; 5]);
}

/// NOPs before the function, too, which are nobody's.
#[scenario]
fn functions_with_pads_before_them_are_traced() {
    let options = ["-fpatchable-function-entry=8,3"];
    let library = needs!(instrumented("before", &GCC, C, &options));
    check("before", &library, &[0x90; 5]);
}

#[scenario]
fn functions_with_sleds_of_xray_are_traced() {
    let options = ["-fxray-instrument", "-fxray-instruction-threshold=1"];
    let library = needs!(instrumented("xray", &CLANG, C, &options));
    // A jump over nine bytes.
    check("xray", &library, &[0xeb, 0x09]);
}

#[scenario]
fn functions_that_call_fentry_are_traced() {
    const FENTRY: &str =
        "__asm__(\".globl __fentry__; .type __fentry__,@function; __fentry__: ret\");";
    for (name, options) in [
        ("fentry", &["-pg", "-mfentry"][..]),
        (
            "fentry_nop",
            &["-pg", "-mfentry", "-mnop-mcount", "-fno-pic"],
        ),
    ] {
        let source = format!(
            "{FENTRY}{}",
            C.replace(
                "void __attribute__",
                "void __attribute__((no_instrument_function)) __attribute__"
            )
        );
        let library = needs!(instrumented(name, &GCC, &source, options));
        let start: [u8; 1] = code(library.address("instrumented_one"));
        check(name, &library, &start);
    }
}

/// At every level of optimisation, and with either compiler.
#[scenario]
fn functions_without_any_preparation_are_traced() {
    for compiler in [&GCC, &CLANG] {
        if let Err(missing) = compiler.find() {
            skip!("{missing}");
            continue;
        }
        for (level, option) in ["-O0", "-O1", "-O2", "-Os", "-O3"].into_iter().enumerate() {
            for (cet, protection) in ["none", "full"].into_iter().enumerate() {
                let name = format!("{}_{level}_{cet}", compiler.name());
                let protection = format!("-fcf-protection={protection}");
                let options = [option, &protection, "-fno-ipa-icf"];
                let options = if compiler.name() == GCC.name() {
                    &options[..]
                } else {
                    &options[..2]
                };
                let library = needs!(instrumented(&name, compiler, C, options));
                check(&name, &library, &[]);
            }
        }
    }
}
