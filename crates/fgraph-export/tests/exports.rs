//! Each format is read by a program or a library of other people, and what they find is compared
//! with what the source gave.

mod support;

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use fgraph_export::{Export, ExportError, Format, Summary, export};
use fgraph_needs::{
    BABELTRACE, CALLGRIND_ANNOTATE, DUCKDB, GO, JSONSCHEMA, NODE, OTLP, PERFETTO, PPROF_FORMAT,
    PROFILER_CLI, PYTHON, SPEEDSCOPE, UFTRACE, needs,
};
use fgraph_trace::event::{Kind, call};
use fgraph_trace::names::process_number;
use fgraph_trace::ring::{RingOptions, Rings};
use fgraph_trace::schedule::State;
use fgraph_trace::{Live, Source as _};
use serde_json::{Value, json};
use support::{MONOTONIC, PARENT, REALTIME, Row, STRANGER, Script, Step, THREADS};

const EVENTS: usize = 6000;

/// A script, its export, and what is removed with it.
struct Exported {
    script: Script,
    summary: Summary,
    path: PathBuf,
    directory: tempfile::TempDir,
}

impl Exported {
    fn path(&self) -> &str {
        self.path.to_str().unwrap()
    }
}

fn exported(format: Format) -> Exported {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(format.name());
    let mut script = Script::random(0x5eed, EVENTS);
    let summary = export(&mut script, format, &path).unwrap();
    Exported {
        script,
        summary,
        path,
        directory,
    }
}

/// Returns the output of a script of `tests/readers`.
fn read(program: &Path, script: &str, arguments: &[&str]) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/readers")
        .join(script);
    let output = Command::new(program)
        .arg(script)
        .args(arguments)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn sorted(values: impl IntoIterator<Item = Value>) -> Vec<Value> {
    let mut values: Vec<Value> = values.into_iter().collect();
    values.sort_by_key(Value::to_string);
    values
}

fn same(found: &Value, expected: impl IntoIterator<Item = Value>) {
    let (found, expected) = (sorted(found.as_array().unwrap().clone()), sorted(expected));
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.len(), expected.len());
}

fn one_line(name: &str) -> String {
    name.replace(['\n', '\t'], " ")
}

/// Calls as readers print them.
fn calls(script: &Script, name: fn(&str) -> String, has_ending: bool) -> Vec<Value> {
    let value = |row: Row| {
        let ended = has_ending.then_some(row.ended);
        json!([
            row.thread,
            name(&row.function),
            row.start,
            row.duration,
            row.depth,
            ended
        ])
    };
    script.rows().into_iter().map(value).collect()
}

/// Returns the duration of a call, if the recording has its end.
fn duration(row: &Row) -> Option<u64> {
    (row.ended != "missing").then_some(row.duration)
}

fn marks(script: &Script) -> Vec<Value> {
    let marks = script.marks().into_iter();
    marks
        .map(|(thread, time, text)| json!([thread, time, text]))
        .collect()
}

fn lost(script: &Script) -> u64 {
    script.lost().iter().map(|&(_, events)| events).sum()
}

fn process_name(process: u32) -> &'static str {
    match process {
        PARENT => "server",
        STRANGER => "stranger",
        _ => "worker \"2\"; größe",
    }
}

fn names() -> Value {
    let mut names = serde_json::Map::new();
    for (process, thread) in THREADS {
        names.insert(
            format!("process_name {process}"),
            json!(process_name(process)),
        );
        names.insert(
            format!("thread_name {thread}"),
            json!(format!("thread \"{thread}\"")),
        );
    }
    names.into()
}

/// The rows from the outermost call to this one.
fn path(rows: &[Row], mut at: usize) -> Vec<&Row> {
    let mut path = vec![&rows[at]];
    while let Some(parent) = rows[at].parent {
        path.push(&rows[parent]);
        at = parent;
    }
    path.reverse();
    path
}

fn is_same(one: &Row, other: &Row) -> bool {
    (&one.function, &one.module) == (&other.function, &other.module)
}

#[test]
fn the_summary_counts_all_findings() {
    let exported = exported(Format::Folded);
    let rows = exported.script.rows();
    let ended = |how| rows.iter().filter(|row| row.ended == how).count() as u64;
    assert_eq!(exported.summary.events, EVENTS as u64);
    assert_eq!(exported.summary.calls, rows.len() as u64);
    assert_eq!(exported.summary.marks, exported.script.marks().len() as u64);
    assert_eq!(exported.summary.lost, lost(&exported.script));
    assert_eq!(exported.summary.missing_returns, ended("missing"));
    assert_eq!(exported.summary.open_calls, ended("open"));
    // The exported.script has something of everything.
    let ends = ended("returned") + ended("unwound");
    assert!(ended("unwound") > 20 && ended("missing") > 20 && ended("open") > 0);
    let told = rows.len() as u64 + ends + exported.summary.stray_returns + exported.summary.marks;
    assert_eq!(
        told + exported.script.lost().len() as u64,
        exported.summary.events
    );
    assert!(exported.summary.stray_returns > 20 && exported.summary.marks > 20);
}

