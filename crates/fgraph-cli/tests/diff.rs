//! `fgraph diff`, on recordings of programs that never ran.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use fgraph_trace::clock::ClockKind;
use fgraph_trace::event::{Kind, call};
use fgraph_trace::names::DescriptionKind;
use fgraph_trace::recording::{Drain, Info};
use fgraph_trace::ring::{RingOptions, Rings};

const PROCESS: u32 = 100;

/// Nanoseconds by which each call takes longer than in the recording before.
const NOISE: u64 = 3;

/// The calls of a program: `handle`, which calls `malloc`, and `parse` or its successor.
#[derive(Clone)]
struct Program {
    module: &'static str,
    host: &'static str,
    parse: &'static str,
    mallocs: usize,
    /// Nanoseconds.
    handle: u64,
    /// Calls of `handle` are interrupted for milliseconds: one in the second recording, two in the
    /// third, and so on.
    is_interrupted: bool,
}

const OLD: Program = Program {
    module: "/opt/v1",
    host: "here",
    parse: "parse",
    mallocs: 1,
    handle: 10_000,
    is_interrupted: false,
};

impl Program {
    /// Writes a recording of it, whose times are longer by `noise` nanoseconds for each call.
    fn record(&self, path: &Path, noise: u64) {
        let options = RingOptions {
            clock: Some(ClockKind::Monotonic),
            ..RingOptions::default()
        };
        let rings = Arc::new(Rings::create(&options).unwrap());
        let info = Info {
            process: PROCESS,
            host: self.host.to_owned(),
            ..Info::default()
        };
        let mut now = rings.clock().first().ticks;
        let drain = Drain::new(rings.clone(), File::create(path).unwrap(), &info).unwrap();
        let functions = [
            ("handle", self.module),
            (self.parse, self.module),
            ("malloc", "/lib/libc.so.6"),
        ];
        for (number, (name, module)) in (0..).zip(functions) {
            let fields = [PROCESS.into(), number, 0x1000 + number * 64, 64];
            rings.describe(DescriptionKind::Function, fields, [name, module]);
        }
        let writer = rings.writer(PROCESS, PROCESS).unwrap();
        let mut event = |kind, function, took| {
            now += took;
            writer.call(call(kind, function), now);
        };
        let interrupted = if self.is_interrupted {
            noise / NOISE
        } else {
            0
        };
        for call in 0..50 {
            event(Kind::Entry, 0, 100);
            event(Kind::Entry, 1, 100);
            event(Kind::Return, 1, 2_000 + noise);
            for _ in 0..self.mallocs {
                event(Kind::Entry, 2, 50);
                event(Kind::Return, 2, 300 + noise);
            }
            let pause = if call < interrupted { 4_000_000 } else { 0 };
            event(Kind::Return, 0, self.handle + noise + pause);
        }
        drop(writer);
        rings.finish();
        drain.finish().unwrap();
    }

    /// Writes some recordings, the fastest first.
    fn record_all(&self, directory: &Path, name: &str, count: u64) -> Vec<PathBuf> {
        let record = |n: u64| {
            let path = directory.join(format!("{name}.{n}"));
            self.record(&path, n * NOISE);
            path
        };
        (0..count).map(record).collect()
    }
}

fn diff(arguments: &[&str], old: &[PathBuf], new: &[PathBuf]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    command.args(["--no-config", "diff"]).args(arguments);
    command.args(old).arg("--").args(new).output().unwrap()
}

/// Returns the lines of an output; fails if the exit code is another one.
fn lines(output: &Output, code: i32) -> Vec<String> {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| line.trim().to_owned()).collect()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_same_build_shows_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let all = OLD.record_all(directory.path(), "old", 10);
    let shown = diff(&["--fail-on=calls > 0%"], &all[..1], &all[9..]);
    let first = &lines(&shown, 0)[0];
    assert!(first.ends_with("no function has changed"), "{first}");
    assert!(
        stderr(&shown).contains("times are not compared"),
        "{shown:?}"
    );
    // Alternate recordings of one build do not differ either.
    let [even, odd] = [0, 1].map(|at| {
        let of_build = all.iter().skip(at).step_by(2).cloned();
        of_build.collect::<Vec<_>>()
    });
    let lines = lines(&diff(&["--fail-on=self > 0%"], &even, &odd), 0);
    assert_eq!(lines.len(), 1, "{lines:?}");
}

