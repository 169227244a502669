//! Names of generated code: `perf-PID.map` and `jit-PID.dump`.

use std::process::Output;

use fgraph_needs::{GCC, needs};
use serde_json::Value;

use crate::support::compiled::Place;

/// Names that the program gives to its code, as a terminal shows them.
const NAMES: [&str; 2] = ["LazyCompile:~load /app/a b.js:1", "evil\\x1b[31m"];

#[track_caller]
fn text(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Asserts that a view of the heap names the callers of `malloc` by a file of names.
#[track_caller]
fn assert_names(output: &Output, file: &str) {
    let view = text(output);
    let view: Value = serde_json::from_str(view.lines().next_back().unwrap()).unwrap();
    let paths = view["paths"].as_array().unwrap();
    let calls = paths.iter().filter_map(|path| path["calls"][0].as_str());
    let calls: Vec<&str> = calls.collect();
    for name in ["LazyCompile:~load /app/a b.js:1 [", "evil"] {
        let is_it = |call: &&&str| call.starts_with(name) && call.contains(file);
        assert_eq!(calls.iter().filter(is_it).count(), 1, "{name}: {calls:?}");
    }
}

#[test]
fn callers_in_generated_code_have_the_names_of_its_map_or_dump() {
    let place = Place::new(&needs!(GCC.find()), &["generated"]);
    for (which, file) in [("map", "perf-"), ("dump", "jit-")] {
        let heap = place.fgraph(&["heap", "--json", "--", "./generated", which]);
        assert_names(&heap, file);
        // The recording has the names: the map is gone by now.
        let record = place.fgraph(&["record", "-q", "--heap", "--", "./generated", which]);
        text(&record);
        assert_names(&place.fgraph(&["heap", "--json"]), file);
        let shown = text(&place.fgraph(&["heap"]));
        assert!(!shown.contains('\x1b'), "{shown:?}");
    }
}

#[test]
fn a_probe_names_callers_in_generated_code() {
    let place = Place::new(&needs!(GCC.find()), &["generated"]);
    let words = [
        "probe",
        "libc:malloc",
        "count by caller",
        "--",
        "./generated",
    ];
    for which in ["map", "dump"] {
        let shown = text(&place.fgraph(&[&words[..], &[which]].concat()));
        for name in NAMES {
            let mut lines = shown.lines();
            let line = lines.find(|line| line.contains(name));
            let line = line.unwrap_or_else(|| panic!("{name}: {shown}"));
            assert!(line.contains('5'), "{line}");
        }
    }
}