#[test]
fn a_table_has_a_row_for_each_call() {
    for seed in [3, 77, 0x5eed] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("calls.csv");
        let mut script = Script::random(seed, EVENTS);
        export(&mut script, Format::Csv, &path).unwrap();
        let mut table = csv::Reader::from_path(&path).unwrap();
        let found = table
            .records()
            .map(|row| json!(row.unwrap().iter().collect::<Vec<_>>()));
        let words = |words: &[u64]| {
            let words = words.iter().map(|word| format!("{word:#x}"));
            words.collect::<Vec<_>>().join(", ")
        };
        let expected = script.rows().into_iter().map(|row| {
            json!([
                row.process.to_string(),
                row.thread.to_string(),
                row.function,
                row.module,
                row.start.to_string(),
                duration(&row).map_or(String::new(), |it| it.to_string()),
                row.own.to_string(),
                row.depth.to_string(),
                row.caller,
                row.ended,
                words(&row.arguments),
                words(&row.result),
            ])
        });
        same(&found.collect(), expected);
    }
}

#[test]
fn python_reads_the_table() {
    let python = needs!(PYTHON.find());
    let exported = exported(Format::Csv);
    let rows = read(&python, "read.py", &["csv", exported.path()]);
    let total = |column: &str| -> u64 {
        let numbers = rows.as_array().unwrap().iter();
        numbers
            .map(|row| match row[column].as_str().unwrap() {
                "" => 0,
                text => text.parse::<u64>().unwrap(),
            })
            .sum()
    };
    let expected = exported.script.rows();
    assert_eq!(
        total("self"),
        expected.iter().map(|row| row.own).sum::<u64>()
    );
    assert_eq!(
        total("duration"),
        expected.iter().filter_map(duration).sum::<u64>()
    );
    let names = rows
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["function"].clone());
    same(
        &names.collect(),
        expected.iter().map(|row| json!(row.function)),
    );
}

fn check_timeline(found: &Value, script: &Script) {
    same(&found["calls"], calls(script, str::to_owned, true));
    same(&found["marks"], marks(script));
    assert_eq!(found["lost"], json!(lost(script)));
    assert_eq!(found["words"], json!(script.words()));
    assert_eq!(found["names"], names());
}

#[test]
fn json_has_chromes_events() {
    let python = needs!(PYTHON.find());
    let exported = exported(Format::Chrome);
    let found = read(&python, "read.py", &["chrome", exported.path()]);
    check_timeline(&found, &exported.script);
}

#[test]
fn perfettos_own_messages_decode_its_trace() {
    let python = needs!(PYTHON.find());
    needs!(PERFETTO.import());
    let exported = exported(Format::Perfetto);
    let found = read(&python, "read.py", &["perfetto", exported.path()]);
    check_timeline(&found, &exported.script);
}

/// A thread that waits for a processor and for something else, and one without a switch.
fn switching() -> Script {
    let script = Script::of(vec![
        (1000, PARENT, 100, Step::Entry(1, vec![])),
        (1000, PARENT, 101, Step::Entry(2, vec![])),
        (2000, PARENT, 100, Step::Entry(12, vec![])),
        (2500, PARENT, 101, Step::Return(2, vec![])),
        (6000, PARENT, 100, Step::Return(12, vec![])),
        (7000, PARENT, 100, Step::Return(1, vec![])),
    ]);
    script.switched(&[
        (500, 100, State::Running, 3),
        (2100, 100, State::Blocked, 3),
        (4100, 100, State::Running, 1),
        (5100, 100, State::Runnable, 1),
        (5900, 100, State::Running, 0),
        (9000, 100, State::Blocked, 0),
    ])
}

#[test]
fn perfettos_trace_has_a_few_bytes_a_call() {
    const CALLS: u64 = 20_000;
    let (mut steps, mut now, mut random) = (Vec::new(), 0, 1_u64);
    for _ in 0..CALLS {
        let function = 1 + random % 9;
        for step in [
            Step::Entry(function as u32, vec![]),
            Step::Return(function as u32, vec![]),
        ] {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1)
                >> 1;
            now += 40 + random % 5_000;
            steps.push((now, PARENT, 100, step));
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace");
    export(&mut Script::of(steps), Format::Perfetto, &path).unwrap();
    let bytes = std::fs::metadata(&path).unwrap().len();
    assert!(bytes <= 16 * CALLS, "{bytes}");
}

#[test]
fn perfettos_own_messages_have_the_states_of_threads() {
    let python = needs!(PYTHON.find());
    needs!(PERFETTO.import());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace");
    let read = |mut script: Script| {
        export(&mut script, Format::Perfetto, &path).unwrap();
        read(
            &python,
            "read.py",
            &["perfetto_states", path.to_str().unwrap()],
        )
    };
    let found = read(switching());
    let state = |time: u64, state: &str, cpu: u32| {
        json!([MONOTONIC + time, 100, state, cpu, "thread \"100\""])
    };
    let expected = [
        state(1000, "running", 3),
        state(2100, "interruptible_sleep", 3),
        state(4100, "running", 1),
        state(5100, "runnable", 1),
        state(5900, "running", 0),
    ];
    assert_eq!(found, json!({ "states": expected, "counters": [] }));

    let script = Script::of(vec![
        (1000, PARENT, 100, Step::Entry(1, vec![])),
        (9000, PARENT, 100, Step::Return(1, vec![])),
    ]);
    let samples = [
        (0, 100, 0, 0),
        (4000, 100, 1000, 2000),
        (9000, 100, 6000, 2000),
    ];
    let found = read(script.sampled(&samples));
    let share =
        |time: u64, name: &str, share: f64| json!([MONOTONIC + time, 100, name, "%", share]);
    let expected = [
        share(1000, "running", 25.0),
        share(1000, "runnable", 50.0),
        share(4000, "running", 100.0),
        share(4000, "runnable", 0.0),
    ];
    assert_eq!(found, json!({ "states": [], "counters": expected }));
}

#[test]
fn the_firefox_profiler_gets_the_time_on_processors_between_samples() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("profile.json");
    let read = |mut script: Script| -> Value {
        export(&mut script, Format::Firefox, &path).unwrap();
        let profile: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let unit = &profile["meta"]["sampleUnits"]["threadCPUDelta"];
        let has_states = script.schedule().is_some();
        assert_eq!(*unit, if has_states { json!("ns") } else { json!(null) });
        let threads = profile["threads"].as_array().unwrap().iter();
        threads
            .map(|thread| thread["samples"]["threadCPUDelta"].clone())
            .collect()
    };
    // Samples begin at 1000, 2000, 6000 and 7000 ns; those of the other thread at 1000 and 2500.
    let expected = json!([[null, 1000, 1200, 1000], [null, 1500]]);
    assert_eq!(read(switching()), expected);
    let step = |time, step| (time, PARENT, 100, step);
    let events = || {
        vec![
            step(0, Step::Entry(1, vec![])),
            step(4000, Step::Return(1, vec![])),
        ]
    };
    let sampled = Script::of(events()).sampled(&[(0, 100, 0, 0), (8000, 100, 2000, 0)]);
    assert_eq!(read(sampled), json!([[null, 1000]]));
    assert_eq!(read(Script::of(events())), json!([null]));
}

