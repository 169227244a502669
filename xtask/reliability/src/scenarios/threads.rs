//! Threads that come and go.

use crate::compiler::{C, CXX, Compiler};
use crate::scenario::Expect::{Any, AtLeast, Exactly};
use crate::scenario::{Group, Hostile, Trace, program};

const LIVES: Hostile = program("thread_lives.c", C);

const DESTRUCTORS: Hostile = program("thread_destructors.cpp", CXX);

/// Threads that make calls all the time while they are cancelled.
const CANCELLED: Hostile = Hostile {
    source: "thread_ends.c",
    compilers: C,
    flags: &["-fexceptions"],
    unreturned: Exactly(20),
    ..Hostile::DEFAULT
};

pub(super) const GROUP: Group = group! {
    "threads", "threads that come and go, thread-local destructors, exit handlers";

    "ten thousand short threads",
    "Each thread is traced from its first call, and later threads reuse its memory.",
    LIVES {
        args: &["many", "10000"],
        // NOPs and relocated.
        compilers: &[Compiler::Clang],
    };

    "threads that end by pthread_exit inside calls",
    "The calls are reported as unwound, except that of the start function.",
    LIVES { args: &["pthread-exit"], unwound: Exactly(20 * 12), unreturned: Exactly(20) };

    "threads that are cancelled asynchronously while they call",
    "Callbacks run to their end; then every call that the thread is in is reported as unwound.",
    CANCELLED {
        args: &["busy", "10"],
        // And of the innermost call.
        unwound: AtLeast(20 * 12),
    };

    "threads that are cancelled while callbacks come to cancellation points",
    "Callbacks run to their end. The thread ends where it would end untraced.",
    CANCELLED {
        is_long: true, args: &["pending", "10"], environment: &[("FGRAPH_SLOW", "1")],
        unwound: Exactly(20 * 12),
    };

    "threads that end by a bare system call inside calls",
    "The calls have no return; those of later threads are reported.",
    LIVES { args: &["system-call"], unreturned: Exactly(20 * 13) };

    "destructors of thread-specific data",
    "Calls that destructors make are traced, in every round.",
    LIVES { args: &["keys"] };

    "destructors of thread_local objects",
    "Calls that destructors make are traced, and may throw and catch.",
    DESTRUCTORS { args: &["thread-local"] };

    "destructors of objects in the frames of a thread that ends inside calls",
    "The frames are reported as unwound, and calls of the destructors are traced.",
    DESTRUCTORS { args: &["unwound"], unreturned: Exactly(20) };

    "threads on stacks that the program has mapped side by side",
    "Such threads are traced like others.",
    LIVES { args: &["own-stacks", "65536"] };

    "threads with 2 KiB of stack above the minimum",
    "The first traced call of a thread takes less than 3 KiB of stack, plus the callbacks' own \
     use.",
    LIVES { args: &["small-stacks", "2048"] };

    "a main thread that ends inside calls while others go on",
    "The process is traced to the end of its last thread.",
    LIVES {
        args: &["main-exits"],
        // To put all of it back takes more than the program's own text.
        trace: Trace::AlsoEverything, unwound: Exactly(13), unreturned: Exactly(1),
    };

    "detached threads asleep inside calls at the end of the process",
    "The process ends without waiting for the threads; their calls have no return.",
    LIVES { args: &["asleep"], unreturned: Exactly(3 * 8) };

    "detached threads that call all the time at the end of the process",
    "Users get no more callbacks once they are unregistered, and the threads continue.",
    LIVES {
        args: &["busy"],
        // Users leave one after the other, in the middle of calls.
        skipped: Any, unreturned: Any,
    };

    "exit handlers",
    "Their calls are traced until the users are gone, and have the right results after that.",
    LIVES { args: &["exit-handlers"] };

    "destructors of static objects",
    "Calls that destructors make are traced.",
    DESTRUCTORS { args: &["static"] };

    "kernel threads of io_uring in the process, which block all signals",
    "Functions are patched: such threads never run the program's code.",
    tests {
        "crates/fgraph/tests/threads.rs": [
            "functions_are_patched_beside_kernel_threads_of_io_uring",
        ],
    };

    "a user that leaves while a thread sleeps inside a call",
    "It does not wait for the call, and gets no return of it.",
    tests {
        "crates/fgraph/tests/in_flight.rs": [
            "a_user_that_leaves_during_a_call_does_not_get_its_return",
            "the_next_owner_of_a_slot_gets_no_returns_of_the_previous_one",
        ],
    };
};
