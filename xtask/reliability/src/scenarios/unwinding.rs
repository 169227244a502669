//! Calls that end by being unwound.

use crate::build::{C, CXX, Compiler, RUST};
use crate::scenario::Expect::{Any, AtLeast, Exactly};
use crate::scenario::{Elsewhere, Group, Hostile, Part, Scenario, Shown, Trace};

/// Signals that end programs here.
const SIGABRT: i32 = 6;

const PANICS: Hostile = Hostile {
    source: "panics.rs",
    compilers: RUST,
    ..Hostile::DEFAULT
};

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

/// A scenario with a program.
const fn by(name: &'static str, promise: &'static str, program: Hostile) -> Scenario {
    Scenario {
        name,
        promise,
        shown: Shown::By(program),
    }
}

const ONCE: &str = "Every frame that it leaves is reported as unwound, once, innermost first.";

pub(super) const GROUP: Group = Group {
    name: "unwinding",
    about: "panics, C++ exceptions, ends of threads, backtraces",
    scenarios: &[
        by(
            "a panic is caught by the caller",
            ONCE,
            Hostile {
                args: &["caught", "0"],
                unwound: Exactly(1),
                ..DIVE
            },
        ),
        by(
            "a panic is caught one frame up",
            ONCE,
            Hostile {
                args: &["caught", "1"],
                unwound: Exactly(2),
                ..DIVE
            },
        ),
        by(
            "a panic is caught two frames up",
            ONCE,
            Hostile {
                args: &["caught", "2"],
                unwound: Exactly(3),
                ..DIVE
            },
        ),
        by(
            "a panic is caught twenty frames up",
            ONCE,
            Hostile {
                args: &["caught", "20"],
                unwound: Exactly(21),
                ..DIVE
            },
        ),
        by(
            "a panic goes through all of the standard library",
            "The functions that make and catch panics may be traced, too.",
            Hostile {
                args: &["caught", "20"],
                unwound: AtLeast(21),
                trace: Trace::AlsoEverything,
                ..PANICS
            },
        ),
        by(
            "a panic is caught half way up",
            "The frames below are reported as unwound, those above return.",
            Hostile {
                args: &["half", "20"],
                unwound: AtLeast(10),
                ..PANICS
            },
        ),
        by(
            "a panic is caught again and again in recursion",
            "Nothing is used up: the next panic finds the shadow stack as it was.",
            Hostile {
                args: &["again", "100"],
                unwound: Exactly(300 * 101),
                ..DIVE
            },
        ),
        by(
            "a panic is resumed in every frame",
            "Each frame is reported as unwound once, however often the panic is caught in it.",
            Hostile {
                args: &["rethrown", "20"],
                unwound: Exactly(22),
                functions: &["*::dive", "*::relay"],
                ..PANICS
            },
        ),
        by(
            "destructors call functions while a panic unwinds",
            "Their calls are traced like any others, and may panic for themselves.",
            Hostile {
                args: &["destructors", "20"],
                unwound: Exactly(21 + 5 * 3),
                functions: &["*::dive", "*::guarded"],
                ..PANICS
            },
        ),
        by(
            "a panic ends a thread",
            "The thread's calls are reported as unwound, and the thread that joins it gets the \
             panic.",
            Hostile {
                args: &["joined", "20"],
                unwound: Exactly(42),
                ..DIVE
            },
        ),
        by(
            "a panic aborts",
            "With panic=abort the process ends as untraced.",
            Hostile {
                args: &["abort", "20"],
                flags: &["-Cpanic=abort"],
                compare_stderr: true,
                end: -SIGABRT,
                unfinished: Exactly(1),
                unreturned: Exactly(21),
                unwound: Exactly(0),
                ..DIVE
            },
        ),
        by(
            "a destructor panics while a panic unwinds",
            "The process is aborted as untraced.",
            Hostile {
                args: &["bomb", "20"],
                end: -SIGABRT,
                unfinished: Exactly(1),
                unreturned: Any,
                // Of the second panic what is below the destructor.
                unwound: AtLeast(21),
                ..DIVE
            },
        ),
        Scenario {
            name: "a callback panics",
            promise: "The panic turns that user off; the program does not see it.",
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
                    test: "a_panic_while_unwinding_does_not_stop_the_unwinding",
                },
            ]),
        },
        Scenario {
            name: "functions that go on as one another by jumps are unwound",
            promise: ONCE,
            shown: Shown::Elsewhere(&[Elsewhere {
                file: "crates/fgraph/tests/unwinding.rs",
                test: "a_panic_through_tail_calls_is_caught_by_the_function_that_made_the_first",
            }]),
        },
        by(
            "a C++ exception is caught by the caller",
            ONCE,
            Hostile {
                args: &["caught", "0"],
                unwound: Exactly(1),
                ..EXCEPTIONS
            },
        ),
        by(
            "a C++ exception is caught one frame up",
            ONCE,
            Hostile {
                args: &["caught", "1"],
                unwound: Exactly(2),
                ..EXCEPTIONS
            },
        ),
        by(
            "a C++ exception is caught two frames up",
            ONCE,
            Hostile {
                args: &["caught", "2"],
                unwound: Exactly(3),
                ..EXCEPTIONS
            },
        ),
        by(
            "a C++ exception is caught twenty frames up",
            ONCE,
            Hostile {
                args: &["caught", "20"],
                unwound: Exactly(21),
                trace: Trace::AlsoEverything,
                ..EXCEPTIONS
            },
        ),
        by(
            "a C++ exception is caught twenty frames up with LLVM's libunwind",
            ONCE,
            Hostile {
                args: &["caught", "20"],
                unwound: Exactly(21),
                ..LLVM
            },
        ),
        by(
            "a C++ exception is caught half way up",
            "The frames below are reported as unwound, those above return.",
            Hostile {
                args: &["half", "20"],
                unwound: Exactly(10),
                ..EXCEPTIONS
            },
        ),
        by(
            "a C++ exception is caught half way up with LLVM's libunwind",
            "The frames below are reported as unwound, those above return.",
            Hostile {
                args: &["half", "20"],
                unwound: Exactly(10),
                ..LLVM
            },
        ),
        by(
            "a C++ exception is caught a thousand times",
            "Nothing is used up: the next exception finds the shadow stack as it was.",
            Hostile {
                args: &["again", "20"],
                unwound: Exactly(21_000),
                ..EXCEPTIONS
            },
        ),
        by(
            "a C++ exception is caught and thrown again in every frame",
            "Each frame is reported as unwound once.",
            Hostile {
                args: &["rethrown", "20"],
                unwound: Exactly(21),
                ..EXCEPTIONS
            },
        ),
        by(
            "a C++ exception is caught and thrown again in every frame with LLVM's libunwind",
            "Each frame is reported as unwound once.",
            Hostile {
                args: &["rethrown", "20"],
                unwound: Exactly(21),
                ..LLVM
            },
        ),
        by(
            "a C++ exception is unwound by a library inside the program",
            "The unwinder's own functions may be traced, too.",
            Hostile {
                args: &["destructors", "20"],
                flags: &[
                    "-DUNWINDER=\"exceptions\"",
                    "-static-libgcc",
                    "-static-libstdc++",
                ],
                // Of these users get entries only.
                functions: &[
                    "*",
                    "!_Unwind_*",
                    "!__cxa_throw",
                    "!__cxa_rethrow",
                    "!uw_*_context_1",
                ],
                unwound: AtLeast(21 + 5 * 3),
                ..EXCEPTIONS
            },
        ),
        by(
            "a C++ exception goes through calls that users have declined",
            "Each user gets the returns of the calls that it has accepted, and of no other.",
            Hostile {
                args: &["destructors", "100"],
                declining: true,
                unwound: AtLeast(1),
                ..EXCEPTIONS
            },
        ),
        by(
            "C++ destructors call functions while an exception unwinds",
            "Their calls are traced like any others, and may throw and catch for themselves.",
            Hostile {
                args: &["destructors", "20"],
                unwound: Exactly(21 + 5 * 3),
                ..EXCEPTIONS
            },
        ),
        by(
            "C++ destructors call functions while LLVM's libunwind unwinds",
            "Their calls are traced like any others, and may throw and catch for themselves.",
            Hostile {
                args: &["destructors", "20"],
                unwound: Exactly(21 + 5 * 3),
                ..LLVM
            },
        ),
        by(
            "a noexcept function throws",
            "The terminate handler runs, and the process ends as untraced.",
            Hostile {
                args: &["terminate", "20"],
                unwound: Exactly(21),
                compare_stderr: true,
                end: -SIGABRT,
                unfinished: Exactly(1),
                unreturned: Any,
                ..EXCEPTIONS
            },
        ),
        by(
            "a noexcept function throws with LLVM's libunwind",
            "The terminate handler runs, and the process ends as untraced.",
            Hostile {
                args: &["terminate", "20"],
                unwound: Exactly(21),
                compare_stderr: true,
                end: -SIGABRT,
                unfinished: Exactly(1),
                unreturned: Any,
                ..LLVM
            },
        ),
        by(
            "nobody catches a C++ exception",
            "The process ends as untraced, and nothing has been unwound.",
            Hostile {
                args: &["uncaught", "20"],
                compare_stderr: true,
                end: -SIGABRT,
                unfinished: Exactly(1),
                unreturned: Any,
                unwound: Exactly(0),
                ..EXCEPTIONS
            },
        ),
        by(
            "a C++ exception goes through functions in C",
            ONCE,
            Hostile {
                args: &["relayed", "20"],
                parts: &[Part {
                    name: "c_relay.o",
                    source: "c_relay.c",
                    compiler: Some(Compiler::Gcc),
                    flags: &["-fexceptions"],
                }],
                flags: &["-DUNWINDER=\"libgcc_s\"", "-DWITH_C", "-fexceptions"],
                // With the two of dive.
                unwound: Exactly(23),
                ..EXCEPTIONS
            },
        ),
        by(
            "a C++ exception goes through the C library's own frames",
            "The exception passes the C library's frames, even if the C library is traced.",
            Hostile {
                args: &["sorted", "0"],
                unwound: Exactly(4),
                trace: Trace::AlsoEverything,
                ..EXCEPTIONS
            },
        ),
        by(
            "a C++ exception is thrown again in other threads",
            "Each thread's users get the returns of its own frames.",
            Hostile {
                args: &["handed", "20"],
                unwound: AtLeast(63),
                ..EXCEPTIONS
            },
        ),
        by(
            "pthread_exit in the middle of calls",
            THREAD,
            Hostile {
                args: &["exit", "10"],
                trace: Trace::AlsoEverything,
                ..ENDS
            },
        ),
        by(
            "pthread_exit with cleanup handlers in C",
            C_THREAD,
            Hostile {
                args: &["exit", "10"],
                ..C_ENDS
            },
        ),
        by(
            "a thread is cancelled where it waits",
            THREAD,
            Hostile {
                args: &["deferred", "10"],
                ..ENDS
            },
        ),
        by(
            "a thread is cancelled where it waits, with cleanup handlers in C",
            C_THREAD,
            Hostile {
                args: &["deferred", "10"],
                ..C_ENDS
            },
        ),
        by(
            "a thread is cancelled asynchronously",
            THREAD,
            Hostile {
                args: &["asynchronous", "10"],
                ..ENDS
            },
        ),
        by(
            "a thread is cancelled asynchronously, with cleanup handlers in C",
            C_THREAD,
            Hostile {
                args: &["asynchronous", "10"],
                ..C_ENDS
            },
        ),
        by(
            "pthread_exit in a program with LLVM's libunwind",
            C_THREAD,
            Hostile {
                args: &["exit", "10"],
                ..LLVM_ENDS
            },
        ),
        by(
            "a thread is cancelled where it waits, in a program with LLVM's libunwind",
            C_THREAD,
            Hostile {
                args: &["deferred", "10"],
                ..LLVM_ENDS
            },
        ),
        by(
            "a thread is cancelled asynchronously, in a program with LLVM's libunwind",
            C_THREAD,
            Hostile {
                args: &["asynchronous", "10"],
                ..LLVM_ENDS
            },
        ),
        by(
            "_Unwind_Backtrace is called twenty frames deep",
            "It shows every caller up to main, as untraced.",
            Hostile {
                args: &["unwinder", "20"],
                ..BACKTRACES
            },
        ),
        by(
            "_Unwind_Backtrace of LLVM's libunwind is called twenty frames deep",
            "It shows every caller up to main, as untraced.",
            Hostile {
                args: &["unwinder", "20"],
                flags: &["-rdynamic", "-Wl,--no-as-needed", "-lunwind"],
                linked: LIBUNWIND,
                ..BACKTRACES
            },
        ),
        by(
            "libunwind.so.8 steps through twenty frames",
            "It shows every caller up to main, as untraced (gperftools, heaptrack).",
            Hostile {
                args: &["nongnu", "20"],
                trace: Trace::AlsoEverything,
                ..NONGNU
            },
        ),
        by(
            "libunwind.so.8 steps through tail calls",
            "It shows every caller up to main, as untraced.",
            Hostile {
                args: &["nongnu", "2", "tails"],
                trace: Trace::AlsoEverything,
                ..NONGNU
            },
        ),
        by(
            "_Unwind_Backtrace is called in tail calls",
            "It shows every caller up to main, as untraced.",
            Hostile {
                args: &["unwinder", "2", "tails"],
                ..BACKTRACES
            },
        ),
        by(
            "backtrace() is called twenty frames deep",
            "It shows every caller up to main, as untraced.",
            Hostile {
                args: &["library", "20"],
                trace: Trace::AlsoEverything,
                ..BACKTRACES
            },
        ),
        by(
            "backtrace() is called in the handler of a timer while the thread throws",
            "The unwinder never waits for itself: it takes no lock that it does not take untraced.",
            Hostile {
                source: "unwinding_handlers.cpp",
                compilers: CXX,
                unwound: AtLeast(11),
                ..Hostile::DEFAULT
            },
        ),
        by(
            "a personality routine finds the data of its frame by its stack pointer",
            "The unwinder returns the stack pointer of each frame as untraced (LuaJIT).",
            Hostile {
                source: "unwinding_frames.c",
                compilers: C,
                flags: &["-fexceptions"],
                // `throws` by one to four times in each of twenty rounds.
                unwound: Exactly(50),
                trace: Trace::AlsoEverything,
                ..Hostile::DEFAULT
            },
        ),
        by(
            "std::backtrace is called twenty frames deep",
            "It shows every caller up to main, as untraced.",
            Hostile {
                source: "backtraces.rs",
                compilers: RUST,
                unwound: Exactly(0),
                ..Hostile::DEFAULT
            },
        ),
        Scenario {
            name: "a debugger shows a backtrace",
            promise: "It shows every caller up to main.",
            shown: Shown::Elsewhere(&[Elsewhere {
                file: "crates/fgraph/tests/backtraces.rs",
                test: "gdb_shows_every_caller",
            }]),
        },
    ],
};