#[test]
fn speedscopes_schema_holds_and_its_events_nest() {
    let python = needs!(PYTHON.find());
    needs!(JSONSCHEMA.import());
    let program = needs!(SPEEDSCOPE.find()).canonicalize().unwrap();
    let package = program.parent().and_then(Path::parent).unwrap();
    let schema = package.join("dist/release/file-format-schema.json");
    let exported = exported(Format::Speedscope);
    let arguments = ["speedscope", exported.path(), schema.to_str().unwrap()];
    let found = read(&python, "read.py", &arguments);
    same(&found, calls(&exported.script, str::to_owned, false));
}

#[test]
fn uftrace_shows_its_directory() {
    let python = needs!(PYTHON.find());
    needs!(UFTRACE.find());
    let exported = exported(Format::Uftrace);
    let found = read(&python, "read.py", &["uftrace", exported.path()]);
    same(&found["calls"], calls(&exported.script, one_line, false));
    assert_eq!(found["lost"], json!(lost(&exported.script)));
    let mut counts = BTreeMap::new();
    for row in exported.script.rows() {
        *counts.entry(one_line(&row.function)).or_insert(0) += 1;
    }
    assert_eq!(found["counts"], json!(counts));
}

#[test]
fn babeltrace_reads_the_common_trace_format() {
    let python = needs!(PYTHON.find());
    needs!(BABELTRACE.find());
    let exported = exported(Format::Ctf);
    let mut found = read(&python, "read.py", &["ctf", exported.path()]);
    // Two functions have one name, and so have the files of their modules.
    let mut twins = std::collections::BTreeSet::new();
    for call in found["calls"].as_array_mut().unwrap() {
        if let Some(name) = call[1].as_str()
            && name.starts_with("twin [libone.so]")
        {
            twins.insert(name.to_owned());
            call[1] = json!("twin");
        }
    }
    assert_eq!(twins.len(), 2);
    same(&found["calls"], calls(&exported.script, one_line, true));
    same(&found["marks"], marks(&exported.script));
    assert_eq!(found["lost"], json!(lost(&exported.script)));
    assert_eq!(found["words"], json!(exported.script.words()));
}

#[test]
fn folded_stacks_have_their_own_time() {
    let python = needs!(PYTHON.find());
    let exported = exported(Format::Folded);
    let found = read(&python, "read.py", &["folded", exported.path()]);
    let rows = exported.script.rows();
    let mut expected = BTreeMap::new();
    for at in (0..rows.len()).filter(|&at| rows[at].own != 0) {
        let mut stack = process_name(rows[at].process).replace(';', ":");
        for row in path(&rows, at) {
            stack += ";";
            stack += &one_line(&row.function).replace(';', ":");
        }
        *expected.entry(stack).or_insert(0) += rows[at].own;
    }
    assert_eq!(found, json!(expected));
}

