//! Arguments and results.

use crate::compiler::{C, Compiler, RUST};
use crate::scenario::Expect::Exactly;
use crate::scenario::{Group, Hostile, PLAIN, Part, program};

const CLANG: &[Compiler] = &[Compiler::Clang];
const GCC: &[Compiler] = &[Compiler::Gcc];

const CALLS: Hostile = program("value_calls.c", C);
const STATE: Hostile = Hostile {
    source: "value_state.c",
    compilers: C,
    flags: &["-frounding-math", "-w", "-lm"],
    ..Hostile::DEFAULT
};
const CONVENTIONS: Hostile = program("value_conventions.c", C);
const RBP: Hostile = program("value_rbp.c", C);
const RUSTS: Hostile = program("value_rust.rs", RUST);

/// Says nothing of vectors as arguments.
const QUIET: &str = "-Wno-psabi";
const AVX: &[&str] = &["-mavx2", QUIET];
const AVX512: &[&str] = &["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", QUIET];
const AVX512_CALLERS: &[&str] = &[
    "-mavx512f",
    "-mavx512bw",
    "-mavx512vl",
    "-mavx512dq",
    QUIET,
    "-DPART=2",
    "-DMIXED",
];
const AVX512_CALLEES: Part = Part {
    name: "callees.o",
    source: "value_calls.c",
    flags: &[
        "-mavx512f",
        "-mavx512bw",
        "-mavx512vl",
        "-mavx512dq",
        QUIET,
        "-DPART=1",
        "-DMIXED",
    ],
    ..Part::DEFAULT
};

const IPA_RA: &str = "crates/fgraph/tests/ipa_ra.rs";
const PRESERVE: &str = "crates/fgraph-x86_64/tests/preserve/main.rs";
const VALUES: &str = "crates/fgraph/tests/values.rs";

