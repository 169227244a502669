//! `fgraph diff`: the calls and times that changed between two builds of a program.

mod build;
mod condition;
mod flame;
mod matching;
mod statistics;
mod times;

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::process::ExitCode;
use std::{iter, panic, thread};

use build::{Build, Counts};
use condition::{Condition, Figure};
use matching::Pair;
use serde::Serialize;
use statistics::{Change, LEAST, slowness};
use times::{Limit, Times};

use fgraph_analysis::calls::Slot;
use fgraph_analysis::pairs::Key;

use crate::error::Error;
use crate::input::matcher;
use crate::json::{self, Lost};
use crate::output::{Out, Style, must_differ};
use crate::table::Table;
use crate::target::parse_patterns;
use crate::text::{self, escaped, grouped, named, time};
use crate::unmatched;

/// Show which calls and times changed between two builds of a program
///
/// Takes a recording of each build, or several: OLD... -- NEW... Numbers of calls are exact. A
/// change of time is shown if it is larger than the differences among recordings of the same build,
/// which takes at least three of each; record the builds in turns. With --all, all functions are
/// shown.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "fgraph diff [OPTIONS] OLD NEW\n       fgraph diff [OPTIONS] OLD... -- NEW...",
    after_help = "\
Examples:
  fgraph diff old.data new.data
  fgraph diff --fail-on 'calls(malloc) > +0%' --fail-on 'self > +5%' old*.data -- new*.data"
)]
pub(crate) struct Args {
    /// The recordings of the old build, and the one of the new build unless they follow `--`
    #[arg(value_name = "OLD", required = true)]
    old: Vec<PathBuf>,
    /// The recordings of the new build
    #[arg(value_name = "NEW", last = true)]
    new: Vec<PathBuf>,
    /// Only functions with these names, such as `parse*`, `libc:open*` or `py:json.*`
    #[arg(short = 'F', long = "filter", value_name = "GLOB")]
    filters: Vec<String>,
    /// The most lines to show
    #[arg(short = 'n', long, value_name = "N", default_value_t = 40)]
    lines: usize,
    /// Show functions without a certain change, too
    #[arg(long)]
    all: bool,
    /// Exit with 3 if this holds for a function: `calls(malloc) > +0%`, `self > +5%`,
    /// `total(handle) > +1ms`; also if neither build calls a function that it names. May be given
    /// several times
    #[arg(long, value_name = "CONDITION")]
    fail_on: Vec<Condition>,
    /// Print a table for a pull request
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Write a flame graph of the new build to this file, red where time was added and blue where
    /// it was saved
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// The part of the old build's time below which a function's times are not compared: the fewer are
/// compared, the smaller the changes that are found.
const SMALL: f64 = 0.0001;

/// The view of `diff` in JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Diff {
    old_recordings: usize,
    new_recordings: usize,
    old_lost: Lost,
    new_lost: Lost,
    /// The time of all functions, without sleep of threads outside of them.
    all: TimeChange,
    /// Functions with changes, or with --all every function; the largest change of own time first.
    functions: Vec<FunctionChange>,
    /// The conditions that hold, and those that name functions that neither build calls.
    failed: Vec<Failure>,
}

/// The changes of a function. Figures are means of the recordings.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct FunctionChange {
    name: String,
    /// The file of the module, without directories.
    module: String,
    old_calls: f64,
    new_calls: f64,
    /// True if the numbers of calls differ by more than those of the same build do.
    calls_changed: bool,
    #[serde(rename = "self")]
    own: TimeChange,
    total: TimeChange,
    /// True if it was switched off for some time, so that calls may be missing.
    is_incomplete: bool,
    /// The places where its calls changed, and its other name or its probable fate.
    notes: Vec<String>,
}

/// The change of a time, in nanoseconds. Unless the times of all calls differ for certain,
/// unusually long calls, such as interrupted ones, count as the mean of the others, and calls of a
/// slow recording count less.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct TimeChange {
    old_ns: f64,
    new_ns: f64,
    /// The difference is between these; null for few recordings, and for functions with little
    /// time.
    from_ns: Option<f64>,
    to_ns: Option<f64>,
    /// True if that interval excludes 0.
    is_certain: bool,
}