#[test]
fn stacks_have_the_time_of_one_state_in_all_formats_that_add_up() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("export");
    let export = |mut script: Script, format, state| {
        let mut export = Export::create(format, &path).unwrap();
        export.count_only(state);
        export.advance(&mut script).unwrap();
        let summary = export.finish(&script).unwrap();
        (std::fs::read(&path).unwrap(), summary.unknown_threads)
    };
    let folded = |script, state| {
        let (text, unknown) = export(script, Format::Folded, state);
        let text = String::from_utf8(text).unwrap().replace("server;", "");
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        (lines, unknown)
    };
    let push = "std::vec<int, std::allocator<int>>::push(int&&)";
    for (state, lines) in [
        (
            State::Running,
            vec!["main 2000", "main;recursive 1200", &format!("{push} 1500")],
        ),
        (State::Runnable, vec!["main;recursive 800"]),
        (State::Blocked, vec!["main;recursive 2000"]),
    ] {
        assert_eq!(
            folded(switching(), state),
            (lines.iter().map(|&it| it.to_owned()).collect(), 0)
        );
    }
    // Nothing is known of the thread without samples: all its time counts.
    let script = || {
        let step = |time, thread, step| (time, PARENT, thread, step);
        Script::of(vec![
            step(0, 100, Step::Entry(1, vec![])),
            step(0, 101, Step::Entry(12, vec![])),
            step(500, 101, Step::Return(12, vec![])),
            step(4000, 100, Step::Return(1, vec![])),
        ])
        .sampled(&[(0, 100, 0, 0), (4000, 100, 1000, 600)])
    };
    let lines = ["main 2400", "recursive 500"].map(str::to_owned).to_vec();
    assert_eq!(folded(script(), State::Blocked), (lines, 1));

    let text = |format| String::from_utf8(export(switching(), format, State::Blocked).0).unwrap();
    let page = text(Format::Html);
    // Parent, function, calls, total and own time.
    assert!(page.contains("[1,2,1,2000,2000]"), "{page}");
    assert!(page.contains("\"measured\":\"blocked\""));
    let scope: Value = serde_json::from_str(&text(Format::Speedscope)).unwrap();
    let length = |profile: &Value| {
        let [start, end] = ["startValue", "endValue"].map(|key| profile[key].as_u64().unwrap());
        end - start
    };
    let lengths = scope["profiles"].as_array().unwrap().iter().map(length);
    assert_eq!(lengths.collect::<Vec<_>>(), [2000, 0]);
    assert!(text(Format::Callgrind).contains("summary: 2000\n"));
    // It shows all calls in the order of time.
    assert!(!Format::Chrome.adds_up());
    let plain = export(switching(), Format::Chrome, State::Blocked);
    assert_eq!(plain, export(switching(), Format::Chrome, State::Running));
}

#[test]
fn a_picture_has_boxes_as_wide_as_their_time() {
    let python = needs!(PYTHON.find());
    let exported = exported(Format::Svg);
    let found = read(&python, "read.py", &["svg", exported.path()]);
    let rows = exported.script.rows();
    let own = |process: Option<u32>| -> u64 {
        let rows = rows
            .iter()
            .filter(|row| process.is_none_or(|process| row.process == process));
        rows.map(|row| row.own).sum()
    };
    assert_eq!(found["all"], json!(own(None)));
    for (process, _) in THREADS {
        let name = process_name(process).replace(';', ":");
        assert_eq!(found[&name], json!(own(Some(process))), "{name}");
    }
}

#[test]
fn pprofs_messages_have_each_stack_once() {
    let node = needs!(NODE.find());
    let package = needs!(PPROF_FORMAT.npm_directory());
    let exported = exported(Format::Pprof);
    let arguments = [package.to_str().unwrap(), exported.path()];
    let found = read(&node, "pprof.js", &arguments);
    assert_eq!(
        found["types"],
        json!([["calls", "count"], ["time", "nanoseconds"]])
    );
    let rows = exported.script.rows();
    let mut stacks = BTreeMap::new();
    for at in 0..rows.len() {
        let all = path(&rows, at).into_iter();
        let names: Vec<_> = all
            .map(|row| (row.function.clone(), row.module.clone()))
            .collect();
        let stack = stacks.entry((rows[at].process, names)).or_insert((0, 0));
        stack.0 += 1;
        stack.1 += rows[at].own;
    }
    let expected = stacks.into_iter().map(|((process, names), (calls, own))| {
        json!([process, process_name(process), names, calls, own])
    });
    same(&found["samples"], expected);
}

#[test]
fn gos_pprof_accepts_a_profile() {
    let go = needs!(GO.find());
    let exported = exported(Format::Pprof);
    let output = Command::new(go)
        .args(["tool", "pprof", "-raw"])
        .arg(&exported.path)
        .env("HOME", exported.directory.path())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).unwrap();
    let mut sums = (0, 0);
    for line in text.lines().take_while(|line| *line != "Locations") {
        // `calls nanoseconds: locations`
        if let Some((values, _)) = line.split_once(": ")
            && let [calls, time] = values.split_whitespace().collect::<Vec<_>>()[..]
            && let (Ok(calls), Ok(time)) = (calls.parse::<u64>(), time.parse::<u64>())
        {
            sums = (sums.0 + calls, sums.1 + time);
        }
    }
    let rows = exported.script.rows();
    assert_eq!(
        sums,
        (rows.len() as u64, rows.iter().map(|row| row.own).sum())
    );
}

