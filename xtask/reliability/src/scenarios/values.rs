//! Arguments and results.

use crate::build::{C, Compiler, RUST};
use crate::scenario::Expect::Exactly;
use crate::scenario::{Elsewhere, Group, Hostile, Part, Scenario, Shown};

const CLANG: &[Compiler] = &[Compiler::Clang];
const GCC: &[Compiler] = &[Compiler::Gcc];

const CALLS: Hostile = Hostile {
    source: "value_calls.c",
    compilers: C,
    ..Hostile::DEFAULT
};
const STATE: Hostile = Hostile {
    source: "value_state.c",
    compilers: C,
    flags: &["-frounding-math", "-w", "-lm"],
    ..Hostile::DEFAULT
};
const CONVENTIONS: Hostile = Hostile {
    source: "value_conventions.c",
    compilers: C,
    ..Hostile::DEFAULT
};
const RBP: Hostile = Hostile {
    source: "value_rbp.c",
    compilers: C,
    ..Hostile::DEFAULT
};
const RUSTS: Hostile = Hostile {
    source: "value_rust.rs",
    compilers: RUST,
    ..Hostile::DEFAULT
};

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

const fn test(file: &'static str, test: &'static str) -> Elsewhere {
    Elsewhere { file, test }
}

pub(super) const GROUP: Group = Group {
    name: "values",
    about: "arguments, results and the state of the processor",
    scenarios: &[
        Scenario {
            name: "260 functions take and give every mix of types",
            promise: "Every bit of arguments, results and `errno` is as without tracing.",
            shown: Shown::By(Hostile {
                flags: &[QUIET],
                ..CALLS
            }),
        },
        Scenario {
            name: "the same with vectors of 256 bits",
            promise: "Vectors arrive in full width.",
            shown: Shown::By(Hostile {
                flags: AVX,
                ..CALLS
            }),
        },
        Scenario {
            name: "the same with vectors of 512 bits",
            promise: "Vectors arrive in full width.",
            shown: Shown::By(Hostile {
                flags: AVX512,
                ..CALLS
            }),
        },
        Scenario {
            name: "callers by gcc and callees by clang",
            promise: "It does not matter who compiles which side.",
            shown: Shown::By(Hostile {
                flags: AVX512_CALLERS,
                parts: &[Part {
                    compiler: Some(Compiler::Clang),
                    ..AVX512_CALLEES
                }],
                compilers: GCC,
                ..CALLS
            }),
        },
        Scenario {
            name: "callers by clang and callees by gcc",
            promise: "It does not matter who compiles which side.",
            shown: Shown::By(Hostile {
                flags: AVX512_CALLERS,
                parts: &[Part {
                    compiler: Some(Compiler::Gcc),
                    ..AVX512_CALLEES
                }],
                compilers: CLANG,
                ..CALLS
            }),
        },
        Scenario {
            name: "callers keep values in registers that callees leave alone",
            promise: "Values that gcc keeps in scratch registers across a call survive.",
            shown: Shown::Elsewhere(&[
                test(IPA_RA, "integers_in_scratch_registers_survive"),
                test(IPA_RA, "the_state_of_a_loop_in_scratch_registers_survives"),
                test(IPA_RA, "doubles_in_vector_registers_survive"),
                test(IPA_RA, "upper_halves_of_ymm_registers_survive"),
                test(IPA_RA, "high_zmm_registers_survive"),
                test(IPA_RA, "opmasks_survive"),
                test(
                    PRESERVE,
                    "every_register_survives_whatever_happens_to_the_call",
                ),
            ]),
        },
        Scenario {
            name: "callbacks look at values and change them",
            promise: "They see the same values as the function, and only their own changes take \
                      effect.",
            shown: Shown::Elsewhere(&[
                test(VALUES, "integer_arguments_are_seen_and_changed"),
                test(
                    VALUES,
                    "floating_point_arguments_and_results_are_seen_and_changed",
                ),
                test(VALUES, "results_of_every_kind_are_seen_and_changed"),
                test(VALUES, "errno_is_not_changed_by_callbacks"),
                test(
                    PRESERVE,
                    "callbacks_change_arguments_and_results_and_nothing_else",
                ),
            ]),
        },
        Scenario {
            name: "x87 rounds otherwise, and results are on its stack",
            promise: "Control word, flags and stack of x87 are as without tracing, if callbacks \
                      keep to the ABI and use no more than six of its registers, and no MMX, when \
                      a function has returned.",
            shown: Shown::By(Hostile {
                args: &["x87"],
                ..STATE
            }),
        },
        Scenario {
            name: "MXCSR has another rounding mode, and flags",
            promise: "Callbacks have the program's MXCSR; fgraph itself raises no flag in it.",
            shown: Shown::By(Hostile {
                args: &["mxcsr"],
                ..STATE
            }),
        },
        Scenario {
            name: "the direction flag",
            promise: "It is clear in functions and after calls. If a function sets it, it is \
                      still set behind its first instructions.",
            shown: Shown::By(Hostile {
                args: &["flags"],
                ..STATE
            }),
        },
        Scenario {
            name: "functions look at the alignment of the stack",
            promise: "It is aligned as without tracing, even if that is not as the ABI says.",
            shown: Shown::By(Hostile {
                args: &["alignment"],
                ..STATE
            }),
        },
        Scenario {
            name: "leaf functions use the red zone",
            promise: "Memory of a function below its stack pointer keeps its values.",
            shown: Shown::By(Hostile {
                args: &["redzone"],
                ..STATE
            }),
        },
        Scenario {
            name: "nested functions find the variables of the outer ones",
            promise: "The static chain (r10) arrives.",
            shown: Shown::By(Hostile {
                args: &["chain"],
                compilers: GCC,
                ..STATE
            }),
        },
        Scenario {
            name: "ms_abi",
            promise: "Registers that survive calls by this convention do so under tracing too, \
                      if callers are in the same module.",
            shown: Shown::By(Hostile {
                args: &["ms"],
                ..CONVENTIONS
            }),
        },
        Scenario {
            name: "no_caller_saved_registers",
            promise: "Callers in the same module find their values in any register.",
            shown: Shown::By(Hostile {
                args: &["kept"],
                ..CONVENTIONS
            }),
        },
        Scenario {
            name: "preserve_most and preserve_all",
            promise: "Registers that survive calls by these conventions do so under tracing too, \
                      if callers are in the same module.",
            shown: Shown::By(Hostile {
                args: &["preserved"],
                compilers: CLANG,
                ..CONVENTIONS
            }),
        },
        Scenario {
            name: "240 functions of several conventions call one another",
            promise: "Values that are live across direct calls survive.",
            shown: Shown::By(Hostile {
                source: "value_mixed.c",
                compilers: C,
                flags: &["-fno-builtin", "-lm"],
                ..Hostile::DEFAULT
            }),
        },
        Scenario {
            name: "regcall",
            promise: "Arguments and results are right in all registers of the convention.",
            shown: Shown::By(Hostile {
                args: &["regcall"],
                compilers: CLANG,
                ..CONVENTIONS
            }),
        },
        Scenario {
            name: "vectorcall",
            promise: "Arguments and results are right in all registers of the convention.",
            shown: Shown::By(Hostile {
                args: &["vectorcall"],
                compilers: CLANG,
                ..CONVENTIONS
            }),
        },
        Scenario {
            name: "assembly takes an argument in rbp",
            promise: "Such a function gets entry callbacks only.",
            shown: Shown::By(Hostile {
                args: &["rbp"],
                entry_only: 20,
                skipped: Exactly(20),
                ..CONVENTIONS
            }),
        },
        Scenario {
            name: "assembly takes an argument in the carry flag",
            promise: "Such a function is refused.",
            shown: Shown::By(Hostile {
                args: &["carry-in"],
                ..CONVENTIONS
            }),
        },
        Scenario {
            name: "assembly gives a result in the carry flag",
            promise: "The result arrives if `stc`, `clc` or `cmc` precedes `ret`: such a \
                     function gets entry callbacks only.",
            shown: Shown::By(Hostile {
                args: &["carry-out"],
                entry_only: 20,
                skipped: Exactly(20),
                ..CONVENTIONS
            }),
        },
        Scenario {
            name: "assembly does not keep rbp",
            promise: "If the function's own code shows it, it gets entry callbacks only. \
                      Otherwise the frame is found by the stack pointer.",
            shown: Shown::By(Hostile {
                args: &["lost"],
                entry_only: 120,
                skipped: Exactly(120),
                ..RBP
            }),
        },
        Scenario {
            name: "functions look at their return address",
            promise: "Such functions find their caller's address: their code shows the read, so \
                      they get entry callbacks only.",
            shown: Shown::By(Hostile {
                args: &["address"],
                entry_only: 30,
                skipped: Exactly(30),
                ..RBP
            }),
        },
        Scenario {
            name: "a function reads its caller's variables by the frame pointer",
            promise: "Such functions find their caller's frame: their code shows the read, so \
                      they get entry callbacks only.",
            shown: Shown::By(Hostile {
                args: &["frame"],
                entry_only: 100,
                skipped: Exactly(100),
                ..RBP
            }),
        },
        Scenario {
            name: "assembly takes and gives values in any register",
            promise: "Arguments and results arrive in any register.",
            shown: Shown::By(Hostile {
                args: &["many"],
                ..CONVENTIONS
            }),
        },
        Scenario {
            name: "functions by Rust's own convention",
            promise: "Arguments and results are as without tracing.",
            shown: Shown::By(Hostile {
                args: &["rust"],
                ..RUSTS
            }),
        },
        Scenario {
            name: "Rust functions by the ABI of the system",
            promise: "Arguments and results are as without tracing.",
            shown: Shown::By(Hostile {
                args: &["c"],
                ..RUSTS
            }),
        },
        Scenario {
            name: "Rust functions by the ABI of Windows",
            promise: "Arguments and results are as without tracing, and so are registers that \
                      survive calls in the same module.",
            shown: Shown::By(Hostile {
                args: &["win64"],
                ..RUSTS
            }),
        },
    ],
};
