//! The tools of the server.

use super::tool::{Argument, Does, Kind, To, Tool, View, argument};

const RECORDING: &[Argument] = &[argument(
    "recording",
    Kind::Recording,
    To::Place,
    "The recording: a handle such as r1, or a path",
)
.required()];

/// The part of a recording.
const PART: &[Argument] = &[
    argument(
        "threads",
        Kind::Texts,
        To::Option("--thread"),
        "Only these threads, by their ids",
    ),
    argument(
        "from",
        Kind::Text,
        To::Option("--from"),
        "Only events after this time since the first event: 1.5s, 200ms",
    ),
    argument(
        "to",
        Kind::Text,
        To::Option("--to"),
        "Only events before this time since the first event",
    ),
];

const FILTERS: &[Argument] = &[argument(
    "filters",
    Kind::Texts,
    To::Option("--filter"),
    "Only functions with these names: globs such as parse*, libc:open*",
)];

const TIME_OF: &[Argument] = &[argument(
    "time_of",
    Kind::Choice(&["wall", "cpu", "runnable", "blocked"]),
    To::Option("--time"),
    "Count this time of calls: all of it (wall, the default), on a processor (cpu), waiting for \
     a processor (runnable), waiting for something else (blocked)",
)];

/// The rows of an answer.
const PAGE: &[Argument] = &[
    argument(
        "limit",
        Kind::Number(1, 500),
        To::Server,
        "The most rows to return; the default is 20",
    ),
    argument(
        "offset",
        Kind::Number(0, 10_000_000),
        To::Server,
        "The number of rows to skip: next_offset of an answer continues it",
    ),
];

/// A program to run.
const PROGRAM: &[Argument] = &[
    argument(
        "program",
        Kind::Text,
        To::Last,
        "The program to run, as a path or the name of a program in PATH; no shell is involved",
    ),
    argument(
        "args",
        Kind::Texts,
        To::Last,
        "The arguments of the program",
    ),
    CWD,
];

const CWD: Argument = argument(
    "cwd",
    Kind::Text,
    To::Server,
    "The directory in which the program runs; the server's by default",
);

const PID: Argument = argument(
    "pid",
    Kind::Number(1, u32::MAX as u64),
    To::Option("--pid"),
    "The process, by its number",
);

const TIME: &[Argument] = &[argument(
    "time",
    Kind::Text,
    To::Server,
    "The time limit: 500ms, 10s, 2m; the default is 10s. A program that was started is ended then, \
     a process goes on",
)];

/// The functions that are recorded.
const SELECTION: &[Argument] = &[
    argument(
        "functions",
        Kind::Texts,
        To::Option("--function"),
        "Record these functions: globs such as parse*, with a module as in libc:open*, \
         crate:NAME for a Rust crate. Without it: all functions of the program's own file, and of \
         libraries outside of the system's directories",
    ),
    argument(
        "without",
        Kind::Texts,
        To::Option("--notrace"),
        "Do not record these functions",
    ),
    argument(
        "inside",
        Kind::Texts,
        To::Option("--graph-function"),
        "Record only calls of these functions, and the calls inside them",
    ),
    argument(
        "also",
        Kind::Texts,
        To::Option("--also"),
        "Record these functions in addition to those that are recorded otherwise",
    ),
    argument(
        "threshold",
        Kind::Text,
        To::Option("--threshold"),
        "Record only calls that took at least this time: 10us",
    ),
    argument(
        "depth",
        Kind::Number(1, 1000),
        To::Option("--depth"),
        "Leave out calls nested inside this many recorded ones",
    ),
    argument(
        "libs",
        Kind::Flag,
        To::Flag("--libs"),
        "Also record the functions of the system's libraries",
    ),
    argument(
        "waits",
        Kind::Flag,
        To::Flag("--waits"),
        "Also record what threads wait for: the tool why needs it",
    ),
    argument(
        "tasks",
        Kind::Flag,
        To::Flag("--tasks"),
        "Also record the tasks of async runtimes: the tool tasks needs it",
    ),
    argument(
        "heap",
        Kind::Flag,
        To::Flag("--heap"),
        "Record only allocators: the tool heap needs it",
    ),
    argument(
        "python",
        Kind::Flag,
        To::Flag("--python"),
        "Record Python's own functions, too",
    ),
    argument(
        "values",
        Kind::Flag,
        To::Flag("--args"),
        "Record arguments of calls",
    ),
    argument(
        "results",
        Kind::Flag,
        To::Flag("--retval"),
        "Record results of calls",
    ),
    argument(
        "no_follow",
        Kind::Flag,
        To::Flag("--no-follow"),
        "Follow neither forked processes nor executed programs",
    ),
    argument(
        "max_size",
        Kind::Text,
        To::Option("--max-size"),
        "End the recording at this size: 500K, 100M, 1G; the default is 256M",
    ),
];

