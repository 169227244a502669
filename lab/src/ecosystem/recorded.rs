//! Programs of others do the same while `fgraph record --libs` records them, from their start and
//! by ten attaches while they run.
//!
//! A script of the shell runs each program three times, see `list.rs`:
//!
//! ```text
//!   plain      $TRACE is empty
//!   recorded   $TRACE is `fgraph record --libs ... --`
//!   attached   $TRACE is `sh attach.sh FGRAPH`, which attaches to what it executes
//! ```
//!
//! The output of the script and its exit status must be the same three times. Scripts print only
//! what does not depend on process ids, addresses, times and the number of rounds.

mod list;

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use fgraph_chores::process::Done;
use serde_json::{Value, json};

use super::program::{Missing, ROW, Recorder, shell};
use list::{TRIALS, Trial};

/// Longest time of a run, in seconds.
const LIMIT: u32 = 300;

/// Attaches to a program in one run.
const ATTACHES: usize = 10;

/// Exit code of `fgraph record -p` where a process cannot be recorded.
const REFUSED: &str = "126";

/// The word for a difference that is known and will go.
const EXPECTED: &str = "expected to fail: starts processes";

/// Attaches to a program until the file `stop` says that there were enough attaches, of this and
/// of earlier processes of the run. Each exit code becomes a line of `attached`.
///
/// The attaching process is no child of the program, which may wait for all of its children.
const ATTACH: &str = "\
fgraph=$1
shift
pid=$$
((
  while grep -q attach.sh /proc/$pid/cmdline; do sleep 0.01; done
  sleep 0.3
  while kill -0 $pid && [ $(wc -l < attached) -lt 10 ]; do
    $fgraph record -q --libs --no-source --time 200ms -p $pid -o attached.data
    echo $? >> attached
  done
  [ $(wc -l < attached) -lt 10 ] || : > stop
) < /dev/null > /dev/null 2>> attach.log &)
exec \"$@\"
";

/// The result of a program.
#[derive(Debug)]
pub(super) struct Outcome {
    name: &'static str,
    version: String,
    missing: Option<Missing>,
    /// Fault without fgraph, if any.
    plain: Option<String>,
    /// Fault while it was recorded, if any.
    recorded: Option<String>,
    /// Fault while it was attached to, if any.
    attached: Option<String>,
    /// True if attaching may harm it, because it starts processes.
    starts_processes: bool,
    /// Number of attaches that recorded.
    attaches: usize,
    /// Reason why another attach was refused, if one was.
    refusal: Option<String>,
    /// Number of functions that the recording has calls of.
    functions: String,
    /// Number of calls that the recording has.
    calls: String,
}

/// Runs the programs of these names, or all.
pub(super) fn run(recorder: &Recorder, names: &[String]) -> io::Result<Vec<Outcome>> {
    let wanted = TRIALS.iter().filter(|trial| trial.program.is_wanted(names));
    let all = recorder.directory.join("recorded");
    let one = |trial: &Trial| {
        let outcome = trial.run(recorder, &trial.program.directory(&all)?)?;
        fs::write(trial.program.path(&all).join(ROW), outcome.row())?;
        eprint!(
            "{}{}",
            outcome.row(),
            faults(std::slice::from_ref(&outcome))
        );
        Ok(outcome)
    };
    wanted.map(one).collect()
}

/// The rows of the newest results in `directory`.
pub(super) fn newest(directory: &Path) -> String {
    let all = directory.join("recorded");
    let rows = TRIALS.iter().map(|trial| trial.program.newest(&all));
    rows.collect()
}