#[test]
fn calls_and_times_that_changed_are_shown_and_fail() {
    let directory = tempfile::tempdir().unwrap();
    let new = Program {
        module: "/opt/v2",
        mallocs: 3,
        handle: 12_000,
        ..OLD
    };
    let old = OLD.record_all(directory.path(), "old", 5);
    let new = new.record_all(directory.path(), "new", 5);
    let lines = lines(
        &diff(
            &[
                "--fail-on=calls(malloc) > +0%",
                "--fail-on=self(handle) > 5%",
                "--fail-on=calls(parse) > 0",
            ],
            &old,
            &new,
        ),
        3,
    );
    let with = |text: &str| lines.iter().any(|line| line.contains(text));
    let words = |line: &String| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let malloc = lines.iter().map(words).find(|line| line.contains("malloc"));
    let malloc = malloc.unwrap();
    assert!(malloc.ends_with("150 +100 malloc [libc.so.6]"), "{malloc}");
    assert!(with("3 in each call of handle, before 1"), "{lines:?}");
    assert!(with("handle [v2]"), "{lines:?}");
    assert!(
        with("fails: calls(malloc) > +0%: malloc [libc.so.6]"),
        "{lines:?}"
    );
    assert!(with("fails: self(handle) > 5%: handle [v2]"), "{lines:?}");
    assert!(!with("parse"), "{lines:?}");
}

#[test]
fn interrupted_calls_neither_hide_a_change_nor_are_one() {
    let directory = tempfile::tempdir().unwrap();
    let old = Program {
        is_interrupted: true,
        ..OLD
    };
    let new = Program {
        handle: 10_500,
        ..old.clone()
    };
    let condition = "--fail-on=self(handle) > +4%";
    let new = new.record_all(directory.path(), "new", 5);
    let interrupted = old.record_all(directory.path(), "old", 5);
    let shown = lines(&diff(&[condition], &interrupted, &new), 3);
    let fails = "fails: self(handle) > +4%: handle [v1]";
    assert!(shown.iter().any(|line| line == fails), "{shown:?}");

    let clear = OLD.record_all(directory.path(), "clear", 5);
    for sides in [[&clear, &interrupted], [&interrupted, &clear]] {
        let condition = "--fail-on=self > +0%";
        let shown = lines(&diff(&[condition], sides[0], sides[1]), 0);
        assert_eq!(shown.len(), 1, "{shown:?}");
    }
}

#[test]
fn one_recording_of_each_build_is_enough_for_calls_and_not_for_times() {
    let directory = tempfile::tempdir().unwrap();
    let new = Program { mallocs: 2, ..OLD };
    let old = OLD.record_all(directory.path(), "old", 1);
    let new = new.record_all(directory.path(), "new", 1);
    let lines = lines(&diff(&["--fail-on=calls(malloc) > 50%"], &old, &new), 3);
    assert!(
        lines.iter().any(|line| line.contains("+50  malloc")),
        "{lines:?}"
    );
    let none = self::lines(&diff(&["-n0"], &old, &new), 0);
    assert!(
        none[0].ends_with("the functions that have changed:"),
        "{none:?}"
    );
    let refused = diff(&["--fail-on=total > 1ms"], &old, &new);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        stderr(&refused).contains("needs at least 3 recordings"),
        "{refused:?}"
    );
}

#[test]
fn names_that_match_no_function_fail() {
    let directory = tempfile::tempdir().unwrap();
    let new = Program { mallocs: 2, ..OLD };
    let old = OLD.record_all(directory.path(), "old", 1);
    let new = new.record_all(directory.path(), "new", 1);
    for (arguments, code, expected) in [
        (
            &["-F", "mallok"][..],
            3,
            "no function of the recordings matches 'mallok'; did you mean malloc [libc.so.6]?",
        ),
        (
            &["--fail-on=calls(mallok) > +0%"],
            3,
            "no function that is compared matches 'mallok'; did you mean malloc [libc.so.6]?",
        ),
        (
            &["-F", "handle", "--fail-on=calls(malloc mallok) > +0%"],
            3,
            "no function that is compared matches 'malloc'; see `fgraph report`",
        ),
        (
            &["-F", "libc:malloc", "--fail-on=calls(libc:malloc) > +0%"],
            3,
            "",
        ),
    ] {
        let shown = diff(arguments, &old, &new);
        let said = stderr(&shown) + &String::from_utf8_lossy(&shown.stdout);
        assert_eq!(shown.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(expected), "{arguments:?}: {said}");
        let is_said = said.contains("no function");
        assert_eq!(is_said, !expected.is_empty(), "{arguments:?}: {said}");
    }
    let condition = "--fail-on=calls(mallok) > 0";
    let json = lines(&diff(&["--json", condition], &old, &new), 3);
    let json: serde_json::Value = serde_json::from_str(&json[0]).unwrap();
    let failed = &json["failed"][0];
    assert_eq!(failed["functions"], serde_json::json!([]));
    let message = failed["unmatched"][0].as_str().unwrap();
    assert!(message.contains("did you mean malloc"), "{message}");
}

