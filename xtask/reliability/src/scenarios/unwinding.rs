//! Calls that end by being unwound.

use crate::compiler::{C, CXX, Compiler, RUST};
use crate::scenario::Expect::{Any, AtLeast, Exactly};
use crate::scenario::{Group, Hostile, PLAIN, Part, Trace, program};

/// Signals that end programs here.
const SIGABRT: i32 = 6;

const PANICS: Hostile = program("panics.rs", RUST);

/// The frames of `dive` only, as the number of those of the standard library depends on the
/// compiler.
const DIVE: Hostile = Hostile {
    functions: &["*::dive"],
    ..PANICS
};

/// libgcc unwinds.
const EXCEPTIONS: Hostile = Hostile {
    source: "exceptions.cpp",
    compilers: CXX,
    flags: &["-DUNWINDER=\"libgcc_s\""],
    ..Hostile::DEFAULT
};

/// LLVM's libunwind, which the other library of that name does not replace.
const LIBUNWIND: Option<(&[&str], &str)> = Some((&["-l:libunwind.so.1"], "libunwind-14-dev"));

/// LLVM's libunwind does.
const LLVM: Hostile = Hostile {
    flags: &["-DUNWINDER=\"libunwind\"", "-Wl,--no-as-needed", "-lunwind"],
    linked: LIBUNWIND,
    ..EXCEPTIONS
};

/// Ends of 20 threads, each ten calls deep.
const ENDS: Hostile = Hostile {
    source: "thread_ends.c",
    compilers: C,
    flags: &["-fexceptions"],
    // `dive` eleven times, and `end`.
    unwound: Exactly(20 * 12),
    // The C library leaves the thread's start function by a jump.
    unreturned: Exactly(20),
    ..Hostile::DEFAULT
};

/// The same without exceptions: the C library jumps into each function that has something to clean
/// up.
const C_ENDS: Hostile = Hostile {
    flags: &[],
    unwound: Exactly(20 * 7),
    skipped: Exactly(20 * 5),
    ..ENDS
};

/// The same where the program is linked to LLVM's libunwind, and the C library unwinds by libgcc
/// all the same.
const LLVM_ENDS: Hostile = Hostile {
    flags: &["-Wl,--no-as-needed", "-lunwind"],
    linked: LIBUNWIND,
    ..C_ENDS
};

const THREAD: &str = "Its calls are reported as unwound, innermost first, except that of its start \
                      function; calls of cleanup handlers are traced.";

const C_THREAD: &str = "Calls that the unwinder leaves are reported as unwound. Calls that the C \
                        library leaves by jumps, below a function with a cleanup handler, are \
                        counted as lost.";

const BACKTRACES: Hostile = Hostile {
    source: "backtraces.c",
    compilers: C,
    flags: &["-rdynamic"],
    unwound: Exactly(0),
    ..Hostile::DEFAULT
};

/// The other libunwind, which takes the CFA of a frame for its caller's stack pointer.
const NONGNU: Hostile = Hostile {
    flags: &["-rdynamic", "-DNONGNU", "-l:libunwind.so.8"],
    linked: Some((&["-l:libunwind.so.8"], "libunwind8")),
    ..BACKTRACES
};

const ONCE: &str = "Every frame that it leaves is reported as unwound, once, innermost first.";

