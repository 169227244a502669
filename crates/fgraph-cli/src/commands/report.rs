//! `fgraph report`: the time of each function.

use std::collections::HashMap;
use std::mem::take;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::ValueEnum;
use fgraph_analysis::calls::{
    self, Active, At, Call, Ended, Function, Open, Slot, Thread, Visitor,
};
use fgraph_analysis::losses::Losses;
use fgraph_analysis::numbers::grown;
use fgraph_analysis::pairs::{Pairs, by_name};
use fgraph_analysis::stats::Stats;
use fgraph_trace::Source;
use fgraph_trace::clock::Clock;
use fgraph_trace::graph::Matcher;
use fgraph_trace::names::Names;
use fgraph_trace::schedule::State;
use serde::{Deserialize, Serialize};
use std::convert::Infallible;

use crate::debuginfod::Debuginfod;
use crate::error::Error;
use crate::input::{Input, Measure, Part, View, matcher, say_unknown};
use crate::json::{self, Lost, Times};
use crate::losses;
use crate::off;
use crate::output::Out;
use crate::overhead::Load;
use crate::places;
use crate::sources::{Sources, say_changes};
use crate::summary::{Summary, of_losses, of_stats};
use crate::table::Table;
use crate::text::{grouped, named, percent, signed_time, time};
use crate::unmatched;
use crate::waiting::Waiting;

/// Show where the time went: a line for each function with its calls and their times
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fgraph report
  fgraph report --sort p99 -F 'parse*' server.data
  fgraph report --by thread --time blocked
  fgraph report --diff old.data new.data")]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    /// The order of the lines
    #[arg(short, long, value_name = "KEY", default_value = "self")]
    sort: Key,
    /// Group the counts by this
    #[arg(long, value_name = "WHAT", default_value = "function")]
    by: By,
    /// Count this time of calls
    #[arg(long, value_name = "TIME", default_value = "wall")]
    time: Measure,
    /// Only functions with these names, such as `parse*`, `libc:open*` or `py:json.*`
    #[arg(short = 'F', long = "filter", value_name = "GLOB")]
    filters: Vec<String>,
    /// The most lines to show
    #[arg(short = 'n', long, value_name = "N")]
    lines: Option<usize>,
    /// Show the changes of times since an older recording
    #[arg(long, value_name = "OLD")]
    diff: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    part: Part,
    #[command(flatten)]
    debuginfod: Debuginfod,
}

/// The key by which lines are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Key {
    #[value(name = "self")]
    Own,
    Total,
    Avg,
    P50,
    P95,
    P99,
    Max,
    Calls,
    Name,
}

impl Key {
    /// Returns the number by which lines are sorted; for names, their own times.
    fn of(self, stats: &Stats) -> u64 {
        match self {
            Self::Own | Self::Name => stats.own,
            Self::Total => stats.total,
            Self::Avg => stats.average(),
            Self::P50 => stats.percentile(500),
            Self::P95 => stats.percentile(950),
            Self::P99 => stats.percentile(990),
            Self::Max => stats.max,
            Self::Calls => stats.hits,
        }
    }
}

/// The item for which calls are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
enum By {
    Function,
    Thread,
    Module,
    /// The source file, as it was recorded, or from the module's debug information on this machine
    Source,
}

/// The calls of each line of a table.
struct Counted {
    by: By,
    /// The line of each function; `None` for functions that are not selected.
    line_of: Vec<Option<usize>>,
    /// Name and module of each line, unless lines are for threads.
    lines: Vec<(String, String)>,
    by_name: HashMap<(String, String), usize>,
    stats: Vec<Stats>,
    /// For each thread, the number of calls in progress of each line.
    active: Active,
}

impl Counted {
    fn new(by: By) -> Self {
        Self {
            by,
            line_of: Vec::new(),
            lines: Vec::new(),
            by_name: HashMap::new(),
            stats: Vec::new(),
            active: Active::default(),
        }
    }

    /// Adds a selected function, whose line has this name and module.
    fn add(&mut self, name: (String, String)) {
        let next = self.lines.len();
        let line = *self.by_name.entry(name.clone()).or_insert(next);
        if line == next {
            self.lines.push(name);
        }
        self.line_of.push(Some(line));
    }