#[test]
fn a_function_that_has_another_name_now_is_the_same_function() {
    let directory = tempfile::tempdir().unwrap();
    let new = Program {
        parse: "parse.isra.0",
        mallocs: 2,
        ..OLD
    };
    let old = OLD.record_all(directory.path(), "old", 1);
    let new = new.record_all(directory.path(), "new", 1);
    let lines = lines(&diff(&["--all"], &old, &new), 0);
    let at = lines
        .iter()
        .position(|line| line.ends_with("parse.isra.0 [v1]"));
    assert_eq!(lines[at.unwrap() + 1], "was parse", "{lines:?}");
}

#[test]
fn recordings_that_are_hard_to_compare_are_named_first() {
    let directory = tempfile::tempdir().unwrap();
    let new = Program {
        host: "there\x1b[31m",
        ..OLD
    };
    let old = OLD.record_all(directory.path(), "old", 1);
    let new = new.record_all(directory.path(), "new", 1);
    let shown = diff(&["-F", "handle"], &old, &new);
    let said = stderr(&shown);
    assert!(said.contains("recordings of several machines"), "{said}");
    assert!(said.contains(r"there\x1b[31m"), "{said}");
    let missing = diff(&[], &old, &[directory.path().join("missing")]);
    assert_eq!(missing.status.code(), Some(3), "{missing:?}");
}

#[test]
fn tables_for_pull_requests_objects_and_pages_have_the_same_changes() {
    let directory = tempfile::tempdir().unwrap();
    let new = Program {
        parse: "read<a|b>",
        mallocs: 2,
        ..OLD
    };
    let old = OLD.record_all(directory.path(), "old", 1);
    let new = new.record_all(directory.path(), "new", 1);
    let markdown = lines(&diff(&["--markdown"], &old, &new), 0);
    let row = markdown
        .iter()
        .find(|line| line.contains("malloc"))
        .unwrap();
    assert!(row.contains("| 100 | +50 | `malloc [libc.so.6]`"), "{row}");
    let page = directory.path().join("page.html");
    let json = lines(
        &diff(
            &["--json", &format!("--html={}", page.display())],
            &old,
            &new,
        ),
        0,
    );
    let view: serde_json::Value = serde_json::from_str(&json[0]).unwrap();
    let malloc = view["functions"].as_array().unwrap().iter();
    let malloc = malloc.clone().find(|it| it["name"] == "malloc").unwrap();
    assert_eq!(
        (&malloc["old_calls"], &malloc["new_calls"]),
        (&50.0.into(), &100.0.into())
    );
    assert_eq!(malloc["calls_changed"], true);
    let page = std::fs::read_to_string(page).unwrap();
    assert!(
        page.contains("title=\"malloc [libc.so.6]: 15.000 us before, 30.000 us now"),
        "{page}"
    );
    assert!(page.contains("read&lt;a|b&gt;"), "{page}");
}

#[test]
fn views_read_a_recording_from_standard_input() {
    let directory = tempfile::tempdir().unwrap();
    let paths = OLD.record_all(directory.path(), "old", 1);
    for view in [&["report"][..], &["graph", "malloc"], &["info"], &["dump"]] {
        let show = |path: &Path| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
            command.arg("--no-config").args(view).arg(path);
            let input = File::open(&paths[0]).unwrap();
            let mut cat = Command::new("cat");
            let mut cat = cat.stdin(input).stdout(Stdio::piped()).spawn().unwrap();
            let pipe = cat.stdout.take().unwrap();
            let shown = command.stdin(pipe).output().unwrap();
            cat.wait().unwrap();
            assert!(shown.status.success(), "{shown:?}");
            String::from_utf8(shown.stdout).unwrap()
        };
        let expected = show(&paths[0]).replace(paths[0].to_str().unwrap(), "-");
        assert_eq!(show(Path::new("-")), expected, "{view:?}");
    }
}

#[test]
fn a_report_of_some_functions_says_what_their_parts_are_of() {
    let directory = tempfile::tempdir().unwrap();
    let paths = OLD.record_all(directory.path(), "old", 1);
    for (options, is_said) in [(&[][..], false), (&["-F", "parse"], true)] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        command.args(["--no-config", "report"]).args(options);
        let shown = command.arg(&paths[0]).output().unwrap();
        let said = stderr(&shown);
        let text = "self % is of these functions, which have ";
        assert_eq!(said.contains(text), is_said, "{options:?}: {said}");
    }
}
