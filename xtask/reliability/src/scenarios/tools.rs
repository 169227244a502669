//! Tools that look at the same program.

use fgraph_needs::{GDB, PERF, STRACE, VALGRIND};

use crate::build::{C, Compiler};
use crate::scenario::Expect::{Any, AtLeast, Exactly};
use crate::scenario::{Elsewhere, Group, Hostile, Scenario, Shown};

const BESIDE: Hostile = Hostile {
    source: "tool_beside.c",
    compilers: C,
    flags: &["-fno-omit-frame-pointer"],
    ..Hostile::DEFAULT
};

const SECCOMP: Hostile = Hostile {
    source: "tool_seccomp.c",
    compilers: C,
    ..Hostile::DEFAULT
};

const SANITIZED: Hostile = Hostile {
    source: "signal_handlers.c",
    args: &["nested"],
    compilers: &[Compiler::Clang],
    flags: &["-fsanitize=address"],
    linked: Some((&["-fsanitize=address"], "libclang-rt-14-dev")),
    // At exit a thread with a stack of its own, but the main thread's storage, looks for leaks.
    // What the sanitizer is made of is traced as well, and of some of it no return is told.
    in_order: false,
    no_shadow_stack: Any,
    unreturned: Any,
    ..Hostile::DEFAULT
};

const fn fallback(test: &'static str) -> Elsewhere {
    Elsewhere {
        file: "crates/fgraph/tests/fallbacks.rs",
        test,
    }
}

const fn uprobes(test: &'static str) -> Elsewhere {
    Elsewhere {
        file: "crates/fgraph/tests/uprobes.rs",
        test,
    }
}