#[test]
fn callgrind_annotate_shows_own_time_and_calls() {
    let python = needs!(PYTHON.find());
    needs!(CALLGRIND_ANNOTATE.find());
    let exported = exported(Format::Callgrind);
    let found = read(&python, "read.py", &["callgrind", exported.path()]);
    let rows = exported.script.rows();
    let mut own = BTreeMap::new();
    let mut edges = BTreeMap::<_, BTreeMap<_, (u64, u64)>>::new();
    for (at, row) in rows.iter().enumerate() {
        *own.entry(one_line(&row.function)).or_insert(0) += row.own;
        let Some(caller) = row.parent.map(|parent| &rows[parent]) else {
            continue;
        };
        let callees = edges.entry(one_line(&caller.function)).or_default();
        let edge = callees.entry(one_line(&row.function)).or_default();
        edge.0 += 1;
        let path = path(&rows, at);
        let around = path[..path.len() - 1].windows(2);
        let mut same = around.filter(|of| is_same(of[0], caller) && is_same(of[1], row));
        if same.next().is_none() {
            edge.1 += row.duration;
        }
    }
    assert_eq!(found["own"], json!(own));
    for (caller, callees) in edges {
        let expected = callees
            .into_iter()
            .map(|(name, (calls, time))| json!([name, calls, time]));
        same(&found["edges"][&caller], expected);
    }
}

#[test]
fn the_firefox_profiler_finds_functions_and_markers() {
    let python = needs!(PYTHON.find());
    needs!(PROFILER_CLI.find());
    let exported = exported(Format::Firefox);
    let arguments = [
        "firefox",
        exported.path(),
        exported.directory.path().to_str().unwrap(),
    ];
    let found = read(&python, "read.py", &arguments);
    let rows = exported.script.rows();
    for (index, (process, thread)) in THREADS.into_iter().enumerate() {
        let mut times = BTreeMap::<_, (u64, u64)>::new();
        for at in (0..rows.len()).filter(|&at| rows[at].thread == thread) {
            let row = &rows[at];
            let time = times.entry(row.function.clone()).or_default();
            time.0 += row.seen;
            let path = path(&rows, at);
            if !path[..path.len() - 1]
                .iter()
                .any(|around| is_same(around, row))
            {
                time.1 += row.duration;
            }
        }
        let marks = exported
            .script
            .marks()
            .iter()
            .filter(|mark| mark.0 == thread)
            .count();
        let losses = exported
            .script
            .lost()
            .iter()
            .filter(|lost| lost.0 == thread)
            .count();
        let expected = json!([
            thread,
            process.to_string(),
            format!("thread \"{thread}\""),
            process_name(process),
            marks + losses,
            times,
        ]);
        assert_eq!(found[index], expected);
    }
}

/// A writer that fails after this number of bytes.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.checked_sub(bytes.len()) {
            Some(left) => self.0 = left,
            None => return Err(io::ErrorKind::StorageFull.into()),
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_an_error_in_every_format() {
    for &format in Format::ALL.iter().filter(|format| !format.is_directory()) {
        let mut script = Script::random(1, 20_000);
        let export = || {
            let mut export = Export::to_writer(format, Full(1000))?;
            export.advance(&mut script)?;
            export.finish(&script)
        };
        let mut export = export;
        let error: ExportError = export().unwrap_err();
        assert!(
            matches!(error, ExportError::Write(_)),
            "{format}: {error:?}"
        );
        let why = error.source().unwrap().downcast_ref::<io::Error>().unwrap();
        assert!(
            why.kind() == io::ErrorKind::StorageFull || format == Format::Svg,
            "{format}: {why:?}"
        );
    }
}

#[test]
fn nothing_can_be_exported_in_every_format() {
    for &format in Format::ALL {
        let directory = tempfile::tempdir().unwrap();
        let summary = export(
            &mut Script::random(1, 0),
            format,
            directory.path().join("it"),
        );
        assert_eq!(summary.unwrap(), Summary::default(), "{format}");
    }
}

#[test]
fn a_timeline_shows_the_calls_that_its_pixels_have_room_for() {
    const CALLS: u64 = 900_000;
    let node = needs!(NODE.find());
    let step = |time, step| (time, PARENT, PARENT, step);
    let entry = |time, function| step(time, Step::Entry(function, vec![]));
    let end = |time, function| step(time, Step::Return(function, vec![]));
    // Short calls, a long one that begins in the same pixel, and many in that one.
    let mut events = Vec::new();
    for time in 0..10 {
        events.extend([entry(10 * time, 5), end(10 * time + 5, 5)]);
    }
    events.push(entry(100, 1));
    for call in 0..CALLS {
        events.extend([entry(200 + 100 * call, 7), end(250 + 100 * call, 7)]);
    }
    events.push(entry(300 + 100 * CALLS, 12));
    let lost = Step::Lost(7, Some(1));
    events.extend([step(400 + 200 * CALLS, lost), end(400 + 200 * CALLS, 1)]);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("page.html");
    export(&mut Script::of(events), Format::Html, &path).unwrap();
    let found = read(&node, "page.js", &[path.to_str().unwrap()]);
    let bars = found["bars"].as_array().unwrap();
    let of = |name: &'static str| bars.iter().filter(move |bar| bar["name"] == name);
    let main: Vec<_> = of("main").collect();
    let [begin, end] = ["begin", "end"].map(|at| main[0][at].as_f64().unwrap().round());
    assert_eq!((main.len(), begin, end), (1, 0.0, 1000.0));
    // Its calls take the first half: at most the first and the last one of each pixel are painted.
    let count = of("<T as core::Trait>::f").count();
    assert!((500..=1001).contains(&count), "{count}");
    let lost = of("recursive").map(|bar| bar["lost"].as_u64());
    assert_eq!(lost.collect::<Vec<_>>(), [Some(1)]);
    assert_eq!(main[0]["lost"], 0);
}