/// A condition that holds, or that names functions that neither build calls.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Failure {
    condition: String,
    /// The functions for which it holds.
    functions: Vec<String>,
    /// Messages about its names that match no function.
    unmatched: Vec<String>,
}

/// A function in both builds.
#[derive(Debug)]
struct Row {
    name: String,
    module: String,
    calls: Change,
    calls_changed: bool,
    own: Change,
    total: Change,
    is_incomplete: bool,
    notes: Vec<String>,
}

impl Row {
    /// Returns true if something has changed for certain.
    fn is_changed(&self) -> bool {
        self.calls_changed || self.own.is_certain() || self.total.is_certain()
    }

    fn named(&self) -> String {
        named(&self.name, &self.module)
    }

    /// Returns true if a condition holds for it. Incomplete numbers of calls are never judged.
    fn fails(&self, condition: &Condition) -> bool {
        let (change, is_certain) = match condition.figure {
            Figure::Calls => (&self.calls, self.calls_changed),
            Figure::Own => (&self.own, self.own.is_certain()),
            Figure::Total => (&self.total, self.total.is_certain()),
        };
        is_certain
            && !self.is_incomplete
            && condition.is_of(&self.name, &self.module)
            && condition.holds(change)
    }
}

/// Prints it; the exit code says if a condition holds.
pub(crate) fn run(args: Args) -> Result<ExitCode, Error> {
    let (old, new) = sides(&args)?;
    let needs = args.fail_on.iter().find(|it| it.figure != Figure::Calls);
    if let (Some(condition), true) = (needs, old.len().min(new.len()) < LEAST) {
        return Err(Error::Usage(format!(
            "'{}' needs at least {LEAST} recordings of each build, because times differ from run \
             to run: OLD... -- NEW...",
            condition.text()
        )));
    }
    if let Some(path) = &args.html {
        must_differ(path, old.iter().chain(&new))?;
    }
    let [old, new] = read(&args, [old, new])?;
    say_differences(&old, &new);
    check_filters(&args, &old, &new)?;
    if !args.json && old.recordings.min(new.recordings) < LEAST {
        say!(
            "fgraph: times are not compared: that takes {LEAST} recordings of each build, OLD... \
             -- NEW..."
        );
    }
    let pairs = matching::pairs([&old, &new]);
    let all = Change::of(&sums(&old), &sums(&new), 1);
    let mut rows = rows(&old, &new, &pairs);
    let compared = functions(old.keys.iter().chain(&new.keys));
    let failed: Vec<Failure> = args
        .fail_on
        .iter()
        .map(|condition| Failure {
            condition: condition.text().to_owned(),
            functions: (rows.iter().filter(|row| row.fails(condition)))
                .map(Row::named)
                .collect(),
            unmatched: unmatched::of_functions(
                condition.patterns(),
                &compared,
                " that is compared",
            ),
        })
        .filter(|failure| !failure.functions.is_empty() || !failure.unmatched.is_empty())
        .collect();
    if let Some(path) = &args.html {
        flame::write(path, [&old, &new], &pairs)?;
    }
    rows.retain(|row| args.all || row.is_changed());
    let hidden = rows.len().saturating_sub(args.lines);
    rows.truncate(args.lines);
    let is_failed = !failed.is_empty();
    let mut out = Out::new();
    match (args.json, args.markdown) {
        (true, _) => out.line(json::line(&Diff {
            old_recordings: old.recordings,
            new_recordings: new.recordings,
            old_lost: old.lost,
            new_lost: new.lost,
            all: to_json(&all),
            functions: rows.into_iter().map(function_to_json).collect(),
            failed,
        }))?,
        (false, true) => write_markdown(&mut out, &all, &rows, hidden, &failed)?,
        (false, false) => write_text(&mut out, &all, &rows, hidden, &failed)?,
    }
    out.finish()?;
    old.whole.and(new.whole)?;
    Ok(ExitCode::from(if is_failed { 3 } else { 0 }))
}