    #[inline]
    fn line(&self, thread: usize, slot: Slot) -> Option<usize> {
        let line = self.line_of[slot as usize]?;
        Some(if self.by == By::Thread { thread } else { line })
    }

    /// Returns the lines with calls.
    fn finish(self, threads: &[Thread]) -> Vec<Line> {
        let names = match self.by {
            By::Thread => threads
                .iter()
                .map(|it| (it.to_string(), String::new()))
                .collect(),
            By::Function | By::Module | By::Source => self.lines,
        };
        let lines = names.into_iter().zip(self.stats);
        let lines = lines.map(|((name, module), stats)| Line {
            name,
            module,
            stats,
            off: 0,
        });
        lines.filter(|line| line.stats.hits != 0).collect()
    }
}

/// The calls of all tables that are made in one pass.
struct Profile {
    clock: Clock,
    is_wanted: Option<Matcher>,
    sources: Option<(Sources, Names)>,
    tables: Vec<Counted>,
    /// The own time of the calls of other functions, in nanoseconds.
    others: u64,
    waiting: Waiting,
}

impl Profile {
    /// Returns the name and the module of a function's line.
    fn name(&mut self, by: By, function: &Function) -> (String, String) {
        match by {
            By::Function => {
                let module = function.module_name().to_owned();
                (function.name.clone(), module)
            }
            By::Thread => Default::default(),
            By::Module => (function.module.clone(), String::new()),
            By::Source => {
                let file = self.file(function);
                let unknown = || format!("? [{}]", function.module_name());
                (file.unwrap_or_else(unknown), String::new())
            }
        }
    }

    /// Returns the source file of a function: as it was recorded, or else from debug information on
    /// this machine.
    fn file(&mut self, function: &Function) -> Option<String> {
        let (sources, names) = self.sources.as_mut()?;
        if let Some((file, _)) = &function.source {
            return Some(file.clone());
        }
        let (path, address) = (&function.module, function.address);
        let found = sources.at(names, function.process, path, address);
        found.map(|(file, _)| file)
    }
}

impl Visitor for Profile {
    type Error = Infallible;

    fn function(&mut self, function: &Function) {
        let wanted = self.is_wanted.as_ref();
        let is_wanted = wanted.is_none_or(|wanted| wanted(&function.name, &function.module));
        for at in 0..self.tables.len() {
            match is_wanted {
                true => {
                    let name = self.name(self.tables[at].by, function);
                    self.tables[at].add(name);
                }
                false => self.tables[at].line_of.push(None),
            }
        }
    }

    #[inline]
    fn enter(&mut self, at: &At<'_>, call: &Open) -> Result<(), Infallible> {
        let thread = at.thread.index;
        for table in &mut self.tables {
            let Some(line) = table.line(thread, call.data) else {
                return Ok(());
            };
            table.active.begin(thread, line);
        }
        self.waiting.begin(at);
        Ok(())
    }

    #[inline]
    fn exit(&mut self, at: &At<'_>, call: &Call) -> Result<(), Infallible> {
        let thread = at.thread.index;
        let ended = Ended::of(call, &self.clock);
        for table in &mut self.tables {
            let Some(line) = table.line(thread, call.slot) else {
                self.others += ended.own;
                return Ok(());
            };
            let is_outermost = table.active.end(thread, line);
            ended.count(is_outermost, grown(&mut table.stats, line));
        }
        self.waiting.end(at, call);
        Ok(())
    }
}

/// A line of the table.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    name: String,
    module: String,
    #[serde(with = "of_stats")]
    stats: Stats,
    /// Nanoseconds during which it was switched off.
    #[serde(skip)]
    off: u64,
}

/// The result of a pass over the recording, which a summary keeps.
#[derive(Debug, Serialize, Deserialize)]
struct Passed {
    /// The lines with calls of each table, in the order of their first calls.
    tables: Vec<(By, Vec<Line>)>,
    /// The own time of the calls of functions that no filter matches, in nanoseconds.
    others: u64,
    waiting: Waiting,
    load: Load,
    #[serde(with = "of_losses")]
    losses: Losses,
    unknown_threads: u64,
    /// Ticks of the first event and of the last one.
    span: Option<(u64, u64)>,
}

