//! `fgraph syscalls`: its lines beside those of `strace`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use fgraph_needs::{CC, STRACE, needs};
use serde_json::Value;
use tempfile::TempDir;

/// A directory with `tests/record/system_calls.c` as a program.
struct Place(TempDir);

impl Place {
    fn new(cc: &Path) -> Self {
        let place = Self(TempDir::new().unwrap());
        let mut builder = Command::new(cc);
        builder.args(["-g", "-O1", "-w", "-o"]);
        builder.arg(place.path("program"));
        let status = builder.arg("tests/record/system_calls.c").status();
        assert!(status.unwrap().success());
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The lines that a command writes about the program.
    fn lines(&self, mut command: Command) -> Vec<String> {
        let lines = self.path("lines");
        let directory = TempDir::new().unwrap();
        command.arg("-o").arg(&lines).arg("--");
        let status = command
            .arg(self.path("program"))
            .arg(directory.path())
            .status();
        assert!(status.unwrap().success());
        let lines = fs::read_to_string(lines).unwrap();
        let path = directory.path().to_str().unwrap();
        let lines = lines.replace(path, "DIRECTORY");
        lines.lines().map(str::to_owned).collect()
    }

    fn syscalls(&self, options: &[&str]) -> Vec<String> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        command.arg("syscalls").args(options);
        self.lines(command)
    }
}

/// Replaces addresses and, of calls about processes, ids: they differ from run to run.
fn without_ids(call: &str) -> String {
    let is_about_processes = ["getpid(", "kill(", "wait4("];
    let is_about_processes = is_about_processes.iter().any(|it| call.starts_with(it));
    let is_word = |character: char| character.is_ascii_alphanumeric();
    let mut text = String::new();
    let mut word = String::new();
    for character in call.chars().chain(['\n']) {
        if is_word(character) {
            word.push(character);
            continue;
        }
        let is_number = word.len() > 1 && word.chars().all(|digit| digit.is_ascii_digit());
        text += match &word[..] {
            word if word.starts_with("0x") && word.len() > 8 => "ADDRESS",
            _ if text.ends_with(":[") => "INODE",
            _ if is_about_processes && is_number => "ID",
            word => word,
        };
        word.clear();
        text.push(character);
    }
    text.trim_end().to_owned()
}

/// The calls between the two of `access` that are marks.
fn between_marks(calls: impl Iterator<Item = String>) -> Vec<String> {
    let is_mark = |call: &String, mark: &str| call.starts_with("access") && call.contains(mark);
    let calls = calls.skip_while(|call| !is_mark(call, "/begin"));
    let calls = calls.take_while(|call| !is_mark(call, "/end"));
    // The C library makes it on its own.
    let calls = calls.filter(|call| !call.starts_with("clone"));
    calls.map(|call| without_ids(&call)).collect()
}

/// The calls of the program's main thread that `fgraph syscalls` shows, and those that `strace`
/// shows, with the same options.
fn both(place: &Place, strace: PathBuf, options: &[&str]) -> [Vec<String>; 2] {
    let lines = place.syscalls(options);
    let (main, _) = lines[0].split_once(' ').unwrap();
    let calls = lines.iter().filter_map(|line| {
        let call = line.strip_prefix(main)?.strip_prefix(' ')?;
        // The time that it took.
        Some(
            call.rsplit_once(" <")
                .map_or(call, |(call, _)| call)
                .to_owned(),
        )
    });
    let calls = between_marks(calls);
    let mut strace = Command::new(strace);
    strace.args(options);
    let lines = place.lines(strace).into_iter();
    let expected = lines.filter(|line| !line.starts_with("---")).map(|line| {
        // Results stand in a column.
        match line.rsplit_once(" = ") {
            Some((call, result)) => format!("{} = {result}", call.trim_end()),
            None => line,
        }
    });
    [calls, between_marks(expected)]
}

fn assert_same([calls, expected]: [Vec<String>; 2]) {
    for (call, expected) in calls.iter().zip(&expected) {
        assert_eq!(call, expected);
    }
    assert_eq!(calls.len(), expected.len());
}

#[test]
fn system_calls_are_decoded_as_by_strace() {
    let place = Place::new(&needs!(CC.find()));
    let both = both(&place, needs!(STRACE.find()), &[]);
    assert!(both[0].len() > 80, "{both:#?}");
    assert_same(both);
}

#[test]
fn expressions_select_the_calls_that_strace_selects() {
    let place = Place::new(&needs!(CC.find()));
    let strace = needs!(STRACE.find());
    for (expression, least) in [
        ("trace=%file", 15),
        ("access,write,openat", 8),
        ("trace=access,%network,process,%memory,%signal", 20),
        ("!%desc", 20),
    ] {
        let both = both(&place, strace.clone(), &["-e", expression]);
        assert!(both[0].len() >= least, "{expression}: {both:#?}");
        assert_same(both);
    }
}

#[test]
fn descriptors_have_the_paths_that_strace_shows() {
    let place = Place::new(&needs!(CC.find()));
    let [calls, expected] = both(&place, needs!(STRACE.find()), &["-y"]);
    // Descriptors in memory have no paths.
    let has_list = |call: &&String| {
        let calls = ["pipe(", "pipe2(", "poll(", "socketpair("];
        calls.iter().any(|it| call.starts_with(it))
    };
    let without_lists = |calls: Vec<String>| {
        let calls = calls.iter().filter(|call| !has_list(call));
        calls.cloned().collect::<Vec<_>>()
    };
    let calls = without_lists(calls);
    let with_paths = calls
        .iter()
        .filter(|call| call.contains("</DIR") || call.contains("<DIR"));
    assert!(with_paths.count() > 20, "{calls:#?}");
    assert_same([calls, without_lists(expected)]);
}

