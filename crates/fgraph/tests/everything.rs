//! Every function of the C library traced, and every function of the process, while a program uses
//! them.
//!
//! The program is run untraced and traced, and has to print the same and to end the same way.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Output;

use fgraph::{Handle, UserStatus};
use fgraph_needs::{GCC, needs};
use fgraph_scenario::{Library, Paired, bounded, build_library, forked, play, scenario};

/// A program that uses much of the C library, in parts.
const PROGRAM: &str = include_str!("everything.c");

const PARTS: &[&str] = &[
    "memory",
    "strings",
    "printf",
    "scanf",
    "wide",
    "locale",
    "files",
    "directories",
    "regex",
    "search",
    "numbers",
    "time",
    "environment",
    "jumps",
    "signals",
    "timers",
    "contexts",
    "threads",
    "cancel",
    "conditions",
    "c11_threads",
    "processes",
    "spawn",
    "pipes",
    "sockets",
    "names",
    "loading",
    "unwind",
    "mappings",
    "exit_handlers",
];

/// Text before the output of each part.
const MARK: &str = "\n=== ";

/// Runs the program in a process of its own, traced as `filter` says if it is not empty.
fn run(library: &str, filter: &str) -> Output {
    let mut command = play(filter);
    command
        .env("FGRAPH_LIBRARY", library)
        .env("TZ", "UTC")
        .env_remove("LANG")
        .env("LC_ALL", "C");
    bounded(&mut command)
}

/// Runs all parts of the program, each in a child of this process, so that one that fails does not
/// end the others.
fn play_all(filter: &str) {
    let library = Library::open(std::env::var("FGRAPH_LIBRARY").unwrap().as_ref());
    // SAFETY: its type.
    let program: Program = unsafe { library.get("program") };
    let users = (!filter.is_empty()).then(|| {
        [(); 2].map(|()| {
            let user = fgraph_scenario::register(Paired::default(), filter).unwrap();
            assert!(
                user.report().unwrap().traced > 2_000,
                "{}",
                user.report().unwrap()
            );
            user
        })
    });
    for part in PARTS {
        let directory = fgraph_scenario::directory();
        let printed = directory.with_extension(part);
        let status = forked(|| {
            let file = File::create(&printed).unwrap();
            // SAFETY: both are open.
            assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), 1) }, 1);
            play_part(program, &directory, part, &users)
        });
        let text = fs::read(&printed).unwrap_or_default();
        println!("{MARK}{part}: {status}\n{}", String::from_utf8_lossy(&text));
    }
    drop(users);
    assert_eq!(fgraph_scenario::patched(), 0);
}

type Program = extern "C" fn(*const libc::c_char, *const libc::c_char) -> i32;

fn play_part(
    program: Program,
    directory: &Path,
    part: &str,
    users: &Option<[Handle<Paired>; 2]>,
) -> i32 {
    let c_string = |text: &str| CString::new(text).unwrap();
    let (directory, part) = (c_string(directory.to_str().unwrap()), c_string(part));
    // One part prints it first; registering and reading files have changed it.
    // SAFETY: this thread's own.
    unsafe { *libc::__errno_location() = 0 };
    let result = program(directory.as_ptr(), part.as_ptr());
    for user in users.iter().flatten() {
        assert_eq!(user.status(), UserStatus::Active);
        let calls = user.user().calls();
        // Calls that jumps leave behind never return; nothing returns that was not entered.
        assert!(
            calls.entries > 20 && calls.entries >= calls.returns,
            "{calls:?}"
        );
        assert_eq!(calls.wrong, 0, "{calls:?}");
    }
    // SAFETY: what is registered for the exit may run here.
    unsafe { libc::exit(result) }
}

/// Returns the output and the exit status of each part.
fn parts(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{}\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    // The last one is followed by what the test harness prints.
    let text = text.split("\ntest result").next().unwrap_or_default();
    let parts: Vec<_> = text.split(MARK).skip(1).map(str::to_owned).collect();
    assert_eq!(parts.len(), PARTS.len());
    parts
}

/// Compares each part of the program with itself traced.
fn same_while_traced(filter: &str) {
    if let Some(filter) = fgraph_scenario::part() {
        return play_all(&filter);
    }
    let options = [
        "-pthread",
        "-fexceptions",
        "-Wno-deprecated-declarations",
        "-Wl,--no-as-needed",
        "-lm",
        // Libraries of their own before glibc 2.34.
        "-ldl",
        "-lrt",
    ];
    let library = needs!(build_library(&GCC, "program.c", PROGRAM, &options));
    let path = library.to_str().unwrap();
    let untraced = parts(&run(path, ""));
    for (first, second) in untraced.iter().zip(parts(&run(path, ""))) {
        assert!(
            first.contains("exit status: 0\n"),
            "fails untraced: {first}"
        );
        assert_eq!(*first, second, "it does not always print the same");
    }
    let traced = run(path, filter);
    let differ = untraced.iter().zip(parts(&traced)).filter(|(a, b)| *a != b);
    let differ: Vec<String> = differ
        .map(|(untraced, traced)| format!("### traced\n{traced}\n### untraced\n{untraced}"))
        .collect();
    assert!(
        differ.is_empty(),
        "{}\n--- stderr\n{}",
        differ.join("\n"),
        String::from_utf8_lossy(&traced.stderr)
    );
}

#[scenario]
fn a_program_does_the_same_with_every_function_of_libc_traced() {
    same_while_traced(":mod:libc.so*");
}

#[scenario]
fn a_program_does_the_same_with_every_function_of_the_process_traced() {
    same_while_traced("*");
}
