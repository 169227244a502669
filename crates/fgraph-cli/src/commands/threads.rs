//! `fgraph threads`: functions that are called on the wrong thread.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use fgraph_analysis::addresses::Addresses as _;
use fgraph_protocol::{Settings, Tool};
use fgraph_trace::Source;
use fgraph_trace::names::{Names, process_id};
use fgraph_tracers::Caller;
use fgraph_tracers::threads::{Rule, RuleError, parse_rule, read_mark};
use serde::Serialize;

use crate::error::Error;
use crate::input::readable;
use crate::json;
use crate::launch::events::Events;
use crate::launch::interrupt::Interrupts;
use crate::launch::{Launched, Target};
use crate::output::Out;
use crate::places::{self, Places};
use crate::target::{Patterns, parse_patterns};
use crate::text::{self, escaped};

const EXAMPLES: &str = "\
Examples:
  fgraph threads --rules rules -- ./editor
  fgraph threads --rules rules --json -p 1234

A file of rules has one on each line; what begins with # is nothing:
  # functions of the user interface
  main: gtk_* libgdk:gdk_*
  worker: libc:fsync sqlite3_step

`main` has functions that only the main thread of a process may call, `worker` those that it may
not. Behind the colon are globs over names, each with a module before it or without, or any other
words of a filter. If several rules name a function, the first holds; 64 rules are checked.";

/// Run a program and show calls on wrong threads, by a file of rules
///
/// Each calling place is shown once for each process, with an earlier right call of the same
/// function if there was one.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The file with the rules; `-` is standard input, which is then empty for the program
    #[arg(long, value_name = "FILE")]
    rules: PathBuf,
    /// Print one JSON object for each line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// A line of `threads` in JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged)]
enum Line {
    Wrong(WrongView),
    Lost(LostView),
}

/// A place that calls a function on the wrong thread.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct WrongView {
    process: u32,
    function: String,
    rule: RuleView,
    wrong: CallerView,
    /// An earlier right call of the function; null if there was none.
    right: Option<CallerView>,
}

/// A rule.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
enum RuleView {
    /// Only the main thread may call it.
    Main,
    /// The main thread may not call it.
    Worker,
}

/// The caller of a function.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct CallerView {
    thread: u32,
    name: String,
    /// The places of the calls, the innermost first.
    places: Vec<String>,
}

/// Calls on wrong threads that are missing.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct LostView {
    lost: u64,
}

/// Runs the program, and exits like it.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Error> {
    let text = fs::read_to_string(readable(&args.rules)?).map_err(|error| Error::Input {
        path: args.rules.clone(),
        error,
    })?;
    let rules = rules(&text).map_err(|(line, why)| {
        let file = args.rules.display();
        Error::Usage(format!("{file}: line {line}: {why}"))
    })?;
    let words = |patterns: &Patterns| patterns.words().collect::<Vec<_>>().join(" ");
    let in_words = rules
        .iter()
        .map(|(rule, functions)| (*rule, words(functions)));
    let settings = Settings {
        tool: Tool::Threads(in_words.collect()),
        ..Settings::default()
    };
    let patterns = rules.iter().flat_map(|(_, functions)| &functions.0);
    let program = args.target.find(settings)?.checking(patterns);
    program.run_whole(|launched, interrupts| show(args, launched, interrupts))
}

/// The most rules that are checked.
const RULES: usize = 64;

/// The format of a rule.
const FORM: &str = "a rule is a line such as `main: draw_*` or `worker: read_file`";

/// Parses the rules in a text; or returns the number of the wrong line, and the reason.
fn rules(text: &str) -> Result<Vec<(Rule, Patterns)>, (usize, String)> {
    let mut rules = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let rule = parse_rule(line).map_err(|error| (number, explained(&error)))?;
        let Some((rule, functions)) = rule else {
            continue;
        };
        if rules.len() == RULES {
            return Err((number, format!("there are {RULES} rules already")));
        }
        let functions = parse_patterns(functions).map_err(|why| (number, why))?;
        rules.push((rule, functions));
    }
    match rules.is_empty() {
        true => Err((1, format!("there is no rule: {FORM}"))),
        false => Ok(rules),
    }
}

