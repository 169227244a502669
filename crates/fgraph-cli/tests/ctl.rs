//! `fgraph attach`, `fgraph ctl` and `fgraph detach` on a program that runs.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Output, Stdio};

use crate::support::busy::Program;
use fgraph_needs::{CC, needs};

/// The session of the RFC.
const SESSION: &str = include_str!("../../fgraph-tracers/tests/session.txt");

fn fgraph(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    command.args(words);
    command
}

fn run(words: &[&str]) -> Output {
    fgraph(words).output().unwrap()
}

/// Runs a command that succeeds, and returns its output.
fn ctl(program: &Program, words: &[&str]) -> String {
    let output = run(&[&["ctl", &program.child.id().to_string()], words].concat());
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), &*said), (Some(0), ""), "{words:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The exit code of a command that fails, and what it says.
fn refused(words: &[&str]) -> (Option<i32>, String) {
    let output = run(words);
    assert_eq!(output.stdout, b"");
    (
        output.status.code(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

#[test]
fn the_session_of_the_rfc_reads_the_same() {
    let program = Program::start(&needs!(CC.find()));
    let (text, threads) = (program.text(), program.threads());
    let pid = &*program.child.id().to_string();
    assert!(run(&["attach", pid]).status.success());
    let commands = SESSION.lines().filter_map(|line| line.strip_prefix("# "));
    let session: String = commands
        .map(|command| {
            let printed = match command.strip_prefix("cat ") {
                Some(file) => ctl(&program, &["cat", file]),
                None => {
                    let words = command.strip_prefix("echo ").unwrap();
                    let (text, file) = words.split_once(" > ").unwrap();
                    ctl(&program, &["write", file, text])
                }
            };
            format!("# {command}\n{printed}")
        })
        .collect();
    assert_eq!(session, SESSION);
    ctl(&program, &["write", "trace", "0"]);
    let trace = ctl(&program, &["cat", "trace"]);
    assert!(trace.contains(": sys_write <-"), "{trace}");
    let profile = ctl(&program, &["cat", "trace_stat/functions"]);
    assert!(profile.contains("sys_read"), "{profile}");
    assert!(run(&["detach", pid]).status.success());
    assert_eq!(program.changed(&text), None);
    assert!(program.comes_to(threads));
    assert_eq!(ctl(&program, &["cat", "function_tracers"]), "");
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn the_agent_is_no_part_of_the_program() {
    let program = Program::start(&needs!(CC.find()));
    let files = ctl(&program, &["ls"]);
    assert!(files.lines().any(|file| file == "set_ftrace_filter"));
    let functions = ctl(&program, &["cat", "available_filter_functions"]);
    assert!(functions.lines().any(|name| name == "sys_read"));
    let agents = functions.lines().filter(|name| name.contains("fgraph"));
    assert_eq!(agents.count(), 0);
}

#[test]
fn the_pipe_comes_until_it_is_interrupted_or_the_tracer_ends() {
    let program = Program::start(&needs!(CC.find()));
    let pid = &*program.child.id().to_string();
    let threads = program.threads();
    ctl(&program, &["write", "set_ftrace_filter", "sys_write"]);
    for by_signal in [true, false] {
        ctl(&program, &["write", "current_tracer", "function"]);
        let mut pipe = fgraph(&["ctl", pid, "cat", "trace_pipe"]);
        let mut pipe = pipe.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(pipe.stdout.take().unwrap()).lines();
        let calls = lines.by_ref().map(Result::unwrap);
        let calls = calls.filter(|line| line.contains(": sys_write <-"));
        // More than the rings have room for.
        assert_eq!(calls.take(200_000).count(), 200_000);
        if by_signal {
            // SAFETY: a signal to our child.
            unsafe { libc::kill(pipe.id() as i32, libc::SIGINT) };
        } else {
            ctl(&program, &["write", "current_tracer", "nop"]);
        }
        for line in lines {
            line.unwrap();
        }
        assert_eq!(pipe.wait().unwrap().code(), Some(0));
    }
    assert!(run(&["detach", pid]).status.success());
    let (code, said) = refused(&["ctl", pid, "cat", "trace_pipe"]);
    assert_eq!(
        (code, said),
        (
            Some(3),
            format!("fgraph: process {pid}: the tracer is off\n")
        )
    );
    assert!(program.comes_to(threads));
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn failures_are_reported() {
    let program = Program::start(&needs!(CC.find()));
    let pid = &*program.child.id().to_string();
    let nothing = |words: &[&str], why: &str| {
        let expected = format!("fgraph: process {pid}: {why}\n");
        assert_eq!(refused(words), (Some(3), expected));
    };
    nothing(&["ctl", pid, "cat", "\x1b[2J"], r"there is no file \x1b[2J");
    nothing(
        &["ctl", pid, "write", "current_tracer", "jump"],
        "current_tracer cannot be 'jump': function_graph, function, nop",
    );
    let long = &*"x".repeat(100_000);
    let (code, _) = refused(&["ctl", pid, "write", "trace_marker", long]);
    assert_eq!(code, Some(2));
    for words in [
        &["attach", "4000000"][..],
        &["detach", "4000000"],
        &["ctl", "4000000", "ls"],
    ] {
        let expected = "fgraph: process 4000000 cannot be recorded: there is no such process\n";
        assert_eq!(refused(words), (Some(126), expected.to_owned()));
    }

    // Its socket is where we do not look.
    let elsewhere = tempfile::tempdir().unwrap();
    let mut recorder = program.recorder(&["-F", "sys_read"]);
    let recorder = recorder.env("XDG_RUNTIME_DIR", elsewhere.path());
    let recorder = recorder.spawn().unwrap();
    let expected = format!("process {} records it already\n", recorder.id());
    while run(&["attach", pid]).status.success() {}
    for words in [["attach", pid], ["detach", pid]] {
        let (code, said) = refused(&words);
        assert_eq!(code, Some(126));
        assert!(said.ends_with(&expected), "{said}");
    }
    // SAFETY: a signal to our child.
    unsafe { libc::kill(recorder.id() as i32, libc::SIGINT) };
    let output = recorder.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(program.end().code(), Some(0));
}
