//! Protocols in all interleavings, and everything at once.

use crate::scenario::{Elsewhere, Group, Scenario, Shown};

const fn model(test: &'static str) -> Elsewhere {
    Elsewhere {
        file: "crates/fgraph-core/tests/loom.rs",
        test,
    }
}

const fn traced(test: &'static str) -> Elsewhere {
    Elsewhere {
        file: "xtask/tests/tracers.rs",
        test,
    }
}

pub(super) const GROUP: Group = Group {
    name: "soak",
    about: "protocols in all interleavings (loom), random programs, all hostile acts at once",
    scenarios: &[
        Scenario {
            name: "register and unregister against entry and return",
            promise: "No callback runs after unregister, and no user gets another's returns.",
            shown: Shown::Elsewhere(&[
                model("no_callback_of_two_threads_runs_after_unregister"),
                model(
                    "the_new_owner_of_a_slot_gets_only_returns_of_its_own_entries_from_two_threads",
                ),
                model("a_user_registered_during_a_call_gets_both_entry_and_return_or_neither"),
            ]),
        },
        Scenario {
            name: "threads that begin and end against the grace period",
            promise: "Unregister waits for a thread in a callback until it is gone, even one \
                      that enters meanwhile.",
            shown: Shown::Elsewhere(&[
                model("a_thread_that_ends_in_a_callback_is_waited_for_until_it_is_gone"),
                model("a_thread_that_attaches_during_unregister_is_waited_for_or_finds_the_stub"),
            ]),
        },
        Scenario {
            name: "fork against patching",
            promise: "A child never has half of a batch.",
            shown: Shown::Elsewhere(&[model("a_child_has_whole_batches")]),
        },
        Scenario {
            name: "shadow stacks that go from thread to thread",
            promise: "One thread at a time changes a stack; a return is reported or counted as \
                      lost, once.",
            shown: Shown::Elsewhere(&[
                model("one_thread_at_a_time_changes_a_stack"),
                model("a_return_is_told_or_lost_and_its_frame_stays_meanwhile"),
            ]),
        },
        Scenario {
            name: "random calls, returns, jumps and unwinding",
            promise: "Users get the callbacks that a model of lists predicts.",
            shown: Shown::Elsewhere(&[Elsewhere {
                file: "crates/fgraph-core/tests/model.rs",
                test: "users_are_told_what_the_model_says",
            }]),
        },
        Scenario {
            name: "all of it at once, at random",
            promise: "Threads, panics, jumps, coroutines, signals, forks and libraries while users \
                      and text change: the books balance (`cargo xtask patch-test --chaos`).",
            shown: Shown::Elsewhere(&[
                Elsewhere {
                    file: "xtask/tests/patch_test.rs",
                    test: "everything_hostile_at_once_finds_nothing_wrong",
                },
                Elsewhere {
                    file: "xtask/tests/patch_test.rs",
                    test: "in_chaos_leaving_out_any_trap_is_noticed",
                },
            ]),
        },
        Scenario {
            name: "rustc, SQLite, threads that hash files and C++ that throws, under all tracers",
            promise: "They behave the same as without. Except for rustc, the recorder, the \
                      profiler, a probe and a user that counts agree to the call.",
            shown: Shown::Elsewhere(&[
                traced("rustc_compiles_a_crate"),
                traced("sqlite_runs_a_script"),
                traced("threads_hash_a_folder"),
                traced("a_program_throws"),
            ]),
        },
        Scenario {
            name: "a thousand million calls",
            promise: "Counters are exact and memory does not grow (`cargo xtask soak`).",
            shown: Shown::Elsewhere(&[Elsewhere {
                file: "crates/fgraph/tests/limits.rs",
                test: "a_thousand_million_calls_are_counted_exactly",
            }]),
        },
    ],
};
