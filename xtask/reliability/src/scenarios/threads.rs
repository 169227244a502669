//! Threads that come and go.

use crate::build::{C, CXX, Compiler};
use crate::scenario::Expect::{Any, AtLeast, Exactly};
use crate::scenario::{Elsewhere, Group, Hostile, Scenario, Shown, Trace};

const LIVES: Hostile = Hostile {
    source: "thread_lives.c",
    compilers: C,
    ..Hostile::DEFAULT
};

const DESTRUCTORS: Hostile = Hostile {
    source: "thread_destructors.cpp",
    compilers: CXX,
    ..Hostile::DEFAULT
};

/// Threads that make calls all the time while they are cancelled.
const CANCELLED: Hostile = Hostile {
    source: "thread_ends.c",
    compilers: C,
    flags: &["-fexceptions"],
    unreturned: Exactly(20),
    ..Hostile::DEFAULT
};

pub(super) const GROUP: Group = Group {
    name: "threads",
    about: "threads that come and go, thread-local destructors, exit handlers",
    scenarios: &[
        Scenario {
            name: "ten thousand short threads",
            promise: "Each thread is traced from its first call, and later threads reuse its \
                      memory.",
            shown: Shown::By(Hostile {
                args: &["many", "10000"],
                // NOPs and relocated.
                compilers: &[Compiler::Clang],
                ..LIVES
            }),
        },
        Scenario {
            name: "threads that end by pthread_exit inside calls",
            promise: "The calls are reported as unwound, except that of the start function.",
            shown: Shown::By(Hostile {
                args: &["pthread-exit"],
                unwound: Exactly(20 * 12),
                unreturned: Exactly(20),
                ..LIVES
            }),
        },
        Scenario {
            name: "threads that are cancelled asynchronously while they call",
            promise: "Callbacks run to their end; then every call that the thread is in is \
                      reported as unwound.",
            shown: Shown::By(Hostile {
                args: &["busy", "10"],
                // And of the innermost call.
                unwound: AtLeast(20 * 12),
                ..CANCELLED
            }),
        },
        Scenario {
            name: "threads that are cancelled while callbacks come to cancellation points",
            promise: "Callbacks run to their end. The thread ends where it would end untraced.",
            shown: Shown::By(Hostile {
                is_long: true,
                args: &["pending", "10"],
                environment: &[("FGRAPH_SLOW", "1")],
                unwound: Exactly(20 * 12),
                ..CANCELLED
            }),
        },
        Scenario {
            name: "threads that end by a bare system call inside calls",
            promise: "The calls have no return; those of later threads are reported.",
            shown: Shown::By(Hostile {
                args: &["system-call"],
                unreturned: Exactly(20 * 13),
                ..LIVES
            }),
        },
        Scenario {
            name: "destructors of thread-specific data",
            promise: "Calls that destructors make are traced, in every round.",
            shown: Shown::By(Hostile {
                args: &["keys"],
                ..LIVES
            }),
        },
        Scenario {
            name: "destructors of thread_local objects",
            promise: "Calls that destructors make are traced, and may throw and catch.",
            shown: Shown::By(Hostile {
                args: &["thread-local"],
                ..DESTRUCTORS
            }),
        },
        Scenario {
            name: "destructors of objects in the frames of a thread that ends inside calls",
            promise: "The frames are reported as unwound, and calls of the destructors are \
                      traced.",
            shown: Shown::By(Hostile {
                args: &["unwound"],
                unreturned: Exactly(20),
                ..DESTRUCTORS
            }),
        },
        Scenario {
            name: "threads on stacks that the program has mapped side by side",
            promise: "Such threads are traced like others.",
            shown: Shown::By(Hostile {
                args: &["own-stacks", "65536"],
                ..LIVES
            }),
        },
        Scenario {
            name: "threads with 2 KiB of stack above the minimum",
            promise: "The first traced call of a thread takes less than 3 KiB of stack, plus the \
                      callbacks' own use.",
            shown: Shown::By(Hostile {
                args: &["small-stacks", "2048"],
                ..LIVES
            }),
        },
        Scenario {
            name: "a main thread that ends inside calls while others go on",
            promise: "The process is traced to the end of its last thread.",
            shown: Shown::By(Hostile {
                args: &["main-exits"],
                // To put all of it back takes more than the program's own text.
                trace: Trace::AlsoEverything,
                unwound: Exactly(13),
                unreturned: Exactly(1),
                ..LIVES
            }),
        },
        Scenario {
            name: "detached threads asleep inside calls at the end of the process",
            promise: "The process ends without waiting for the threads; their calls have no \
                      return.",
            shown: Shown::By(Hostile {
                args: &["asleep"],
                unreturned: Exactly(3 * 8),
                ..LIVES
            }),
        },
        Scenario {
            name: "detached threads that call all the time at the end of the process",
            promise: "Users get no more callbacks once they are unregistered, and the threads \
                      continue.",
            shown: Shown::By(Hostile {
                args: &["busy"],
                // Users leave one after the other, in the middle of calls.
                skipped: Any,
                unreturned: Any,
                ..LIVES
            }),
        },
        Scenario {
            name: "exit handlers",
            promise: "Their calls are traced until the users are gone, and have the right \
                      results after that.",
            shown: Shown::By(Hostile {
                args: &["exit-handlers"],
                ..LIVES
            }),
        },
        Scenario {
            name: "destructors of static objects",
            promise: "Calls that destructors make are traced.",
            shown: Shown::By(Hostile {
                args: &["static"],
                ..DESTRUCTORS
            }),
        },
        Scenario {
            name: "kernel threads of io_uring in the process, which block all signals",
            promise: "Functions are patched: such threads never run the program's code.",
            shown: Shown::Elsewhere(&[Elsewhere {
                file: "crates/fgraph/tests/threads.rs",
                test: "functions_are_patched_beside_kernel_threads_of_io_uring",
            }]),
        },
        Scenario {
            name: "a user that leaves while a thread sleeps inside a call",
            promise: "It does not wait for the call, and gets no return of it.",
            shown: Shown::Elsewhere(&[
                Elsewhere {
                    file: "crates/fgraph/tests/in_flight.rs",
                    test: "a_user_that_leaves_during_a_call_does_not_get_its_return",
                },
                Elsewhere {
                    file: "crates/fgraph/tests/in_flight.rs",
                    test: "the_next_owner_of_a_slot_gets_no_returns_of_the_previous_one",
                },
            ]),
        },
    ],
};
