//! Libraries that come and go.

use crate::build::{C, CXX, Compiler};
use crate::scenario::Expect::{Any, AtLeast, Exactly};
use crate::scenario::{Elsewhere, Group, Hostile, Part, Scenario, Shown, Trace};

const GCC: &[Compiler] = &[Compiler::Gcc];
const GXX: &[Compiler] = &[Compiler::Gxx];

const ORIGIN: &str = "-Wl,-rpath,$ORIGIN";

const PART: Part = Part {
    name: "libpart.so",
    source: "library_part.c",
    ..Part::DEFAULT
};
const OTHER: Part = Part {
    name: "libother.so",
    source: "library_part.c",
    flags: &["-DVALUE=2"],
    ..Part::DEFAULT
};
const LOADING: Hostile = Hostile {
    source: "library_loading.c",
    compilers: C,
    flags: &["-rdynamic", ORIGIN],
    parts: &[PART, OTHER],
    filter: ":mod:libpart.so :mod:libother.so",
    ..Hostile::DEFAULT
};

/// The callees of `value_calls.c` in a library.
const CALLEES: Part = Part {
    name: "libcallees.so",
    source: "value_calls.c",
    flags: &[
        "-mavx512f",
        "-mavx512bw",
        "-mavx512vl",
        "-mavx512dq",
        "-Wno-psabi",
        "-DPART=1",
    ],
    ..Part::DEFAULT
};
const LAZY: Hostile = Hostile {
    source: "value_calls.c",
    compilers: C,
    flags: &[
        "-mavx512f",
        "-mavx512bw",
        "-mavx512vl",
        "-mavx512dq",
        "-Wno-psabi",
        "-DPART=2",
        "-rdynamic",
        ORIGIN,
        "-Wl,-z,lazy",
        "-L.",
        "-lcallees",
    ],
    parts: &[CALLEES],
    filter: ":mod:libcallees.so",
    trace: Trace::AlsoEverything,
    ..Hostile::DEFAULT
};

/// A program that is built with other options.
const BUILT: Hostile = Hostile {
    source: "exceptions.cpp",
    args: &["caught", "20"],
    compilers: CXX,
    unwound: Exactly(21),
    ..Hostile::DEFAULT
};

const fn test(file: &'static str, test: &'static str) -> Elsewhere {
    Elsewhere { file, test }
}

const LIBRARIES: &str = "crates/fgraph/tests/libraries.rs";