impl Trial {
    fn run(&self, recorder: &Recorder, directory: &Path) -> io::Result<Outcome> {
        let mut outcome = Outcome::new(self);
        if outcome.missing.is_some() {
            return Ok(outcome);
        }
        let file = |name: &str| directory.join(name);
        for (name, text) in [("stop", ""), ("attach.sh", ATTACH), ("attach.log", "")] {
            fs::write(file(name), text)?;
        }
        let script = |script, trace: &str| shell(directory, script, trace, LIMIT);
        let plain = match script(self.prepare, "")? {
            made if made.fault().is_none() => script(self.program.script, "")?,
            not_made => not_made,
        };
        outcome.plain = plain.fault();
        if outcome.plain.is_some() {
            return Ok(outcome);
        }
        let trace = format!(
            "{} record -q --libs --no-source -o recorded.data --",
            recorder.fgraph.display()
        );
        let recorded = script(self.program.script, &trace)?;
        outcome.recorded = difference(&plain, &recorded);
        let mut info = Command::new(&recorder.fgraph);
        let info = Done::of(info.arg("info").arg(file("recorded.data")))?;
        outcome.functions = value(&info.stdout, "functions").to_owned();
        outcome.calls = value(&info.stdout, "calls").to_owned();
        // There is none if the recorder has crashed.
        let _ = fs::remove_file(file("recorded.data"));
        fs::remove_file(file("stop"))?;
        fs::write(file("attached"), "")?;
        let attach = file("attach.sh");
        let trace = format!("/bin/sh {} {}", attach.display(), recorder.fgraph.display());
        let attached = script(self.program.script, &trace)?;
        outcome.attached = difference(&plain, &attached);
        outcome.attaches(
            &fs::read_to_string(file("attached"))?,
            &fs::read_to_string(file("attach.log"))?,
        );
        Ok(outcome)
    }
}

/// Returns the first word behind `name` in the output of `fgraph info`.
fn value<'a>(info: &'a str, name: &str) -> &'a str {
    let of_name = |line: &&str| line.split_whitespace().next() == Some(name);
    let line = info.lines().find(of_name).unwrap_or_default();
    let word = line.split_whitespace().nth(1).unwrap_or_default();
    word.trim_end_matches(',')
}

/// Returns a difference between a run and the plain one.
fn difference(plain: &Done, traced: &Done) -> Option<String> {
    let differs = || {
        let (is, was) = (&traced.stdout, &plain.stdout);
        (is != was).then(|| format!("prints\n{is}instead of\n{was}{}", traced.stderr))
    };
    traced.fault().or_else(differs)
}

impl Outcome {
    fn new(trial: &Trial) -> Self {
        Self {
            name: trial.program.name,
            version: trial.program.version(),
            missing: trial.program.missing(),
            plain: None,
            recorded: None,
            attached: None,
            starts_processes: trial.starts_processes,
            attaches: 0,
            refusal: None,
            functions: String::new(),
            calls: String::new(),
        }
    }

    /// Counts the attaches by their exit codes, and finds out why others were refused.
    fn attaches(&mut self, codes: &str, log: &str) {
        self.attaches = codes.lines().filter(|&code| code == "0").count();
        let why = log
            .lines()
            .find_map(|line| line.split_once(" cannot be recorded: "));
        self.refusal = why.map(|(_, why)| why.to_owned());
        let is_known = |code: &str| ["0", REFUSED].contains(&code);
        let other = codes.lines().find(|code| !is_known(code));
        let stopped = codes.lines().count() < ATTACHES;
        let fault = match other {
            Some(code) => Some(format!("fgraph record -p exits with code {code}: {log}")),
            None if stopped => Some(format!("it ended after {} attaches", self.attaches)),
            None => None,
        };
        self.attached = self.attached.take().or(fault);
    }

    /// True if fgraph changed nothing that it promises to leave as it is.
    pub(super) fn is_good(&self) -> bool {
        let attached = self.attached.is_none() || self.starts_processes;
        self.plain.is_none() && self.recorded.is_none() && attached
    }

    /// The cells of a row, as far as the run went.
    fn cells(&self) -> [String; 6] {
        const E: String = String::new();
        let result = |fault: &Option<String>| match fault {
            None => "equal".to_owned(),
            Some(_) => "NOT equal".to_owned(),
        };
        let attached = match (&self.attached, &self.refusal) {
            (Some(_), _) if self.starts_processes => EXPECTED.to_owned(),
            (Some(_), _) => result(&self.attached),
            (None, Some(why)) if self.attaches == 0 => format!("equal, refused: {why}"),
            (None, _) => format!("equal, {} of {ATTACHES}", self.attaches),
        };
        let (functions, calls) = (self.functions.clone(), self.calls.clone());
        let [recorded, attached, functions, calls] = match self.missing {
            Some((need, from)) => [format!("skipped: no {need} ({from})"), E, E, E],
            None if self.plain.is_some() => ["fails without fgraph".to_owned(), E, E, E],
            None => [result(&self.recorded), attached, functions, calls],
        };
        let (name, version) = (self.name.to_owned(), self.version.clone());
        [name, version, recorded, attached, functions, calls]
    }

