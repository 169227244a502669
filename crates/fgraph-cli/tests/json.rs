//! Views as JSON, and their schemas.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use fgraph_needs::{CC, JSONSCHEMA, PYTHON, needs};
use fgraph_trace::text::is_visible;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{recording, recording_with_losses};

/// The JSON that a subcommand prints on its last line, behind the output of a program.
#[track_caller]
fn json(arguments: &[&str], directory: &Path) -> Value {
    let (subcommand, arguments) = arguments.split_first().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    let command = command.args([subcommand, "--json"]).args(arguments);
    let output = command.current_dir(directory).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    let text = String::from_utf8(output.stdout).unwrap();
    let text = text.lines().next_back().unwrap();
    assert!(text.chars().all(is_visible), "{text:?}");
    serde_json::from_str(text).unwrap()
}

fn of(arguments: &[&str], path: &Path) -> Value {
    let all = [arguments, &[path.to_str().unwrap()]].concat();
    json(&all, path.parent().unwrap())
}

#[test]
fn json_has_the_numbers_of_the_table() {
    let (_directory, path) = recording();
    let report = of(&["report", "--sort", "total"], &path);
    let line = |at: usize, key: &str| report["lines"][at][key].clone();
    for (at, [name, calls, own, total]) in [
        ["main", "1", "3100", "5012800"],
        ["parse", "20", "4000", "5009700"],
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(line(at, "name"), name, "{report}");
        let keys = ["calls", "self_ns", "total_ns"].map(|key| line(at, key).to_string());
        assert_eq!(keys, [calls, own, total], "{report}");
    }
    assert_eq!(report["lost"]["events"], 0);
    let info = of(&["info"], &path);
    assert_eq!(
        (&info["calls"], &info["process"]),
        (&42.into(), &100.into())
    );
    assert_eq!(info["command"][0], "program");
    let graph = of(&["graph", "parse"], &path);
    assert_eq!(graph["calls"], 20);
    assert_eq!(graph["callers"][0]["function"], "main");
    assert_eq!(graph["callees"][0]["function"], "read");
    assert_eq!(graph["callers"][0]["self_ns"], graph["self_ns"]);
    let read = &graph["callees"][0];
    assert_eq!(read["self_ns"], read["total_ns"]);
    let outliers = of(&["outliers", "-F", "read"], &path);
    assert_eq!(outliers["calls"][0]["function"], "read");
    assert_eq!(outliers["calls"][0]["inside"][0]["depth"], 0);
    let limited = of(&["report", "-n", "1"], &path);
    assert_eq!(limited["lines"].as_array().unwrap().len(), 1);
    let same = of(&["report", "--diff", path.to_str().unwrap()], &path);
    assert_eq!(same["lines"][0]["old"], same["lines"][0]["new"]);
}

#[test]
fn json_has_the_losses_of_each_thread() {
    let (_directory, path) = recording_with_losses();
    for view in [&["report"][..], &["info"], &["outliers"]] {
        let lost = of(view, &path)["lost"].clone();
        assert_ne!(lost["events"], 0, "{view:?}: {lost}");
        let threads = lost["threads"].as_array().unwrap().iter();
        let events: u64 = threads.map(|it| it["events"].as_u64().unwrap()).sum();
        assert_eq!(lost["events"], events, "{view:?}: {lost}");
    }
}

#[test]
fn each_call_and_each_event_is_a_line_of_json() {
    let (_directory, path) = recording();
    let lines = |arguments: &[&str]| -> Vec<Value> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        let output = command.args(arguments).arg(&path).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.collect()
    };
    let of = |lines: &[Value], key: &str, value: &str| -> usize {
        lines.iter().filter(|line| line[key] == value).count()
    };
    let calls = lines(&["replay", "--json"]);
    assert_eq!(of(&calls, "function", "parse"), 20);
    let main = calls
        .iter()
        .find(|call| call["function"] == "main")
        .unwrap();
    assert_eq!((&main["depth"], &main["begin_ns"]), (&0.into(), &0.into()));
    assert_eq!(main["took_ns"], 5_012_800);
    let parse = calls
        .iter()
        .find(|call| call["function"] == "parse")
        .unwrap();
    assert_eq!(parse["arguments"], "0x7", "{parse}");
    let shallow = lines(&["replay", "--json", "-D", "2", "-N", "parse"]);
    assert_eq!(of(&shallow, "function", "main"), 1);
    assert_eq!(of(&shallow, "function", "parse"), 0);
    assert_eq!(of(&shallow, "function", "read"), 0);
    let slow = lines(&["replay", "--json", "-t", "1ms", "-F", "parse"]);
    assert_eq!(of(&slow, "function", "main"), 0);
    let took = slow.iter().filter_map(|call| call["took_ns"].as_u64());
    assert!(took.into_iter().all(|took| took >= 1_000_000), "{slow:?}");
    let events = lines(&["dump", "--json"]);
    let entries = of(&events, "event", "entry") + of(&events, "event", "entry-only");
    assert_eq!(entries, 42);
    let (_directory, path) = recording_with_losses();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    let output = command
        .args(["replay", "--json"])
        .arg(path)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("\"lost\":"), "{text}");
}

