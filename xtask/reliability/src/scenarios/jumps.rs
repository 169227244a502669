//! Control that leaves functions without a return, and stacks that are not the thread's own.

use crate::compiler::C;
use crate::scenario::Expect::{Any, Exactly};
use crate::scenario::{Group, Hostile, PLAIN, Part, Trace, program};

const FRAMES: Hostile = program("jump_frames.c", C);

/// Coroutines return in any order, and those that are done wait in a call for good.
const RUNTIMES: Hostile = program("jump_runtimes.c", C);
/// It needs the registers of callers.
const COLLECTORS: Hostile = Hostile {
    source: "jump_collectors.c",
    compilers: C,
    // It looks at its own frame: with some compilers, that gets entry callbacks only.
    skipped: Any,
    unreturned: Any,
    ..Hostile::DEFAULT
};
const ORIGIN: &str = "-Wl,-rpath,$ORIGIN";
const CONTEXTS: Hostile = Hostile {
    source: "jump_contexts.c",
    compilers: C,
    in_order: false,
    ..Hostile::DEFAULT
};

pub(super) const GROUP: Group = group! {
    "jumps", "longjmp, contexts, coroutines, alternate signal stacks";

    "longjmp out of one frame, a million times",
    "Each call that is left is counted as lost, and memory does not grow.",
    FRAMES { is_long: true, args: &["1", "1000000"], skipped: Exactly(1_000_000) };

    "longjmp out of a thousand frames",
    "Each call that is left is counted as lost, and memory does not grow.",
    FRAMES { args: &["1000", "300"], skipped: Exactly(300_000) };

    "functions that are entered by jumps, as GHC makes them of Haskell",
    "Such functions are not traced; the functions that they call are.",
    PLAIN {
        source: "jump_tables.c", compilers: C,
        // Before glibc 2.34 it is in every program, and calls the constructors.
        filter: "!__libc_csu_init",
        // With `main` and `run`.
        entries: Exactly(1002),
    };

    "siglongjmp out of handlers and callbacks",
    "Calls that a handler leaves are counted as lost; a callback that it leaves is dropped.",
    tests {
        "crates/fgraph/tests/counters.rs": [
            "a_signal_handler_may_leave_a_callback_by_siglongjmp",
            "calls_around_a_callback_that_was_left_by_siglongjmp_are_traced_to_their_end",
        ],
    };

    "contexts on stacks mapped one by one",
    "swapcontext goes from any to any in traced calls; every return is dispatched.",
    CONTEXTS { args: &["mapped", "1"], unreturned: Exactly(24) };

    "contexts on stacks in one array",
    "swapcontext goes from any to any in traced calls; every return is dispatched.",
    CONTEXTS { args: &["static", "1"], unreturned: Exactly(24) };

    "contexts on stacks from malloc",
    "swapcontext goes from any to any in traced calls; every return is dispatched.",
    CONTEXTS { args: &["heap", "1"], unreturned: Exactly(24) };

    "contexts that go from thread to thread",
    "A call returns to its users on whatever thread it returns.",
    CONTEXTS { args: &["mapped", "4"], unreturned: Exactly(24) };

    "contexts in one array that go from thread to thread",
    "A call returns to its users on whatever thread it returns.",
    CONTEXTS { args: &["static", "4"], unreturned: Exactly(24) };

    "a thread goes on with the own stack of another",
    "A call returns to its users on whatever thread it returns, even if its own thread was not \
     seen elsewhere.",
    PLAIN {
        source: "jump_threads.c", args: &["3000"], compilers: C, functions: &["own_*"],
        in_order: false,
    };

    "coroutines that copy pieces of one stack away",
    "Once a library is loaded that fgraph knows by name to do so, such as greenlet's, calls get \
     entry callbacks only.",
    PLAIN {
        source: "jump_slices.c", compilers: C, flags: &[ORIGIN, "-L.", "-l:_greenlet.so"],
        parts: &[Part { name: "_greenlet.so", source: "jump_part.c", ..Part::DEFAULT }],
        unreturned: Any, in_order: false,
    };

    "a runtime looks for return addresses of code that it has compiled",
    "It finds them: calls by code that is in no module get entry callbacks only, in a process with \
     a library that is known to be such a runtime.",
    RUNTIMES {
        args: &["generated"], flags: &["-rdynamic", ORIGIN], entry_only: 100, skipped: Exactly(100),
    };

    "a runtime looks for return addresses of its builtins",
    "The runtime finds its return addresses: calls of its builtins and by them get entry callbacks \
     only.",
    RUNTIMES {
        args: &["builtins"], flags: &["-rdynamic", ORIGIN], entry_only: 200, skipped: Exactly(200),
    };

    "functions of Go's run on small stacks, and call what no C library knows of",
    "They are not traced, nor is the vDSO in a Go program. C functions that they call through cgo \
     are traced (`cargo xtask ecosystem`).",
    PLAIN {
        source: "jump_go.c", compilers: C, flags: &["libgo.so", ORIGIN],
        parts: &[
            Part { name: "libgo.so", source: "jump_go.c", flags: &["-DPART"], ..Part::DEFAULT },
        ],
        trace: Trace::AlsoEverything,
    };

    "such a runtime is loaded when functions are traced already",
    "The runtime finds its return addresses: from its loading on, calls by its code get entry \
     callbacks only.",
    RUNTIMES {
        args: &["late"], flags: &["-DLATE", ORIGIN],
        parts: &[
            Part { name: "libjvm.so", source: "jump_part.c", flags: &["-DWALKS"], ..Part::DEFAULT },
        ],
        entry_only: 100, skipped: Exactly(100),
    };

    "a collector looks on the stack for what callers have in registers",
    "It finds all objects.",
    COLLECTORS { args: &[] };

    "coroutines of corosensei",
    "They are resumed in any order, on other threads, and unwound when they are dropped.",
    tests {
        "crates/fgraph/tests/coroutines.rs": [
            "coroutines_are_resumed_in_any_order_on_any_thread",
            "a_coroutine_that_is_dropped_is_unwound",
            "a_call_that_returns_in_a_callback_on_a_higher_stack_leaves_the_callback_marked",
        ],
    };

    "stacks that are given up in the middle",
    "Calls on the reused memory are traced, or counted as without a shadow stack; they are not \
     confused with earlier ones.",
    tests {
        "crates/fgraph/tests/stacks.rs": [
            "stacks_that_are_given_up_in_the_middle_do_no_harm",
            "many_stacks_one_after_the_other_take_no_more_memory",
        ],
    };

    "parents on coroutines",
    "On a separate stack a call has the parent and the depth of that stack.",
    tests {
        "crates/fgraph/tests/stacks.rs": [
            "coroutines_on_stacks_of_their_own_have_their_own_parents",
        ],
    };

    "alternate signal stacks",
    "Calls there are traced, even if the stack is a local variable.",
    tests {
        "crates/fgraph/tests/counters.rs": [
            "calls_on_a_signal_stack_are_traced",
            "calls_on_a_signal_stack_within_the_threads_own_are_traced",
        ],
        "crates/fgraph/tests/threads.rs": ["the_first_hit_of_a_thread_may_be_on_a_signal_stack"],
    };
};
