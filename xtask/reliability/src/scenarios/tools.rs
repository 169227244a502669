//! Tools that look at the same program.

use fgraph_needs::{GDB, PERF, STRACE, VALGRIND};

use crate::compiler::{C, Compiler};
use crate::scenario::Expect::{Any, AtLeast, Exactly};
use crate::scenario::{Group, Hostile, program};

const BESIDE: Hostile = Hostile {
    source: "tool_beside.c",
    is_long: true,
    compilers: C,
    flags: &["-fno-omit-frame-pointer"],
    ..Hostile::DEFAULT
};

const SECCOMP: Hostile = program("tool_seccomp.c", C);

const SANITIZED: Hostile = Hostile {
    source: "signal_handlers.c",
    args: &["nested"],
    compilers: &[Compiler::Clang],
    flags: &["-fsanitize=address"],
    linked: Some((&["-fsanitize=address"], "libclang-rt-14-dev")),
    // At exit a thread with a stack of its own, but the main thread's storage, looks for leaks.
    // The sanitizer's own functions are traced as well, and some of their returns are not
    // dispatched.
    in_order: false,
    no_shadow_stack: Any,
    unreturned: Any,
    ..Hostile::DEFAULT
};

pub(super) const GROUP: Group = group! {
    "tools", "debuggers, profilers, sanitizers, seccomp";

    "gdb with breakpoints in traced functions",
    "Breakpoints on the first instruction of a function, or behind its first five bytes, are hit, \
     and `bt` shows every caller.",
    BESIDE { args: &["gdb"], tool: Some(GDB) };

    "gdb with breakpoints set before the program starts",
    "A function whose first bytes gdb has changed is not traced; breakpoints are hit.",
    BESIDE { args: &["early"], tool: Some(GDB) };

    "gdb with breakpoints while functions are patched",
    "gdb stops at a trap of fgraph as at any SIGTRAP; `signal SIGTRAP` continues the program.",
    BESIDE { args: &["patched"], tool: Some(GDB), toggled: Some("toggled") };

    "gdb attaches, sets breakpoints and detaches",
    "Breakpoints are hit, `bt` shows every caller, and the program continues.",
    BESIDE { args: &["attach"], tool: Some(GDB) };

    "perf with frame pointers",
    "Samples of functions with frame pointers have a frame for every caller; that of a function \
     that has made a traced call has no name.",
    BESIDE { args: &["perf-fp"], tool: Some(PERF) };

    "perf with DWARF",
    "Samples find their function, but callers up to the innermost traced call only: perf does not \
     copy fgraph's stack.",
    BESIDE { args: &["perf-dwarf"], tool: Some(PERF) };

    "a uprobe in a traced function (perf probe, bpftrace)",
    "It is hit, and the function runs as without it, but is not traced. After the uprobe is \
     removed, `status()` patches the function anew, or unregistering restores it; a call before \
     that may execute wrong bytes.",
    tests {
        "crates/fgraph/tests/uprobes.rs": [
            "traced_functions_with_uprobes_run_as_without",
            "functions_are_traced_again_when_their_uprobes_are_gone",
            "functions_are_whole_when_they_are_put_back_after_their_uprobes_are_gone",
            "functions_are_whole_when_their_uprobes_go_after_they_are_put_back",
        ],
    };

    "a uprobe in a function before it is traced",
    "The function is refused, and the uprobe is hit.",
    tests { "crates/fgraph/tests/uprobes.rs": ["functions_with_uprobes_are_not_traced"] };

    "valgrind",
    "memcheck runs the traced program and finds no error.",
    BESIDE { args: &["valgrind"], tool: Some(VALGRIND) };

    "strace follows all threads while functions are patched",
    "It shows the same as without tracing, and lets traps through.",
    BESIDE { args: &["strace"], tool: Some(STRACE), toggled: Some("toggled") };

    "a program of clang with AddressSanitizer",
    "AddressSanitizer finds no error that is not there.",
    SANITIZED {};

    "a program of gcc with AddressSanitizer",
    "It finds no error that is not there. Its library must be linked statically, or preloaded \
     before fgraph.",
    SANITIZED {
        compilers: &[Compiler::Gcc], flags: &["-fsanitize=address", "-static-libasan"],
        linked: Some((&["-fsanitize=address", "-static-libasan"], "libgcc-12-dev")),
    };

    "AddressSanitizer and a jump out of a handler on another stack",
    "AddressSanitizer finds no error that is not there.",
    SANITIZED { args: &["altstack-jump"] };

    "seccomp forbids opening files while functions are patched",
    "Text is written through mprotect from then on.",
    SECCOMP { args: &["files"], toggled: Some("toggled") };

    "seccomp forbids writing files while functions are patched",
    "Text is written through mprotect from then on.",
    SECCOMP { args: &["writes"], toggled: Some("toggled") };

    "seccomp forbids process_vm_readv while contexts swap",
    "No unreadable frame is taken for dead: every return is reported.",
    SECCOMP {
        source: "jump_contexts.c", args: &["static", "4", "sandboxed"], in_order: false,
        unreturned: Exactly(24),
    };

    "seccomp forbids process_vm_readv, and stacks are given up in the middle",
    "Calls at places where frames of such stacks may be are counted as without a shadow stack from \
     then on.",
    SECCOMP {
        args: &["reads"], in_order: false, unreturned: AtLeast(1), no_shadow_stack: AtLeast(1),
    };

    "no /proc, or one through which text cannot be written",
    "Text is written through mprotect.",
    tests {
        "crates/fgraph/tests/fallbacks.rs": [
            "without_proc_text_is_written_through_mprotect",
            "without_proc_the_stack_of_a_main_thread_is_known",
            "a_write_that_the_kernel_refuses_falls_back_to_mprotect",
            "a_write_that_is_refused_in_every_way_is_an_error",
        ],
    };

    "seccomp forbids membarrier",
    "Nothing is patched, and registering says why; registered users continue.",
    tests {
        "crates/fgraph/tests/fallbacks.rs": [
            "without_membarrier_nothing_is_patched",
            "without_sync_core_nothing_is_patched",
            "membarrier_that_is_forbidden_later_does_not_leave_half_a_change",
        ],
    };

    "seccomp forbids mmap in a thread",
    "The thread is not traced, and its calls are counted.",
    tests {
        "crates/fgraph/tests/fallbacks.rs": ["a_thread_without_memory_for_its_state_is_not_traced"],
    };

    "executable memory is forbidden",
    "Nothing is patched, and the report says why.",
    tests {
        "crates/fgraph/tests/fallbacks.rs": [
            "without_executable_memory_nothing_is_patched_and_the_reason_is_said",
            "where_no_way_leads_to_executable_memory_the_reason_is_said",
        ],
    };

    "memory may not become executable (PR_SET_MDWE)",
    "Stubs are executable from the start, and are written in the same way as text.",
    tests {
        "crates/fgraph/tests/fallbacks.rs": [
            "functions_are_traced_where_memory_may_not_become_executable",
        ],
    };
};
