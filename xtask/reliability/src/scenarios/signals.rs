//! Signals at any time.

use crate::compiler::C;
use crate::scenario::Expect::{AtLeast, Exactly};
use crate::scenario::{Group, Hostile, PLAIN, Trace, program};

const STORM: Hostile = program("signal_storm.c", C);

const STEPPING: Hostile = Hostile {
    is_long: true,
    ..program("signal_stepping.c", C)
};

const HANDLERS: Hostile = program("signal_handlers.c", C);

pub(super) const GROUP: Group = group! {
    "signals", "signals at every instruction";

    "a timer storm",
    "Handlers may run at any instruction: calls in them are traced, they may allocate, and the \
     unwinder always finds `main`.",
    STORM { args: &["timer"], trace: Trace::AlsoEverything };

    "a storm of setitimer",
    "Handlers may run at any instruction: calls in them are traced, they may allocate, and the \
     unwinder always finds `main`.",
    STORM { args: &["itimer"] };

    "a timer storm in four threads while functions are patched",
    "Handlers may run at any instruction, even of a site that is being written.",
    STORM { args: &["threads"], toggled: Some("leaf") };

    "calls instruction by instruction",
    "At each instruction of stub, trampolines, dispatcher and callbacks the unwinder finds every \
     real caller.",
    STEPPING { args: &["now"] };

    "calls instruction by instruction, some of them declined",
    "At each instruction of stub, trampolines, dispatcher and callbacks the unwinder finds every \
     real caller, even if no user wants the return.",
    STEPPING { args: &["now"], declining: true };

    "calls instruction by instruction while functions are patched",
    "Traps of the program's own reach its handler, through that of fgraph.",
    STEPPING { args: &["later"], toggled: Some("toggled") };

    "a handler that goes to another stack at any instruction of a call",
    "The calls on both stacks are reported, with frames of their own.",
    tests {
        "crates/fgraph/tests/fast_path.rs": [
            "a_handler_may_go_to_another_stack_at_every_instruction_of_a_call",
        ],
    };

    "handlers of SIGTRAP replace each other while functions are patched",
    "A handler of SIGTRAP that hands on what is not its own may be replaced at any time.",
    PLAIN { source: "signal_trap.c", compilers: C, toggled: Some("toggled_*") };

    "handlers of traps that are left by siglongjmp while functions are patched",
    "The next trap of the program's own reaches its handler again.",
    HANDLERS { args: &["trap-jump"], skipped: Exactly(2000), toggled: Some("leaf") };

    "a handler of SIGTRAP that leaves a thread's first call",
    "The thread is traced again from its next call at the same depth or above.",
    tests {
        "crates/fgraph-x86_64/tests/preserve/main.rs": [
            "every_register_survives_every_kind_of_call",
        ],
    };

    "handlers that block every signal while functions are patched",
    "Such handlers may call functions that are being patched.",
    tests {
        "crates/fgraph/tests/threads.rs": [
            "handlers_that_block_every_signal_may_run_while_functions_are_patched",
        ],
    };

    "an alternate stack that was given up while functions are patched",
    "The patching thread does not use it.",
    tests {
        "crates/fgraph/tests/threads.rs": ["the_patching_thread_needs_no_writable_alternate_stack"],
    };

    "a trap that nobody handles",
    "The trap ends the program, as without tracing, with the registers of its place.",
    tests {
        "crates/fgraph/tests/threads.rs": [
            "an_unhandled_trap_kills_the_program",
            "a_trap_that_nobody_handles_kills_with_the_registers_of_its_place",
        ],
    };

    "siglongjmp out of the first traced call of a thread",
    "The thread is traced, wherever it was left.",
    tests {
        "crates/fgraph/tests/counters.rs": [
            "a_thread_is_traced_wherever_its_first_call_was_left_by_siglongjmp",
        ],
    };

    "raise in a function twenty calls deep",
    "The handler finds every caller and may call traced functions.",
    HANDLERS { args: &["raise"] };

    "nested handlers of three signals",
    "The innermost one finds all the others and `main`.",
    HANDLERS { args: &["nested"] };

    "a handler with SA_NODEFER raises its own signal fifty times",
    "Every call is reported, in order.",
    HANDLERS { args: &["nodefer"] };

    "a handler with SA_ONSTACK",
    "The handler may call traced functions, and finds every caller on both stacks.",
    HANDLERS { args: &["altstack"] };

    "siglongjmp out of a handler with SA_ONSTACK",
    "The calls that it leaves are counted as lost.",
    HANDLERS { args: &["altstack-jump"], skipped: AtLeast(400) };

    "SIGSEGV in a traced function, mended by its handler",
    "The access is repeated and the call returns.",
    HANDLERS { args: &["fault"] };

    "SIGSEGV in a traced function, left by siglongjmp",
    "The calls that it leaves are counted as lost.",
    HANDLERS { args: &["fault-jump"], skipped: Exactly(700) };

    "SIGSEGV in a traced function, without a handler",
    "The signal kills the program, as without tracing.",
    HANDLERS { args: &["fault-deadly"], end: -11, unfinished: Exactly(1), unreturned: Exactly(8) };

    "SIGTERM in a traced function",
    "The signal kills the program, as without tracing.",
    HANDLERS { args: &["deadly"], end: -15, unfinished: Exactly(1), unreturned: Exactly(7) };

    "children that end while SIGCHLD has a handler",
    "The handler reaps them all.",
    HANDLERS {
        args: &["child"], unfinished: Exactly(10),
        // Two calls that each child inherits.
        unreturned: Exactly(20),
    };

    "a thread takes signals with sigwait while functions are patched",
    "No signal is lost, and calls of the handlers are traced.",
    HANDLERS { args: &["sigwait"], toggled: Some("leaf") };

    "a thread reads signals from a signalfd while functions are patched",
    "No signal is lost, and calls of the handlers are traced.",
    HANDLERS { args: &["signalfd"], toggled: Some("leaf") };

    "siglongjmp out of whatever a timer interrupts",
    "Callbacks and fgraph itself may be left half-way: later calls are traced, and users can \
     unregister.",
    HANDLERS {
        args: &["callback-jump"],
        // Entries that were left before the users could remember them make the depth wrong.
        in_order: false, unreturned: AtLeast(1000),
    };
};
