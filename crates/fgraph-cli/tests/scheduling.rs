//! The states of threads: in recordings, and in views that measure calls by them.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};

use crate::support::Growing;
use crate::support::compiled::{FGRAPH, Place};
use fgraph_needs::{CC, needs};
use fgraph_trace::schedule::State;
use serde_json::Value;

const PROGRAMS: &[&str] = &["states", "refuse_perf"];
/// Nanoseconds that `sleeps` sleeps, and that `waits` waits for at least.
const SLEEP: u64 = 50_000_000;

/// The times of functions by states.
trait Views {
    /// Returns the total times of functions in one state.
    fn totals(&self, state: &str) -> HashMap<String, u64>;

    /// Checks that the time of each function is the sum of its times in all states, and returns
    /// these: on a processor, waiting for one, blocked.
    fn states(&self) -> HashMap<String, [u64; 3]>;
}

impl Views for Place {
    fn totals(&self, state: &str) -> HashMap<String, u64> {
        let output = self.fgraph(&["report", "--json", "--time", state]);
        assert!(output.status.success(), "{output:?}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["time"], state);
        let lines = report["lines"].as_array().unwrap().iter();
        lines
            .map(|line| {
                let name = line["name"].as_str().unwrap().to_owned();
                (name, line["total_ns"].as_u64().unwrap())
            })
            .collect()
    }

    fn states(&self) -> HashMap<String, [u64; 3]> {
        let wall = self.totals("wall");
        let all = ["cpu", "runnable", "blocked"].map(|state| self.totals(state));
        wall.into_iter()
            .map(|(name, wall)| {
                let times = all.each_ref().map(|times| times[&name]);
                let sum: u64 = times.iter().sum();
                // Each is rounded.
                assert!(sum.abs_diff(wall) <= 4, "{name} {wall} {times:?}");
                (name, times)
            })
            .collect()
    }
}

/// Checks the states of the program's functions.
fn check(states: &HashMap<String, [u64; 3]>) {
    let [cpu, _, blocked] = states["runs"];
    assert!(cpu > 0 && blocked == 0, "{states:?}");
    assert!(states["sleeps"][2] >= SLEEP * 9 / 10, "{states:?}");
    assert!(states["waits"][2] >= SLEEP, "{states:?}");
}

#[test]
fn each_nanosecond_of_a_call_is_in_one_state() {
    let place = Place::new(&needs!(CC.find()), PROGRAMS);
    let recorded = place.fgraph(&["record", "./states"]);
    assert!(recorded.status.success(), "{recorded:?}");
    check(&place.states());
    // Durations without the time that the thread was off its processor.
    let replayed = place.fgraph(&["replay", "--on-cpu", "-F", "sleeps"]);
    let text = String::from_utf8(replayed.stdout).unwrap();
    let line = text.lines().find(|line| line.contains("sleeps();"));
    let line = line.unwrap_or_else(|| panic!("{text}"));
    let duration = line
        .split_whitespace()
        .find_map(|word| word.parse::<f64>().ok());
    assert!(duration.unwrap() < SLEEP as f64 / 1000.0, "{line}");
}

#[test]
fn flame_graphs_have_the_times_of_the_report() {
    let place = Place::new(&needs!(CC.find()), PROGRAMS);
    let recorded = place.fgraph(&["record", "./states"]);
    assert!(recorded.status.success(), "{recorded:?}");
    for state in ["cpu", "blocked"] {
        let folded = place.fgraph(&["export", "folded", "--time", state, "-o", "-"]);
        assert!(folded.status.success(), "{folded:?}");
        let folded = String::from_utf8(folded.stdout).unwrap();
        for (name, total) in place.totals(state) {
            let lines = folded.lines().filter_map(|line| line.rsplit_once(' '));
            let lines = lines.filter(|(stack, _)| stack.split(';').any(|frame| frame == name));
            let sum: u64 = lines.map(|(_, time)| time.parse::<u64>().unwrap()).sum();
            // Each number is rounded.
            assert!(
                sum.abs_diff(total) <= 1000,
                "{state}: {name} {total} {folded}"
            );
        }
    }
    let export = place.fgraph(&["export", "csv", "--time", "cpu"]);
    assert_eq!(export.status.code(), Some(2), "{export:?}");
    let said = String::from_utf8(export.stderr).unwrap();
    assert!(
        said.contains("csv does not add up times of calls"),
        "{said}"
    );
}

/// Starts the program, and waits until it can be attached to.
fn start(place: &Place) -> Child {
    let mut command = place.command(&["./states", "x"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut byte = [0];
    let out = child.stdout.as_mut().unwrap();
    out.read_exact(&mut byte).unwrap();
    child
}

#[test]
fn threads_that_an_attached_process_makes_later_have_states() {
    let place = Place::new(&needs!(CC.find()), PROGRAMS);
    let mut child = start(&place);
    let pid = child.id().to_string();
    let mut recorder = place.command(&[FGRAPH, "record", "-p", &pid]);
    let mut recorder = recorder.stderr(Stdio::piped()).spawn().unwrap();
    // The first line is written when recording has begun.
    let mut byte = [0];
    let err = recorder.stderr.as_mut().unwrap();
    err.read_exact(&mut byte).unwrap();
    child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
    assert!(child.wait().unwrap().success());
    let recorded = recorder.wait_with_output().unwrap();
    assert!(recorded.status.success(), "{recorded:?}");
    let states = place.states();
    check(&states);
    assert!(states["holder"][2] >= SLEEP, "{states:?}");
}

#[test]
fn states_are_sampled_where_the_kernel_refuses_events() {
    let place = Place::new(&needs!(CC.find()), PROGRAMS);
    let refuse = place.path("refuse_perf");
    let words = [refuse.to_str().unwrap(), FGRAPH, "record", "./states"];
    let recorded = place.command(&words).output().unwrap();
    assert!(recorded.status.success(), "{recorded:?}");
    let states = place.states();
    // Samples are too far apart for more.
    assert!(states["runs"][0] > 0, "{states:?}");
    let report = place.fgraph(&["report", "--time", "blocked"]);
    let said = String::from_utf8(report.stderr).unwrap();
    assert!(said.contains("are from samples"), "{said}");
}

#[test]
fn snapshots_have_states() {
    let place = Place::new(&needs!(CC.find()), PROGRAMS);
    let recorded = place.fgraph(&["record", "--ring", "overwrite", "./states"]);
    assert!(recorded.status.success(), "{recorded:?}");
    check(&place.states());
}

#[test]
fn a_recording_without_states_says_so() {
    let place = Place::new(&needs!(CC.find()), PROGRAMS);
    let recorded = place.fgraph(&["record", "--no-sched", "./states"]);
    assert!(recorded.status.success(), "{recorded:?}");
    for view in [
        &["report", "--time", "cpu"][..],
        &["graph", "runs", "--time", "blocked"],
        &["replay", "--on-cpu"],
        &["export", "html", "--time", "blocked"],
    ] {
        let shown = place.fgraph(view);
        assert_eq!(shown.status.code(), Some(3), "{shown:?}");
        let said = String::from_utf8(shown.stderr).unwrap();
        assert!(
            said.contains("fgraph.data has no states of threads"),
            "{said}"
        );
    }
}

#[test]
fn time_that_is_mostly_waiting_for_a_processor_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let mut growing = Growing::begin(&directory.path().join("fgraph.data"));
    for (function, name) in [(1, "crowded"), (2, "alone")] {
        growing.call(function, name, 1_000_000);
    }
    let crowded = [
        (0, State::Running),
        (200_100, State::Runnable),
        (900_100, State::Running),
    ];
    growing.switches(1, &crowded);
    growing.switches(2, &[(0, State::Running)]);
    growing.end();
    let said = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        let output = command.args(words).current_dir(directory.path()).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let tip = "70 % of this time is waiting for a processor: --time cpu leaves it out\n";
    for words in [&["report", "-F", "crowded"][..], &["graph", "crowded"]] {
        let said = said(words);
        assert!(said.contains(tip), "{words:?}: {said}");
    }
    for words in [
        &["report"][..],
        &["report", "-F", "crowded", "--time", "cpu"],
        &["graph", "alone"],
        &["graph", "crowded", "--time", "runnable"],
    ] {
        let said = said(words);
        assert!(
            !said.contains("waiting for a processor"),
            "{words:?}: {said}"
        );
    }
}