pub(super) const GROUP: Group = group! {
    "unwinding", "panics, C++ exceptions, ends of threads, backtraces";

    "a panic is caught by the caller",
    ONCE,
    DIVE { args: &["caught", "0"], unwound: Exactly(1) };

    "a panic is caught one frame up",
    ONCE,
    DIVE { args: &["caught", "1"], unwound: Exactly(2) };

    "a panic is caught two frames up",
    ONCE,
    DIVE { args: &["caught", "2"], unwound: Exactly(3) };

    "a panic is caught twenty frames up",
    ONCE,
    DIVE { args: &["caught", "20"], unwound: Exactly(21) };

    "a panic goes through all of the standard library",
    "The functions that make and catch panics may be traced, too.",
    PANICS { args: &["caught", "20"], unwound: AtLeast(21), trace: Trace::AlsoEverything };

    "a panic is caught half way up",
    "The frames below are reported as unwound, those above return.",
    PANICS { args: &["half", "20"], unwound: AtLeast(10) };

    "a panic is caught again and again in recursion",
    "Nothing is used up: the next panic finds the shadow stack as it was.",
    DIVE { args: &["again", "100"], unwound: Exactly(300 * 101) };

    "a panic is resumed in every frame",
    "Each frame is reported as unwound once, however often the panic is caught in it.",
    PANICS { args: &["rethrown", "20"], unwound: Exactly(22), functions: &["*::dive", "*::relay"] };

    "destructors call functions while a panic unwinds",
    "Their calls are traced like any others, and may panic for themselves.",
    PANICS {
        args: &["destructors", "20"], unwound: Exactly(21 + 5 * 3),
        functions: &["*::dive", "*::guarded"],
    };

    "a panic ends a thread",
    "The thread's calls are reported as unwound, and the thread that joins it gets the panic.",
    DIVE { args: &["joined", "20"], unwound: Exactly(42) };

    "a panic aborts",
    "With panic=abort the process ends as untraced.",
    DIVE {
        args: &["abort", "20"], flags: &["-Cpanic=abort"], compare_stderr: true, end: -SIGABRT,
        unfinished: Exactly(1), unreturned: Exactly(21), unwound: Exactly(0),
    };

    "a destructor panics while a panic unwinds",
    "The process is aborted as untraced.",
    DIVE {
        args: &["bomb", "20"], end: -SIGABRT, unfinished: Exactly(1), unreturned: Any,
        // The calls below the destructor, of the second panic.
        unwound: AtLeast(21),
    };

    "a callback panics",
    "The panic turns that user off; the program does not see it.",
    tests {
        "crates/fgraph/tests/panics.rs": [
            "a_panic_at_entry_turns_only_that_user_off",
            "a_panic_at_return_turns_only_that_user_off",
            "a_panic_while_unwinding_does_not_stop_the_unwinding",
        ],
    };

    "functions that go on as one another by jumps are unwound",
    ONCE,
    tests {
        "crates/fgraph/tests/unwinding.rs": [
            "a_panic_through_tail_calls_is_caught_by_the_function_that_made_the_first",
        ],
    };

    "a C++ exception is caught by the caller",
    ONCE,
    EXCEPTIONS { args: &["caught", "0"], unwound: Exactly(1) };

    "a C++ exception is caught one frame up",
    ONCE,
    EXCEPTIONS { args: &["caught", "1"], unwound: Exactly(2) };

    "a C++ exception is caught two frames up",
    ONCE,
    EXCEPTIONS { args: &["caught", "2"], unwound: Exactly(3) };

    "a C++ exception is caught twenty frames up",
    ONCE,
    EXCEPTIONS { args: &["caught", "20"], unwound: Exactly(21), trace: Trace::AlsoEverything };

    "a C++ exception is caught twenty frames up with LLVM's libunwind",
    ONCE,
    LLVM { args: &["caught", "20"], unwound: Exactly(21) };

    "a C++ exception is caught half way up",
    "The frames below are reported as unwound, those above return.",
    EXCEPTIONS { args: &["half", "20"], unwound: Exactly(10) };

    "a C++ exception is caught half way up with LLVM's libunwind",
    "The frames below are reported as unwound, those above return.",
    LLVM { args: &["half", "20"], unwound: Exactly(10) };

    "a C++ exception is caught a thousand times",
    "Nothing is used up: the next exception finds the shadow stack as it was.",
    EXCEPTIONS { args: &["again", "20"], unwound: Exactly(21_000) };

    "a C++ exception is caught and thrown again in every frame",
    "Each frame is reported as unwound once.",
    EXCEPTIONS { args: &["rethrown", "20"], unwound: Exactly(21) };

    "a C++ exception is caught and thrown again in every frame with LLVM's libunwind",
    "Each frame is reported as unwound once.",
    LLVM { args: &["rethrown", "20"], unwound: Exactly(21) };

    "a C++ exception is unwound by a library inside the program",
    "The unwinder's own functions may be traced, too.",
    EXCEPTIONS {
        args: &["destructors", "20"],
        flags: &["-DUNWINDER=\"exceptions\"", "-static-libgcc", "-static-libstdc++"],
        // Users get only entries of these.
        functions: &["*", "!_Unwind_*", "!__cxa_throw", "!__cxa_rethrow", "!uw_*_context_1"],
        unwound: AtLeast(21 + 5 * 3),
    };

    "a C++ exception goes through calls that users have declined",
    "Each user gets the returns of the calls that it has accepted, and of no other.",
    EXCEPTIONS { args: &["destructors", "100"], declining: true, unwound: AtLeast(1) };

    "C++ destructors call functions while an exception unwinds",
    "Their calls are traced like any others, and may throw and catch for themselves.",
    EXCEPTIONS { args: &["destructors", "20"], unwound: Exactly(21 + 5 * 3) };

    "C++ destructors call functions while LLVM's libunwind unwinds",
    "Their calls are traced like any others, and may throw and catch for themselves.",
    LLVM { args: &["destructors", "20"], unwound: Exactly(21 + 5 * 3) };

    "a noexcept function throws",
    "The terminate handler runs, and the process ends as untraced.",
    EXCEPTIONS {
        args: &["terminate", "20"], unwound: Exactly(21), compare_stderr: true, end: -SIGABRT,
        unfinished: Exactly(1), unreturned: Any,
    };

    "a noexcept function throws with LLVM's libunwind",
    "The terminate handler runs, and the process ends as untraced.",
    LLVM {
        args: &["terminate", "20"], unwound: Exactly(21), compare_stderr: true, end: -SIGABRT,
        unfinished: Exactly(1), unreturned: Any,
    };

    "nobody catches a C++ exception",
    "The process ends as untraced, and nothing has been unwound.",
    EXCEPTIONS {
        args: &["uncaught", "20"], compare_stderr: true, end: -SIGABRT, unfinished: Exactly(1),
        unreturned: Any, unwound: Exactly(0),
    };

    "a C++ exception goes through functions in C",
    ONCE,
    EXCEPTIONS {
        args: &["relayed", "20"],
        parts: &[
            Part {
                name: "c_relay.o", source: "c_relay.c", compiler: Some(Compiler::Gcc),
                flags: &["-fexceptions"],
            },
        ],
        flags: &["-DUNWINDER=\"libgcc_s\"", "-DWITH_C", "-fexceptions"],
        // With the two of dive.
        unwound: Exactly(23),
    };

    "a C++ exception goes through the C library's own frames",
    "The exception passes the C library's frames, even if the C library is traced.",
    EXCEPTIONS { args: &["sorted", "0"], unwound: Exactly(4), trace: Trace::AlsoEverything };

    "a C++ exception is thrown again in other threads",
    "Each thread's users get the returns of its own frames.",
    EXCEPTIONS { args: &["handed", "20"], unwound: AtLeast(63) };

    "pthread_exit in the middle of calls",
    THREAD,
    ENDS { args: &["exit", "10"], trace: Trace::AlsoEverything };

    "pthread_exit with cleanup handlers in C",
    C_THREAD,
    C_ENDS { args: &["exit", "10"] };

    "a thread is cancelled where it waits",
    THREAD,
    ENDS { args: &["deferred", "10"] };

    "a thread is cancelled where it waits, with cleanup handlers in C",
    C_THREAD,
    C_ENDS { args: &["deferred", "10"] };

    "a thread is cancelled asynchronously",
    THREAD,
    ENDS { args: &["asynchronous", "10"] };

    "a thread is cancelled asynchronously, with cleanup handlers in C",
    C_THREAD,
    C_ENDS { args: &["asynchronous", "10"] };

    "pthread_exit in a program with LLVM's libunwind",
    C_THREAD,
    LLVM_ENDS { args: &["exit", "10"] };

    "a thread is cancelled where it waits, in a program with LLVM's libunwind",
    C_THREAD,
    LLVM_ENDS { args: &["deferred", "10"] };

    "a thread is cancelled asynchronously, in a program with LLVM's libunwind",
    C_THREAD,
    LLVM_ENDS { args: &["asynchronous", "10"] };

    "_Unwind_Backtrace is called twenty frames deep",
    "It shows every caller up to main, as untraced.",
    BACKTRACES { args: &["unwinder", "20"] };

    "_Unwind_Backtrace of LLVM's libunwind is called twenty frames deep",
    "It shows every caller up to main, as untraced.",
    BACKTRACES {
        args: &["unwinder", "20"], flags: &["-rdynamic", "-Wl,--no-as-needed", "-lunwind"],
        linked: LIBUNWIND,
    };

    "libunwind.so.8 steps through twenty frames",
    "It shows every caller up to main, as untraced (gperftools, heaptrack).",
    NONGNU { args: &["nongnu", "20"], trace: Trace::AlsoEverything };

    "libunwind.so.8 steps through tail calls",
    "It shows every caller up to main, as untraced.",
    NONGNU { args: &["nongnu", "2", "tails"], trace: Trace::AlsoEverything };

    "_Unwind_Backtrace is called in tail calls",
    "It shows every caller up to main, as untraced.",
    BACKTRACES { args: &["unwinder", "2", "tails"] };

    "backtrace() is called twenty frames deep",
    "It shows every caller up to main, as untraced.",
    BACKTRACES { args: &["library", "20"], trace: Trace::AlsoEverything };

    "backtrace() is called in the handler of a timer while the thread throws",
    "The unwinder never waits for itself: it takes no lock that it does not take untraced.",
    PLAIN { source: "unwinding_handlers.cpp", compilers: CXX, unwound: AtLeast(11) };

    "a personality routine finds the data of its frame by its stack pointer",
    "The unwinder returns the stack pointer of each frame as untraced (LuaJIT).",
    PLAIN {
        source: "unwinding_frames.c", compilers: C, flags: &["-fexceptions"],
        // `throws` by one to four times in each of twenty rounds.
        unwound: Exactly(50), trace: Trace::AlsoEverything,
    };

    "std::backtrace is called twenty frames deep",
    "It shows every caller up to main, as untraced.",
    PLAIN {
        is_long: true, source: "backtraces.rs", compilers: RUST, unwound: Exactly(0),
    };

    "a debugger shows a backtrace",
    "It shows every caller up to main.",
    tests { "crates/fgraph/tests/backtraces.rs": ["gdb_shows_every_caller"] };
};
