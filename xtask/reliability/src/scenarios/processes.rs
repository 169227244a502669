//! New processes.

use crate::compiler::{C, CXX};
use crate::scenario::Expect::{Any, AtLeast, Exactly};
use crate::scenario::{Group, Hostile, PLAIN, Trace, program};

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

const THROWS: Hostile = program("process_throws.cpp", CXX);

pub(super) const GROUP: Group = group! {
    "processes", "fork, vfork, exec, posix_spawn, _exit";

    "a program whose first functions go by any name",
    "The entry point of a program, and functions that it jumps to, are not traced.",
    PLAIN {
        source: "process_entry.c", args: &["argument"], compilers: C,
        flags: &["-Wl,-e,begins_here"],
    };

    "a fork below twenty calls",
    "Calls in progress at a fork return in the parent and in the child, each to its own users.",
    FORK { args: &["frames"] };

    "forks while other threads are in callbacks",
    "The child does not wait for the callbacks of threads that it does not have.",
    FORK {
        args: &["threads", "10"], trace: Trace::Program, environment: &[("FGRAPH_SLOW", "100")],
    };

    "forks while users come and go and filters change",
    "A fork waits for a change in progress: the child never has half of it.",
    FORK {
        is_long: true, args: &["threads", "30"], trace: Trace::Program,
        environment: &[("FGRAPH_CHURN", "1")],
    };

    "forks while other threads throw, whose children throw",
    "The child does not wait for an unwinder's lock that another thread of the parent held.",
    THROWS {
        is_long: true, args: &["threads", "300"],
        // Calls in the children alone.
        unwound: AtLeast(300 * 10 * 11),
    };

    "a fork in a signal handler",
    "The child continues in the handler, and then in the calls that the signal has interrupted.",
    FORK { args: &["handler"] };

    "forks in the handler of a timer at any instruction",
    "The child continues in the handler and then in the interrupted calls, wherever the signal \
     comes, including fgraph's own code and callbacks.",
    FORK {
        args: &["timer", "20"],
        // The C library does not let everything of it be interrupted by a fork.
        trace: Trace::Program,
        // A fork between two counts of the tracer makes them differ by a call.
        unreturned: Any,
    };

    "forks in the handler of a timer while the thread throws",
    "Parent and child continue in the unwinder that the signal has interrupted.",
    THROWS {
        args: &["timer", "20"], unwound: AtLeast(20 * 10 * 11),
        // A fork between two counts of the tracer makes them differ by a call.
        unreturned: Any,
    };

    "a tree of a hundred processes",
    "Children of children, ever deeper in calls, are traced like their first parent.",
    FORK { args: &["tree"], trace: Trace::Program };

    "a process that makes itself a daemon",
    "The grandchild that continues alone is traced to its end.",
    FORK { args: &["daemon"], unfinished: Exactly(1), unreturned: Exactly(2) };

    "a process that ends by _exit inside calls",
    "The process ends at once, with its exit code; the calls have no return.",
    FORK { args: &["leaves"], end: 5, unfinished: Exactly(1), unreturned: Exactly(13) };

    "a process that ends by quick_exit inside calls",
    "The process ends at once, with its exit code; the calls have no return.",
    FORK { args: &["leaves-quickly"], end: 5, unfinished: Exactly(1), unreturned: Exactly(13) };

    "a process that ends in order inside calls",
    "The process ends with its exit code and everything in order; the calls have no return.",
    FORK { args: &["leaves-in-order"], end: 5 };

    "children that end by _exit inside calls",
    "Calls that the child leaves open do not affect its parent.",
    FORK {
        args: &["children-leave"], unfinished: Exactly(5),
        // Inherited calls and those of its own, in each.
        unreturned: Exactly(5 * (14 + 12)),
    };

    "a fork by a bare system call",
    "A child that fgraph gets no notice of is traced until it ends.",
    FORK { args: &["raw"] };

    "forks by bare system calls, whose children begin with threads",
    "The calls of the thread that has forked continue in the child, whichever of the child's \
     threads fgraph sees first.",
    FORK { args: &["untold"], unfinished: Any, unreturned: Any };

    "states of threads after a fork by a bare system call, in the child of vfork, and beside a \
     process that shares the memory",
    "A thread keeps its state. In a child, the states of threads that it does not have are \
     recognised.",
    tests {
        "crates/fgraph/tests/processes.rs": [
            "a_child_of_a_bare_fork_goes_on_with_its_calls",
            "a_thread_keeps_the_state_that_its_vfork_child_has_made",
            "a_process_that_shares_the_memory_ends_nobodys_calls",
        ],
    };

    "a process that shares the memory and blocks all signals makes system calls while these are \
     patched",
    "The C library's functions for system calls are patched without a trap.",
    tests {
        "crates/fgraph/tests/processes.rs": [
            "a_process_that_blocks_all_signals_makes_system_calls_while_they_are_patched",
        ],
    };

    "exec in the child of vfork",
    "The call in which the child becomes another program is lost; the parent's calls continue.",
    SPAWN { args: &["vfork"], skipped: Exactly(10) };

    "calls and _exit in the child of vfork",
    "Calls of the child, which has its parent's memory, are traced like the parent's.",
    SPAWN { args: &["vfork-exit"] };

    "vfork with all signals blocked while everything is patched",
    "The child is not killed.",
    BLOCKED { args: &["vfork-blocked"] };

    "dash starts programs while everything is patched",
    "Neither the shell nor what it starts is killed.",
    BLOCKED { args: &["dash"] };

    "Python's subprocess starts programs while everything is patched",
    "Neither the interpreter nor what it starts is killed.",
    BLOCKED { args: &["python"] };

    "posix_spawn while everything is patched",
    "Neither the program nor what it starts is killed.",
    BLOCKED { args: &["spawn-often"] };

    "exec that fails",
    "The program continues, traced.",
    SPAWN { args: &["fails"] };

    "posix_spawn of itself and of others",
    "The new process is traced anew if it preloads a tracer; otherwise it is not traced.",
    SPAWN { args: &["spawn"] };

    "system and popen",
    "Shells run untraced, and their output and exit code arrive.",
    SPAWN { args: &["shell"] };

    "clone with CLONE_VM on a stack of its own",
    "Calls of a process with the same memory are traced or counted; its end harms nobody.",
    SPAWN { args: &["clone"], no_shadow_stack: Any };

    "clone with CLONE_VM, and both are at work at the same time",
    "The thread whose memory and thread block the other process shares is traced; the calls of the \
     other process are counted.",
    SPAWN {
        args: &["beside"],
        // Or missed, while the thread is in a callback.
        no_shadow_stack: Any,
    };

    "clone with CLONE_VM on an array in a frame, and both are at work",
    "Neither is traced from then on; calls in progress have no return.",
    SPAWN { args: &["within"], unreturned: Any, skipped: Any, no_shadow_stack: Any };

    "exec of itself and then of another program inside calls",
    "Each program begins untraced; calls of the previous one have no return.",
    SPAWN { args: &["anew"], end: 5, unfinished: Exactly(4), unreturned: Exactly(3 * 13 + 14) };

    "a child that registers users of its own",
    "The child has the users of its parent, and both have their own from then on.",
    tests {
        "crates/fgraph/tests/threads.rs": [
            "a_child_goes_on_in_the_middle_of_traced_calls",
            "a_fork_while_another_thread_registers_leaves_the_child_able_to",
        ],
    };
};