#[test]
fn a_timeline_shows_the_states_of_threads() {
    let node = needs!(NODE.find());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("page.html");
    let read = |mut script: Script| {
        export(&mut script, Format::Html, &path).unwrap();
        read(&node, "page.js", &[path.to_str().unwrap()])["states"].clone()
    };
    // A pixel stands for 6 ns.
    let piece = |from: f64, to: f64, times: [u64; 3]| {
        let whole = |numbers: &Value| {
            let numbers = numbers.as_array().unwrap().iter();
            numbers
                .map(|it| it.as_f64().unwrap().round() as u64)
                .collect::<Vec<_>>()
        };
        move |found: &Value| {
            let [begin, end] = [0, 1].map(|at| found[at].as_f64().unwrap() * 6.0 + 1000.0);
            let is_there = (begin - from).abs() < 1.0 && (end - to).abs() < 1.0;
            assert!(is_there && whole(&found[2]) == times, "{found}");
        }
    };
    let found = read(switching());
    let expected = [
        piece(1000.0, 2100.0, [1100, 0, 0]),
        piece(2100.0, 4100.0, [0, 0, 2000]),
        piece(4100.0, 5100.0, [1000, 0, 0]),
        piece(5100.0, 5900.0, [0, 800, 0]),
        piece(5900.0, 7000.0, [1100, 0, 0]),
        // The thread without a switch.
        piece(1000.0, 2500.0, [1500, 0, 0]),
    ];
    let found = found.as_array().unwrap();
    assert_eq!(found.len(), expected.len(), "{found:?}");
    found
        .iter()
        .zip(expected)
        .for_each(|(found, is_expected)| is_expected(found));

    // States that are shorter than a pixel are added up.
    let events = |end| {
        let step = |time, step| (time, PARENT, 100, step);
        vec![
            step(0, Step::Entry(1, vec![])),
            step(end, Step::Return(1, vec![])),
        ]
    };
    let switches: Vec<_> = (0..4_000)
        .map(|n| match n % 2 {
            0 => (100 * n + 25, 100, State::Blocked, 0),
            _ => (100 * n, 100, State::Running, 0),
        })
        .collect();
    let found = read(Script::of(events(400_000)).switched(&switches));
    for column in found.as_array().unwrap() {
        let times = [0, 1, 2].map(|state| column[2][state].as_f64().unwrap());
        assert!(
            (times[2] - 150.0).abs() < 1.0 && times[1] == 0.0,
            "{column}"
        );
    }
    let found = read(Script::of(events(4_000)).sampled(&[(0, 100, 0, 0), (4_000, 100, 1000, 500)]));
    assert_eq!(found, json!([[0, 1000, [1000, 500, 2500]]]));
    assert_eq!(read(Script::of(events(4_000))), json!([]));
}

/// Native functions and one of Python, and the same without that.
fn mixed() -> [Script; 2] {
    let script = |inner| {
        let step = |time, step| (time, PARENT, 100, step);
        Script::of(vec![
            step(0, Step::Entry(1, vec![])),
            step(100, Step::Entry(inner, vec![])),
            step(200, Step::Entry(12, vec![])),
            step(300, Step::Return(12, vec![])),
            step(500, Step::Return(inner, vec![])),
            step(900, Step::Return(1, vec![])),
        ])
    };
    [script(support::PYTHON).with_python(), script(7)]
}

/// Exports scripts, and returns the path of each and what is removed with them.
fn paths(scripts: [Script; 2], format: Format) -> ([PathBuf; 2], tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let mut names = ["one", "other"].into_iter();
    let paths = scripts.map(|mut script| {
        let path = directory.path().join(names.next().unwrap());
        export(&mut script, format, &path).unwrap();
        path
    });
    (paths, directory)
}

#[test]
fn python_functions_of_a_page_have_their_own_color() {
    let node = needs!(NODE.find());
    let (paths, _directory) = paths(mixed(), Format::Html);
    let hue = |path: &Path, name: &str| {
        let found = read(&node, "page.js", &[path.to_str().unwrap()]);
        let color = found["colors"][name].as_str().unwrap();
        let hue = color.strip_prefix("hsl(").unwrap();
        hue.split(' ').next().unwrap().parse::<u32>().unwrap()
    };
    let names = ["app.handler", "main", "recursive"];
    assert_eq!(names.map(|name| hue(&paths[0], name)), [210, 28, 28]);
    let modules = ["main", "recursive", "<T as core::Trait>::f"].map(|name| hue(&paths[1], name));
    assert_eq!(modules[0], modules[1]);
    assert_ne!(modules[1], modules[2]);
}

#[test]
fn python_functions_of_a_picture_are_blue_and_native_ones_orange() {
    let (paths, _directory) = paths(mixed(), Format::Svg);
    let [mixed, plain] = paths.map(|path| std::fs::read_to_string(path).unwrap());
    let is_blue = |name: &str| {
        let at = mixed.find(&format!("<title>{name} (")).unwrap();
        let fill = mixed[at..].split("fill=\"rgb(").nth(1).unwrap();
        let fill = fill.split(')').next().unwrap().split(',');
        let fill: Vec<u32> = fill.map(|it| it.parse().unwrap()).collect();
        assert_ne!(fill[0], fill[2], "{name}");
        fill[2] > fill[0]
    };
    let names = ["app.handler", "main", "recursive"];
    assert_eq!(names.map(is_blue), [true, false, false]);
    let legend = |picture: &str| picture.contains("native functions");
    assert_eq!([&mixed, &plain].map(|it| legend(it)), [true, false]);
}