#[test]
fn json_fits_the_schemas_of_the_docs() {
    let python = needs!(PYTHON.find());
    needs!(JSONSCHEMA.import());
    let compiler = needs!(CC.find());
    let place = TempDir::new().unwrap();
    let build = |name: &str| {
        let program = place.path().join(name);
        let mut build = Command::new(&compiler);
        let build = build.args(["-g", "-O1", "-rdynamic", "-pthread", "-o"]);
        let source = format!("tests/record/{name}.c");
        let status = build.arg(&program).arg(source).status();
        assert!(status.unwrap().success());
        program.to_str().unwrap().to_owned()
    };
    let (program, tools) = (&build("probed")[..], &build("tools")[..]);
    let (_directory, path) = recording();
    let recording = path.to_str().unwrap();
    let directory = place.path();
    let rules = place.path().join("rules");
    fs::write(&rules, "main: of_main\nworker: tools:of_workers\n").unwrap();
    let rules = rules.to_str().unwrap();
    let schemas: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../docs/schemas"]
        .iter()
        .collect();
    let mut files = Vec::new();
    for (schema, view) in [
        ("report", json(&["report", recording], directory)),
        (
            "report-diff",
            json(&["report", "--diff", recording, recording], directory),
        ),
        ("graph", json(&["graph", "parse", recording], directory)),
        (
            "outliers",
            json(&["outliers", "-F", "*", recording], directory),
        ),
        ("info", json(&["info", recording], directory)),
        ("replay", json(&["replay", recording], directory)),
        ("dump", json(&["dump", recording], directory)),
        ("cache", json(&["cache"], directory)),
        ("stack", json(&["stack", "--", program], directory)),
        (
            "watch",
            json(
                &[
                    "watch", "--limit", "1us", "-F", "around", "-F", "slow", "--", tools, "slow",
                ],
                directory,
            ),
        ),
        (
            "threads",
            json(
                &["threads", "--rules", rules, "--", tools, "threads"],
                directory,
            ),
        ),
        ("functions", json(&["functions", program], directory)),
        (
            "probe",
            json(
                &[
                    "probe",
                    "take",
                    "count by str(name)",
                    "hist(size)",
                    "--",
                    program,
                ],
                directory,
            ),
        ),
        ("locks", json(&["locks", "--", tools, "locks"], directory)),
        ("heap", json(&["heap", "--", program], directory)),
        ("syscalls", json(&["syscalls", "--", tools], directory)),
        (
            "inject",
            json(
                &["inject", "--campaign", "libc:open*", "--", tools, "opens"],
                directory,
            ),
        ),
        (
            "coverage",
            json(
                &["coverage", "-F", "take", "-F", "never", "--", program],
                directory,
            ),
        ),
    ] {
        let path = directory.join(format!("{schema}.json"));
        fs::write(&path, view.to_string()).unwrap();
        files.extend([schemas.join(format!("{schema}.json")), path]);
    }
    let script = "import json, jsonschema, sys
for schema, view in zip(sys.argv[1::2], sys.argv[2::2]):
    schema, view = json.load(open(schema)), json.load(open(view))
    # Nothing is in a view that its schema does not mention.
    def close(part):
        if isinstance(part, dict):
            if 'properties' in part: part['additionalProperties'] = False
            for inner in part.values(): close(inner)
    close(schema)
    jsonschema.validate(view, schema)
    assert all(view[key] is not None for key in schema.get('required', []))";
    let output = Command::new(python)
        .args(["-c", script])
        .args(&files)
        .output();
    let output = output.unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