/// Reads the table of `strace -c`: the numbers of calls and of errors, by system call.
fn counts_of_strace(lines: &[String]) -> BTreeMap<String, (u64, u64)> {
    let rows = lines.iter().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (calls, errors, name) = match words[..] {
            [_, _, _, calls, name] => (calls, "0", name),
            [_, _, _, calls, errors, name] => (calls, errors, name),
            _ => return None,
        };
        let counts = (calls.parse().ok()?, errors.parse().ok()?);
        Some((name.to_owned(), counts))
    });
    rows.filter(|(name, _)| name != "total").collect()
}

#[test]
fn calls_and_errors_are_counted_as_by_strace() {
    let place = Place::new(&needs!(CC.find()));
    let strace = needs!(STRACE.find());
    let lines = place.syscalls(&["-c", "-f", "--json"]);
    let [line] = &lines[..] else {
        panic!("{lines:#?}");
    };
    let summary: Value = serde_json::from_str(line).unwrap();
    assert_eq!(summary["lost_calls"], 0);
    let rows = summary["system_calls"].as_array().unwrap().iter();
    let rows = rows.map(|row| {
        let count = |key: &str| row[key].as_u64().unwrap();
        let name = row["name"].as_str().unwrap().to_owned();
        (name, (count("calls"), count("errors")))
    });
    let mut counts: BTreeMap<_, _> = rows.collect();
    let mut command = Command::new(strace);
    command.args(["-f", "-c"]);
    let mut expected = counts_of_strace(&place.lines(command));
    // The loader makes these before the agent is there, and the C library some without being seen.
    let elsewhere = [
        "access",
        "arch_prctl",
        "brk",
        "clone",
        "close",
        "execve",
        "fstat",
        "futex",
        "getrandom",
        "gettid",
        "mmap",
        "mprotect",
        "munmap",
        "newfstatat",
        "openat",
        "pread64",
        "prlimit64",
        "read",
        "rseq",
        "rt_sigaction",
        "rt_sigprocmask",
        "set_robust_list",
        "set_tid_address",
        "tgkill",
    ];
    for counts in [&mut counts, &mut expected] {
        counts.retain(|name, _| !elsewhere.contains(&&name[..]));
    }
    assert!(counts.len() > 40 && counts["write"] == (5, 2), "{counts:?}");
    assert_eq!(counts, expected);
}

#[test]
fn the_table_has_the_calls_of_an_expression_and_a_total() {
    let place = Place::new(&needs!(CC.find()));
    let lines = place.syscalls(&["-c", "-e", "trace=write,mkdir"]);
    let [heading, first, second, total] = &lines[..] else {
        panic!("{lines:#?}");
    };
    assert!(
        heading.ends_with("calls  errors  system call"),
        "{lines:#?}"
    );
    let names = [first, second].map(|line| line.rsplit(' ').next().unwrap());
    assert!(
        names.contains(&"write") && names.contains(&"mkdir"),
        "{lines:#?}"
    );
    assert!(total.ends_with("6       2  total"), "{lines:#?}");
}

#[test]
fn options_of_strace_that_are_not_there_have_a_tip() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    let output = command.args(["syscalls", "-tt", "--", "true"]).output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    let tip =
        "\n  tip: strace's -t has no counterpart: `--raw` and `--json` have the times of calls\n";
    assert!(said.contains(tip), "{said}");
}

#[test]
fn unknown_names_in_expressions_are_refused() {
    for (expression, why) in [
        ("trace=opnat", "did you mean openat?"),
        ("signal=none", "only 'trace=' selects system calls"),
        ("none", "no system call is left to be shown"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        let command = command.args(["syscalls", "-e", expression, "--", "true"]);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn each_line_of_json_is_a_call() {
    let place = Place::new(&needs!(CC.find()));
    let lines = place.syscalls(&["--json", "-F", "openat", "-F", "exit_group"]);
    let calls = lines.iter().map(|line| serde_json::from_str(line).unwrap());
    let calls: Vec<Value> = calls.collect();
    let none = calls.iter().find(|call| call["arguments"][1] == "\"none\"");
    let none = none.unwrap();
    assert_eq!(none["name"], "openat");
    assert_eq!(none["arguments"][0], "AT_FDCWD");
    assert_eq!(none["result"], -2);
    assert_eq!(none["error"], "ENOENT");
    assert_eq!(none["result_text"], "-1 ENOENT (No such file or directory)");
    let word = none["words"][0].as_str().unwrap();
    assert!(word.ends_with("ffffff9c"), "{word}");
    assert!(none["duration_ns"].is_u64() && none["entered_ns"].is_u64());
    let ends = calls.iter().filter(|call| call["name"] == "exit_group");
    let mut ends = ends.map(|call| (&call["result"], &call["result_text"]));
    assert!(ends.all(|end| end == (&Value::Null, &"?".into())));
}

#[test]
fn data_is_cut_at_the_requested_length() {
    let place = Place::new(&needs!(CC.find()));
    let lines = place.syscalls(&["-s", "3", "-F", "write"]);
    assert!(lines[0].contains("\"one\"..., 13) = 13 <"), "{lines:#?}");
    let lines = place.syscalls(&["-s", "128", "-F", "write"]);
    let data = format!("\"{}\"..., 256", "x".repeat(128));
    assert!(lines[1].contains(&data), "{lines:#?}");
}

#[test]
fn a_function_of_the_c_library_has_the_name_of_its_call() {
    for (function, call) in [("klogctl", "syslog"), ("posix_fadvise", "fadvise64")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        let command = command.args(["syscalls", "-F", function, "--", "true"]);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(&format!("did you mean {call}?")), "{said}");
    }
}