    fn row(&self) -> String {
        format!("| {} |\n", self.cells().join(" | "))
    }

    /// The first that went wrong, with what the program said.
    fn fault(&self) -> Option<String> {
        let faults = [
            ("plain", &self.plain),
            ("recorded", &self.recorded),
            ("attached", &self.attached),
        ];
        let (way, fault) = faults
            .into_iter()
            .find_map(|(way, fault)| Some((way, fault.as_ref()?)))?;
        Some(format!("{}, {way}: {fault}", self.name))
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "program": self.name,
            "version": self.version,
            "missing": self.missing.map(|(need, _)| need),
            "recorded": self.recorded.is_none(),
            "attached": self.attached.is_none(),
            "starts_processes": self.starts_processes,
            "attaches": self.attaches,
            "functions": self.functions,
            "calls": self.calls,
            "fault": self.fault(),
        })
    }
}

/// The head of the table, in Markdown.
pub(super) const HEADER: &str = "\
| program | version | recorded | attached | functions | calls |
|---|---|---|---|---:|---:|
";

/// All outcomes as a table.
pub(super) fn table(all: &[Outcome]) -> String {
    let rows: String = all.iter().map(Outcome::row).collect();
    format!("{HEADER}{rows}")
}

/// Returns the faults, a paragraph each.
pub(super) fn faults(all: &[Outcome]) -> String {
    let mut text = String::new();
    for outcome in all {
        if let Some(fault) = outcome.fault() {
            let how = if outcome.is_good() {
                EXPECTED
            } else {
                "FAILED"
            };
            let _ = writeln!(text, "{how}: {fault}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn outcome() -> Outcome {
        let mut outcome = Outcome::new(&TRIALS[0]);
        outcome.starts_processes = false;
        outcome.missing = None;
        outcome
    }

    #[test]
    fn programs_have_different_names_are_traced_and_look_for_stop() {
        let mut names = HashSet::new();
        for Trial { program, .. } in TRIALS {
            let (name, script) = (&program.name, &program.script);
            let file = program.file.map_or("", |(_, text)| text);
            assert!(script.contains("$TRACE "), "{name}");
            assert!(script.contains("stop") || file.contains("stop"), "{name}");
            assert!(names.insert(name), "{name}");
        }
    }

    #[test]
    fn ten_attaches_without_a_difference_are_good() {
        let mut outcome = outcome();
        outcome.attaches(&"0\n".repeat(10), "");
        assert!(outcome.is_good());
        assert!(table(&[outcome]).contains("| equal, 10 of 10 |"));
    }

    #[test]
    fn a_refusal_is_said_and_harms_nobody() {
        let mut outcome = outcome();
        let log = "fgraph: process 7 cannot be recorded: it is static\n";
        outcome.attaches(&"126\n".repeat(10), log);
        assert!(outcome.is_good());
        assert!(table(&[outcome]).contains("| equal, refused: it is static |"));
    }

    #[test]
    fn an_early_end_is_a_fault_unless_the_program_starts_processes() {
        let mut outcome = outcome();
        outcome.attaches("0\n", "");
        assert!(!outcome.is_good() && faults(&[outcome]).starts_with("FAILED: "));
        let mut outcome = self::outcome();
        outcome.starts_processes = true;
        outcome.attaches("0\n", "");
        assert!(outcome.is_good() && faults(&[outcome]).starts_with(EXPECTED));
    }

    #[test]
    fn a_crash_of_the_recorder_is_a_fault() {
        let mut outcome = outcome();
        outcome.attaches(&"101\n".repeat(10), "panicked");
        assert!(!outcome.is_good());
    }

    #[test]
    fn figures_are_found_in_what_info_prints() {
        let info = "functions  1,234\ncalls      5,678, 2.00 bytes each\n";
        assert_eq!(value(info, "functions"), "1,234");
        assert_eq!(value(info, "calls"), "5,678");
        assert_eq!(value(info, "threads"), "");
    }
}
