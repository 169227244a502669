//! `--budget`: functions that cost too much are switched off, truly, and on again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use fgraph_needs::{CC, needs};
use fgraph_trace::event::What;
use fgraph_trace::names::OffTime;
use fgraph_trace::{Recording, Source};
use tempfile::TempDir;

/// A program of `tests/record`, and what is recorded of it.
struct Place {
    folder: TempDir,
    program: PathBuf,
}

impl Place {
    fn of(cc: &Path, source: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let program = folder.path().join("program");
        let source = Path::new("tests/record").join(source);
        let mut cc = Command::new(cc);
        let cc = cc.args(["-g", "-O1", "-o"]).arg(&program).arg(source);
        assert!(cc.status().unwrap().success());
        Self { folder, program }
    }

    fn recording(&self) -> PathBuf {
        self.folder.path().join("fgraph.data")
    }

    fn fgraph(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        command.args(arguments).current_dir(self.folder.path());
        command
    }

    fn record(&self, options: &[&str], arguments: &[&str]) -> Output {
        let mut recorder = self.fgraph(&["record"]);
        let recorder = recorder.args(options).arg("--").arg(&self.program);
        recorder.args(arguments).output().unwrap()
    }

    /// Calls of a function in the recording, and its times without calls.
    fn found(&self, name: &str) -> (u64, Vec<OffTime>) {
        let mut recording = Recording::open(&self.recording()).unwrap();
        let mut calls = 0;
        while let Some(event) = recording.next().unwrap() {
            let What::Entry { function, .. } = event.what else {
                continue;
            };
            let process = event.process;
            let known = recording.names().function(process, function);
            calls += u64::from(known.is_some_and(|it| it.name == name));
        }
        let names = recording.names();
        let is_it = |off: &&OffTime| {
            let function = names.function(off.process, off.function);
            function.is_some_and(|it| it.name == name)
        };
        let times = names.off_times().iter().filter(is_it).copied();
        (calls, times.collect())
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_short_function_is_switched_off_and_on_and_all_calls_of_a_long_one_are_recorded() {
    let place = Place::of(&needs!(CC.find()), "tiny.c");
    // The program ends well when the text of `tiny` was as it is in the file, and then changed.
    for arguments in [&[][..], &["fork"]] {
        let output = place.record(&["--budget", "5%"], arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{said}");
        let expected: u64 = text(&output.stdout).trim().parse().unwrap();
        let (calls, times) = place.found("slow");
        // Forked children do not wait for room in their rings.
        let is_right = calls == expected || calls < expected && arguments == ["fork"];
        assert!(is_right && times.is_empty(), "{calls} {expected}: {said}");
        let (calls, times) = place.found("tiny");
        assert!(calls > 0);
        // The program sees its text before the agent can tell of it, and may end in between.
        let is_right = times[0].until.is_none_or(|until| until > times[0].from);
        assert!(is_right, "{times:?}");
        let line = "fgraph: tiny [program] was not recorded for ";
        assert!(said.lines().any(|said| said.starts_with(line)), "{said}");
    }
    let shown = |arguments: &[&str]| text(&place.fgraph(arguments).output().unwrap().stdout);
    let info = shown(&["info"]);
    assert!(info.contains("\noff        tiny [program]: "), "{info}");
    assert!(shown(&["info", "--json"]).contains(r#""off_times":[{"function":"tiny [program]""#));
    let report = shown(&["report"]);
    let line = report.lines().find(|line| line.contains("tiny"));
    assert!(
        line.is_some_and(|line| line.contains("(off for ")),
        "{report}"
    );
}

#[test]
fn live_and_top_keep_a_budget_too() {
    let place = Place::of(&needs!(CC.find()), "tiny.c");
    for view in ["live", "top"] {
        let mut command = place.fgraph(&[view, "--budget", "5%", "--"]);
        let command = command.arg(&place.program).stdin(Stdio::null());
        let output = command.output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{view}: {said}");
    }
}

#[test]
fn commands_about_time_keep_a_budget_where_they_attach() {
    let place = Place::of(&needs!(CC.find()), "tiny.c");
    for command in [
        &["top"][..],
        &["why", "-F", "slow", "--time", "1min"],
        &["tasks", "-F", "tiny", "-F", "slow"],
    ] {
        let mut program = Command::new(&place.program);
        let program = program.arg("later").stdout(Stdio::null()).spawn();
        let mut program = program.unwrap();
        let pid = program.id().to_string();
        let output = place.fgraph(command).args(["-p", &pid]).output().unwrap();
        // It ends well when the text of `tiny` was changed, and then as it is in the file.
        let code = program.wait().unwrap().code();
        assert_eq!(code, Some(0), "{command:?}: {}", text(&output.stderr));
    }
}

#[test]
fn a_program_within_its_budget_is_recorded_as_without_one() {
    let place = Place::of(&needs!(CC.find()), "hostile.c");
    let output = place.record(&["--budget", "1000%"], &[]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text(&output.stdout), "ten calls\n");
    assert_eq!(place.found("leaf"), (10, Vec::new()));
}

#[test]
fn a_function_that_is_called_too_often_gets_its_text_back() {
    let place = Place::of(&needs!(CC.find()), "tiny.c");
    // It is not switched on again: the program gives up waiting for that when it is told to.
    let output = place.record(&["--max-rate", "1000"], &["once"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let (calls, times) = place.found("tiny");
    assert_eq!(calls, 1000);
    assert!(
        matches!(times[..], [OffTime { until: None, .. }]),
        "{times:?}"
    );
}

#[test]
fn bad_budgets_are_refused_in_one_line() {
    let place = Place::of(&needs!(CC.find()), "hostile.c");
    let budget = "a budget is 0.1 % to 1000 % of the program's own time: 5%";
    let all = "--budget counts all calls: it does not go with -t, --depth or --graph-function";
    let ring = "--budget takes --ring block or drop, and no --trigger";
    for (options, expected) in [
        (&["--budget", "0"][..], budget),
        (&["--budget", "abc"], budget),
        (&["--budget", "5000%"], budget),
        (&["--budget", "5%", "-t", "1ms"], all),
        (&["--budget", "5%", "--depth", "3"], all),
        (&["--budget", "5%", "--graph-function", "main"], all),
        (&["--budget", "5%", "--ring", "overwrite"], ring),
        (&["--budget", "5%", "--trigger", "call:main"], ring),
        (
            &["--budget", "5%", "--max-rate", "5"],
            "cannot be used with",
        ),
    ] {
        let output = place.record(options, &[]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{options:?}: {said}");
        assert!(said.contains(expected), "{options:?}: {said}");
        assert!(fs::metadata(place.recording()).is_err(), "{options:?}");
    }
}