/// Reads the recordings of both builds, each in a thread.
fn read(args: &Args, sides: [Vec<PathBuf>; 2]) -> Result<[Build; 2], Error> {
    let read = |paths: &[PathBuf]| {
        let mut losses = Vec::new();
        let wanted = matcher(&args.filters);
        let build = wanted.and_then(|wanted| Build::read(paths, wanted.as_ref(), &mut losses));
        (losses, build)
    };
    let [old, new] = &sides;
    let (old, new) = thread::scope(|scope| {
        let other = thread::Builder::new().spawn_scoped(scope, || read(old));
        let new = read(new);
        let old = match other.map(|other| other.join()) {
            Ok(Ok(old)) => old,
            Ok(Err(panic)) => panic::resume_unwind(panic),
            // The system has no room for a thread.
            Err(_) => read(old),
        };
        (old, new)
    });
    for line in old.0.iter().chain(&new.0) {
        say!("fgraph: {line}");
    }
    Ok([old.1?, new.1?])
}

/// Returns the recordings of the old build and of the new one.
fn sides(args: &Args) -> Result<(Vec<PathBuf>, Vec<PathBuf>), Error> {
    match (&args.old[..], &args.new[..]) {
        ([old, new], []) => Ok((vec![old.clone()], vec![new.clone()])),
        (_, []) => Err(Error::Usage(
            "two recordings are compared, or several: OLD... -- NEW...".to_owned(),
        )),
        (old, new) => Ok((old.to_vec(), new.to_vec())),
    }
}

/// Reports what makes two builds hard to compare.
fn say_differences(old: &Build, new: &Build) {
    let list = |texts: &BTreeSet<String>| {
        let texts: Vec<_> = texts.iter().map(|it| escaped(it)).collect();
        texts.join("; ")
    };
    let hosts: BTreeSet<String> = old.hosts.union(&new.hosts).cloned().collect();
    if hosts.len() > 1 {
        let hosts = list(&hosts);
        say!("fgraph: these are recordings of several machines, whose times differ: {hosts}");
    }
    if old.arguments.union(&new.arguments).count() > 1 {
        say!("fgraph: the recorded commands had different arguments");
    }
    let modules = |build: &Build| -> BTreeSet<String> {
        build
            .keys
            .iter()
            .map(|(_, module)| module.clone())
            .collect()
    };
    let [of_old, of_new] = [old, new].map(modules);
    for (builds, these, others) in [("old", &of_old, &of_new), ("new", &of_new, &of_old)] {
        let libraries = these.difference(others).filter(|it| it.contains(".so"));
        let libraries: BTreeSet<String> = libraries.cloned().collect();
        if !libraries.is_empty() {
            let libraries = list(&libraries);
            say!("fgraph: only the {builds} build has calls of {libraries}: other filters?");
        }
    }
    let off = old.off.len().max(new.off.len());
    if off > 0 {
        let off = text::functions(off as u64);
        say!("fgraph: changes of {off} are not judged: not all their calls were recorded");
    }
}

/// Reports filters that match no function, and fails if none matches one.
fn check_filters(args: &Args, old: &Build, new: &Build) -> Result<(), Error> {
    let mut patterns = Vec::new();
    for glob in &args.filters {
        patterns.extend(parse_patterns(glob).map_err(Error::Usage)?.0);
    }
    let functions = functions(old.known.iter().chain(&new.known));
    unmatched::check_functions(&patterns, &functions, " of the recordings")
}

fn functions<'k>(keys: impl Iterator<Item = &'k Key>) -> Vec<(&'k str, &'k str)> {
    keys.map(|(name, module)| (name.as_str(), module.as_str()))
        .collect()
}

