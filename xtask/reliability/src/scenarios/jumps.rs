//! Control that leaves functions without a return, and stacks that are not the thread's own.

// Long strings: names of tests.

use crate::build::C;
use crate::scenario::Expect::{Any, Exactly};
use crate::scenario::{Elsewhere, Group, Hostile, Part, Scenario, Shown, Trace};

const FRAMES: Hostile = Hostile {
    source: "jump_frames.c",
    compilers: C,
    ..Hostile::DEFAULT
};

/// Coroutines return in any order, and those that are done wait in a call for good.
const RUNTIMES: Hostile = Hostile {
    source: "jump_runtimes.c",
    compilers: C,
    ..Hostile::DEFAULT
};
const ORIGIN: &str = "-Wl,-rpath,$ORIGIN";
const CONTEXTS: Hostile = Hostile {
    source: "jump_contexts.c",
    compilers: C,
    in_order: false,
    ..Hostile::DEFAULT
};

pub(super) const GROUP: Group = Group {
    name: "jumps",
    about: "longjmp, contexts, coroutines, alternate signal stacks",
    scenarios: &[
        Scenario {
            name: "longjmp out of one frame, a million times",
            promise: "Each call that is left is counted as lost, and memory does not grow.",
            shown: Shown::By(Hostile {
                is_long: true,
                args: &["1", "1000000"],
                skipped: Exactly(1_000_000),
                ..FRAMES
            }),
        },
        Scenario {
            name: "longjmp out of a thousand frames",
            promise: "Each call that is left is counted as lost, and memory does not grow.",
            shown: Shown::By(Hostile {
                args: &["1000", "300"],
                skipped: Exactly(300_000),
                ..FRAMES
            }),
        },
        Scenario {
            name: "functions that are entered by jumps, as GHC makes them of Haskell",
            promise: "Such functions are not traced; the functions that they call are.",
            shown: Shown::By(Hostile {
                source: "jump_tables.c",
                compilers: C,
                // Before glibc 2.34 it is in every program, and calls the constructors.
                filter: "!__libc_csu_init",
                // With `main` and `run`.
                entries: Exactly(1002),
                ..Hostile::DEFAULT
            }),
        },
        Scenario {
            name: "siglongjmp out of handlers and callbacks",
            promise: "Calls that a handler leaves are counted as lost; a callback that it leaves \
                      is dropped.",
            shown: Shown::Elsewhere(&[
                Elsewhere {
                    file: "crates/fgraph/tests/counters.rs",
                    test: "a_signal_handler_may_leave_a_callback_by_siglongjmp",
                },
                Elsewhere {
                    file: "crates/fgraph/tests/counters.rs",
                    test: "calls_around_a_callback_that_was_left_by_siglongjmp_are_traced_to_their_end",
                },
            ]),
        },
        Scenario {
            name: "contexts on stacks mapped one by one",
            promise: "swapcontext goes from any to any in traced calls; every return is \
                     dispatched.",
            shown: Shown::By(Hostile {
                args: &["mapped", "1"],
                unreturned: Exactly(24),
                ..CONTEXTS
            }),
        },
        Scenario {
            name: "contexts on stacks in one array",
            promise: "swapcontext goes from any to any in traced calls; every return is \
                     dispatched.",
            shown: Shown::By(Hostile {
                args: &["static", "1"],
                unreturned: Exactly(24),
                ..CONTEXTS
            }),
        },
        Scenario {
            name: "contexts on stacks from malloc",
            promise: "swapcontext goes from any to any in traced calls; every return is \
                     dispatched.",
            shown: Shown::By(Hostile {
                args: &["heap", "1"],
                unreturned: Exactly(24),
                ..CONTEXTS
            }),
        },
        Scenario {
            name: "contexts that go from thread to thread",
            promise: "A call returns to its users on whatever thread it returns.",
            shown: Shown::By(Hostile {
                args: &["mapped", "4"],
                unreturned: Exactly(24),
                ..CONTEXTS
            }),
        },
        Scenario {
            name: "contexts in one array that go from thread to thread",
            promise: "A call returns to its users on whatever thread it returns.",
            shown: Shown::By(Hostile {
                args: &["static", "4"],
                unreturned: Exactly(24),
                ..CONTEXTS
            }),
        },
        Scenario {
            name: "a thread goes on with the own stack of another",
            promise: "A call returns to its users on whatever thread it returns, even if its own \
                     thread was not seen elsewhere.",
            shown: Shown::By(Hostile {
                source: "jump_threads.c",
                args: &["3000"],
                compilers: C,
                functions: &["own_*"],
                in_order: false,
                ..Hostile::DEFAULT
            }),
        },
        Scenario {
            name: "coroutines that copy pieces of one stack away",
            promise: "Once a library is loaded that fgraph knows by name to do so, such as \
                      greenlet's, calls get entry callbacks only.",
            shown: Shown::By(Hostile {
                source: "jump_slices.c",
                compilers: C,
                flags: &[ORIGIN, "-L.", "-l:_greenlet.so"],
                parts: &[Part {
                    name: "_greenlet.so",
                    source: "jump_part.c",
                    ..Part::DEFAULT
                }],
                unreturned: Any,
                in_order: false,
                ..Hostile::DEFAULT
            }),
        },
        Scenario {
            name: "a runtime looks for return addresses of code that it has compiled",
            promise: "It finds them: calls by code that is in no module get entry callbacks only, \
                      in a process with a library that is known to be such a runtime.",
            shown: Shown::By(Hostile {
                args: &["generated"],
                flags: &["-rdynamic", ORIGIN],
                entry_only: 100,
                skipped: Exactly(100),
                ..RUNTIMES
            }),
        },
        Scenario {
            name: "a runtime looks for return addresses of its builtins",
            promise: "The runtime finds its return addresses: calls of its builtins and by them \
                     get entry callbacks only.",
            shown: Shown::By(Hostile {
                args: &["builtins"],
                flags: &["-rdynamic", ORIGIN],
                entry_only: 200,
                skipped: Exactly(200),
                ..RUNTIMES
            }),
        },
        Scenario {
            name: "functions of Go's run on small stacks, and call what no C library knows of",
            promise: "They are not traced, nor is the vDSO in a Go program. C functions that \
                      they call through cgo are traced (`cargo xtask ecosystem`).",
            shown: Shown::By(Hostile {
                source: "jump_go.c",
                compilers: C,
                flags: &["libgo.so", ORIGIN],
                parts: &[Part {
                    name: "libgo.so",
                    source: "jump_go.c",
                    flags: &["-DPART"],
                    ..Part::DEFAULT
                }],
                trace: Trace::AlsoEverything,
                ..Hostile::DEFAULT
            }),
        },
        Scenario {
            name: "such a runtime is loaded when functions are traced already",
            promise: "The runtime finds its return addresses: from its loading on, calls by its \
                     code get entry callbacks only.",
            shown: Shown::By(Hostile {
                args: &["late"],
                flags: &["-DLATE", ORIGIN],
                parts: &[Part {
                    name: "libjvm.so",
                    source: "jump_part.c",
                    flags: &["-DWALKS"],
                    ..Part::DEFAULT
                }],
                entry_only: 100,
                skipped: Exactly(100),
                ..RUNTIMES
            }),
        },
        Scenario {
            name: "coroutines of corosensei",
            promise: "They are resumed in any order, on other threads, and unwound when they are \
                      dropped.",
            shown: Shown::Elsewhere(&[
                Elsewhere {
                    file: "crates/fgraph/tests/coroutines.rs",
                    test: "coroutines_are_resumed_in_any_order_on_any_thread",
                },
                Elsewhere {
                    file: "crates/fgraph/tests/coroutines.rs",
                    test: "a_coroutine_that_is_dropped_is_unwound",
                },
                Elsewhere {
                    file: "crates/fgraph/tests/coroutines.rs",
                    test: "a_call_that_returns_in_a_callback_on_a_higher_stack_leaves_the_callback_marked",
                },
            ]),
        },
        Scenario {
            name: "stacks that are given up in the middle",
            promise: "Calls on the reused memory are traced, or counted as without a shadow \
                      stack; they are not confused with earlier ones.",
            shown: Shown::Elsewhere(&[
                Elsewhere {
                    file: "crates/fgraph/tests/stacks.rs",
                    test: "stacks_that_are_given_up_in_the_middle_do_no_harm",
                },
                Elsewhere {
                    file: "crates/fgraph/tests/stacks.rs",
                    test: "many_stacks_one_after_the_other_take_no_more_memory",
                },
            ]),
        },
        Scenario {
            name: "parents on coroutines",
            promise: "On a separate stack a call has the parent and the depth of that stack.",
            shown: Shown::Elsewhere(&[Elsewhere {
                file: "crates/fgraph/tests/stacks.rs",
                test: "coroutines_on_stacks_of_their_own_have_their_own_parents",
            }]),
        },
        Scenario {
            name: "alternate signal stacks",
            promise: "Calls there are traced, even if the stack is a local variable.",
            shown: Shown::Elsewhere(&[
                Elsewhere {
                    file: "crates/fgraph/tests/counters.rs",
                    test: "calls_on_a_signal_stack_are_traced",
                },
                Elsewhere {
                    file: "crates/fgraph/tests/counters.rs",
                    test: "calls_on_a_signal_stack_within_the_threads_own_are_traced",
                },
                Elsewhere {
                    file: "crates/fgraph/tests/threads.rs",
                    test: "the_first_hit_of_a_thread_may_be_on_a_signal_stack",
                },
            ]),
        },
    ],
};
