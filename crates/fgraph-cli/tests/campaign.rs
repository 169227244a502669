//! `fgraph inject --campaign`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fgraph_needs::{CC, PYTHON, needs};
use serde_json::Value;
use tempfile::TempDir;

/// A directory with `tests/record/campaign.c` as a program, and a directory for its runs.
struct Place(TempDir);

impl Place {
    fn new(cc: &Path) -> Self {
        let place = Self(TempDir::new().unwrap());
        let mut builder = Command::new(cc);
        builder.args(["-g", "-O1", "-o"]).arg(place.program());
        builder.arg("tests/record/campaign.c");
        assert!(builder.status().unwrap().success());
        fs::create_dir(place.path("dir")).unwrap();
        fs::write(place.path("dir/input"), "some input").unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn program(&self) -> PathBuf {
        self.path("campaign")
    }

    /// A campaign on calls that `main` makes, in copies of the directory.
    fn campaign(&self, words: &[&str], what: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        command.args(["inject", "--campaign", "--no-config", "from=main"]);
        command.arg("--dir").arg(self.path("dir")).args(words);
        command.arg("--").arg(self.program()).args(what);
        command.current_dir(self.0.path());
        command
    }
}

/// Functions of the program that can fail, for all that it does.
const FUNCTIONS: [&str; 7] = [
    "libc:open*",
    "libc:fsync",
    "malloc",
    "libc:pwrite*",
    "libc:rename",
    "libc:access",
    "libc:read",
];

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs a campaign to its end with `--json`.
#[track_caller]
fn view(command: &mut Command) -> (Value, String) {
    let output = command.output().unwrap();
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    (serde_json::from_slice(&output.stdout).expect(&said), said)
}

/// The verdict of each run, by the function that calls, and the number of the call.
fn verdicts(view: &Value) -> BTreeMap<(String, u64), String> {
    let runs = view["runs"].as_array().unwrap().iter();
    let verdict = |run: &Value| {
        let caller = run["callers"][0].as_str().unwrap();
        let caller = caller.split(' ').next().unwrap().to_owned();
        let verdict = run["verdict"].as_str().unwrap().to_owned();
        ((caller, run["nth"].as_u64().unwrap()), verdict)
    };
    runs.map(verdict).collect()
}

fn expected(verdicts: &[(&str, u64, &str)]) -> BTreeMap<(String, u64), String> {
    let verdicts = verdicts.iter();
    verdicts
        .map(|(caller, nth, verdict)| (((*caller).to_owned(), *nth), (*verdict).to_owned()))
        .collect()
}

/// The way in which the program takes the failure of each call.
const VERDICTS: [(&str, u64, &str); 7] = [
    ("reports", 1, "reported"),
    // The file cannot be opened, so writing to it fails.
    ("main", 1, "hung"),
    ("ignores", 1, "ignored"),
    ("crashes", 1, "crashed"),
    ("hangs", 1, "hung"),
    ("leaves_another_file", 1, "files"),
    ("writes_another_output", 1, "output"),
];

/// The number of processes that run a program.
fn running(program: &Path) -> usize {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let runs = |exe: PathBuf| fs::read_link(exe).is_ok_and(|exe| exe == program);
    all.filter(|entry| runs(entry.path().join("exe"))).count()
}

#[test]
fn each_call_fails_once_and_the_campaign_says_how_the_program_takes_it() {
    let place = Place::new(&needs!(CC.find()));
    let words = [&FUNCTIONS[..], &["--timeout", "8s", "--json"]].concat();
    let (one, said) = view(&mut place.campaign(&words, &[]));
    assert_eq!(verdicts(&one), expected(&VERDICTS), "{one} {said}");
    assert_eq!(running(&place.program()), 0);
    // The directory itself is as it was.
    assert_eq!(fs::read_dir(place.path("dir")).unwrap().count(), 1);
    let runs = one["runs"].as_array().unwrap();
    let run = |verdict: &str| runs.iter().find(|run| run["verdict"] == verdict).unwrap();
    assert_eq!(run("reported")["message"], "input cannot be opened");
    assert_eq!(run("reported")["error"], "-1/EACCES");
    assert_eq!(run("crashed")["signal"], libc::SIGSEGV);
    assert_eq!(run("files")["files"].as_array().unwrap().len(), 2);
    // Several runs at the same time have the same results.
    let words = [&words[..], &["--jobs", "3"]].concat();
    let (several, said) = view(&mut place.campaign(&words, &[]));
    assert_eq!(verdicts(&several), verdicts(&one), "{said}");
}

#[test]
fn results_are_conditions_and_junit() {
    let (cc, python) = (needs!(CC.find()), needs!(PYTHON.find()));
    let place = Place::new(&cc);
    let xml = place.path("campaign.xml");
    let words = ["malloc", "libc:fsync", "libc:open*", "--timeout", "8s"];
    let conditions = ["--fail-on", "ignored,crashed", "--junit"];
    let words = [&words[..], &conditions, &[xml.to_str().unwrap()]].concat();
    let output = place.campaign(&words, &[]).output().unwrap();
    let (out, said) = (String::from_utf8_lossy(&output.stdout), said(&output));
    assert_eq!(output.status.code(), Some(3), "{out} {said}");
    for line in ["fails: 1 run crashed", "fails: 1 run ignored"] {
        assert!(said.contains(line), "{said}");
    }
    for part in [
        "crashed  malloc [libc.so.6] = 0/ENOMEM",
        "< crashes [campaign] < main\n",
        "signal 11",
        "ignored  fsync [libc.so.6] = -1/EIO",
        "4 runs: 1 crashed, 1 hung, 1 ignored, 1 reported",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    assert!(!out.contains("input cannot be opened"), "{out}");
    let script = "import sys, xml.etree.ElementTree as tree\n\
        suite = tree.parse(sys.argv[1]).getroot()\n\
        failed = [it.attrib['classname'] for it in suite if it.find('failure') is not None]\n\
        print(suite.tag, suite.attrib['tests'], suite.attrib['failures'], *sorted(failed))";
    let mut parse = Command::new(python);
    let parsed = parse.args(["-c", script]).arg(&xml).output().unwrap();
    let parsed = String::from_utf8(parsed.stdout).unwrap();
    assert_eq!(parsed.trim(), "testsuite 4 2 fsync malloc");
    let words = ["libc:fsync", "--fail-on", "crashed,hung", "--all"];
    let output = place.campaign(&words, &[]).output().unwrap();
    assert!(output.status.success(), "{}", self::said(&output));
}

#[test]
fn calls_with_the_same_callers_fail_one_after_the_other() {
    let place = Place::new(&needs!(CC.find()));
    let (one, _) = view(&mut place.campaign(&["libc:read", "--json"], &["thrice"]));
    let once = [("reads", 1, "ignored")];
    assert_eq!(verdicts(&one), expected(&once), "{one}");
    for (calls, callers) in [("3", "16"), ("9", "1")] {
        let words = [
            "libc:read",
            "--json",
            "--calls",
            calls,
            "--callers",
            callers,
        ];
        let (all, _) = view(&mut place.campaign(&words, &["thrice"]));
        let more = [("reads", 2, "ignored"), ("reads", 3, "reported")];
        let three = [&once[..], &more].concat();
        assert_eq!(verdicts(&all), expected(&three), "{all}");
    }
}

#[test]
fn one_call_of_all_processes_fails() {
    let place = Place::new(&needs!(CC.find()));
    let twice = format!("'{0}' thrice; '{0}' thrice", place.program().display());
    let words = ["from=main", "libc:read", "--calls", "5", "--json", "--all"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    command.args(["inject", "--campaign", "--no-config", "--dir"]);
    command.arg(place.path("dir")).args(words);
    let (all, _) = view(command.args(["--", "sh", "-c", &twice]));
    let runs = all["runs"].as_array().unwrap();
    let facts = |run: &Value| [&run["nth"], &run["changed"], &run["exit_code"]].map(Value::clone);
    let facts: Vec<[Value; 3]> = runs.iter().map(facts).collect();
    // The last call of the first process is the third of all.
    let expected = (1..=5).map(|nth| [nth, 1, 0].map(Value::from));
    assert_eq!(facts, expected.collect::<Vec<_>>(), "{all}");
}

#[test]
fn things_that_differ_each_time_are_named_and_not_compared() {
    let place = Place::new(&needs!(CC.find()));
    let words = ["libc:fsync", "libc:close", "--json"];
    let (view, said) = view(&mut place.campaign(&words, &["varies"]));
    let varying = ["the output", "varies"].map(Value::from);
    assert_eq!(view["not_compared"], Value::from(varying.to_vec()));
    assert!(said.contains("not compared, since two plain runs differ there: the output, varies"));
    assert_eq!(
        verdicts(&view).values().next().unwrap(),
        "ignored",
        "{view}"
    );
}

#[test]
fn a_call_that_is_not_made_again_is_not_reached() {
    let place = Place::new(&needs!(CC.find()));
    // Without a copy: the directory that the first run makes stays.
    let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    command.args(["inject", "--campaign", "--no-config", "from=main", "--json"]);
    command.args(["libc:mkdir", "libc:fsync", "--"]);
    command.arg(place.program()).arg("once");
    let (view, _) = view(command.current_dir(place.path("dir")));
    let both = [("main", 1, "not-reached"), ("ignores", 1, "ignored")];
    assert_eq!(verdicts(&view), expected(&both), "{view}");
}

#[test]
fn a_campaign_goes_on_where_it_was_interrupted() {
    let place = Place::new(&needs!(CC.find()));
    let state = place.path("state");
    let kept = ["--state", state.to_str().unwrap(), "--json"];
    let words = [&FUNCTIONS[..], &kept].concat();
    // The hung program holds it up until the interrupt.
    let mut command = place.campaign(&[&words[..], &["--timeout", "100s"]].concat(), &[]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let since = Instant::now();
    let lines = || fs::read_to_string(&state).map_or(0, |text| text.lines().count());
    while lines() < 2 {
        assert!(since.elapsed() < Duration::from_secs(100));
        thread::sleep(Duration::from_millis(20));
    }
    // SAFETY: a system call on a child that was not waited for.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    let output = child.wait_with_output().unwrap();
    let said = said(&output);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("the same command goes on"), "{said}");
    assert_eq!(running(&place.program()), 0);
    let cut: Value = serde_json::from_slice(&output.stdout).unwrap();
    let done = cut["runs"].as_array().unwrap().len();
    assert!((1..VERDICTS.len()).contains(&done), "{cut}");
    assert_eq!(cut["left"], VERDICTS.len() - done);
    // A line that was cut off is written again.
    let mut text = fs::read_to_string(&state).unwrap();
    text += "{\"function\":";
    fs::write(&state, text).unwrap();
    let words = [&words[..], &["--timeout", "8s"]].concat();
    let (whole, said) = view(&mut place.campaign(&words, &[]));
    assert!(said.contains("done before"), "{said}");
    assert_eq!(verdicts(&whole), expected(&VERDICTS), "{said}");
    // A file of another campaign is not overwritten.
    let words = [&["libc:fsync"], &kept[..]].concat();
    let output = place.campaign(&words, &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(self::said(&output).contains("another campaign"));
}

#[test]
fn the_most_calls_are_limited_and_errors_can_be_given() {
    let place = Place::new(&needs!(CC.find()));
    let words = ["libc:open*", "libc:fsync", "--limit", "1", "--json"];
    let (one, said) = view(&mut place.campaign(&words, &[]));
    assert_eq!(
        (&one["beyond_limit"], one["runs"].as_array().unwrap().len()),
        (&2.into(), 1)
    );
    assert!(said.contains("2 calls left out by --limit"), "{said}");
    let words = ["ignores", "crashes=7/EPERM", "--json"];
    let (given, said) = view(&mut place.campaign(&words, &[]));
    assert_eq!(given["without_error"][0], "ignores");
    assert!(said.contains("no error is known for ignores"), "{said}");
    assert_eq!(given["runs"][0]["error"], "7/EPERM", "{given}");
    assert_eq!(given["runs"][0]["verdict"], "ignored", "{given}");
}

#[test]
fn campaigns_that_cannot_be_done_say_why() {
    let cc = needs!(CC.find());
    let place = Place::new(&cc);
    let fgraph = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        command.args(["inject", "--no-config"]).args(words);
        let output = command.current_dir(place.0.path()).output().unwrap();
        (output.status.code(), said(&output))
    };
    let wholly = place.path("static");
    let mut builder = Command::new(&cc);
    builder.args(["-static", "-o"]).arg(&wholly);
    builder.arg("tests/record/campaign.c");
    let is_static = builder.output().unwrap().status.success();
    let program = place.program();
    let [program, wholly] = [&program, &wholly].map(|path| path.to_str().unwrap());
    let campaign = ["--campaign", "libc:fsync"];
    for (words, code, part) in [
        (
            &["--timeout", "1s", "--", "sleep", "1000"][..],
            3,
            "has not ended within 1.000 s",
        ),
        (
            &["libc:fork", "--", "true"],
            3,
            "makes no call of libc:fsync, libc:fork; `fgraph record",
        ),
        (
            &["from=nowhere", "--", program],
            3,
            "makes no call of libc:fsync inside nowhere",
        ),
        (
            &["--state", "no/state", "--", program],
            4,
            "no directory no",
        ),
        (&["--", "/no/such"], 127, "there is no such program"),
        (&["--dir", "nosuch", "--", program], 3, "nosuch"),
        (&["--dir", program, "--", program], 2, "is no directory"),
        (&["--stdin", "nosuch", "--", program], 3, "nosuch"),
        (&["write=EIO", "--", program], 2, "an error is a result"),
        (&["-p", "1"], 2, "cannot be used with"),
        (&["--", wholly], 126, "statically"),
    ] {
        if words.contains(&wholly) && !is_static {
            continue;
        }
        let (found, said) = fgraph(&[&campaign[..], words].concat());
        assert_eq!(found, Some(code), "{words:?}: {said}");
        assert!(said.contains(part), "{words:?}: {said}");
    }
    let (code, said) = fgraph(&["libc:fsync", "skip", "--jobs", "2", "--", program]);
    assert_eq!(code, Some(2), "{said}");
}