#[test]
fn python_functions_have_a_category_where_formats_have_one() {
    let text = |format| {
        let (paths, _directory) = paths(mixed(), format);
        paths.map(|path| serde_json::from_slice::<Value>(&std::fs::read(path).unwrap()).unwrap())
    };
    let categories = |trace: &Value| {
        let begins = trace["traceEvents"].as_array().unwrap().iter();
        let begins = begins.filter(|event| event["ph"] == "B");
        begins.map(|event| event["cat"].clone()).collect::<Vec<_>>()
    };
    let [mixed_one, plain] = text(Format::Chrome);
    assert_eq!(
        categories(&mixed_one),
        [Value::Null, json!("python"), Value::Null]
    );
    assert!(categories(&plain).iter().all(Value::is_null));
    let found = text(Format::Firefox).map(|profile| {
        let names = profile["meta"]["categories"].as_array().unwrap().iter();
        let names: Vec<_> = names.map(|it| it["name"].clone()).collect();
        json!([names, profile["shared"]["frameTable"]["category"]])
    });
    let expected = [
        json!([["Native", "Python"], [0, 1, 0, 0]]),
        json!([["Calls"], [0, 0, 0, 0]]),
    ];
    assert_eq!(found, expected);
    let python = needs!(PERFETTO.import().and_then(|()| PYTHON.find()));
    let (paths, _directory) = paths(mixed(), Format::Perfetto);
    let arguments = ["perfetto_categories", paths[0].to_str().unwrap()];
    let found = read(&python, "read.py", &arguments);
    let expected = json!({"main": [], "app.handler": ["python"], "recursive": []});
    assert_eq!(found, expected);
}

#[test]
fn rings_are_exported_while_they_are_written() {
    let rings = Arc::new(Rings::create(&RingOptions::default()).unwrap());
    let writer = rings.writer(PARENT, 1).unwrap();
    let first = rings.clock().first().ticks;
    let mut source = Live::watch(rings.clone());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("calls.csv");
    let mut export = Export::create(Format::Csv, &path).unwrap();
    let mut events = 0;
    for n in 0..10 {
        writer.call(call(Kind::Entry, 7), first + n * 100);
        writer.call(call(Kind::Return, 7), first + n * 100 + 50);
        events += export.advance(&mut source).unwrap();
    }
    rings.finish();
    events += export.advance(&mut source).unwrap();
    let summary = export.finish(&source).unwrap();
    assert_eq!((events, summary.calls, summary.open_calls), (20, 10, 0));
    let rows = csv::Reader::from_path(&path)
        .unwrap()
        .into_records()
        .count();
    assert_eq!(rows, 10);
}

#[test]
fn calls_without_an_end_do_not_pile_up() {
    const CALLS: usize = 100_000;
    const ENDED: usize = 1 << 16;
    let entry = |time| (time, PARENT, PARENT, Step::Entry(7, vec![]));
    let mut script = Script::of((0..CALLS as u64).map(entry).collect());
    let mut export = Export::to_writer(Format::Folded, io::sink()).unwrap();
    export.advance(&mut script).unwrap();
    let summary = export.finish(&script).unwrap();
    assert_eq!(summary.calls, CALLS as u64);
    assert_eq!(summary.missing_returns, ENDED as u64);
    assert_eq!(summary.open_calls, (CALLS - ENDED) as u64);
}

#[test]
fn uftrace_gets_the_calls_that_its_depth_has_room_for() {
    const DEPTH: u64 = 1500;
    let program = needs!(UFTRACE.find());
    let entries = (0..DEPTH).map(|time| (time, PARENT, PARENT, Step::Entry(1, vec![])));
    let ends = DEPTH..2 * DEPTH;
    let ends = ends.map(|time| (time, PARENT, PARENT, Step::Return(1, vec![])));
    let mut script = Script::of(entries.chain(ends).collect());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("it");
    let summary = export(&mut script, Format::Uftrace, &path).unwrap();
    assert_eq!(summary.calls, DEPTH);
    let mut report = Command::new(program);
    report
        .args(["report", "--no-pager", "-f", "call", "-d"])
        .arg(&path);
    let text = String::from_utf8(report.output().unwrap().stdout).unwrap();
    let line = text.lines().last().unwrap();
    assert_eq!(
        line.split_whitespace().collect::<Vec<_>>(),
        ["1023", "main"]
    );
}

/// Two programs of one process, in the same thread; what the first one calls does not return.
fn executes() -> (tempfile::TempDir, impl Fn(Format) -> PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_owned();
    let write = move |format: Format| {
        let next = process_number(PARENT, 1);
        let mut script = Script::of(vec![
            (10, PARENT, PARENT, Step::Entry(1, vec![])),
            (20, PARENT, PARENT, Step::Entry(12, vec![])),
            (30, next, PARENT, Step::Entry(1, vec![])),
            (40, next, PARENT, Step::Return(1, vec![])),
        ]);
        let path = place.join(format.name());
        let summary = export(&mut script, format, &path).unwrap();
        assert_eq!((summary.calls, summary.open_calls), (3, 2));
        path
    };
    (directory, write)
}