/// Returns the time of all functions of each recording.
fn sums(build: &Build) -> Vec<f64> {
    let own = |recording: usize| build.counts.iter().map(move |it| it[recording].own.sum());
    // Not `sum`: that of nothing is -0.
    let sum = |recording| own(recording).fold(0.0, |sum, own| sum + own);
    (0..build.recordings).map(sum).collect()
}

/// Compares all functions; the largest change of own time is first.
fn rows(old: &Build, new: &Build, pairs: &[Pair]) -> Vec<Row> {
    let counts = |build: &Build, slot: Option<Slot>| match slot {
        Some(slot) => build.counts[slot as usize].clone(),
        None => vec![Counts::default(); build.recordings],
    };
    let both: Vec<[Vec<Counts>; 2]> = pairs
        .iter()
        .map(|pair| [counts(old, pair.slots[0]), counts(new, pair.slots[1])])
        .collect();
    let own: Vec<[Vec<f64>; 2]> = both.iter().map(|it| usual(it, own_times)).collect();
    let mean = |side: &Vec<f64>| side.iter().sum::<f64>() / side.len() as f64;
    let all: f64 = own.iter().map(|[old, _]| mean(old)).sum();
    let are_large: Vec<bool> = (both.iter().map(|sides| usual(sides, total_times)))
        .map(|sides| sides.iter().map(mean).any(|it| it >= SMALL * all))
        .collect();
    let large = own
        .into_iter()
        .zip(&are_large)
        .filter(|(_, is_large)| **is_large);
    let large: Vec<[Vec<f64>; 2]> = large.map(|(sides, _)| sides).collect();
    // Both times of each, with and without unusual calls.
    let comparisons = 4 * large.len();
    let slowness = slowness(&large);
    let places = Places::new([old, new], pairs);
    let row = |((pair, sides), is_large): ((&Pair, &[Vec<Counts>; 2]), &bool)| {
        let time = |times: fn(&Counts) -> &Times| {
            let mut change = time_change(sides, times, slowness.as_ref(), comparisons);
            change.interval = change.interval.filter(|_| *is_large);
            change
        };
        let [before, after] = sides
            .each_ref()
            .map(|counts| -> Vec<f64> { counts.iter().map(|it| it.calls).collect() });
        let calls = Change::of(&before, &after, pairs.len());
        let calls_changed = differ(&before, &after, &calls);
        let key = pair.slots[1].map(|slot| &new.keys[slot as usize]);
        let old_key = pair.slots[0].map(|slot| &old.keys[slot as usize]);
        let (name, module) = key.or(old_key).cloned().unwrap_or_default();
        let is_off =
            |key: Option<&Key>, build: &Build| key.is_some_and(|key| build.off.contains(key));
        let mut notes: Vec<String> = pair.note.clone().into_iter().collect();
        if calls_changed && pair.slots.iter().all(Option::is_some) {
            notes.extend(places.changes(pair));
        }
        Row {
            own: time(own_times),
            total: time(total_times),
            calls,
            calls_changed,
            is_incomplete: is_off(key, new) || is_off(old_key, old),
            notes,
            name,
            module,
        }
    };
    let mut rows: Vec<Row> = pairs.iter().zip(&both).zip(&are_large).map(row).collect();
    rows.sort_by_cached_key(|row| {
        let change = row.own.difference().abs() as u64;
        (Reverse(change), row.name.clone(), row.module.clone())
    });
    rows
}

fn own_times(counts: &Counts) -> &Times {
    &counts.own
}

fn total_times(counts: &Counts) -> &Times {
    &counts.total
}

/// Compares times of a function. Unless the sums of all calls differ for certain, unusually long
/// calls count as the mean of the others, and all calls of a slow recording count less.
fn time_change(
    sides: &[Vec<Counts>; 2],
    times: fn(&Counts) -> &Times,
    slowness: Option<&[Vec<f64>; 2]>,
    comparisons: usize,
) -> Change {
    let [old, new] = sides
        .each_ref()
        .map(|counts| -> Vec<f64> { counts.iter().map(|it| times(it).sum()).collect() });
    let whole = Change::of(&old, &new, comparisons);
    // Without an interval nothing is judged.
    if whole.is_certain() || whole.interval.is_none() {
        return whole;
    }
    let mut sums = usual(sides, times);
    for (sums, slowness) in sums.iter_mut().zip(slowness.into_iter().flatten()) {
        for (sum, slowness) in sums.iter_mut().zip(slowness) {
            *sum /= slowness;
        }
    }
    Change::of(&sums[0], &sums[1], comparisons)
}