const fn view(
    command: &'static str,
    rows: &'static [&'static str],
    count: Option<&'static str>,
) -> Does {
    Does::View(View {
        command,
        rows,
        count,
    })
}

/// All tools; `inject` is the last one.
#[rustfmt::skip]
pub(super) const TOOLS: &[Tool] = &[
    Tool {
        name: "record",
        about: "Run a program and record its function calls. Returns a handle of the recording, \
                for the other tools, and the program's exit code and output. The program runs with \
                the rights of the server's user, and is ended at the time limit.",
        does: Does::Record,
        arguments: &[&[
            argument("program", Kind::Text, To::Last,
                "The program to run, as a path or the name of a program in PATH; no shell is \
                 involved").required(),
            argument("args", Kind::Texts, To::Last, "The arguments of the program"),
            CWD,
        ], TIME, SELECTION],
    },
    Tool {
        name: "attach",
        about: "Record the function calls of a running process for some time; then the process \
                goes on, untraced. Returns a handle of the recording, for the other tools.",
        does: Does::Record,
        arguments: &[&[PID.required()], TIME, SELECTION],
    },
    Tool {
        name: "recordings",
        about: "List the recordings of the server, with their handles.",
        does: Does::List,
        arguments: &[PAGE],
    },
    Tool {
        name: "forget",
        about: "Remove a recording of the server.",
        does: Does::Forget,
        arguments: &[&[
            argument("recording", Kind::Text, To::Server, "The handle of the recording")
                .required(),
        ]],
    },
    Tool {
        name: "info",
        about: "Show the origin of a recording, and the number of its calls, threads and \
                functions; also functions that were switched off, and lost events.",
        does: view("info", &[], None),
        arguments: &[RECORDING],
    },
    Tool {
        name: "report",
        about: "Show where the time went: a row for each function with its calls and times. Start \
                with this one.",
        does: view("report", &["lines"], None),
        arguments: &[RECORDING, &[
            argument("sort",
                Kind::Choice(&["self", "total", "avg", "p50", "p95", "p99", "max", "calls",
                               "name"]),
                To::Option("--sort"), "The order of the rows; the default is self"),
            argument("by", Kind::Choice(&["function", "thread", "module", "source"]),
                To::Option("--by"), "Group calls by this; the default is function"),
        ], FILTERS, TIME_OF, PART, PAGE],
    },
    Tool {
        name: "graph",
        about: "Show the callers and callees of a function, with counts and times.",
        does: view("graph", &[], None),
        arguments: &[&[
            argument("function", Kind::Text, To::Place,
                "The function; a glob that matches several treats them as one").required(),
        ], RECORDING, &[
            argument("depth", Kind::Number(1, 20), To::Option("--depth"),
                "The levels of callers and of callees; the default is 3"),
        ], TIME_OF, PART],
    },
    Tool {
        name: "outliers",
        about: "Show the slowest calls, each with the calls inside it.",
        does: view("outliers", &["calls"], Some("--number")),
        arguments: &[RECORDING, &[
            argument("least", Kind::Text, To::Option("--least"),
                "Leave out inner calls shorter than this percentage of the slow one; 1% by \
                 default"),
        ], FILTERS, PART, PAGE],
    },
    Tool {
        name: "calls",
        about: "List single calls when they end, innermost first: time, depth, arguments, result. \
                Choose a part of the recording by from, to, threads, filters or threshold.",
        does: Does::Lines("replay"),
        arguments: &[RECORDING, &[
            argument("without", Kind::Texts, To::Option("--notrace"),
                "Leave out functions with these names, and the calls inside them"),
            argument("depth", Kind::Number(1, 1000), To::Option("--depth"),
                "Leave out calls that are nested deeper"),
            argument("threshold", Kind::Text, To::Option("--threshold"),
                "Only calls that took at least this long: 10us"),
        ], FILTERS, PART, PAGE],
    },
    Tool {
        name: "why",
        about: "Explain why the slowest calls of a function take longer than the usual ones: \
                computing, waiting for a processor, locks, files, sockets. The recording needs \
                waits: true. With call, one slow call step by step.",
        does: view("why", &["lines"], Some("--lines")),
        arguments: &[RECORDING, &[
            argument("function", Kind::Text, To::Option("--function"),
                "The function, or a glob; without it, requests are explained"),
            argument("requests", Kind::Texts, To::Option("--request"),
                "Explain requests instead: calls with the same value of an argument, as \
                 handle(arg0)"),
            argument("slowest", Kind::Text, To::Option("--slowest"),
                "The part of the calls that is explained; the default is 1%"),
            argument("call", Kind::Number(1, 1_000_000), To::Option("--call"),
                "Explain the Nth slowest call"),
        ], PART, PAGE],
    },
    Tool {
        name: "diff",
        about: "Compare recordings of two builds or two situations: calls and times of each \
                function that have changed. Times need three recordings of each.",
        does: view("diff", &["functions"], Some("--lines")),
        arguments: &[&[
            argument("old", Kind::Recordings, To::Place, "The recordings before the change")
                .required(),
            argument("new", Kind::Recordings, To::Last, "The recordings after the change")
                .required(),
            argument("all", Kind::Flag, To::Flag("--all"),
                "Show functions without a certain change, too"),
            argument("fail_on", Kind::Texts, To::Option("--fail-on"),
                "Conditions to check: calls(malloc) > +0%, self > +5%"),
        ], FILTERS, PAGE],
    },
    Tool {
        name: "tasks",
        about: "Show the tasks of async runtimes: polls that block, tasks that are late, what \
                they wait for. The recording needs tasks: true.",
        does: view("tasks", &["kinds"], Some("--lines")),
        arguments: &[RECORDING, &[
            argument("longest", Kind::Text, To::Option("--longest"),
                "Count polls as blocking that take at least this time; the default is 1ms"),
        ], PART, PAGE],
    },
    Tool {
        name: "heap",
        about: "Show blocks of memory by call path: live, at the peak, allocated in all. The \
                recording needs heap: true.",
        does: view("heap", &["paths"], Some("--lines")),
        arguments: &[RECORDING, &[
            argument("sort", Kind::Choice(&["live", "blocks", "peak", "allocated", "calls", "age"]),
                To::Option("--sort"), "The order of the rows; the default is live"),
            argument("by_function", Kind::Flag, To::Flag("--functions"),
                "Add up call paths by the innermost function that is not a library's helper"),
        ], PAGE],
    },
    Tool {
        name: "functions",
        about: "List the functions of a program or library that can be traced, or why one cannot: \
                what to give to record and attach. With debug information also arguments, and \
                places where a function is inlined.",
        does: view("functions", &["functions"], None),
        arguments: &[&[
            argument("file", Kind::Text, To::Place,
                "The program or library, as a path or the name of a program in PATH").required(),
            argument("filters", Kind::Texts, To::Place, "Only functions with these names: globs"),
            argument("refused", Kind::Flag, To::Flag("--refused"),
                "List only functions that cannot be traced"),
        ], PAGE],
    },
    Tool {
        name: "probe",
        about: "Count, sum up or measure calls of some functions: of a recording, of a running \
                process (pid) or of a program that is started (program). Actions: count, sum(E), \
                avg(E), min(E), max(E), hist(E), each optionally followed by `by KEY, KEY` \
                (caller, stack, thread, function, module, E) and `if E`. E: argN, the name of a \
                parameter, retval, duration (ns), str(argN), arithmetic and comparisons.",
        does: view("probe", &["actions", "*", "rows"], None),
        arguments: &[&[
            argument("function", Kind::Text, To::Place,
                "The functions: a glob, optionally after a module as in libc:malloc").required(),
            argument("actions", Kind::Texts, To::Place,
                "The actions, such as hist(arg0) or sum(retval) by caller").required(),
            argument("recording", Kind::Recording, To::Option("--input"),
                "The recording: a handle such as r1, or a path"),
            PID,
        ], PROGRAM, TIME, PAGE],
    },
    Tool {
        name: "locks",
        about: "Run a program, or attach to a process, and show locks that can deadlock, and \
                those held and waited for longest.",
        does: view("locks", &["waited"], Some("--lines")),
        arguments: &[&[PID], PROGRAM, TIME, PAGE],
    },
    Tool {
        name: "inject",
        about: "Make calls of some functions fail in a program that is started, or in a running \
                process: this changes what the program does. With campaign: true the program runs \
                once for each call that can fail, and a table says how it takes that.",
        does: Does::Inject,
        arguments: &[&[
            argument("function", Kind::Text, To::Place,
                "The functions: a glob, optionally after a module as in libc:open*").required(),
            argument("how", Kind::Texts, To::Place,
                "Failures, and the calls that get them: errno=ENOENT, result=0, delay=5ms, nth=3, \
                 every=10, from=FUNCTION; with campaign, more functions"),
            argument("campaign", Kind::Flag, To::Flag("--campaign"),
                "Make each call fail, one in each run of the program"),
            PID,
        ], PROGRAM, TIME, PAGE],
    },
];

/// The greatest number of rows by default.
pub(super) const ROWS: u64 = 20;
