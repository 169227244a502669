//! `fgraph tasks` and `--task`, on a program with functions named like those of tokio.

use std::path::Path;
use std::process::Command;

use crate::support::compiled::Place;
use fgraph_needs::{GXX, needs};
use serde_json::Value;

/// Compiles the program.
fn place() -> Place {
    let place = Place::new(Path::new("cc"), &[]);
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut rustc = Command::new(rustc);
    rustc.args(["--crate-name", "tokio", "--edition", "2024", "-O", "-o"]);
    rustc.arg(place.path("tasks")).arg("tests/record/tasks.rs");
    assert!(rustc.status().unwrap().success());
    place
}

/// Runs fgraph, and returns its standard output.
fn run(place: &Place, words: &[&str]) -> String {
    let output = place.fgraph(words);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the kind with this name.
fn kind<'v>(view: &'v Value, name: &str) -> &'v Value {
    let kinds = view["kinds"].as_array().unwrap();
    let found = kinds.iter().find(|kind| kind["name"] == name);
    found.unwrap_or_else(|| panic!("no {name}: {view:#}"))
}

#[test]
fn a_blocking_poll_and_the_tasks_that_are_late_meanwhile_are_named() {
    let place = place();
    let text = run(&place, &["tasks", "--json", "--", "./tasks"]);
    let view: Value = serde_json::from_str(&text).unwrap();
    let slow = kind(&view, "resize_image");
    assert_eq!((&slow["tasks"], &slow["alive"]), (&1.into(), &0.into()));
    assert_eq!((&slow["polls"], &slow["blocking"]), (&2.into(), &1.into()));
    let longest = &slow["longest"];
    assert_eq!(longest["path"], serde_json::json!(["resize_image"]));
    let took = longest["ns"].as_u64().unwrap();
    assert!(took >= 30_000_000, "{view:#}");
    // The thread slept: it was on no processor for most of that.
    if view["states"] == "exact" {
        assert!(
            longest["running_ns"].as_u64().unwrap() < took / 2,
            "{view:#}"
        );
    }
    let quick = kind(&view, "quick");
    assert_eq!((&quick["tasks"], &quick["alive"]), (&2.into(), &2.into()));
    assert_eq!(quick["late"]["task"], 1, "{view:#}");
    assert!(
        quick["late"]["ns"].as_u64().unwrap() >= 30_000_000,
        "{view:#}"
    );
    assert_eq!(quick["late"]["instead"]["name"], "resize_image");
    assert!(quick["first"].is_object(), "{view:#}");
    // The second one was polled once, before the blocking poll.
    let waiting = quick["waiting"].as_array().unwrap();
    assert_eq!(waiting[0]["task"], 2, "{view:#}");
    assert_eq!(waiting[0]["is_woken"], false, "{view:#}");
    assert!(waiting[0]["since_ns"].as_u64().unwrap() >= 30_000_000);
    let text = run(&place, &["tasks", "--", "./tasks"]);
    for part in ["longest poll: ", " in resize_image", "never woken since"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn tasks_of_a_program_that_a_signal_ends_are_shown() {
    let place = place();
    let script = "./tasks; kill -TERM $$";
    let output = place.fgraph(&["tasks", "--json", "--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(143), "{output:?}");
    let view: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(kind(&view, "quick")["tasks"], 2);
}

#[test]
fn a_recording_without_tasks_says_what_is_missing() {
    let place = place();
    run(&place, &["record", "-q", "--", "./tasks"]);
    let output = place.fgraph(&["tasks"]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("record again, with --tasks"), "{errors}");
    run(&place, &["record", "-q", "--tasks", "--", "true"]);
    let output = place.fgraph(&["tasks"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(
        errors.contains("no known runtime is in the program"),
        "{errors}"
    );
    assert_eq!(errors.lines().count(), 1, "{errors}");
}

#[test]
fn tasks_are_lanes_in_views_and_exports() {
    let place = place();
    run(&place, &["record", "-q", "--tasks", "--", "./tasks"]);
    let shown = run(&place, &["report", "--task=resize_image", "--json"]);
    let report: Value = serde_json::from_str(&shown).unwrap();
    let functions = report["lines"].as_array().unwrap();
    let calls = |name: &str| {
        let found = functions.iter().find(|it| it["name"] == name);
        found.map(|it| it["calls"].as_u64().unwrap())
    };
    assert_eq!(calls("resize_image"), Some(2), "{report:#}");
    // It is called by other tasks only.
    assert_eq!(calls("quick"), None, "{report:#}");
    let lanes = run(&place, &["replay", "--task", "--proc"]);
    let quick = |line: &&str| line.contains("quick()");
    let quick: Vec<&str> = lanes.lines().filter(quick).collect();
    assert_eq!(quick.len(), 3, "{lanes}");
    assert!(quick.iter().all(|line| line.contains("quick #")), "{lanes}");
    run(&place, &["export", "chrome", "--task", "-o", "lanes.json"]);
    let lanes = std::fs::read_to_string(place.path("lanes.json")).unwrap();
    for name in ["resize_image #1", "quick #1", "quick #2"] {
        assert!(lanes.contains(name), "{lanes}");
    }
    let output = place.fgraph(&["report", "--task=nothing"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
}

/// Compiles a program in C++.
fn compile(compiler: &Path, name: &str) -> Place {
    let place = Place::new(Path::new("cc"), &[]);
    let mut compiler = Command::new(compiler);
    compiler.args(["-std=c++20", "-O2", "-o"]);
    let compiler = compiler.arg(place.path(name));
    let source = format!("tests/record/{name}.cc");
    assert!(compiler.arg(source).status().unwrap().success());
    place
}

#[test]
fn handlers_of_asio_are_tasks_by_their_operations() {
    let place = compile(&needs!(GXX.find()), "handlers");
    let text = run(&place, &["tasks", "--json", "--", "./handlers"]);
    let view: Value = serde_json::from_str(&text).unwrap();
    let slow = kind(&view, "Resizes");
    assert_eq!((&slow["tasks"], &slow["polls"]), (&2.into(), &2.into()));
    assert_eq!(
        (&slow["alive"], &slow["blocking"]),
        (&0.into(), &2.into()),
        "{view:#}"
    );
    assert_eq!(slow["longest"]["path"][0], "resize_image", "{view:#}");
    let quick = kind(&view, "Counts");
    assert_eq!((&quick["tasks"], &quick["polls"]), (&5.into(), &5.into()));
}

#[test]
fn coroutines_are_tasks_by_their_frames() {
    let place = compile(&needs!(GXX.find()), "coroutines");
    let text = run(&place, &["tasks", "--json", "--", "./coroutines"]);
    let view: Value = serde_json::from_str(&text).unwrap();
    let slow = kind(&view, "slow_handler");
    assert_eq!((&slow["tasks"], &slow["polls"]), (&2.into(), &6.into()));
    assert_eq!(slow["alive"], Value::Null, "{view:#}");
    assert!(slow["blocking"].as_u64().unwrap() >= 2, "{view:#}");
    assert_eq!(slow["longest"]["path"][0], "resize_image", "{view:#}");
    let quick = kind(&view, "quick_handler");
    assert_eq!((&quick["tasks"], &quick["polls"]), (&2.into(), &10.into()));
}