fn explained(error: &RuleError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None if *error == RuleError::NoColon => format!("{error}: {FORM}"),
        None => error.to_string(),
    }
}

fn show(args: &Args, launched: &mut Launched, interrupts: &Interrupts) -> Result<(), Error> {
    let (mut out, mut places) = (Out::new(), Places::of_running(launched.generated()));
    let mut events = Events::new(launched, interrupts)?;
    let mut lost = 0_u64;
    while let Some(found) = events.find(&mut out)? {
        lost = lost.saturating_add(found.lost);
        let Some((function, violation)) = read_mark(&found.words) else {
            continue;
        };
        let (names, process) = (events.names(), found.process);
        if args.json {
            let mut to_json = |caller: &Caller| CallerView {
                thread: caller.thread,
                name: escaped(&caller.thread_name).into_owned(),
                places: places_of(&mut places, names, process, caller),
            };
            let line = Line::Wrong(WrongView {
                process: process_id(process),
                function: places::function(names, process, function),
                rule: match violation.rule {
                    Rule::MainOnly => RuleView::Main,
                    Rule::WorkerOnly => RuleView::Worker,
                },
                wrong: to_json(&violation.wrong),
                right: violation.right.as_ref().map(to_json),
            });
            out.line(json::line(&line))?;
            continue;
        }
        let whose = match violation.rule {
            Rule::MainOnly => "the main thread's",
            Rule::WorkerOnly => "not the main thread's",
        };
        let function = places::function(names, process, function);
        let wrong = caller(&mut places, names, process, &violation.wrong);
        let mut line = format!("{function} is {whose}, called by {wrong}");
        if let Some(right) = &violation.right {
            let right = caller(&mut places, names, process, right);
            // Writing to a string does not fail.
            _ = write!(line, ", rightly by {right}");
        }
        out.line(line)?;
    }
    if lost > 0 && args.json {
        out.line(json::line(&Line::Lost(LostView { lost })))?;
    } else if lost > 0 {
        say!("fgraph: {} on wrong threads lost", text::calls(lost));
    }
    out.finish()
}

/// Describes the thread and the place of a call.
fn caller(places: &mut Places, names: &Names, process: u32, caller: &Caller) -> String {
    let mut text = format!("{} {}", escaped(&caller.thread_name), caller.thread);
    for (nth, place) in places_of(places, names, process, caller).iter().enumerate() {
        text += if nth == 0 { " at " } else { " < " };
        text += place;
    }
    text
}

/// Returns the places of a call, the innermost first.
fn places_of(places: &mut Places, names: &Names, process: u32, caller: &Caller) -> Vec<String> {
    let callers = caller.callers.iter();
    let place = |address: &usize| places.at(names, process, *address as u64);
    callers.map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_docs_have_the_schema() {
        json::check_schema::<Line>("threads");
    }

    #[test]
    fn a_wrong_line_is_named() {
        let good = "# comment\n\nmain: ui_*  draw\n worker : libx.so:f\n";
        let expected = [
            (Rule::MainOnly, parse_patterns("ui_* draw").unwrap()),
            (Rule::WorkerOnly, parse_patterns("libx.so:f").unwrap()),
        ];
        assert_eq!(rules(good), Ok(expected.into()));
        for (bad, line, part) in [
            ("main: f\nmain f", 2, "no colon"),
            ("mian: f", 1, "\"mian\""),
            ("main: f\n\nworker:", 3, "the functions behind the colon"),
            ("main: \"f", 1, "the functions behind the colon"),
            ("# nothing", 1, "no rule"),
        ] {
            let (found, why) = rules(bad).unwrap_err();
            assert!(found == line && why.contains(part), "{found}: {why}");
        }
    }
}
