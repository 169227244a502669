//! Signals at any time.

use crate::build::C;
use crate::scenario::Expect::{AtLeast, Exactly};
use crate::scenario::{Elsewhere, Group, Hostile, Scenario, Shown, Trace};

const STORM: Hostile = Hostile {
    source: "signal_storm.c",
    compilers: C,
    ..Hostile::DEFAULT
};

const STEPPING: Hostile = Hostile {
    source: "signal_stepping.c",
    compilers: C,
    ..Hostile::DEFAULT
};

const HANDLERS: Hostile = Hostile {
    source: "signal_handlers.c",
    compilers: C,
    ..Hostile::DEFAULT
};

const fn threads(test: &'static str) -> Elsewhere {
    Elsewhere {
        file: "crates/fgraph/tests/threads.rs",
        test,
    }
}

pub(super) const GROUP: Group = Group {
    name: "signals",
    about: "signals at every instruction",
    scenarios: &[
        Scenario {
            name: "a timer storm",
            promise: "Handlers may run at any instruction: calls in them are traced, they may \
                      allocate, and the unwinder always finds `main`.",
            shown: Shown::By(Hostile {
                args: &["timer"],
                trace: Trace::AlsoEverything,
                ..STORM
            }),
        },
        Scenario {
            name: "a storm of setitimer",
            promise: "Handlers may run at any instruction: calls in them are traced, they may \
                     allocate, and the unwinder always finds `main`.",
            shown: Shown::By(Hostile {
                args: &["itimer"],
                ..STORM
            }),
        },
        Scenario {
            name: "a timer storm in four threads while functions are patched",
            promise: "Handlers may run at any instruction, even of a site that is being written.",
            shown: Shown::By(Hostile {
                args: &["threads"],
                toggled: Some("leaf"),
                ..STORM
            }),
        },
        Scenario {
            name: "calls instruction by instruction",
            promise: "At each instruction of stub, trampolines, dispatcher and callbacks the \
                      unwinder finds every real caller.",
            shown: Shown::By(Hostile {
                args: &["now"],
                ..STEPPING
            }),
        },
        Scenario {
            name: "calls instruction by instruction, some of them declined",
            promise: "At each instruction of stub, trampolines, dispatcher and callbacks the \
                     unwinder finds every real caller, even if no user wants the return.",
            shown: Shown::By(Hostile {
                args: &["now"],
                declining: true,
                ..STEPPING
            }),
        },
        Scenario {
            name: "calls instruction by instruction while functions are patched",
            promise: "Traps of the program's own reach its handler, through that of fgraph.",
            shown: Shown::By(Hostile {
                args: &["later"],
                toggled: Some("toggled"),
                ..STEPPING
            }),
        },
        Scenario {
            name: "a handler that goes to another stack at any instruction of a call",
            promise: "The calls on both stacks are reported, with frames of their own.",
            shown: Shown::Elsewhere(&[Elsewhere {
                file: "crates/fgraph/tests/fast_path.rs",
                test: "a_handler_may_go_to_another_stack_at_every_instruction_of_a_call",
            }]),
        },
        Scenario {
            name: "handlers of SIGTRAP replace each other while functions are patched",
            promise: "A handler of SIGTRAP that hands on what is not its own may be replaced at \
                      any time.",
            shown: Shown::By(Hostile {
                source: "signal_trap.c",
                compilers: C,
                toggled: Some("toggled_*"),
                ..Hostile::DEFAULT
            }),
        },
        Scenario {
            name: "handlers of traps that are left by siglongjmp while functions are patched",
            promise: "The next trap of the program's own reaches its handler again.",
            shown: Shown::By(Hostile {
                args: &["trap-jump"],
                skipped: Exactly(2000),
                toggled: Some("leaf"),
                ..HANDLERS
            }),
        },
        Scenario {
            name: "a handler of SIGTRAP that leaves a thread's first call",
            promise: "The thread is traced again from its next call at the same depth or above.",
            shown: Shown::Elsewhere(&[Elsewhere {
                file: "crates/fgraph-x86_64/tests/preserve/main.rs",
                test: "every_register_survives_whatever_happens_to_the_call",
            }]),
        },
        Scenario {
            name: "handlers that block every signal while functions are patched",
            promise: "Such handlers may call functions that are being patched.",
            shown: Shown::Elsewhere(&[threads(
                "handlers_that_block_every_signal_may_run_while_functions_are_patched",
            )]),
        },
        Scenario {
            name: "an alternate stack that was given up while functions are patched",
            promise: "The patching thread does not use it.",
            shown: Shown::Elsewhere(&[threads(
                "the_patching_thread_needs_no_writable_alternate_stack",
            )]),
        },
        Scenario {
            name: "a trap that nobody handles",
            promise: "The trap ends the program, as without tracing, with the registers of its \
                     place.",
            shown: Shown::Elsewhere(&[
                threads("a_trap_that_nobody_handles_kills_as_ever"),
                threads("a_trap_that_nobody_handles_kills_with_the_registers_of_its_place"),
            ]),
        },
        Scenario {
            name: "siglongjmp out of the first traced call of a thread",
            promise: "The thread is traced, wherever it was left.",
            shown: Shown::Elsewhere(&[Elsewhere {
                file: "crates/fgraph/tests/counters.rs",
                test: "a_thread_is_traced_wherever_its_first_call_was_left_by_siglongjmp",
            }]),
        },
        Scenario {
            name: "raise in a function twenty calls deep",
            promise: "The handler finds every caller and may call traced functions.",
            shown: Shown::By(Hostile {
                args: &["raise"],
                ..HANDLERS
            }),
        },
        Scenario {
            name: "nested handlers of three signals",
            promise: "The innermost one finds all the others and `main`.",
            shown: Shown::By(Hostile {
                args: &["nested"],
                ..HANDLERS
            }),
        },
        Scenario {
            name: "a handler with SA_NODEFER raises its own signal fifty times",
            promise: "Every call is reported, in order.",
            shown: Shown::By(Hostile {
                args: &["nodefer"],
                ..HANDLERS
            }),
        },
        Scenario {
            name: "a handler with SA_ONSTACK",
            promise: "The handler may call traced functions, and finds every caller on both \
                     stacks.",
            shown: Shown::By(Hostile {
                args: &["altstack"],
                ..HANDLERS
            }),
        },
        Scenario {
            name: "siglongjmp out of a handler with SA_ONSTACK",
            promise: "The calls that it leaves are counted as lost.",
            shown: Shown::By(Hostile {
                args: &["altstack-jump"],
                skipped: AtLeast(400),
                ..HANDLERS
            }),
        },
        Scenario {
            name: "SIGSEGV in a traced function, mended by its handler",
            promise: "The access is repeated and the call returns.",
            shown: Shown::By(Hostile {
                args: &["fault"],
                ..HANDLERS
            }),
        },
        Scenario {
            name: "SIGSEGV in a traced function, left by siglongjmp",
            promise: "The calls that it leaves are counted as lost.",
            shown: Shown::By(Hostile {
                args: &["fault-jump"],
                skipped: Exactly(700),
                ..HANDLERS
            }),
        },
        Scenario {
            name: "SIGSEGV in a traced function, without a handler",
            promise: "The signal kills the program, as without tracing.",
            shown: Shown::By(Hostile {
                args: &["fault-deadly"],
                end: -11,
                unfinished: Exactly(1),
                unreturned: Exactly(8),
                ..HANDLERS
            }),
        },
        Scenario {
            name: "SIGTERM in a traced function",
            promise: "The signal kills the program, as without tracing.",
            shown: Shown::By(Hostile {
                args: &["deadly"],
                end: -15,
                unfinished: Exactly(1),
                unreturned: Exactly(7),
                ..HANDLERS
            }),
        },
        Scenario {
            name: "children that end while SIGCHLD has a handler",
            promise: "The handler reaps them all.",
            shown: Shown::By(Hostile {
                args: &["child"],
                unfinished: Exactly(10),
                // Two calls that each child inherits.
                unreturned: Exactly(20),
                ..HANDLERS
            }),
        },
        Scenario {
            name: "a thread takes signals with sigwait while functions are patched",
            promise: "No signal is lost, and calls of the handlers are traced.",
            shown: Shown::By(Hostile {
                args: &["sigwait"],
                toggled: Some("leaf"),
                ..HANDLERS
            }),
        },
        Scenario {
            name: "a thread reads signals from a signalfd while functions are patched",
            promise: "No signal is lost, and calls of the handlers are traced.",
            shown: Shown::By(Hostile {
                args: &["signalfd"],
                toggled: Some("leaf"),
                ..HANDLERS
            }),
        },
        Scenario {
            name: "siglongjmp out of whatever a timer interrupts",
            promise: "Callbacks and fgraph itself may be left half-way: later calls are traced, \
                      and users can unregister.",
            shown: Shown::By(Hostile {
                args: &["callback-jump"],
                // Entries that were left before the users could remember them make the depth wrong.
                in_order: false,
                unreturned: AtLeast(1000),
                ..HANDLERS
            }),
        },
    ],
};