impl Line {
    /// Returns its name, with the number of missing ends.
    fn text(&self) -> String {
        let name = named(&self.name, &self.module);
        let mut missing = Vec::new();
        match self.stats.ends_lost {
            0 => {}
            1 => missing.push("1 end missing".to_owned()),
            ends => missing.push(format!("{} ends missing", grouped(ends))),
        }
        if self.off > 0 {
            missing.push(format!("off for {}", time(self.off)));
        }
        match missing.is_empty() {
            true => name,
            false => format!("{name} ({})", missing.join(", ")),
        }
    }
}

/// The view of `report` in JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Report {
    lost: Lost,
    /// The part of the threads' processor time that recording took, in percent; without states, of
    /// all their time. Null if it is unknown.
    overhead_percent: Option<u64>,
    /// The time of calls that all times are of.
    time: Measure,
    by: By,
    lines: Vec<ReportLine>,
}

/// The calls of one line.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ReportLine {
    name: String,
    /// The file of the module, without directories; empty unless lines are for functions.
    module: String,
    #[serde(flatten)]
    times: Times,
    /// The time during which it was switched off, in all processes, so that calls may be missing; 0
    /// unless lines are for functions.
    off_ns: u64,
}

/// The view of `report --diff` in JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ReportDiff {
    old_lost: Lost,
    new_lost: Lost,
    /// The time of calls that all times are of.
    time: Measure,
    by: By,
    lines: Vec<ReportDiffLine>,
}

/// The calls of one line, in both recordings.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ReportDiffLine {
    name: String,
    /// The file of the module, without directories; empty unless lines are for functions.
    module: String,
    old: Times,
    new: Times,
}

/// Prints it.
pub(crate) fn run(args: Args) -> Result<(), Error> {
    let Profiled {
        mut lines,
        lost,
        overhead,
        others,
        matched,
        whole,
    } = profile(&args, &args.input)?;
    let most = args.lines.unwrap_or(usize::MAX);
    if let Some(old) = &args.diff {
        let old = profile(&args, &Input { path: old.clone() })?;
        // A function may be new, or gone.
        matched.or(old.matched)?;
        let mut pairs = changes(args.sort, old.lines, lines);
        pairs.truncate(most);
        match args.json {
            true => {
                let line = |((name, module), [old, new]): Pair| ReportDiffLine {
                    name,
                    module,
                    old: (&old).into(),
                    new: (&new).into(),
                };
                json::write(&ReportDiff {
                    old_lost: old.lost,
                    new_lost: lost,
                    time: args.time,
                    by: args.by,
                    lines: pairs.into_iter().map(line).collect(),
                })?;
            }
            false => write_diff(args.by, pairs)?,
        }
        return whole.and(old.whole);
    }
    matched?;
    let own: u64 = lines.iter().map(|line| line.stats.own).sum();
    lines.sort_by(|a, b| {
        let by_name = a.name.cmp(&b.name);
        match args.sort {
            Key::Name => by_name,
            key => key.of(&b.stats).cmp(&key.of(&a.stats)).then(by_name),
        }
    });
    lines.truncate(most);
    if args.json {
        let line = |line: Line| ReportLine {
            times: (&line.stats).into(),
            off_ns: line.off,
            name: line.name,
            module: line.module,
        };
        json::write(&Report {
            lost,
            overhead_percent: overhead,
            time: args.time,
            by: args.by,
            lines: lines.into_iter().map(line).collect(),
        })?;
        return whole;
    }
    let mut table = Table::new(&[
        ("self", 0),
        ("self %", 4),
        ("total", 1),
        ("avg", 3),
        ("p50", 8),
        ("p95", 7),
        ("p99", 6),
        ("max", 5),
        ("calls", 2),
        (heading(args.by), 0),
    ]);
    for line in &lines {
        let stats = &line.stats;
        table.row(vec![
            stats.text(stats.own),
            percent(stats.own, own),
            stats.text(stats.total),
            stats.text(stats.average()),
            stats.text(stats.percentile(500)),
            stats.text(stats.percentile(950)),
            stats.text(stats.percentile(990)),
            stats.text(stats.max),
            grouped(stats.hits),
            line.text(),
        ]);
    }
    if !args.filters.is_empty() {
        let part = percent(own, own + others);
        say!("fgraph: self % is of these functions, which have {part} % of all own time");
    }
    let mut out = Out::new();
    table.write(&mut out)?;
    out.finish()?;
    whole
}

