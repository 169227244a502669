//! Libraries that come and go.

use crate::compiler::{C, CXX, Compiler};
use crate::scenario::Expect::{Any, AtLeast, Exactly};
use crate::scenario::{Group, Hostile, PLAIN, Part, Trace};

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
    is_long: true,
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

const LIBRARIES: &str = "crates/fgraph/tests/libraries.rs";

pub(super) const GROUP: Group = group! {
    "libraries", "libraries that come and go, lazy binding, other ways to build";

    "a library is loaded and unloaded 2,000 times",
    "It is traced each time, and memory does not grow.",
    LOADING { is_long: true, args: &["loop", "2000"], entries: AtLeast(60000) };

    "a library is somewhere else each time",
    "It is traced each time. fgraph's memory for a library stays for good, and is reused if the \
     library is loaded at the same place: memory grows with the number of places.",
    LOADING { is_long: true, args: &["moving", "1000"], entries: AtLeast(30000) };

    "a library never comes to the same place again",
    "It is traced each time. fgraph's memory for it stays: memory grows by less than 64 KiB each \
     time, and each time takes longer.",
    LOADING { args: &["drifting", "200"], entries: AtLeast(6000) };

    "four threads load and unload libraries",
    "All calls have the right results.",
    LOADING { args: &["threads"] };

    "libraries come and go while filters change",
    "Each filter holds for each library, before its constructors run.",
    tests {
        LIBRARIES: [
            "a_library_joins_a_filter_before_its_constructors_run",
            "a_library_joins_every_filter_that_selects_its_functions",
            "libraries_come_and_go_while_filters_change",
        ],
    };

    "a filter is changed while another thread loads libraries all the time",
    "The change is done after a few libraries.",
    tests {
        LIBRARIES: [
            "a_filter_is_changed_in_the_end_while_another_thread_loads_libraries_all_the_time",
        ],
    };

    "a library is loaded during another thread's fork, or while a callback drops its user",
    "The library is traced after the fork or the callback.",
    tests {
        LIBRARIES: [
            "a_library_that_is_loaded_during_a_fork_is_traced_after_it",
            "a_library_that_is_loaded_while_a_callback_drops_its_user_is_traced",
        ],
    };

    "a library with text relocations",
    "Functions whose first instructions the dynamic linker writes to are refused; the others are \
     traced.",
    tests { LIBRARIES: ["functions_that_the_linker_writes_to_are_refused"] };

    "a constructor forks while another thread waits for it with a new filter",
    "The fork does not wait, and parent and child both have their users.",
    tests { LIBRARIES: ["a_constructor_may_fork_while_a_filter_waits_for_it"] };

    "a function of a library jumps to one that unloads the library",
    "Its return is reported although the library is gone: fgraph's memory for it stays.",
    LOADING { args: &["leaves"], entries: AtLeast(8000) };

    "a library is closed while a thread with a handle of its own is inside",
    "The thread returns as without tracing.",
    LOADING { args: &["waits"] };

    "constructors and destructors with priorities",
    "They run in the same order, and are traced.",
    LOADING {
        args: &["constructors"], entries: AtLeast(60), trace: Trace::AlsoEverything,
        unreturned: Any,
    };

    "calls with vectors of 512 bits are bound lazily",
    "All arguments get through the dynamic linker, even while that is traced.",
    LAZY {};

    "the same with LD_BIND_NOW",
    "All arguments arrive.",
    LAZY { environment: &[("LD_BIND_NOW", "1")], trace: Trace::Program };

    "thread-local variables of libraries that come anew while threads go on",
    "Every thread has its own.",
    LOADING { args: &["tls"], trace: Trace::AlsoEverything };

    "such variables in the initial-exec model",
    "Every thread has its own.",
    LOADING {
        args: &["tls"],
        parts: &[
            Part { flags: &["-DINITIAL_EXEC"], ..PART },
            Part { flags: &["-DVALUE=2", "-DINITIAL_EXEC"], ..OTHER },
        ],
    };

    "such variables by descriptors",
    "Every thread has its own: the linker's functions for these keep every register.",
    LOADING {
        args: &["tls"],
        parts: &[
            Part { flags: &["-mtls-dialect=gnu2"], ..PART },
            Part { flags: &["-DVALUE=2", "-mtls-dialect=gnu2"], ..OTHER },
        ],
        compilers: GCC, trace: Trace::AlsoEverything,
    };

    "dlmopen loads a library into another namespace",
    "It works as without tracing. The copy there is not traced: filters do not reach it.",
    LOADING { args: &["namespaces"] };

    "one library interposes functions of the other",
    "Calls go to the same functions as without tracing.",
    LOADING {
        args: &["interposed"],
        parts: &[
            Part { flags: &["-fsemantic-interposition"], ..PART },
            Part { flags: &["-DVALUE=2", "-fsemantic-interposition"], ..OTHER },
        ],
    };

    "RTLD_DEEPBIND",
    "Calls go to the same functions as without tracing.",
    LOADING { args: &["deepbind"] };

    "a library with IFUNCs",
    "Resolvers run as without tracing, and the functions that they choose are traced.",
    LOADING { args: &["chosen"], entries: AtLeast(1200) };

    "a library's file is removed after it is loaded",
    "The library works as without tracing.",
    LOADING { args: &["removed"], filter: ":mod:libpart.so :mod:libother.so :mod:copied.so" };

    "a library's file is replaced after it is loaded",
    "The library works as without tracing.",
    LOADING { args: &["replaced"], filter: ":mod:libpart.so :mod:libother.so :mod:copied.so" };

    "a library is closed, rebuilt and loaded again at the same place",
    "It counts as another library, with or without a build id, even if the old one was traced to \
     its end.",
    tests {
        LIBRARIES: [
            "a_library_that_is_replaced_at_the_same_place_is_another",
            "a_library_without_a_build_id_that_is_replaced_is_another",
            "a_library_without_a_build_id_that_is_replaced_while_traced_is_another",
            "a_file_with_the_number_of_the_one_before_is_another",
            "a_smaller_library_takes_the_place_of_one_whose_sites_are_patched",
        ],
    };

    "libraries' files are removed and replaced before anybody looks at them",
    "Their functions are no longer listed, and are not patched. A library that replaces them is \
     traced when it is loaded.",
    LOADING {
        args: &["early"], flags: &["-rdynamic", ORIGIN, "-L.", "-Wl,--no-as-needed", "-learly"],
        parts: &[
            PART, OTHER,
            Part {
                name: "libearly.so", source: "library_early.c", flags: &[ORIGIN], ..Part::DEFAULT
            },
        ],
        filter: ":mod:removed.so :mod:replaced.so",
    };

    "gcc pads functions with five NOPs",
    "Such functions are traced like others.",
    BUILT { flags: &["-fpatchable-function-entry=5"], compilers: GXX };

    "values of functions that gcc has padded",
    "Every bit of arguments and results is as without tracing.",
    PLAIN {
        source: "value_calls.c", flags: &["-fpatchable-function-entry=5", "-Wno-psabi"],
        compilers: GCC,
    };

    "functions begin with endbr64",
    "The `endbr64` stays where it is.",
    BUILT { flags: &["-fcf-protection=full"] };

    "functions begin with a call of __fentry__",
    "`__fentry__` is called as without tracing.",
    BUILT { flags: &["-pg", "-mfentry"] };

    "a program that is not position independent",
    "The program is traced like others.",
    BUILT { flags: &["-no-pie", "-fno-pie"] };

    "text and data in one segment",
    "The program is traced like others.",
    BUILT { flags: &["-Wl,-z,noseparate-code"] };

    "a stripped program that exports its functions",
    "The functions that the program exports are traced.",
    BUILT {
        flags: &["-rdynamic", "-s"],
        // Calls in programs that are not static.
        unwound: Any,
    };

    "libraries are stripped, and bind at once",
    "The functions that the libraries export are traced.",
    LOADING {
        args: &["threads"],
        parts: &[
            Part { flags: &["-s", "-Wl,-z,now,-z,relro"], ..PART },
            Part { flags: &["-DVALUE=2", "-s"], ..OTHER },
        ],
    };
};