/// Returns the sums of a function's times in each recording, in which unusually long calls count
/// as the mean of the others. Most calls of each build are not unusual.
fn usual(sides: &[Vec<Counts>; 2], times: fn(&Counts) -> &Times) -> [Vec<f64>; 2] {
    let [old, new] = sides
        .each_ref()
        .map(|counts| Limit::of(counts.iter().map(times)));
    let limit = old.max(new);
    sides
        .each_ref()
        .map(|counts| counts.iter().map(|it| times(it).usual_sum(limit)).collect())
}

/// Returns true if numbers of calls differ by more than they do among recordings of the same build.
fn differ(old: &[f64], new: &[f64], change: &Change) -> bool {
    let ends = |values: &[f64]| {
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        (least, most)
    };
    let [(old_least, old_most), (new_least, new_most)] = [old, new].map(ends);
    let are_apart = old_most < new_least || new_most < old_least;
    are_apart && (change.interval.is_none() || change.is_certain())
}

/// The callers of functions in both builds.
struct Places<'b> {
    builds: [&'b Build; 2],
    /// The pair of each slot, in each build.
    pairs: [HashMap<Slot, usize>; 2],
    /// For each pair, its callers' pairs, with the calls from each in both builds. `None` stands
    /// for callers that were not recorded.
    callers: HashMap<usize, HashMap<Option<usize>, [u64; 2]>>,
    slots: Vec<[Option<Slot>; 2]>,
}

/// The most callers of a function that are named.
const CALLERS: usize = 3;