fn heading(by: By) -> &'static str {
    match by {
        By::Function => "function",
        By::Thread => "thread",
        By::Module => "module",
        By::Source => "source file",
    }
}

/// The counts of a recording.
struct Profiled {
    /// In no order.
    lines: Vec<Line>,
    lost: Lost,
    overhead: Option<u64>,
    /// The own time of the calls of functions that no filter matches, in nanoseconds.
    others: u64,
    /// An error if no filter matches a function.
    matched: Result<(), Error>,
    /// An error if the recording is incomplete.
    whole: Result<(), Error>,
}

fn profile(args: &Args, input: &Input) -> Result<Profiled, Error> {
    let mut view = input.view(&args.part)?;
    places::name_functions(&mut view, args.debuginfod);
    say_changes(&input.path, view.names());
    let is_wanted = matcher(&args.filters)?;
    let state = view.state_of(args.time, &input.path)?;
    // Sources are found on this machine, where they may change.
    let is_kept = args.by != By::Source;
    let question = ("report", args.time, &args.filters);
    let summary = is_kept.then(|| view.summary(&question)).flatten();
    let passed = match summary.as_ref().and_then(Summary::find) {
        Some(passed) => passed,
        None => {
            let begun = Instant::now();
            // The next view may group by another item.
            let tables = match summary.is_some() {
                true => &[By::Function, By::Thread, By::Module][..],
                false => &[args.by],
            };
            let passed = pass(args, tables, &input.path, &mut view, state)?;
            if let Some(summary) = summary.filter(|_| view.has_all()) {
                summary.keep(begun, &passed);
            }
            passed
        }
    };
    let Passed {
        tables,
        others,
        waiting,
        load,
        losses,
        unknown_threads,
        span,
    } = passed;
    let table = tables.into_iter().find(|(by, _)| *by == args.by);
    let mut lines = table.map_or_else(Vec::new, |(_, lines)| lines);
    say_unknown(unknown_threads);
    let (names, clock, first) = (view.names(), view.clock(), view.first());
    losses::say(&losses, names, clock, first);
    let lost = losses::to_json(&losses, names, clock, first);
    let is_wanted = |name: &str, module: &str| {
        let wanted = is_wanted.as_ref();
        wanted.is_some_and(|is_it| is_it(name, module))
    };
    let overhead = load.say(view.clock(), view.schedule(), is_wanted);
    if args.diff.is_none() {
        waiting.say();
    }
    let matched = unmatched::check_globs(&args.filters, &view, &input.path);
    let last = span.map_or(first, |(_, last)| last);
    let off = off::functions(names)
        .into_iter()
        .filter(|_| args.by == By::Function);
    let off: HashMap<(String, String), u64> = off
        .map(|it| {
            let time = it.nanoseconds(clock, last);
            ((it.name, it.module), time)
        })
        .collect();
    if !off.is_empty() {
        for line in &mut lines {
            let key = (line.name.clone(), line.module.clone());
            line.off = off.get(&key).copied().unwrap_or(0);
        }
    }
    Ok(Profiled {
        lines,
        lost,
        overhead,
        others,
        matched,
        whole: view.check_whole(&input.path),
    })
}

/// Reads all calls of a view.
fn pass(
    args: &Args,
    tables: &[By],
    path: &Path,
    view: &mut View,
    state: Option<State>,
) -> Result<Passed, Error> {
    let mut profile = Profile {
        clock: *view.clock(),
        is_wanted: matcher(&args.filters)?,
        sources: (args.by == By::Source).then(|| (Sources::default(), view.names().clone())),
        tables: tables.iter().map(|&by| Counted::new(by)).collect(),
        others: 0,
        waiting: Waiting::of(args.time),
    };
    let followed = calls::follow_in(view, state, &mut profile);
    let followed = followed.map_err(|error| Error::source(path, error))?;
    let tables = profile.tables.into_iter();
    let tables = tables.map(|table| (table.by, table.finish(&followed.threads)));
    Ok(Passed {
        tables: tables.collect(),
        others: profile.others,
        waiting: profile.waiting,
        load: Load::of(&followed),
        unknown_threads: followed.unknown_threads(),
        span: followed.span,
        losses: followed.losses,
    })
}

/// A line of each recording, by name and module.
type Pair = ((String, String), [Stats; 2]);

