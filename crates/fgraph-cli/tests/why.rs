//! `fgraph why`, on programs with one planted reason each.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use crate::support::compiled::{FGRAPH, Place};
use fgraph_needs::{CC, needs};
use serde_json::Value;

/// The slow calls of the program.
const SLOW: u64 = 3;

const PROGRAMS: &[&str] = &["slow", "refuse_perf", "chain", "requests"];

/// Recordings of the program, and their explanations.
trait Explained {
    /// Records the program with a reason; returns the mean time that it planted.
    fn record(&self, before: &[&str], reason: &str) -> u64 {
        // Long enough for the recorder to look at descriptors and names of threads.
        self.record_command(before, &["./slow", reason, "stay"])
    }

    /// Records a command, which prints a number.
    fn record_command(&self, before: &[&str], command: &[&str]) -> u64;

    /// Returns the reasons for slow calls of `handle`.
    fn why(&self, words: &[&str]) -> Value {
        self.why_of(&[&["-F", "handle"], words].concat())
    }

    /// Returns the reasons for slow calls or requests.
    fn why_of(&self, words: &[&str]) -> Value;
}

impl Explained for Place {
    fn record_command(&self, before: &[&str], command: &[&str]) -> u64 {
        let words = [before, &[FGRAPH, "record", "--waits", "-q"], command].concat();
        let recorded = self.command(&words).output().unwrap();
        assert!(recorded.status.success(), "{recorded:?}");
        let planted = String::from_utf8(recorded.stdout).unwrap();
        planted.trim().parse().unwrap()
    }

    fn why_of(&self, words: &[&str]) -> Value {
        let words = [&[FGRAPH, "why", "--json"], words].concat();
        let output = self.command(&words).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

/// The lines with a cause at a function, the largest first.
fn lines<'w>(why: &'w Value, cause: &str, function: &str) -> impl Iterator<Item = &'w Value> {
    let lines = why["lines"].as_array().unwrap();
    lines.iter().filter(move |line| {
        let path = line["path"].as_array().unwrap();
        line["cause"] == cause && path.iter().any(|name| name == function)
    })
}

/// The nanoseconds of these lines.
fn sum(why: &Value, cause: &str, function: &str) -> u64 {
    let ns = lines(why, cause, function).map(|line| line["ns"].as_u64().unwrap());
    ns.sum()
}

/// The largest of these lines.
fn line<'w>(why: &'w Value, cause: &str, function: &str) -> &'w Value {
    let found = lines(why, cause, function).next();
    found.unwrap_or_else(|| panic!("no {cause} in {function}: {why:#}"))
}

/// The planted reasons, each with the function in which it is.
const REASONS: [(&str, &str); 5] = [
    ("lock", "cache_get"),
    ("input", "load"),
    ("sleep", "back_off"),
    ("computes", "rehash"),
    ("processor", "compress"),
];

#[test]
fn a_planted_reason_has_a_line_with_its_time() {
    let place = Place::new(&needs!(CC.find()), PROGRAMS);
    for (reason, function) in REASONS {
        let planted = place.record(&[], reason);
        let why = place.why(&["--slowest", "5%"]);
        assert_eq!(
            (&why["calls"], &why["explained"]),
            (&60.into(), &SLOW.into())
        );
        assert_eq!(why["states"], "exact", "{why:#}");
        let found = line(&why, reason, function);
        let ns = sum(&why, reason, function);
        // A processor is lost in many places; those that are too small for lines are in the rest.
        // Time that a hypervisor takes counts as computing, and no clock of the program has it.
        let more = why["more_ns"].as_u64().unwrap();
        let (elsewhere, most) = match reason {
            "processor" => {
                let computes = sum(&why, "computes", function);
                (
                    computes + why["rest_ns"].as_u64().unwrap(),
                    planted + planted / 10,
                )
            }
            "computes" => (0, more),
            _ => (0, planted + planted / 10),
        };
        assert!(
            ns <= most && ns + elsewhere >= planted - planted / 10,
            "{reason}: {planted} {why:#}"
        );
        assert_eq!(found["calls"], SLOW, "{why:#}");
        // All lines and the rest are the whole difference.
        assert_eq!(sum_of_all(&why), why["more_ns"].as_i64().unwrap());
        match reason {
            "lock" => {
                assert_eq!(found["until"]["cause"], "sleep", "{why:#}");
                assert_eq!(found["of"], "lock [slow]", "{why:#}");
                assert_eq!(found["until"]["thread"]["name"], "flusher", "{why:#}");
                assert_eq!(found["until"]["of"], "30.000 ms", "{why:#}");
                let path = found["until"]["path"].as_array().unwrap();
                assert_eq!((&path[0], &path[1]), (&"usleep".into(), &"flush".into()));
            }
            "input" => {
                assert_eq!(found["until"]["cause"], "sleep", "{why:#}");
                let of = found["of"].as_str().unwrap();
                assert!(of.starts_with("the pipe of descriptors "), "{of}");
            }
            "sleep" => assert_eq!(found["of"], "30.000 ms", "{why:#}"),
            "computes" => {
                let calls = &found["more_calls"];
                assert_eq!(calls["function"], "hash", "{why:#}");
                assert!(calls["explained"].as_f64() > calls["usual"].as_f64());
            }
            _ => {}
        }
    }
}

