//! Protocols in all interleavings, and everything at once.

use crate::scenario::Group;

pub(super) const GROUP: Group = group! {
    "soak", "protocols in all interleavings (loom), random programs, all hostile acts at once";

    "register and unregister against entry and return",
    "No callback runs after unregister, and no user gets another's returns.",
    tests {
        "crates/fgraph-core/tests/loom.rs": [
            "no_callback_of_two_threads_runs_after_unregister",
            "the_new_owner_of_a_slot_gets_only_returns_of_its_own_entries_from_two_threads",
            "a_user_registered_during_a_call_gets_both_entry_and_return_or_neither",
        ],
    };

    "threads that begin and end against the grace period",
    "Unregister waits for a thread in a callback until it is gone, even one that enters meanwhile.",
    tests {
        "crates/fgraph-core/tests/loom.rs": [
            "a_thread_that_ends_in_a_callback_is_waited_for_until_it_is_gone",
            "a_thread_that_attaches_during_unregister_is_waited_for_or_finds_the_stub",
        ],
    };

    "fork against patching",
    "A child never has half of a batch.",
    tests { "crates/fgraph-core/tests/loom.rs": ["a_child_has_whole_batches"] };

    "shadow stacks that go from thread to thread",
    "One thread at a time changes a stack; a return is reported or counted as lost, once.",
    tests {
        "crates/fgraph-core/tests/loom.rs": [
            "one_thread_at_a_time_changes_a_stack",
            "a_return_is_either_dispatched_or_lost_and_its_frame_stays_meanwhile",
        ],
    };

    "random calls, returns, jumps and unwinding",
    "Users get the callbacks that a model of lists predicts.",
    tests { "crates/fgraph-core/tests/model.rs": ["users_are_told_what_the_model_says"] };

    "all of it at once, at random",
    "Threads, panics, jumps, coroutines, signals, forks and libraries while users and text change: \
     the books balance (`cargo xtask patch-test --chaos`).",
    tests {
        "xtask/tests/patch_test.rs": [
            "everything_hostile_at_once_finds_nothing_wrong",
            "in_chaos_leaving_out_any_trap_is_noticed",
        ],
    };

    "rustc, SQLite, threads that hash files and C++ that throws, under all tracers",
    "They behave the same as without. Except for rustc, the recorder, the profiler, a probe and a \
     user that counts agree to the call.",
    tests {
        "xtask/tests/tracers.rs": [
            "rustc_compiles_a_crate",
            "sqlite_runs_a_script",
            "threads_hash_a_folder",
            "a_program_throws",
        ],
    };

    "a thousand million calls",
    "Counters are exact and memory does not grow (`cargo xtask soak`).",
    tests { "crates/fgraph/tests/limits.rs": ["a_thousand_million_calls_are_counted_exactly"] };
};