/// Pairs the lines of two recordings. A line without a partner has no calls in the other one.
fn paired(old: Vec<Line>, new: Vec<Line>) -> Vec<Pair> {
    let sides = [old, new].map(|lines| {
        let lines = lines.into_iter();
        lines
            .map(|line| ((line.name, line.module), line.stats))
            .unzip()
    });
    let [(old, mut before), (new, mut after)]: [(Vec<_>, Vec<_>); 2] = sides;
    let Pairs { both, alone } = Pairs::of([&old, &new], &[by_name]);
    let mut pairs = Vec::new();
    for [old, at] in both {
        let stats = [take(&mut before[old]), take(&mut after[at])];
        pairs.push((new[at].clone(), stats));
    }
    let [of_old, of_new] = alone;
    for at in of_old {
        pairs.push((old[at].clone(), [take(&mut before[at]), Stats::default()]));
    }
    for at in of_new {
        pairs.push((new[at].clone(), [Stats::default(), take(&mut after[at])]));
    }
    pairs
}

/// Returns the lines of two recordings, the largest change first.
fn changes(sort: Key, old: Vec<Line>, new: Vec<Line>) -> Vec<Pair> {
    let mut pairs = paired(old, new);
    pairs.sort_by(|(a_name, [a_old, a_new]), (b_name, [b_old, b_new])| {
        let change = |old, new| sort.of(old).abs_diff(sort.of(new));
        let by_change = change(b_old, b_new).cmp(&change(a_old, a_new));
        match sort {
            Key::Name => a_name.cmp(b_name),
            _ => by_change.then_with(|| a_name.cmp(b_name)),
        }
    });
    pairs
}

/// Prints the changes.
fn write_diff(by: By, pairs: Vec<Pair>) -> Result<(), Error> {
    let mut table = Table::new(&[
        ("self", 2),
        ("change", 0),
        ("total", 4),
        ("change", 3),
        ("avg", 6),
        ("change", 5),
        ("calls", 8),
        ("change", 7),
        (heading(by), 0),
    ]);
    for ((name, module), [old, new]) in pairs {
        let calls = i128::from(new.hits) - i128::from(old.hits);
        table.row(vec![
            time(new.own),
            signed_time(old.own, new.own),
            time(new.total),
            signed_time(old.total, new.total),
            time(new.average()),
            signed_time(old.average(), new.average()),
            grouped(new.hits),
            match calls {
                0 => "0".to_owned(),
                more @ 1.. => format!("+{}", grouped(more as u64)),
                fewer => format!("-{}", grouped(fewer.unsigned_abs() as u64)),
            },
            named(&name, &module),
        ]);
    }
    let mut out = Out::new();
    table.write(&mut out)?;
    out.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_docs_have_the_schemas() {
        json::check_schema::<Report>("report");
        json::check_schema::<ReportDiff>("report-diff");
    }

    #[test]
    fn builds_of_a_program_are_compared_across_the_names_of_their_files() {
        let line = |name: &str, module: &str, hits| {
            let mut stats = Stats::default();
            stats.hits = hits;
            let [name, module] = [name, module].map(str::to_owned);
            Line {
                name,
                module,
                stats,
                off: 0,
            }
        };
        let old = vec![
            line("main", "v1", 1),
            line("gone", "v1", 2),
            line("free", "libc.so.6", 3),
            line("twice", "v1", 4),
            line("twice", "liba.so", 5),
        ];
        let new = vec![
            line("main", "v2", 10),
            line("free", "libc.so.6", 30),
            line("free", "v2", 31),
            line("twice", "v2", 40),
        ];
        let mut found: Vec<_> = paired(old, new)
            .into_iter()
            .map(|((name, module), [old, new])| (name, module, old.hits, new.hits))
            .collect();
        found.sort();
        let expected = [
            ("free", "libc.so.6", 3, 30),
            ("free", "v2", 0, 31),
            ("gone", "v1", 2, 0),
            ("main", "v2", 1, 10),
            ("twice", "liba.so", 5, 0),
            ("twice", "v1", 4, 0),
            ("twice", "v2", 0, 40),
        ];
        let expected =
            expected.map(|(name, module, old, new)| (name.to_owned(), module.to_owned(), old, new));
        assert_eq!(found, expected);
    }
}
