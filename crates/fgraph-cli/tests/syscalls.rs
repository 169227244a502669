//! `fgraph syscalls`: its lines beside those of `strace`.

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

#[test]
fn system_calls_are_decoded_as_by_strace() {
    let place = Place::new(&needs!(CC.find()));
    let lines = place.syscalls(&[]);
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
    assert!(calls.len() > 80, "{calls:#?}");
    let strace = needs!(STRACE.find());
    let lines = place.lines(Command::new(strace)).into_iter();
    let expected = lines.filter(|line| !line.starts_with("---")).map(|line| {
        // Results stand in a column.
        match line.rsplit_once(" = ") {
            Some((call, result)) => format!("{} = {result}", call.trim_end()),
            None => line,
        }
    });
    let expected = between_marks(expected);
    for (call, expected) in calls.iter().zip(&expected) {
        assert_eq!(call, expected);
    }
    assert_eq!(calls.len(), expected.len());
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