pub(super) const GROUP: Group = Group {
    name: "tools",
    about: "debuggers, profilers, sanitizers, seccomp",
    scenarios: &[
        Scenario {
            name: "gdb with breakpoints in traced functions",
            promise: "Breakpoints on the first instruction of a function, or behind its first five \
                      bytes, are hit, and `bt` shows every caller.",
            shown: Shown::By(Hostile {
                args: &["gdb"],
                tool: Some(GDB),
                ..BESIDE
            }),
        },
        Scenario {
            name: "gdb with breakpoints set before the program starts",
            promise: "A function whose first bytes gdb has changed is not traced; breakpoints are \
                      hit.",
            shown: Shown::By(Hostile {
                args: &["early"],
                tool: Some(GDB),
                ..BESIDE
            }),
        },
        Scenario {
            name: "gdb with breakpoints while functions are patched",
            promise: "gdb stops at a trap of fgraph as at any SIGTRAP; `signal SIGTRAP` \
                      continues the program.",
            shown: Shown::By(Hostile {
                args: &["patched"],
                tool: Some(GDB),
                toggled: Some("toggled"),
                ..BESIDE
            }),
        },
        Scenario {
            name: "gdb attaches, sets breakpoints and detaches",
            promise: "Breakpoints are hit, `bt` shows every caller, and the program continues.",
            shown: Shown::By(Hostile {
                args: &["attach"],
                tool: Some(GDB),
                ..BESIDE
            }),
        },
        Scenario {
            name: "perf with frame pointers",
            promise: "Samples of functions with frame pointers have every caller.",
            shown: Shown::By(Hostile {
                args: &["perf-fp"],
                tool: Some(PERF),
                ..BESIDE
            }),
        },
        Scenario {
            name: "perf with DWARF",
            promise: "Samples find their function, but callers up to the innermost traced call \
                      only: perf does not copy fgraph's stack.",
            shown: Shown::By(Hostile {
                args: &["perf-dwarf"],
                tool: Some(PERF),
                ..BESIDE
            }),
        },
        Scenario {
            name: "a uprobe in a traced function (perf probe, bpftrace)",
            promise: "It is hit, and the function runs as without it, but is not traced. After \
                      the uprobe is removed, `status()` patches the function anew, or \
                      unregistering restores it; a call before that may execute wrong bytes.",
            shown: Shown::Elsewhere(&[
                uprobes("traced_functions_with_uprobes_run_as_without"),
                uprobes("functions_are_traced_again_when_their_uprobes_are_gone"),
                uprobes("functions_are_whole_when_they_are_put_back_after_their_uprobes_are_gone"),
                uprobes("functions_are_whole_when_their_uprobes_go_after_they_are_put_back"),
            ]),
        },
        Scenario {
            name: "a uprobe in a function before it is traced",
            promise: "The function is refused, and the uprobe is hit.",
            shown: Shown::Elsewhere(&[uprobes("functions_with_uprobes_are_not_traced")]),
        },
        Scenario {
            name: "valgrind",
            promise: "memcheck runs the traced program and finds no error.",
            shown: Shown::By(Hostile {
                args: &["valgrind"],
                tool: Some(VALGRIND),
                ..BESIDE
            }),
        },
        Scenario {
            name: "strace follows all threads while functions are patched",
            promise: "It shows the same as without tracing, and lets traps through.",
            shown: Shown::By(Hostile {
                args: &["strace"],
                tool: Some(STRACE),
                toggled: Some("toggled"),
                ..BESIDE
            }),
        },
        Scenario {
            name: "a program of clang with AddressSanitizer",
            promise: "AddressSanitizer finds no error that is not there.",
            shown: Shown::By(SANITIZED),
        },
        Scenario {
            name: "a program of gcc with AddressSanitizer",
            promise: "It finds no error that is not there. Its library must be linked \
                      statically, or preloaded before fgraph.",
            shown: Shown::By(Hostile {
                compilers: &[Compiler::Gcc],
                flags: &["-fsanitize=address", "-static-libasan"],
                linked: Some((&["-fsanitize=address", "-static-libasan"], "libgcc-12-dev")),
                ..SANITIZED
            }),
        },
        Scenario {
            name: "AddressSanitizer and a jump out of a handler on another stack",
            promise: "AddressSanitizer finds no error that is not there.",
            shown: Shown::By(Hostile {
                args: &["altstack-jump"],
                ..SANITIZED
            }),
        },
        Scenario {
            name: "seccomp forbids opening files while functions are patched",
            promise: "Text is written through mprotect from then on.",
            shown: Shown::By(Hostile {
                args: &["files"],
                toggled: Some("toggled"),
                ..SECCOMP
            }),
        },
        Scenario {
            name: "seccomp forbids writing files while functions are patched",
            promise: "Text is written through mprotect from then on.",
            shown: Shown::By(Hostile {
                args: &["writes"],
                toggled: Some("toggled"),
                ..SECCOMP
            }),
        },
        Scenario {
            name: "seccomp forbids process_vm_readv while contexts swap",
            promise: "No unreadable frame is taken for dead: every return is reported.",
            shown: Shown::By(Hostile {
                source: "jump_contexts.c",
                args: &["static", "4", "sandboxed"],
                in_order: false,
                unreturned: Exactly(24),
                ..SECCOMP
            }),
        },
        Scenario {
            name: "seccomp forbids process_vm_readv, and stacks are given up in the middle",
            promise: "Calls at places where frames of such stacks may be are counted as without \
                      a shadow stack from then on.",
            shown: Shown::By(Hostile {
                args: &["reads"],
                in_order: false,
                unreturned: AtLeast(1),
                no_shadow_stack: AtLeast(1),
                ..SECCOMP
            }),
        },
        Scenario {
            name: "no /proc, or one through which text cannot be written",
            promise: "Text is written through mprotect.",
            shown: Shown::Elsewhere(&[
                fallback("without_proc_text_is_written_through_mprotect"),
                fallback("without_proc_the_stack_of_a_main_thread_is_known"),
                fallback("a_write_that_the_kernel_refuses_falls_back_to_mprotect"),
                fallback("a_write_that_is_refused_in_every_way_is_an_error"),
            ]),
        },
        Scenario {
            name: "seccomp forbids membarrier",
            promise: "Nothing is patched, and registering says why; registered users continue.",
            shown: Shown::Elsewhere(&[
                fallback("without_membarrier_nothing_is_patched"),
                fallback("without_sync_core_nothing_is_patched"),
                fallback("membarrier_that_is_forbidden_later_does_not_leave_half_a_change"),
            ]),
        },
        Scenario {
            name: "seccomp forbids mmap in a thread",
            promise: "The thread is not traced, and its calls are counted.",
            shown: Shown::Elsewhere(&[fallback(
                "a_thread_without_memory_for_its_state_is_not_traced",
            )]),
        },
        Scenario {
            name: "executable memory is forbidden",
            promise: "Nothing is patched, and the report says why.",
            shown: Shown::Elsewhere(&[
                fallback("without_executable_memory_nothing_is_patched_and_the_reason_is_said"),
                fallback("where_no_way_leads_to_executable_memory_the_reason_is_said"),
            ]),
        },
        Scenario {
            name: "memory may not become executable (PR_SET_MDWE)",
            promise: "Stubs are executable from the start, and are written in the same way as \
                      text.",
            shown: Shown::Elsewhere(&[fallback(
                "functions_are_traced_where_memory_may_not_become_executable",
            )]),
        },
    ],
};