#[test]
fn programs_that_a_process_executes_have_its_id() {
    let (_directory, write) = executes();
    let json = |format| -> Value {
        serde_json::from_slice(&std::fs::read(write(format)).unwrap()).unwrap()
    };
    let chrome = json(Format::Chrome);
    let events = chrome["traceEvents"].as_array().unwrap();
    assert!(
        events.iter().all(|event| event["pid"] == PARENT),
        "{events:?}"
    );
    let phases: Vec<&str> = events.iter().map(|it| it["ph"].as_str().unwrap()).collect();
    // The first program's calls end where the second one begins.
    assert_eq!(phases, ["B", "B", "E", "E", "B", "E", "M", "M"]);
    assert_eq!(events[2]["ts"], events[4]["ts"]);
    assert_eq!(events[6]["args"]["name"], "server, next");

    let firefox = json(Format::Firefox);
    let threads = firefox["threads"].as_array().unwrap();
    let of = |thread: &Value| json!([thread["pid"], thread["processName"], thread["isMainThread"]]);
    let threads: Vec<Value> = threads.iter().map(of).collect();
    let expected = [
        json!(["100", "server", true]),
        json!(["100.1", "next", true]),
    ];
    assert_eq!(threads, expected);

    let ctf = write(Format::Ctf);
    for name in ["stream-100-100", "stream-100-100-1"] {
        let stream = std::fs::read(ctf.join(name)).unwrap();
        assert_eq!(stream[48..56], [100, 0, 0, 0, 100, 0, 0, 0], "{name}");
    }

    let uftrace = write(Format::Uftrace);
    let tasks = std::fs::read_to_string(uftrace.join("task.txt")).unwrap();
    assert_eq!(tasks.matches("pid=100").count(), 2, "{tasks}");
    let records = std::fs::read(uftrace.join("100.dat")).unwrap();
    let records: Vec<(u64, u64)> = records
        .chunks(16)
        .map(|record| {
            let word = |at| u64::from_le_bytes(record[at..at + 8].try_into().unwrap());
            (word(8) & 3, word(8) >> 6 & 1023)
        })
        .collect();
    let expected = [(0, 0), (0, 1), (1, 1), (1, 0), (0, 0), (1, 0)];
    assert_eq!(records, expected);

    let table = std::fs::read_to_string(write(Format::Speedscope)).unwrap();
    assert!(
        table.contains("server (100)") && table.contains("next (100)"),
        "{table}"
    );
}

#[test]
fn perfettos_own_messages_have_the_ids_of_processes() {
    let python = needs!(PYTHON.find());
    needs!(PERFETTO.import());
    let (_directory, write) = executes();
    let path = write(Format::Perfetto);
    let found = read(
        &python,
        "read.py",
        &["perfetto_ids", path.to_str().unwrap()],
    );
    let expected = [
        json!([100, "server"]),
        json!([100, "next"]),
        json!([100, 100]),
    ];
    for each in expected {
        assert!(found.as_array().unwrap().contains(&each), "{found}");
    }
}

/// Exports a script of `events` events with the name of a machine.
fn exported_of_host(format: Format, events: usize) -> (Script, tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("it");
    let mut script = Script::random(0x5eed, events);
    let mut export = Export::create(format, &path).unwrap();
    export.set_host("a host");
    export.advance(&mut script).unwrap();
    export.finish(&script).unwrap();
    (script, directory, path.to_str().unwrap().to_owned())
}

fn date(time: u64) -> u64 {
    time - MONOTONIC + REALTIME
}

#[test]
fn duckdb_reads_parquet() {
    let python = needs!(PYTHON.find());
    needs!(DUCKDB.import());
    // More than the writer holds in memory.
    let (script, _directory, path) = exported_of_host(Format::Parquet, 200_000);
    let found = read(&python, "read.py", &["parquet", &path]);
    let expected = script.rows().into_iter().map(|row| {
        json!([
            row.process,
            row.thread,
            row.function,
            row.module,
            date(row.start),
            duration(&row),
            row.own,
            row.depth,
            row.parent.map(|_| row.caller),
            row.ended,
            "a host",
            process_name(row.process),
        ])
    });
    same(&found, expected);
}

#[test]
fn opentelemetrys_messages_decode_its_spans() {
    let python = needs!(PYTHON.find());
    needs!(OTLP.import());
    let (script, _directory, path) = exported_of_host(Format::Otlp, EVENTS);
    let found = read(&python, "read.py", &["otlp", &path]);
    let dated = |mut call: Value, at: usize| {
        call[at] = json!(date(call[at].as_u64().unwrap()));
        call
    };
    let calls = calls(&script, str::to_owned, true).into_iter();
    same(&found["calls"], calls.map(|call| dated(call, 2)));
    let lost = script.events_lost().into_iter();
    let lost =
        lost.map(|(thread, time, events)| json!([thread, time, format!("lost {events} events")]));
    let moments = marks(&script).into_iter().chain(lost);
    same(&found["moments"], moments.map(|moment| dated(moment, 1)));
    assert_eq!(found["words"], json!(script.words()));
    let processes = THREADS.map(|(process, _)| process);
    let hosts: BTreeMap<String, _> = processes
        .into_iter()
        .map(|process| (process.to_string(), ["a host", process_name(process)]))
        .collect();
    assert_eq!(found["hosts"], json!(hosts));
}