pub(super) const GROUP: Group = group! {
    "values", "arguments, results and the state of the processor";

    "260 functions take and give every mix of types",
    "Every bit of arguments, results and `errno` is as without tracing.",
    CALLS { flags: &[QUIET] };

    "the same with vectors of 256 bits",
    "Vectors arrive in full width.",
    CALLS { flags: AVX };

    "the same with vectors of 512 bits",
    "Vectors arrive in full width.",
    CALLS { flags: AVX512 };

    "callers by gcc and callees by clang",
    "It does not matter who compiles which side.",
    CALLS {
        flags: AVX512_CALLERS, parts: &[Part { compiler: Some(Compiler::Clang), ..AVX512_CALLEES }],
        compilers: GCC,
    };

    "callers by clang and callees by gcc",
    "It does not matter who compiles which side.",
    CALLS {
        flags: AVX512_CALLERS, parts: &[Part { compiler: Some(Compiler::Gcc), ..AVX512_CALLEES }],
        compilers: CLANG,
    };

    "callers keep values in registers that callees leave alone",
    "Values that gcc keeps in scratch registers across a call survive.",
    tests {
        IPA_RA: [
            "integers_in_scratch_registers_survive",
            "the_state_of_a_loop_in_scratch_registers_survives",
            "doubles_in_vector_registers_survive",
            "upper_halves_of_ymm_registers_survive",
            "high_zmm_registers_survive",
            "opmasks_survive",
        ],
        PRESERVE: ["every_register_survives_every_kind_of_call"],
    };

    "callbacks look at values and change them",
    "They see the same values as the function, and only their own changes take effect.",
    tests {
        VALUES: [
            "integer_arguments_are_seen_and_changed",
            "floating_point_arguments_and_results_are_seen_and_changed",
            "results_of_every_kind_are_seen_and_changed",
            "errno_is_not_changed_by_callbacks",
        ],
        PRESERVE: ["callbacks_change_arguments_and_results_and_nothing_else"],
    };

    "x87 rounds otherwise, and results are on its stack",
    "Control word, flags and stack of x87 are as without tracing, if callbacks keep to the ABI and \
     use no more than six of its registers, and no MMX, when a function has returned.",
    STATE { args: &["x87"] };

    "MXCSR has another rounding mode, and flags",
    "Callbacks have the program's MXCSR; fgraph itself raises no flag in it.",
    STATE { args: &["mxcsr"] };

    "the direction flag",
    "It is clear in functions and after calls. If a function sets it, it is still set behind its \
     first instructions.",
    STATE { args: &["flags"] };

    "functions look at the alignment of the stack",
    "It is aligned as without tracing, even if that is not as the ABI says.",
    STATE { args: &["alignment"] };

    "leaf functions use the red zone",
    "Memory of a function below its stack pointer keeps its values.",
    STATE { args: &["redzone"] };

    "nested functions find the variables of the outer ones",
    "The static chain (r10) arrives.",
    STATE { args: &["chain"], compilers: GCC };

    "ms_abi",
    "Registers that survive calls by this convention do so under tracing too, if callers are in \
     the same module.",
    CONVENTIONS { args: &["ms"] };

    "no_caller_saved_registers",
    "Callers in the same module find their values in any register.",
    CONVENTIONS { args: &["kept"] };

    "preserve_most and preserve_all",
    "Registers that survive calls by these conventions do so under tracing too, if callers are in \
     the same module.",
    CONVENTIONS { args: &["preserved"], compilers: CLANG };

    "240 functions of several conventions call one another",
    "Values that are live across direct calls survive.",
    PLAIN { source: "value_mixed.c", compilers: C, flags: &["-fno-builtin", "-lm"] };

    "regcall",
    "Arguments and results are right in all registers of the convention.",
    CONVENTIONS { args: &["regcall"], compilers: CLANG };

    "vectorcall",
    "Arguments and results are right in all registers of the convention.",
    CONVENTIONS { args: &["vectorcall"], compilers: CLANG };

    "assembly takes an argument in rbp",
    "Such a function gets its argument.",
    CONVENTIONS { args: &["rbp"] };

    "assembly takes an argument in the carry flag",
    "Such a function is refused.",
    CONVENTIONS { args: &["carry-in"] };

    "assembly gives a result in the carry flag",
    "The result arrives if `stc`, `clc` or `cmc` precedes `ret`: such a function gets entry \
     callbacks only.",
    CONVENTIONS { args: &["carry-out"], entry_only: 20, skipped: Exactly(20) };

    "assembly does not keep rbp",
    "If the function's own code shows it, it gets entry callbacks only. Otherwise the frame is \
     found by the stack pointer.",
    RBP { args: &["lost"], entry_only: 120, skipped: Exactly(120) };

    "functions look at their return address",
    "Such functions find their caller's address: their code shows the read, so they get entry \
     callbacks only.",
    RBP { args: &["address"], entry_only: 30, skipped: Exactly(30) };

    "a function aligns its stack and looks at the copy of its return address",
    "Such functions find their caller's address: the copy is followed, so they get entry callbacks \
     only.",
    RBP { args: &["aligned"], entry_only: 10, skipped: Exactly(10) };

    "a function reads its caller's variables by the frame pointer",
    "Such functions find their caller's frame: their code shows the read, so they get entry \
     callbacks only.",
    RBP { args: &["frame"], entry_only: 100, skipped: Exactly(100) };

    "assembly takes and gives values in any register",
    "Arguments and results arrive in any register.",
    CONVENTIONS { args: &["many"] };

    "functions by Rust's own convention",
    "Arguments and results are as without tracing.",
    RUSTS { args: &["rust"] };

    "Rust functions by the ABI of the system",
    "Arguments and results are as without tracing.",
    RUSTS { args: &["c"] };

    "Rust functions by the ABI of Windows",
    "Arguments and results are as without tracing, and so are registers that survive calls in the \
     same module.",
    RUSTS { args: &["win64"] };
};
