//! The subcommands that look at one thing in a real program.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use fgraph_needs::{CC, STRACE, needs};
use tempfile::TempDir;

/// A directory with `tests/record/tools.c` as a program.
struct Place(TempDir);

impl Place {
    fn new(cc: &Path) -> Self {
        let place = Self(TempDir::new().unwrap());
        let mut builder = Command::new(cc);
        builder.args(["-g", "-O1", "-pthread", "-o"]);
        builder.arg(place.program()).arg("tests/record/tools.c");
        assert!(builder.status().unwrap().success());
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn program(&self) -> PathBuf {
        self.path("tools")
    }

    /// A subcommand with options, on the program that does something.
    fn tool(&self, words: &[&str], what: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        command.args(words).arg("--").arg(self.program()).arg(what);
        command
    }

    /// What a subcommand writes, and what it says beside that.
    fn run(&self, words: &[&str], what: &str) -> (String, String, Output) {
        let output = self.tool(words, what).output().unwrap();
        let [out, err] =
            [&output.stdout, &output.stderr].map(|it| String::from_utf8(it.clone()).unwrap());
        (out, err, output)
    }
}

/// A line of `fgraph syscalls`.
#[derive(Debug)]
struct Call {
    process: u32,
    name: String,
    result: i64,
    data: String,
}

impl Call {
    fn parse(line: &str) -> Self {
        let (head, rest) = line.split_once("):(").unwrap();
        let (_, name) = head.split_once('(').unwrap();
        let word = |name: &str| {
            let (_, rest) = rest.split_once(name).unwrap();
            rest.split(' ').next().unwrap().to_owned()
        };
        let result = word(" ret: 0x");
        Self {
            process: word(" proc: ").parse().unwrap(),
            name: name.trim().to_owned(),
            result: u64::from_str_radix(&result, 16).unwrap() as i64,
            data: rest.split_once(" data: ").unwrap().1.to_owned(),
        }
    }
}

/// Calls of `strace`, by process: the name, and the result if it is a number.
fn traced(folder: &Path) -> Vec<Vec<(String, Option<i64>)>> {
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|it| it.unwrap().path())
        .collect();
    // The parent's first.
    files.sort_by_key(|path| fs::read_to_string(path).unwrap().contains("/forked"));
    let calls = |path: &PathBuf| {
        let text = fs::read_to_string(path).unwrap();
        let calls = text.lines().filter_map(|line| {
            let (name, rest) = line.split_once('(')?;
            let (_, result) = rest.rsplit_once(" = ")?;
            let result = result.split(' ').next()?.parse().ok();
            let is_own = ["/no/such\\n", "/executed\""];
            let is_own = is_own.iter().any(|it| line.contains(it));
            Some((name.to_owned(), result, is_own))
        });
        let calls: Vec<_> = calls.collect();
        // What the dynamic linker does is not seen.
        let mut seen = Vec::new();
        let mut is_linking = path == &files[0];
        for (name, result, is_own) in calls {
            is_linking &= !is_own;
            if !is_linking {
                is_linking = name == "execve";
                seen.push((name, result));
            }
        }
        seen
    };
    files.iter().map(calls).collect()
}

#[test]
fn system_calls_are_those_that_strace_shows() {
    let place = Place::new(&needs!(CC.find()));
    let (out, said, output) = place.run(&["syscalls"], "calls");
    assert_eq!((output.status.code(), &said[..]), (Some(3), ""));
    let lines = out.lines().filter(|line| *line != "hello");
    let calls: Vec<_> = lines.map(Call::parse).collect();
    assert_eq!(calls[0].data, "/no/such\\nfile");
    assert_eq!(
        (&calls[3].name[..], &calls[3].data[..]),
        ("write", "hello\\n")
    );
    let mut processes: Vec<u32> = Vec::new();
    let mut found: HashMap<u32, Vec<&Call>> = HashMap::new();
    for call in &calls {
        if !processes.contains(&call.process) {
            processes.push(call.process);
        }
        found.entry(call.process).or_default().push(call);
    }
    let strace = needs!(STRACE.find());
    let folder = place.path("strace");
    fs::create_dir(&folder).unwrap();
    let mut command = Command::new(strace);
    command.args(["-ff", "-o"]).arg(folder.join("of"));
    let status = command.arg(place.program()).arg("calls").status().unwrap();
    assert_eq!(status.code(), Some(3));
    let expected = traced(&folder);
    assert_eq!(expected.len(), processes.len());
    for (process, mut expected) in processes.iter().zip(expected) {
        // The C library makes these on its own.
        expected.retain(|(name, _)| !["clone", "set_robust_list"].contains(&&name[..]));
        let found = &found[process];
        let names: Vec<_> = found.iter().map(|call| &call.name).collect();
        let expected_names: Vec<_> = expected.iter().map(|(name, _)| name).collect();
        assert_eq!(names, expected_names);
        for (call, (name, result)) in found.iter().zip(&expected) {
            let is_same = match result {
                // Numbers of processes are other ones.
                _ if ["getpid", "wait4"].contains(&&name[..]) => call.result > 0,
                Some(-1) => call.result < 0,
                Some(result) => call.result == *result,
                None => true,
            };
            assert!(is_same, "{call:?} {result:?}");
        }
    }
}

#[test]
fn system_calls_go_to_a_file_as_they_are_asked_for() {
    let place = Place::new(&needs!(CC.find()));
    let file = place.path("calls");
    let name = file.to_str().unwrap();
    let (out, ..) = place.run(&["syscalls", "--loud", "-F", "openat", "-o", name], "calls");
    assert_eq!(out, "hello\n");
    let text = fs::read_to_string(&file).unwrap();
    let starts = ["ENTER [", "EXIT [", "ENTER [", "EXIT ["];
    assert_eq!(text.lines().count(), starts.len(), "{text}");
    for (line, start) in text.lines().zip(starts) {
        assert!(
            line.starts_with(start) && line.contains("(      openat)"),
            "{line}"
        );
    }
    for nothing in [&["-F", "malloc"][..], &["-N", "*"]] {
        let words = [&["syscalls"], nothing].concat();
        let (_, said, output) = place.run(&words, "calls");
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1));
    }
    let (_, _, output) = place.run(&["syscalls", "-o", "/no/such/file"], "calls");
    assert_eq!(output.status.code(), Some(4));
    let (out, ..) = place.run(&["syscalls", "--no-follow", "-F", "access"], "calls");
    assert_eq!(out, "hello\n");
}

#[test]
fn system_calls_of_a_process_that_runs_are_shown() {
    let place = Place::new(&needs!(CC.find()));
    let mut program = Command::new(place.program());
    let mut program = program.arg("ticks").stdin(Stdio::piped()).spawn().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    let command = command.args(["syscalls", "-F", "access", "-p"]);
    let command = command.arg(program.id().to_string()).stdout(Stdio::piped());
    let mut shown = command.spawn().unwrap();
    let mut line = String::new();
    let mut out = BufReader::new(shown.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    drop(program.stdin.take());
    assert!(program.wait().unwrap().success());
    assert!(shown.wait().unwrap().success());
    assert_eq!(Call::parse(line.trim_end()).data, "/ticked");
}