impl<'b> Places<'b> {
    fn new(builds: [&'b Build; 2], pairs: &[Pair]) -> Self {
        let numbers = [0, 1].map(|at| {
            let slots = pairs.iter().enumerate();
            slots
                .filter_map(|(number, pair)| Some((pair.slots[at]?, number)))
                .collect::<HashMap<Slot, usize>>()
        });
        let mut callers: HashMap<usize, HashMap<Option<usize>, [u64; 2]>> = HashMap::new();
        for at in [0, 1] {
            for (&(from, to), &calls) in &builds[at].edges {
                let from = from.map(|from| numbers[at][&from]);
                let of_callee = callers.entry(numbers[at][&to]).or_default();
                of_callee.entry(from).or_default()[at] += calls;
            }
        }
        Self {
            builds,
            pairs: numbers,
            callers,
            slots: pairs.iter().map(|pair| pair.slots).collect(),
        }
    }

    /// Returns the calls of a function for each call of its callers, where that has changed, the
    /// largest change first.
    fn changes(&self, pair: &Pair) -> Vec<String> {
        let number = pair.slots[1].map(|slot| self.pairs[1][&slot]);
        let Some(callers) = number.and_then(|number| self.callers.get(&number)) else {
            return Vec::new();
        };
        let mut changed = Vec::new();
        for (&caller, &calls) in callers {
            let Some(caller) = caller else { continue };
            let slots = self.slots[caller];
            let rate = |at: usize| {
                let counts = &self.builds[at].counts[slots[at]? as usize];
                let of_caller: f64 = counts.iter().map(|it| it.calls).sum();
                Some(calls[at] as f64 / of_caller)
            };
            let (before, after) = (rate(0), rate(1));
            if before == after {
                continue;
            }
            let at = usize::from(slots[1].is_some());
            let name = slots[at].map(|slot| &self.builds[at].keys[slot as usize].0);
            let Some(name) = name else { continue };
            let line = match (before, after) {
                (Some(before), Some(after)) => format!(
                    "{} in each call of {name}, before {}",
                    number_text(after),
                    number_text(before)
                ),
                (None, Some(after)) => {
                    format!("{} in each call of the new {name}", number_text(after))
                }
                _ => format!("none in {name}, which is gone"),
            };
            changed.push((calls[0].abs_diff(calls[1]), line));
        }
        changed.sort_by_key(|(change, line)| (Reverse(*change), line.clone()));
        changed.truncate(CALLERS);
        changed.into_iter().map(|(_, line)| line).collect()
    }
}

/// Formats a number that is often whole.
fn number_text(number: f64) -> String {
    match number.fract() {
        0.0 => grouped(number as u64),
        _ if number < 0.01 => format!("{number:.1e}"),
        _ => format!("{number:.2}"),
    }
}

/// Formats a change in percent, with its interval if that excludes 0: `+5.1 % (4.2 to 6.0)`.
fn change_text(change: &Change) -> String {
    let percent = |difference: f64| change.relative(difference) * 100.0;
    match (change.old, change.new) {
        (0.0, 0.0) => "0".to_owned(),
        (0.0, _) => "new".to_owned(),
        (_, 0.0) => "gone".to_owned(),
        _ => {
            let difference = percent(change.difference());
            let digits = usize::from(difference.abs() < 1000.0);
            let shown = format!("{difference:+.digits$} %");
            match change.interval {
                Some((from, to)) if from == to => shown,
                Some((from, to)) if change.is_certain() => {
                    let [from, to] = [from, to].map(percent);
                    format!("{shown} ({from:.digits$} to {to:.digits$})")
                }
                Some(_) => format!("{shown} (uncertain)"),
                None => shown,
            }
        }
    }
}

/// Formats the change of a number of calls: `+3`.
fn calls_text(change: &Change) -> String {
    match change.difference() {
        0.0 => "0".to_owned(),
        more if more > 0.0 => format!("+{}", number_text(more)),
        fewer => format!("-{}", number_text(-fewer)),
    }
}

/// Returns the cells of a line: own time, calls, and the name.
fn cells(row: &Row) -> [String; 6] {
    let incomplete = if row.is_incomplete {
        " (incomplete)"
    } else {
        ""
    };
    [
        time(row.own.new as u64),
        change_text(&row.own),
        change_text(&row.total),
        number_text(row.calls.new),
        calls_text(&row.calls),
        format!("{}{incomplete}", row.named()),
    ]
}

const HEADINGS: [&str; 6] = ["self", "change", "total", "calls", "change", "function"];

/// Returns the line about all functions together.
fn summary(all: &Change, rows: usize) -> String {
    let [old, new] = [all.old, all.new].map(|it| time(it as u64));
    let changed = match rows {
        0 => "no function has changed",
        _ => "the functions that have changed:",
    };
    format!("{old} before, {new} now: {}; {changed}", change_text(all))
}

fn failures(failed: &[Failure]) -> impl Iterator<Item = String> {
    failed.iter().map(|failure| {
        let more = failure.functions.len().saturating_sub(CALLERS);
        let mut names = failure.functions[..failure.functions.len() - more].join(", ");
        if more > 0 {
            names += &format!(" and {more} more");
        }
        let reasons = iter::once(&names).filter(|names| !names.is_empty());
        let reasons = reasons.chain(&failure.unmatched);
        let reasons: Vec<_> = reasons.map(|reason| escaped(reason)).collect();
        format!("{}: {}", failure.condition, reasons.join("; "))
    })
}

fn write_text(
    out: &mut Out,
    all: &Change,
    rows: &[Row],
    hidden: usize,
    failed: &[Failure],
) -> Result<(), Error> {
    out.line(Style::Bold.paint(summary(all, rows.len() + hidden)))?;
    if !rows.is_empty() {
        out.line("")?;
        let priorities = [2, 0, 4, 3, 1, 0];
        let columns: Vec<_> = HEADINGS.into_iter().zip(priorities).collect();
        let mut table = Table::new(&columns);
        for row in rows {
            table.row(cells(row).into());
            for note in &row.notes {
                table.note(note.clone());
            }
        }
        table.write(out)?;
    }
    if hidden > 0 {
        out.line(format_args!("and {} more: -n", grouped(hidden as u64)))?;
    }
    for failure in failures(failed) {
        out.line(format_args!("fails: {failure}"))?;
    }
    Ok(())
}

fn write_markdown(
    out: &mut Out,
    all: &Change,
    rows: &[Row],
    hidden: usize,
    failed: &[Failure],
) -> Result<(), Error> {
    // A name is code, in which only the backtick and the bar of a table have a meaning.
    let code = |name: &str| format!("`{}`", name.replace('`', "'").replace('|', "\\|"));
    for failure in failures(failed) {
        out.line(format_args!("**fails** {}\n", code(&failure)))?;
    }
    out.line(format_args!("{}\n", summary(all, rows.len() + hidden)))?;
    if rows.is_empty() {
        return Ok(());
    }
    out.line(format_args!("| {} |", HEADINGS.join(" | ")))?;
    out.line("|--:|--:|--:|--:|--:|---|")?;
    for row in rows {
        let [own, change, total, calls, more, _] = cells(row);
        let notes: Vec<String> = row.notes.iter().map(|note| code(note)).collect();
        let name = code(&row.named());
        let notes = notes.join(", ");
        out.line(format_args!(
            "| {own} | {change} | {total} | {calls} | {more} | {name} {notes} |"
        ))?;
    }
    match hidden {
        0 => Ok(()),
        hidden => out.line(format_args!("\nand {} more", grouped(hidden as u64))),
    }
}

fn to_json(change: &Change) -> TimeChange {
    TimeChange {
        old_ns: change.old,
        new_ns: change.new,
        from_ns: change.interval.map(|(from, _)| from),
        to_ns: change.interval.map(|(_, to)| to),
        is_certain: change.is_certain(),
    }
}

fn function_to_json(row: Row) -> FunctionChange {
    FunctionChange {
        old_calls: row.calls.old,
        new_calls: row.calls.new,
        calls_changed: row.calls_changed,
        own: to_json(&row.own),
        total: to_json(&row.total),
        is_incomplete: row.is_incomplete,
        notes: row.notes,
        name: row.name,
        module: row.module,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_docs_have_the_schema() {
        json::check_schema::<Diff>("diff");
    }

    #[test]
    fn calls_differ_by_more_than_they_do_in_one_build() {
        let differ = |old: &[f64], new: &[f64]| differ(old, new, &Change::of(old, new, 1000));
        assert!(differ(&[3.0], &[4.0]));
        assert!(!differ(&[3.0, 5.0], &[4.0, 6.0]));
        assert!(differ(&[3.0, 3.0], &[4.0, 4.0]));
        assert!(differ(&[3.0; 3], &[4.0; 3]));
        assert!(!differ(&[10.0, 13.0, 11.0], &[14.0, 17.0, 14.0]));
    }

    #[test]
    fn changes_have_their_intervals() {
        let text = |old: &[f64], new: &[f64]| change_text(&Change::of(old, new, 1));
        assert_eq!(text(&[100.0], &[105.0]), "+5.0 %");
        assert_eq!(text(&[0.0], &[105.0]), "new");
        assert_eq!(text(&[5.0], &[0.0]), "gone");
        assert_eq!(text(&[0.0], &[0.0]), "0");
        let text = text(&[100.0, 101.0, 99.0], &[110.0, 111.0, 109.0]);
        assert_eq!(text, "+10.0 % (3.0 to 17.0)");
        let uncertain = Change::of(&[100.0, 101.0, 99.0], &[101.0, 103.0, 99.0], 1);
        assert_eq!(change_text(&uncertain), "+1.0 % (uncertain)");
        assert_eq!(change_text(&Change::of(&[1.0], &[40.0], 1)), "+3900 %");
        assert_eq!(number_text(1234.0), "1,234");
        assert_eq!(number_text(1.256), "1.26");
    }
}
