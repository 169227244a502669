//! New processes.

use crate::build::{C, CXX};
use crate::scenario::Expect::{Any, AtLeast, Exactly};
use crate::scenario::{Elsewhere, Group, Hostile, Scenario, Shown, Trace};

const FORK: Hostile = Hostile {
    source: "process_fork.c",
    compilers: C,
    trace: Trace::AlsoEverything,
    ..Hostile::DEFAULT
};

const SPAWN: Hostile = Hostile {
    source: "process_spawn.c",
    compilers: C,
    trace: Trace::AlsoEverything,
    ..Hostile::DEFAULT
};

/// Children that have their parent's memory and block all signals, while everything is patched.
const BLOCKED: Hostile = Hostile {
    source: "process_spawn.c",
    compilers: C,
    filter: "*",
    toggled: Some("*"),
    is_long: true,
    not_yet: Some("a child that has its parent's memory may block SIGTRAP and meet a trap"),
    unfinished: Any,
    skipped: Any,
    unreturned: Any,
    no_shadow_stack: Any,
    in_order: false,
    ..Hostile::DEFAULT
};

const THROWS: Hostile = Hostile {
    source: "process_throws.cpp",
    compilers: CXX,
    ..Hostile::DEFAULT
};

pub(super) const GROUP: Group = Group {
    name: "processes",
    about: "fork, vfork, exec, posix_spawn, _exit",
    scenarios: &[
        Scenario {
            name: "a program whose first functions go by any name",
            promise: "The entry point of a program, and functions that it jumps to, are not \
                      traced.",
            shown: Shown::By(Hostile {
                source: "process_entry.c",
                args: &["argument"],
                compilers: C,
                flags: &["-Wl,-e,begins_here"],
                ..Hostile::DEFAULT
            }),
        },
        Scenario {
            name: "a fork below twenty calls",
            promise: "Calls in progress at a fork return in the parent and in the child, each to \
                      its own users.",
            shown: Shown::By(Hostile {
                args: &["frames"],
                ..FORK
            }),
        },
        Scenario {
            name: "forks while other threads are in callbacks",
            promise: "The child does not wait for the callbacks of threads that it does not have.",
            shown: Shown::By(Hostile {
                args: &["threads", "10"],
                trace: Trace::Program,
                environment: &[("FGRAPH_SLOW", "100")],
                ..FORK
            }),
        },
        Scenario {
            name: "forks while users come and go and filters change",
            promise: "A fork waits for a change in progress: the child never has half of it.",
            shown: Shown::By(Hostile {
                is_long: true,
                args: &["threads", "30"],
                trace: Trace::Program,
                environment: &[("FGRAPH_CHURN", "1")],
                ..FORK
            }),
        },
        Scenario {
            name: "forks while other threads throw, whose children throw",
            promise: "The child does not wait for an unwinder's lock that another thread of the \
                      parent held.",
            shown: Shown::By(Hostile {
                is_long: true,
                args: &["threads", "300"],
                // Of the children alone.
                unwound: AtLeast(300 * 10 * 11),
                ..THROWS
            }),
        },
        Scenario {
            name: "a fork in a signal handler",
            promise: "The child continues in the handler, and then in the calls that the signal \
                      has interrupted.",
            shown: Shown::By(Hostile {
                args: &["handler"],
                ..FORK
            }),
        },
        Scenario {
            name: "forks in the handler of a timer at any instruction",
            promise: "The child continues in the handler and then in the interrupted calls, \
                     wherever the signal comes, including fgraph's own code and callbacks.",
            shown: Shown::By(Hostile {
                args: &["timer", "20"],
                // The C library does not let everything of it be interrupted by a fork.
                trace: Trace::Program,
                // A fork between two counts of the tracer makes them differ by a call.
                unreturned: Any,
                ..FORK
            }),
        },
        Scenario {
            name: "forks in the handler of a timer while the thread throws",
            promise: "Parent and child continue in the unwinder that the signal has interrupted.",
            shown: Shown::By(Hostile {
                args: &["timer", "20"],
                unwound: AtLeast(20 * 10 * 11),
                // A fork between two counts of the tracer makes them differ by a call.
                unreturned: Any,
                ..THROWS
            }),
        },
        Scenario {
            name: "a tree of a hundred processes",
            promise: "Children of children, ever deeper in calls, are traced like their first \
                      parent.",
            shown: Shown::By(Hostile {
                args: &["tree"],
                trace: Trace::Program,
                ..FORK
            }),
        },
        Scenario {
            name: "a process that makes itself a daemon",
            promise: "The grandchild that continues alone is traced to its end.",
            shown: Shown::By(Hostile {
                args: &["daemon"],
                unfinished: Exactly(1),
                unreturned: Exactly(2),
                ..FORK
            }),
        },
        Scenario {
            name: "a process that ends by _exit inside calls",
            promise: "The process ends at once, with its exit code; the calls have no return.",
            shown: Shown::By(Hostile {
                args: &["leaves"],
                end: 5,
                unfinished: Exactly(1),
                unreturned: Exactly(13),
                ..FORK
            }),
        },
        Scenario {
            name: "a process that ends by quick_exit inside calls",
            promise: "The process ends at once, with its exit code; the calls have no return.",
            shown: Shown::By(Hostile {
                args: &["leaves-quickly"],
                end: 5,
                unfinished: Exactly(1),
                unreturned: Exactly(13),
                ..FORK
            }),
        },
        Scenario {
            name: "a process that ends in order inside calls",
            promise: "The process ends with its exit code and everything in order; the calls have \
                      no return.",
            shown: Shown::By(Hostile {
                args: &["leaves-in-order"],
                end: 5,
                ..FORK
            }),
        },
        Scenario {
            name: "children that end by _exit inside calls",
            promise: "Calls that the child leaves open do not affect its parent.",
            shown: Shown::By(Hostile {
                args: &["children-leave"],
                unfinished: Exactly(5),
                // Inherited calls and those of its own, in each.
                unreturned: Exactly(5 * (14 + 12)),
                ..FORK
            }),
        },
        Scenario {
            name: "a fork by a bare system call",
            promise: "A child that fgraph gets no notice of is traced until it ends.",
            shown: Shown::By(Hostile {
                args: &["raw"],
                ..FORK
            }),
        },
        Scenario {
            name: "forks by bare system calls, whose children begin with threads",
            promise: "The calls of the thread that has forked continue in the child, whichever \
                      of the child's threads fgraph sees first.",
            shown: Shown::By(Hostile {
                args: &["untold"],
                unfinished: Any,
                unreturned: Any,
                ..FORK
            }),
        },
        Scenario {
            name: "states of threads after a fork by a bare system call, in the child of vfork, \
                   and beside a process that shares the memory",
            promise: "A thread keeps its state. In a child, the states of threads that it does \
                      not have are recognised.",
            shown: Shown::Elsewhere(&[
                Elsewhere {
                    file: "crates/fgraph/tests/processes.rs",
                    test: "a_child_of_a_bare_fork_goes_on_with_its_calls",
                },
                Elsewhere {
                    file: "crates/fgraph/tests/processes.rs",
                    test: "a_thread_keeps_the_state_that_its_vfork_child_has_made",
                },
                Elsewhere {
                    file: "crates/fgraph/tests/processes.rs",
                    test: "a_process_that_shares_the_memory_ends_nobodys_calls",
                },
            ]),
        },
        Scenario {
            name: "a process that shares the memory and blocks all signals makes system calls \
                   while these are patched",
            promise: "The C library's functions for system calls are patched without a trap.",
            shown: Shown::Elsewhere(&[Elsewhere {
                file: "crates/fgraph/tests/processes.rs",
                test: "a_process_that_blocks_all_signals_makes_system_calls_while_they_are_patched",
            }]),
        },
        Scenario {
            name: "exec in the child of vfork",
            promise: "The call in which the child becomes another program is lost; the parent's \
                      calls continue.",
            shown: Shown::By(Hostile {
                args: &["vfork"],
                skipped: Exactly(10),
                ..SPAWN
            }),
        },
        Scenario {
            name: "calls and _exit in the child of vfork",
            promise: "Calls of the child, which has its parent's memory, are traced like the \
                      parent's.",
            shown: Shown::By(Hostile {
                args: &["vfork-exit"],
                ..SPAWN
            }),
        },
        Scenario {
            name: "vfork with all signals blocked while everything is patched",
            promise: "The child is not killed.",
            shown: Shown::By(Hostile {
                args: &["vfork-blocked"],
                ..BLOCKED
            }),
        },
        Scenario {
            name: "dash starts programs while everything is patched",
            promise: "Neither the shell nor what it starts is killed.",
            shown: Shown::By(Hostile {
                args: &["dash"],
                ..BLOCKED
            }),
        },
        Scenario {
            name: "Python's subprocess starts programs while everything is patched",
            promise: "Neither the interpreter nor what it starts is killed.",
            shown: Shown::By(Hostile {
                args: &["python"],
                ..BLOCKED
            }),
        },
        Scenario {
            name: "posix_spawn while everything is patched",
            promise: "Neither the program nor what it starts is killed.",
            shown: Shown::By(Hostile {
                args: &["spawn-often"],
                ..BLOCKED
            }),
        },
        Scenario {
            name: "exec that fails",
            promise: "The program continues, traced.",
            shown: Shown::By(Hostile {
                args: &["fails"],
                ..SPAWN
            }),
        },
        Scenario {
            name: "posix_spawn of itself and of others",
            promise: "The new process is traced anew if it preloads a tracer; otherwise it is \
                      not traced.",
            shown: Shown::By(Hostile {
                args: &["spawn"],
                ..SPAWN
            }),
        },
        Scenario {
            name: "system and popen",
            promise: "Shells run untraced, and their output and exit code arrive.",
            shown: Shown::By(Hostile {
                args: &["shell"],
                ..SPAWN
            }),
        },
        Scenario {
            name: "clone with CLONE_VM on a stack of its own",
            promise: "Calls of a process with the same memory are traced or counted; its end harms \
                      nobody.",
            shown: Shown::By(Hostile {
                args: &["clone"],
                no_shadow_stack: Any,
                ..SPAWN
            }),
        },
        Scenario {
            name: "clone with CLONE_VM, and both are at work at the same time",
            promise: "The thread whose memory and thread block the other process shares is \
                      traced; the calls of the other process are counted.",
            shown: Shown::By(Hostile {
                args: &["beside"],
                // Or missed, while the thread is in a callback.
                no_shadow_stack: Any,
                ..SPAWN
            }),
        },
        Scenario {
            name: "clone with CLONE_VM on an array in a frame, and both are at work",
            promise: "Neither is traced from then on; calls in progress have no return.",
            shown: Shown::By(Hostile {
                args: &["within"],
                unreturned: Any,
                skipped: Any,
                no_shadow_stack: Any,
                ..SPAWN
            }),
        },
        Scenario {
            name: "exec of itself and then of another program inside calls",
            promise: "Each program begins untraced; calls of the previous one have no return.",
            shown: Shown::By(Hostile {
                args: &["anew"],
                end: 5,
                unfinished: Exactly(4),
                unreturned: Exactly(3 * 13 + 14),
                ..SPAWN
            }),
        },
        Scenario {
            name: "a child that registers users of its own",
            promise: "The child has the users of its parent, and both have their own from then on.",
            shown: Shown::Elsewhere(&[
                Elsewhere {
                    file: "crates/fgraph/tests/threads.rs",
                    test: "a_child_goes_on_in_the_middle_of_traced_calls",
                },
                Elsewhere {
                    file: "crates/fgraph/tests/threads.rs",
                    test: "a_fork_while_another_thread_registers_leaves_the_child_able_to",
                },
            ]),
        },
    ],
};
