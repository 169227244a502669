//! The programs of the lab, for `cargo xtask`, which does not build it.

// Long strings: descriptions.

/// Names of the programs, and their descriptions.
pub const COMMANDS: [(&str, &str); 18] = [
    (
        "attach-test",
        "Attach to a hostile program and detach, many times, and see whether anything goes wrong",
    ),
    (
        "coverage",
        "Count which functions of programs and libraries can be traced",
    ),
    (
        "ecosystem",
        "Run programs of others, and tests of crates, while all their functions are traced",
    ),
    (
        "generated",
        "Record generated C programs, and compare their output and calls with runs of their own",
    ),
    (
        "hook",
        "Trace all functions of programs that know nothing of it",
    ),
    (
        "mcp-test",
        "Ask ten questions on a large recording over the Model Context Protocol, and time the answers",
    ),
    (
        "mutants",
        "Change the code in small ways, and see whether the tests notice",
    ),
    (
        "overhead",
        "Measure what recording real programs costs them, and the recorder",
    ),
    (
        "package-test",
        "Package all crates, and install the command from the packages alone",
    ),
    (
        "pictures",
        "Make the pictures of exports that are in docs/pictures",
    ),
    (
        "python-test",
        "Record CPython's own tests, and compare the events with those of sys.setprofile",
    ),
    (
        "recipes",
        "Run the recipes of docs/recipes, and see whether each names the cause that it has planted",
    ),
    (
        "roots",
        "Run tests in other Debian releases, with their C library, linker and compiler",
    ),
    (
        "same-trees",
        "Record programs of a directory with fgraph and, built with -pg, with uftrace, and compare",
    ),
    (
        "scale",
        "Measure what grows with the size of the traced program",
    ),
    (
        "spawn-test",
        "Attach to programs that start processes and detach, and see whether any process dies",
    ),
    (
        "start",
        "Measure what recording adds to the start of programs",
    ),
    (
        "versus",
        "Measure what a watched call costs with fgraph, and with others that watch calls",
    ),
];