pub(super) const GROUP: Group = Group {
    name: "libraries",
    about: "libraries that come and go, lazy binding, other ways to build",
    scenarios: &[
        Scenario {
            name: "a library is loaded and unloaded 2,000 times",
            promise: "It is traced each time, and memory does not grow.",
            shown: Shown::By(Hostile {
                is_long: true,
                args: &["loop", "2000"],
                entries: AtLeast(60000),
                ..LOADING
            }),
        },
        Scenario {
            name: "a library is somewhere else each time",
            promise: "It is traced each time. fgraph's memory for a library stays for good, and \
                      is reused if the library is loaded at the same place: memory grows with \
                      the number of places.",
            shown: Shown::By(Hostile {
                is_long: true,
                args: &["moving", "1000"],
                entries: AtLeast(30000),
                ..LOADING
            }),
        },
        Scenario {
            name: "a library never comes to the same place again",
            promise: "It is traced each time. fgraph's memory for it stays: memory grows by less \
                      than 64 KiB each time, and each time takes longer.",
            shown: Shown::By(Hostile {
                args: &["drifting", "200"],
                entries: AtLeast(6000),
                ..LOADING
            }),
        },
        Scenario {
            name: "four threads load and unload libraries",
            promise: "All calls have the right results.",
            shown: Shown::By(Hostile {
                args: &["threads"],
                ..LOADING
            }),
        },
        Scenario {
            name: "libraries come and go while filters change",
            promise: "Each filter holds for each library, before its constructors run.",
            shown: Shown::Elsewhere(&[
                test(
                    LIBRARIES,
                    "a_library_joins_a_filter_before_its_constructors_run",
                ),
                test(
                    LIBRARIES,
                    "a_library_joins_every_filter_that_selects_its_functions",
                ),
                test(LIBRARIES, "libraries_come_and_go_while_filters_change"),
            ]),
        },
        Scenario {
            name: "a filter is changed while another thread loads libraries all the time",
            promise: "The change is done after a few libraries.",
            shown: Shown::Elsewhere(&[test(
                LIBRARIES,
                "a_filter_is_changed_in_the_end_while_another_thread_loads_libraries_all_the_time",
            )]),
        },
        Scenario {
            name: "a library is loaded during another thread's fork, or while a callback drops its \
                   user",
            promise: "The library is traced after the fork or the callback.",
            shown: Shown::Elsewhere(&[
                test(
                    LIBRARIES,
                    "a_library_that_is_loaded_during_a_fork_is_traced_after_it",
                ),
                test(
                    LIBRARIES,
                    "a_library_that_is_loaded_while_a_callback_drops_its_user_is_traced",
                ),
            ]),
        },
        Scenario {
            name: "a library with text relocations",
            promise: "Functions whose first instructions the dynamic linker writes to are \
                      refused; the others are traced.",
            shown: Shown::Elsewhere(&[test(
                LIBRARIES,
                "functions_that_the_linker_writes_to_are_refused",
            )]),
        },
        Scenario {
            name: "a constructor forks while another thread waits for it with a new filter",
            promise: "The fork does not wait, and parent and child both have their users.",
            shown: Shown::Elsewhere(&[test(
                LIBRARIES,
                "a_constructor_may_fork_while_a_filter_waits_for_it",
            )]),
        },
        Scenario {
            name: "a function of a library jumps to one that unloads the library",
            promise: "Its return is reported although the library is gone: fgraph's memory for \
                      it stays.",
            shown: Shown::By(Hostile {
                args: &["leaves"],
                entries: AtLeast(8000),
                ..LOADING
            }),
        },
        Scenario {
            name: "a library is closed while a thread with a handle of its own is inside",
            promise: "The thread returns as without tracing.",
            shown: Shown::By(Hostile {
                args: &["waits"],
                ..LOADING
            }),
        },
        Scenario {
            name: "constructors and destructors with priorities",
            promise: "They run in the same order, and are traced.",
            shown: Shown::By(Hostile {
                args: &["constructors"],
                entries: AtLeast(60),
                trace: Trace::AlsoEverything,
                unreturned: Any,
                ..LOADING
            }),
        },
        Scenario {
            name: "calls with vectors of 512 bits are bound lazily",
            promise: "All arguments get through the dynamic linker, even while that is traced.",
            shown: Shown::By(LAZY),
        },
        Scenario {
            name: "the same with LD_BIND_NOW",
            promise: "All arguments arrive.",
            shown: Shown::By(Hostile {
                environment: &[("LD_BIND_NOW", "1")],
                trace: Trace::Program,
                ..LAZY
            }),
        },
        Scenario {
            name: "thread-local variables of libraries that come anew while threads go on",
            promise: "Every thread has its own.",
            shown: Shown::By(Hostile {
                args: &["tls"],
                trace: Trace::AlsoEverything,
                ..LOADING
            }),
        },
        Scenario {
            name: "such variables in the initial-exec model",
            promise: "Every thread has its own.",
            shown: Shown::By(Hostile {
                args: &["tls"],
                parts: &[
                    Part {
                        flags: &["-DINITIAL_EXEC"],
                        ..PART
                    },
                    Part {
                        flags: &["-DVALUE=2", "-DINITIAL_EXEC"],
                        ..OTHER
                    },
                ],
                ..LOADING
            }),
        },
        Scenario {
            name: "such variables by descriptors",
            promise: "Every thread has its own: the linker's functions for these keep every \
                      register.",
            shown: Shown::By(Hostile {
                args: &["tls"],
                parts: &[
                    Part {
                        flags: &["-mtls-dialect=gnu2"],
                        ..PART
                    },
                    Part {
                        flags: &["-DVALUE=2", "-mtls-dialect=gnu2"],
                        ..OTHER
                    },
                ],
                compilers: GCC,
                trace: Trace::AlsoEverything,
                ..LOADING
            }),
        },
        Scenario {
            name: "dlmopen loads a library into another namespace",
            promise: "It works as without tracing. The copy there is not traced: filters do not \
                      reach it.",
            shown: Shown::By(Hostile {
                args: &["namespaces"],
                ..LOADING
            }),
        },
        Scenario {
            name: "one library interposes functions of the other",
            promise: "Calls go to the same functions as without tracing.",
            shown: Shown::By(Hostile {
                args: &["interposed"],
                parts: &[
                    Part {
                        flags: &["-fsemantic-interposition"],
                        ..PART
                    },
                    Part {
                        flags: &["-DVALUE=2", "-fsemantic-interposition"],
                        ..OTHER
                    },
                ],
                ..LOADING
            }),
        },
        Scenario {
            name: "RTLD_DEEPBIND",
            promise: "Calls go to the same functions as without tracing.",
            shown: Shown::By(Hostile {
                args: &["deepbind"],
                ..LOADING
            }),
        },
        Scenario {
            name: "a library with IFUNCs",
            promise: "Resolvers run as without tracing, and the functions that they choose are \
                      traced.",
            shown: Shown::By(Hostile {
                args: &["chosen"],
                entries: AtLeast(1200),
                ..LOADING
            }),
        },
        Scenario {
            name: "a library's file is removed after it is loaded",
            promise: "The library works as without tracing.",
            shown: Shown::By(Hostile {
                args: &["removed"],
                filter: ":mod:libpart.so :mod:libother.so :mod:copied.so",
                ..LOADING
            }),
        },
        Scenario {
            name: "a library's file is replaced after it is loaded",
            promise: "The library works as without tracing.",
            shown: Shown::By(Hostile {
                args: &["replaced"],
                filter: ":mod:libpart.so :mod:libother.so :mod:copied.so",
                ..LOADING
            }),
        },
        Scenario {
            name: "a library is closed, rebuilt and loaded again at the same place",
            promise: "It counts as another library, with or without a build id, even if the old \
                      one was traced to its end.",
            shown: Shown::Elsewhere(&[
                test(
                    LIBRARIES,
                    "a_library_that_is_replaced_at_the_same_place_is_another",
                ),
                test(
                    LIBRARIES,
                    "a_library_without_a_build_id_that_is_replaced_is_another",
                ),
                test(
                    LIBRARIES,
                    "a_library_without_a_build_id_that_is_replaced_while_traced_is_another",
                ),
                test(
                    LIBRARIES,
                    "a_file_with_the_number_of_the_one_before_is_another",
                ),
                test(
                    LIBRARIES,
                    "a_smaller_library_takes_the_place_of_one_whose_sites_are_patched",
                ),
            ]),
        },
        Scenario {
            name: "libraries' files are removed and replaced before anybody looks at them",
            promise: "Their functions are no longer listed, and are not patched. A library that \
                      replaces them is traced when it is loaded.",
            shown: Shown::By(Hostile {
                args: &["early"],
                flags: &["-rdynamic", ORIGIN, "-L.", "-Wl,--no-as-needed", "-learly"],
                parts: &[
                    PART,
                    OTHER,
                    Part {
                        name: "libearly.so",
                        source: "library_early.c",
                        flags: &[ORIGIN],
                        ..Part::DEFAULT
                    },
                ],
                filter: ":mod:removed.so :mod:replaced.so",
                ..LOADING
            }),
        },
        Scenario {
            name: "gcc pads functions with five NOPs",
            promise: "Such functions are traced like others.",
            shown: Shown::By(Hostile {
                flags: &["-fpatchable-function-entry=5"],
                compilers: GXX,
                ..BUILT
            }),
        },
        Scenario {
            name: "values of functions that gcc has padded",
            promise: "Every bit of arguments and results is as without tracing.",
            shown: Shown::By(Hostile {
                source: "value_calls.c",
                flags: &["-fpatchable-function-entry=5", "-Wno-psabi"],
                compilers: GCC,
                ..Hostile::DEFAULT
            }),
        },
        Scenario {
            name: "functions begin with endbr64",
            promise: "The `endbr64` stays where it is.",
            shown: Shown::By(Hostile {
                flags: &["-fcf-protection=full"],
                ..BUILT
            }),
        },
        Scenario {
            name: "functions begin with a call of __fentry__",
            promise: "`__fentry__` is called as without tracing.",
            shown: Shown::By(Hostile {
                flags: &["-pg", "-mfentry"],
                ..BUILT
            }),
        },
        Scenario {
            name: "a program that is not position independent",
            promise: "The program is traced like others.",
            shown: Shown::By(Hostile {
                flags: &["-no-pie", "-fno-pie"],
                ..BUILT
            }),
        },
        Scenario {
            name: "text and data in one segment",
            promise: "The program is traced like others.",
            shown: Shown::By(Hostile {
                flags: &["-Wl,-z,noseparate-code"],
                ..BUILT
            }),
        },
        Scenario {
            name: "a stripped program that exports its functions",
            promise: "The functions that the program exports are traced.",
            shown: Shown::By(Hostile {
                flags: &["-rdynamic", "-s"],
                // Of those that are not static.
                unwound: Any,
                ..BUILT
            }),
        },
        Scenario {
            name: "libraries are stripped, and bind at once",
            promise: "The functions that the libraries export are traced.",
            shown: Shown::By(Hostile {
                args: &["threads"],
                parts: &[
                    Part {
                        flags: &["-s", "-Wl,-z,now,-z,relro"],
                        ..PART
                    },
                    Part {
                        flags: &["-DVALUE=2", "-s"],
                        ..OTHER
                    },
                ],
                ..LOADING
            }),
        },
    ],
};
