//! More than there is room for, and callbacks that do what they like.

use crate::build::C;
use crate::scenario::Expect::{Any, AtLeast, Exactly};
use crate::scenario::{Elsewhere, Group, Hostile, Scenario, Shown};

/// Users whose data finds no room in the rest of the shadow stack do not accept a call, others do.
const RECURSION: Hostile = Hostile {
    source: "limit_recursion.c",
    compilers: C,
    unreserved: Any,
    ..Hostile::DEFAULT
};

pub(super) const GROUP: Group = Group {
    name: "limits",
    about: "deep recursion, callbacks that do anything, no memory",
    scenarios: &[
        Scenario {
            name: "recursion a million deep",
            promise: "Calls for which the shadow stack has no room are counted as overrun; results \
                      are right.",
            shown: Shown::By(Hostile {
                args: &["dive", "1000000"],
                overrun: AtLeast(2_800_000),
                ..RECURSION
            }),
        },
        Scenario {
            name: "recursion far deeper than a very small shadow stack",
            promise: "The shadow stack has room for some calls only; the others are counted as \
                     overrun, and results are right.",
            shown: Shown::By(Hostile {
                args: &["dive", "100000"],
                environment: &[("FGRAPH_SHADOW", "4096")],
                overrun: AtLeast(300_000),
                ..RECURSION
            }),
        },
        Scenario {
            name: "longjmp out of recursion far deeper than the shadow stack",
            promise: "The room is free again, and the calls that had room are counted as lost.",
            shown: Shown::By(Hostile {
                args: &["jump", "10000"],
                environment: &[("FGRAPH_SHADOW", "4096")],
                skipped: Any,
                overrun: AtLeast(29_000),
                ..RECURSION
            }),
        },
        Scenario {
            name: "an exception out of recursion far deeper than the shadow stack",
            promise: "It goes through frames that are traced and others that are not.",
            shown: Shown::By(Hostile {
                source: "exceptions.cpp",
                args: &["caught", "5000"],
                compilers: crate::build::CXX,
                environment: &[("FGRAPH_SHADOW", "4096")],
                overrun: AtLeast(4_900),
                ..RECURSION
            }),
        },
        Scenario {
            name: "threads that come when there is no memory",
            promise: "Their calls are counted as unattached; they are traced as soon as there is \
                      memory.",
            shown: Shown::By(Hostile {
                source: "limit_memory.c",
                unreserved: Exactly(0),
                // `work` 41 times and `works`, in three threads.
                unattached: Exactly(3 * 42),
                ..RECURSION
            }),
        },
        Scenario {
            name: "a million calls at once",
            promise: "With a shadow stack that is large enough each call has its exact depth.",
            shown: Shown::Elsewhere(&[Elsewhere {
                file: "crates/fgraph/tests/limits.rs",
                test: "a_million_calls_going_on_have_their_exact_depths",
            }]),
        },
        Scenario {
            name: "a thousand million calls",
            promise: "No count is off by one, and no memory is lost.",
            shown: Shown::Elsewhere(&[Elsewhere {
                file: "crates/fgraph/tests/limits.rs",
                test: "a_thousand_million_calls_are_counted_exactly",
            }]),
        },
        Scenario {
            name: "callbacks that call traced functions",
            promise: "Calls that callbacks make are not traced, but counted as missed.",
            shown: Shown::Elsewhere(&[
                Elsewhere {
                    file: "crates/fgraph/tests/counters.rs",
                    test: "calls_of_callbacks_are_missed_by_those_who_want_the_function",
                },
                Elsewhere {
                    file: "crates/fgraph/tests/counters.rs",
                    test: "a_callback_that_calls_its_own_function_does_not_recurse",
                },
                Elsewhere {
                    file: "crates/fgraph/tests/counters.rs",
                    test: "missed_calls_of_many_threads_add_up",
                },
            ]),
        },
        Scenario {
            name: "callbacks that allocate and print",
            promise: "Callbacks may allocate and print, even while malloc and free are traced.",
            shown: Shown::Elsewhere(&[Elsewhere {
                file: "crates/fgraph/tests/limits.rs",
                test: "callbacks_allocate_and_print_while_allocating_is_traced",
            }]),
        },
        Scenario {
            name: "callbacks that panic",
            promise: "The user is turned off; the program and other users do not notice.",
            shown: Shown::Elsewhere(&[
                Elsewhere {
                    file: "crates/fgraph/tests/panics.rs",
                    test: "a_panic_at_entry_turns_only_that_user_off",
                },
                Elsewhere {
                    file: "crates/fgraph/tests/panics.rs",
                    test: "a_panic_at_return_turns_only_that_user_off",
                },
                Elsewhere {
                    file: "crates/fgraph/tests/panics.rs",
                    test: "all_users_may_panic_at_once",
                },
            ]),
        },
        Scenario {
            name: "callbacks that take a lock which the traced function takes, too",
            promise: "Callbacks run before and after the function, so this is as safe as in its \
                      caller.",
            shown: Shown::Elsewhere(&[Elsewhere {
                file: "crates/fgraph/tests/limits.rs",
                test: "callbacks_take_the_lock_that_the_traced_function_takes",
            }]),
        },
        Scenario {
            name: "callbacks that want a lock which the caller holds",
            promise: "The callback finds the lock taken by its own thread: waiting for it is a \
                     deadlock by design.",
            shown: Shown::Elsewhere(&[Elsewhere {
                file: "crates/fgraph/tests/limits.rs",
                test: "a_lock_held_by_the_caller_is_held_in_callbacks",
            }]),
        },
        Scenario {
            name: "callbacks that block",
            promise: "Only their thread waits, and the thread that unregisters their user; all \
                      others continue.",
            shown: Shown::Elsewhere(&[
                Elsewhere {
                    file: "crates/fgraph/tests/limits.rs",
                    test: "while_a_callback_blocks_everything_else_goes_on",
                },
                Elsewhere {
                    file: "crates/fgraph/tests/registration.rs",
                    test: "unregistering_waits_for_the_callback_that_runs",
                },
            ]),
        },
        Scenario {
            name: "a user is dropped in a callback while its own callback blocks",
            promise: "Registering with a free slot does not wait for it, and nobody else gets \
                      the panic of its value.",
            shown: Shown::Elsewhere(&[
                Elsewhere {
                    file: "crates/fgraph/tests/registration.rs",
                    test: "the_callback_of_a_dropped_user_is_waited_for_by_nobody",
                },
                Elsewhere {
                    file: "crates/fgraph/tests/registration.rs",
                    test: "registering_without_a_free_slot_waits_for_a_dropped_users_callback",
                },
                Elsewhere {
                    file: "crates/fgraph/tests/registration.rs",
                    test: "the_panic_of_a_dropped_user_is_not_that_of_others",
                },
            ]),
        },
        Scenario {
            name: "sixteen users that come and go in all slots",
            promise: "Each gets the returns of its own entries only, and none once it is gone.",
            shown: Shown::Elsewhere(&[
                Elsewhere {
                    file: "crates/fgraph/tests/limits.rs",
                    test: "sixteen_users_come_and_go_from_several_threads",
                },
                Elsewhere {
                    file: "crates/fgraph/tests/registration.rs",
                    test: "after_unregistering_no_callback_runs",
                },
                Elsewhere {
                    file: "crates/fgraph/tests/registration.rs",
                    test: "inside_a_callback_nothing_can_be_registered_or_unregistered",
                },
            ]),
        },
        Scenario {
            name: "a thread without memory for its state",
            promise: "It is not traced, which is counted, and continues.",
            shown: Shown::Elsewhere(&[Elsewhere {
                file: "crates/fgraph/tests/fallbacks.rs",
                test: "a_thread_without_memory_for_its_state_is_not_traced",
            }]),
        },
    ],
};
