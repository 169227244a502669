//! More than there is room for, and callbacks that do what they like.

use crate::compiler::C;
use crate::scenario::Expect::{Any, AtLeast, Exactly};
use crate::scenario::{Group, Hostile};

/// Users whose data finds no room in the rest of the shadow stack do not accept a call, others do.
const RECURSION: Hostile = Hostile {
    source: "limit_recursion.c",
    compilers: C,
    unreserved: Any,
    ..Hostile::DEFAULT
};

pub(super) const GROUP: Group = group! {
    "limits", "deep recursion, callbacks that do anything, no memory";

    "recursion a million deep",
    "Calls for which the shadow stack has no room are counted as overrun; results are right.",
    RECURSION { args: &["dive", "1000000"], overrun: AtLeast(2_800_000) };

    "recursion far deeper than a very small shadow stack",
    "The shadow stack has room for some calls only; the others are counted as overrun, and results \
     are right.",
    RECURSION {
        args: &["dive", "100000"], environment: &[("FGRAPH_SHADOW", "4096")],
        overrun: AtLeast(300_000),
    };

    "longjmp out of recursion far deeper than the shadow stack",
    "The room is free again, and the calls that had room are counted as lost.",
    RECURSION {
        args: &["jump", "10000"], environment: &[("FGRAPH_SHADOW", "4096")], skipped: Any,
        overrun: AtLeast(29_000),
    };

    "an exception out of recursion far deeper than the shadow stack",
    "It goes through frames that are traced and others that are not.",
    RECURSION {
        source: "exceptions.cpp", args: &["caught", "5000"], compilers: crate::compiler::CXX,
        environment: &[("FGRAPH_SHADOW", "4096")], overrun: AtLeast(4_900),
    };

    "overflows of stacks that the program survives",
    "The handler's jump leaves the calls, results are right, and the threads are traced as before. \
     The bodies of calls near the end of a stack run untraced, and are counted as overrun.",
    RECURSION {
        source: "limit_overflow.c", skipped: Any, unreturned: Any, overrun: AtLeast(1_000),
    };

    "overflows of the stack in code that accepts only faults of its own",
    "The fault is in the text of OCaml's code, as without tracing.",
    tests {
        "crates/fgraph/tests/limits.rs": [
            "faults_at_the_end_of_a_stack_are_in_the_text_of_ocamls_code",
            "overflows_of_the_stack_leave_no_callback",
        ],
        "crates/fgraph-cli/tests/programs.rs": [
            "ocaml_that_survives_overflows_of_its_stack",
            "ocaml_that_survives_overflows_of_its_stack_is_attached_to",
        ],
    };

    "threads that come when there is no memory",
    "Their calls are counted as unattached; they are traced as soon as there is memory.",
    RECURSION {
        source: "limit_memory.c", unreserved: Exactly(0),
        // `work` 41 times and `works`, in three threads.
        unattached: Exactly(3 * 42),
    };

    "a million calls at once",
    "With a shadow stack that is large enough each call has its exact depth.",
    tests { "crates/fgraph/tests/limits.rs": ["a_million_calls_going_on_have_their_exact_depths"] };

    "a thousand million calls",
    "No count is off by one, and no memory is lost.",
    tests { "crates/fgraph/tests/limits.rs": ["a_thousand_million_calls_are_counted_exactly"] };

    "callbacks that call traced functions",
    "Calls that callbacks make are not traced, but counted as missed.",
    tests {
        "crates/fgraph/tests/counters.rs": [
            "calls_of_callbacks_are_counted_as_missed",
            "a_callback_that_calls_its_own_function_does_not_recurse",
            "missed_calls_of_many_threads_add_up",
        ],
    };

    "callbacks that allocate and print",
    "Callbacks may allocate and print, even while malloc and free are traced.",
    tests {
        "crates/fgraph/tests/limits.rs": [
            "callbacks_allocate_and_print_while_allocating_is_traced",
        ],
    };

    "callbacks that panic",
    "The user is turned off; the program and other users do not notice.",
    tests {
        "crates/fgraph/tests/panics.rs": [
            "a_panic_at_entry_turns_only_that_user_off",
            "a_panic_at_return_turns_only_that_user_off",
            "all_users_may_panic_at_once",
        ],
    };

    "callbacks that take a lock which the traced function takes, too",
    "Callbacks run before and after the function, so this is as safe as in its caller.",
    tests {
        "crates/fgraph/tests/limits.rs": ["callbacks_take_the_lock_that_the_traced_function_takes"],
    };

    "callbacks that want a lock which the caller holds",
    "The callback finds the lock taken by its own thread: waiting for it is a deadlock by design.",
    tests { "crates/fgraph/tests/limits.rs": ["a_lock_held_by_the_caller_is_held_in_callbacks"] };

    "callbacks that block",
    "Only their thread waits, and the thread that unregisters their user; all others continue.",
    tests {
        "crates/fgraph/tests/limits.rs": ["while_a_callback_blocks_everything_else_goes_on"],
        "crates/fgraph/tests/registration.rs": ["unregistering_waits_for_the_callback_that_runs"],
    };

    "a user is dropped in a callback while its own callback blocks",
    "Registering with a free slot does not wait for it, and nobody else gets the panic of its \
     value.",
    tests {
        "crates/fgraph/tests/registration.rs": [
            "the_callback_of_a_dropped_user_is_waited_for_by_nobody",
            "registering_without_a_free_slot_waits_for_a_dropped_users_callback",
            "the_panic_of_a_dropped_user_is_not_that_of_others",
        ],
    };

    "sixteen users that come and go in all slots",
    "Each gets the returns of its own entries only, and none once it is gone.",
    tests {
        "crates/fgraph/tests/limits.rs": ["sixteen_users_come_and_go_from_several_threads"],
        "crates/fgraph/tests/registration.rs": [
            "after_unregistering_no_callback_runs",
            "inside_a_callback_nothing_can_be_registered_or_unregistered",
        ],
    };

    "a thread without memory for its state",
    "It is not traced, which is counted, and continues.",
    tests {
        "crates/fgraph/tests/fallbacks.rs": ["a_thread_without_memory_for_its_state_is_not_traced"],
    };
};