#[test]
fn reasons_are_found_from_samples_and_without_states() {
    let place = Place::new(&needs!(CC.find()), PROGRAMS);
    let refuse = place.path("refuse_perf");
    for (reason, function) in REASONS {
        let planted = place.record(&[refuse.to_str().unwrap()], reason);
        let why = place.why(&["--slowest", "5%"]);
        assert_eq!(why["states"], "sampled", "{why:#}");
        let ns = sum(&why, reason, function);
        assert!(ns >= planted / 4, "{reason}: {planted} {why:#}");
    }
}

/// The sum of the lines and the rest.
fn sum_of_all(why: &Value) -> i64 {
    let lines = why["lines"].as_array().unwrap().iter();
    let sum: i64 = lines.map(|line| line["ns"].as_i64().unwrap()).sum();
    sum + why["rest_ns"].as_i64().unwrap()
}

#[test]
fn a_chain_of_threads_that_wait_for_each_other_is_followed_to_its_end() {
    let place = Place::new(&needs!(CC.find()), PROGRAMS);
    let planted = place.record_command(&[], &["./chain"]);
    let why = place.why(&["--slowest", "5%"]);
    let found = line(&why, "lock", "pthread_mutex_lock");
    let ns = found["ns"].as_u64().unwrap();
    assert!(ns.abs_diff(planted) <= planted / 10, "{planted} {why:#}");
    assert_eq!(found["of"], "first [chain]", "{why:#}");
    let middle = &found["until"];
    assert_eq!(
        (&middle["cause"], &middle["of"]),
        (&"lock".into(), &"second [chain]".into())
    );
    assert_eq!(middle["path"][1], "commit", "{why:#}");
    let last = &middle["until"];
    assert_eq!(
        (&last["cause"], &last["of"]),
        (&"sleep".into(), &"100.000 ms".into())
    );
    assert_eq!(last["path"][1], "flush", "{why:#}");
    let names = [middle, last].map(|until| &until["thread"]["name"]);
    assert_eq!(names, ["middle", "last"], "{why:#}");
    assert_eq!(last["until"], Value::Null);
    assert_eq!(sum_of_all(&why), why["more_ns"].as_i64().unwrap());
    let text = place.fgraph(&["why", "-F", "handle", "--slowest", "5%"]);
    let text = String::from_utf8(text.stdout).unwrap();
    let expected = "of first [chain], held by \"middle\", which waits for a lock in \
                    pthread_mutex_lock < commit < store, of second [chain], held by \"last\", \
                    which sleeps in usleep < flush < helper, of 100.000 ms";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn calls_with_the_same_value_are_one_request_over_threads() {
    let place = Place::new(&needs!(CC.find()), PROGRAMS);
    for (reason, cause, function) in [
        ("sleep", "sleep", "store"),
        ("other", "sleep", "clean_up"),
        ("turn", "turn", "store"),
    ] {
        let words = [FGRAPH, "record", "-q", "--waits", "--args-of", "handle"];
        let words = [&words, &["./requests", reason][..]].concat();
        let recorded = place.command(&words).output().unwrap();
        assert!(recorded.status.success(), "{recorded:?}");
        let planted: u64 = String::from_utf8(recorded.stdout)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        // The requests that others wait for are slow, too, and there are as many of them.
        let (count, slowest, planted) = match reason {
            "turn" => (63, "9%", planted / 2),
            _ => (60, "5%", planted),
        };
        let why = place.why_of(&["--request", "handle(arg0)", "--slowest", slowest]);
        assert_eq!(why["calls"], count, "{why:#}");
        let found = line(&why, cause, function);
        let ns = sum(&why, cause, function);
        assert!(ns.abs_diff(planted) <= planted / 5, "{reason}: {why:#}");
        assert_eq!(found["calls"], SLOW, "{why:#}");
        assert_eq!(sum_of_all(&why), why["more_ns"].as_i64().unwrap());
    }
    for (words, expected) in [
        (
            ["--slowest", "9%"],
            "waits for its turn      usleep < store < handle < worker",
        ),
        (["--call", "63"], "handle(arg0): request 63 took"),
    ] {
        let words = [&["why", "--request", "handle(arg0)"], &words[..]].concat();
        let text = String::from_utf8(place.fgraph(&words).stdout).unwrap();
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn a_program_is_recorded_and_its_requests_are_explained() {
    let place = Place::new(&needs!(CC.find()), PROGRAMS);
    let words = [
        "why",
        "--request",
        "handle(arg0)",
        "--slowest",
        "5%",
        "./requests",
        "other",
    ];
    let output = place.fgraph(&[&words[..5], &["--"], &words[5..]].concat());
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("handle(arg0): 60 requests"), "{text}");
    assert!(text.contains("usleep < clean_up < worker"), "{text}");
}

#[test]
fn a_running_process_has_a_page_for_each_time_until_an_interrupt() {
    let place = Place::new(&needs!(CC.find()), PROGRAMS);
    let mut program = place
        .command(&["./requests", "sleep", "endless"])
        .spawn()
        .unwrap();
    let pid = program.id().to_string();
    let words = [
        FGRAPH, "why", "-F", "handle", "-p", &pid, "--every", "300ms",
    ];
    let mut why = place.command(&words);
    why.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut why = why.spawn().unwrap();
    let lines = BufReader::new(why.stdout.take().unwrap()).lines();
    let mut lines = lines.map(Result::unwrap);
    for _ in 0..2 {
        let page = lines.by_ref();
        assert!(page.any(|line| line.starts_with("handle: ") && line.contains(" calls, half")));
        assert!(page.any(|line| line.contains("usleep < store")));
    }
    // SAFETY: a signal to a process that we have started.
    assert_eq!(unsafe { libc::kill(why.id() as i32, libc::SIGINT) }, 0);
    lines.for_each(drop);
    let why = why.wait_with_output().unwrap();
    assert_eq!(why.status.code(), Some(0));
    let said = String::from_utf8(why.stderr).unwrap();
    let unseen = |line: &&str| line.starts_with("fgraph: no page has the calls of ");
    assert!(said.lines().filter(unseen).count() >= 1, "{said}");
    assert_eq!(program.try_wait().unwrap(), None);
    program.kill().unwrap();
    program.wait().unwrap();
}

#[test]
fn one_call_is_shown_step_by_step() {
    let place = Place::new(&needs!(CC.find()), PROGRAMS);
    place.record(&[], "lock");
    let why = place.why(&["--call", "1"]);
    assert_eq!(why["explained"], 1);
    let steps = why["steps"].as_array().unwrap();
    let is_wait = |step: &&Value| step["cause"] == "lock" && step["path"][1] == "cache_get";
    let wait = steps.iter().find(is_wait);
    let wait = wait.unwrap_or_else(|| panic!("{why:#}"));
    assert!(
        wait["until"]["path"]
            .as_array()
            .unwrap()
            .contains(&"flush".into())
    );
    let text = place.fgraph(&["why", "-F", "handle", "--call", "1"]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("waits for a lock"), "{text}");
    assert!(
        text.contains("which sleeps in usleep < flush < helper"),
        "{text}"
    );
}

#[test]
fn a_program_is_recorded_and_explained() {
    let place = Place::new(&needs!(CC.find()), PROGRAMS);
    let words = [
        "why",
        "-F",
        "handle",
        "--slowest",
        "5%",
        "--",
        "./slow",
        "sleep",
    ];
    let output = place.fgraph(&words);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("handle: 60 calls"), "{text}");
    let line = text.lines().find(|line| line.contains("sleeps"));
    assert!(
        line.is_some_and(|line| line.contains("usleep < back_off")),
        "{text}"
    );
}

#[test]
fn bad_input_is_answered_with_a_line() {
    let place = Place::new(&needs!(CC.find()), PROGRAMS);
    place.record(&[], "sleep");
    for (words, code, expected) in [
        (
            &["-F", "nothing"][..],
            3,
            "no function of the recording matches 'nothing'",
        ),
        (
            &["-F", "handle", "--call", "61"],
            2,
            "the function has calls 1 to 60",
        ),
        (&["-F", "handle", "--slowest", "80%"], 2, "0 % to 50 %"),
        (&["-F", "handle", "none.data"], 3, "none.data"),
        (&["--request", "handle"], 2, "one of arg0 to arg5"),
        (
            &["--request", "handle(arg0)"],
            3,
            "have no arguments in fgraph.data; record with --args-of 'handle'",
        ),
        (&[], 2, "--function"),
        (
            &["-F", "nothing", "--", "./slow", "sleep"],
            3,
            "no call of nothing was recorded",
        ),
    ] {
        let output = place.fgraph(&[&["why"], words].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(expected), "{words:?}: {said}");
        assert_eq!(output.status.code(), Some(code), "{words:?}: {said}");
    }
}
