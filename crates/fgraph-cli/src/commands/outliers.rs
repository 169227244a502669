//! `fgraph outliers`: the slowest calls, each with the calls inside it.
//!
//! The recording is read for the usual times of functions, for the calls that took longest, and for
//! the calls inside these. The first two are one reading if the functions were named. The last one
//! reads little more than the chunks of events with the slowest calls.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fgraph_analysis::calls::{
    self, At, Call, Calls, Ending, Function, Open, Slot, ThreadId, Values, Views, Visitor,
};
use fgraph_analysis::stats::Stats;
use fgraph_trace::Source;
use fgraph_trace::clock::Clock;
use fgraph_trace::graph::Matcher;
use serde::Serialize;
use std::convert::Infallible;

use crate::error::Error;
use crate::input::{Input, Part, Span, matcher};
use crate::json::{self, End, Lost, Times};
use crate::losses;
use crate::output::{Out, Style};
use crate::text::{self, cut, percent, time};
use crate::unmatched;

/// Show the slowest calls, each with the calls in it
///
/// Without -F, these are the calls that took longest beyond the median of their function, for
/// functions with at least 10 calls.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fgraph outliers
  fgraph outliers -F handle -n 3 server.data")]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    /// Only calls of functions with these names, such as `parse*` or `libc:open*`
    #[arg(short = 'F', long = "filter", value_name = "GLOB")]
    filters: Vec<String>,
    /// The number of calls to show
    #[arg(
        short = 'n',
        long,
        value_name = "N",
        default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    number: u32,
    /// Leave out inner calls shorter than this percentage of the slow one
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0, value_parser = percentage)]
    least: f64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    part: Part,
}

fn percentage(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim_end();
    let percentage = number.parse().ok().filter(|it| (0.0..=100.0).contains(it));
    percentage.ok_or_else(|| "a percentage is a number from 0 to 100".to_owned())
}

/// The view of `outliers` in JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct OutliersView {
    lost: Lost,
    /// The slow calls, the slowest first.
    calls: Vec<SlowCall>,
}

/// A slow call.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct SlowCall {
    function: String,
    /// The file of its module, without directories.
    module: String,
    thread: json::Thread,
    begin_ns: u64,
    took_ns: u64,
    /// All calls of the function.
    usual: Times,
    /// The slow call and the calls in it, in the order in which they began.
    inside: Vec<InnerCall>,
    /// The number of calls in it that took less than `least_ns`, and are not listed.
    left_out: u64,
    least_ns: u64,
}

/// A call in a slow one.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct InnerCall {
    function: String,
    module: String,
    /// The nesting depth inside the slow call: 0 for the slow one itself.
    depth: u64,
    begin_ns: u64,
    /// The time until its end, or the time that it ran for certain.
    took_ns: u64,
    self_ns: u64,
    end: End,
}

/// The usual times of functions.
#[derive(Debug)]
struct Usual {
    clock: Clock,
    stats: Vec<Stats>,
}

impl Visitor for Usual {
    type Error = Infallible;

    fn function(&mut self, _: &Function) {
        self.stats.push(Stats::default());
    }

    fn exit(
        &mut self,
        _: &At<'_>,
        call: &Call,
        _: &[Open],
        _: &Values<'_>,
    ) -> Result<(), Infallible> {
        calls::count(
            call,
            &self.clock,
            false,
            &mut self.stats[call.slot as usize],
        );
        Ok(())
    }
}

/// A call that may be shown, ordered by slowness; times are in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Slow {
    score: u64,
    pub(super) took: u64,
    pub(super) begin: u64,
    pub(super) thread: usize,
    pub(super) slot: Slot,
    depth: usize,
}

impl Slow {
    /// Makes a call with an unknown score.
    pub(super) fn new(thread: usize, depth: usize, call: &Call) -> Self {
        Self {
            score: 0,
            took: call.ran,
            begin: call.begin,
            thread,
            slot: call.slot,
            depth,
        }
    }

    /// Returns true if it contains another call.
    fn has(&self, other: &Self) -> bool {
        let end = self.begin.saturating_add(self.took);
        self.thread == other.thread && self.begin <= other.begin && other.begin < end
    }
}

/// The slowest calls.
struct Slowest {
    wanted: Option<Matcher>,
    /// The usual times in ticks, from which scores count; `None` for functions that are ignored.
    usual: Vec<Option<u64>>,
    /// The same, for functions by slot.
    from: Vec<Option<u64>>,
    number: usize,
    found: BinaryHeap<Reverse<Slow>>,
}

impl Slowest {
    /// Starts to look for the slowest calls of `wanted` functions, or of functions that have a
    /// usual time in ticks.
    fn new(wanted: Option<Matcher>, usual: Vec<Option<u64>>, number: usize) -> Self {
        Self {
            wanted,
            usual,
            from: Vec::new(),
            number: number.saturating_mul(SPARE),
            found: BinaryHeap::new(),
        }
    }

    /// Returns the slowest calls, the slowest first, none inside another one.
    fn into_slow(self, number: usize) -> Vec<Slow> {
        let mut slow: Vec<Slow> = Vec::new();
        for Reverse(next) in self.found.into_sorted_vec() {
            // A call inside another one is shown there.
            slow.retain(|shown| !next.has(shown) || shown.has(&next));
            if !slow.iter().any(|shown| shown.has(&next)) {
                slow.push(next);
            }
        }
        slow.truncate(number);
        slow
    }
}

impl Visitor for Slowest {
    type Error = Infallible;

    fn function(&mut self, function: &Function) {
        let from = match &self.wanted {
            Some(wanted) => wanted(&function.name, &function.module).then_some(0),
            // They are met in the same order each time.
            None => self.usual.get(self.from.len()).copied().flatten(),
        };
        self.from.push(from);
    }

    fn exit(
        &mut self,
        at: &At<'_>,
        call: &Call,
        around: &[Open],
        _: &Values<'_>,
    ) -> Result<(), Infallible> {
        let thread = at.thread.index;
        let Some(from) = self.from[call.slot as usize] else {
            return Ok(());
        };
        let score = call.ran.saturating_sub(from);
        let is_slower = match self.found.peek() {
            Some(Reverse(least)) => self.found.len() < self.number || score > least.score,
            None => true,
        };
        // A requested call that is in progress at the end has taken long until then.
        let is_known = match call.ending {
            Ending::Open => self.wanted.is_some(),
            _ => call.duration().is_some(),
        };
        if !is_slower || score == 0 || !is_known {
            return Ok(());
        }
        self.found.push(Reverse(Slow {
            score,
            ..Slow::new(thread, around.len(), call)
        }));
        if self.found.len() > self.number {
            self.found.pop();
        }
        Ok(())
    }
}

/// The usual times of functions that were named, and their slowest calls.
struct Named {
    usual: Usual,
    slowest: Slowest,
}

impl Visitor for Named {
    type Error = Infallible;

    fn function(&mut self, function: &Function) {
        self.usual.function(function);
        self.slowest.function(function);
    }

    fn exit(
        &mut self,
        at: &At<'_>,
        call: &Call,
        around: &[Open],
        result: &Values<'_>,
    ) -> Result<(), Infallible> {
        // Usual times of other functions are not shown.
        if self.slowest.from[call.slot as usize].is_some() {
            self.usual.exit(at, call, around, result)?;
            self.slowest.exit(at, call, around, result)?;
        }
        Ok(())
    }
}

/// A call in a slow one.
#[derive(Clone, Copy, Debug)]
struct Inner {
    slot: Slot,
    begin: u64,
    took: u64,
    own: u64,
    depth: usize,
    ending: Ending,
}

/// A slow call, and the calls in it.
#[derive(Debug)]
struct Tree {
    slow: Slow,
    /// Ticks below which a call in it is only counted.
    least: u64,
    /// The number of calls around it while it is in progress; these are not all that there were.
    around: Option<usize>,
    inner: Vec<Inner>,
    left_out: u64,
}

/// The calls inside the slow calls. Slots and threads of these are those of the first reading.
struct Trees<'f> {
    trees: Vec<Tree>,
    first: &'f Calls<Views>,
    /// The slots and the threads of the first reading, by those of this one.
    slots: Vec<Option<Slot>>,
    threads: Vec<Option<usize>>,
}

impl Visitor for Trees<'_> {
    type Error = Infallible;

    fn function(&mut self, function: &Function) {
        self.slots.push(self.first.functions.slot_of(function));
    }

    fn thread(&mut self, at: &At<'_>) -> Result<(), Infallible> {
        let ThreadId { process, id, .. } = at.thread;
        self.threads.push(self.first.number_of((process, id)));
        Ok(())
    }

    fn enter(
        &mut self,
        at: &At<'_>,
        call: &Open,
        around: &[Open],
        _: &Values<'_>,
    ) -> Result<(), Infallible> {
        let thread = at.thread.index;
        let (thread, slot) = (self.threads[thread], self.slots[call.data as usize]);
        let is_it = |tree: &&mut Tree| {
            let slow = &tree.slow;
            slow.begin == call.begin
                && tree.inner.is_empty()
                && (Some(slow.thread), Some(slow.slot)) == (thread, slot)
        };
        if let Some(tree) = self.trees.iter_mut().find(is_it) {
            tree.around.get_or_insert(around.len());
        }
        Ok(())
    }

    fn exit(
        &mut self,
        at: &At<'_>,
        call: &Call,
        around: &[Open],
        _: &Values<'_>,
    ) -> Result<(), Infallible> {
        let thread = at.thread.index;
        let (thread, slot) = (self.threads[thread], self.slots[call.slot as usize]);
        for tree in &mut self.trees {
            let Some(depth) = tree.around.filter(|_| thread == Some(tree.slow.thread)) else {
                continue;
            };
            if around.len() == depth {
                tree.around = None;
                if call.ran != tree.slow.took {
                    // It was another call of the function, which began at the same tick.
                    (tree.inner, tree.left_out) = (Vec::new(), 0);
                    continue;
                }
            }
            if call.ran < tree.least || tree.inner.len() >= MAX_LINES {
                tree.left_out += 1;
                continue;
            }
            tree.inner.extend(slot.map(|slot| Inner {
                slot,
                begin: call.begin,
                took: call.ran,
                own: call.own,
                depth: around.len() - depth,
                ending: call.ending,
            }));
        }
        Ok(())
    }
}

/// The most calls of one tree that are shown.
const MAX_LINES: usize = 1000;
/// The number of candidates for each shown call, because some are inside others.
const SPARE: usize = 16;
/// The fewest calls with which a function has a usual time.
const LEAST_CALLS: u64 = 10;

/// Prints them.
pub(crate) fn run(args: Args) -> Result<(), Error> {
    let failed = |error| Error::source(&args.input.path, error);
    let mut view = args.input.view(&args.part)?;
    let clock = *view.clock();
    let first = view.first();
    let wanted = matcher(&args.filters)?;
    let mut usual = Usual {
        clock,
        stats: Vec::new(),
    };
    let number = args.number as usize;
    let (followed, slow, usual) = if wanted.is_some() {
        let slowest = Slowest::new(wanted, Vec::new(), number);
        let mut named = Named { usual, slowest };
        let followed = calls::follow(&mut view, &mut named).map_err(failed)?;
        (followed, named.slowest.into_slow(number), named.usual.stats)
    } else {
        let followed = calls::follow(&mut view, &mut usual).map_err(failed)?;
        let slow = slowest(&args.input, &args.part, None, &usual.stats, number)?;
        (followed, slow, usual.stats)
    };
    let mut trees = trees(&args, first, &followed, slow)?;
    losses::say(&followed.losses, view.names(), &clock, first);
    unmatched::say_of_globs(&args.filters, view.names());
    if args.json {
        let since = |ticks: u64| clock.nanoseconds(ticks.saturating_sub(first));
        let inner = |call: &Inner| {
            let function = &followed.functions[call.slot as usize];
            InnerCall {
                function: function.name.clone(),
                module: function.module_name().to_owned(),
                depth: call.depth as u64,
                begin_ns: since(call.begin),
                took_ns: clock.nanoseconds(call.took),
                self_ns: clock.nanoseconds(call.own),
                end: call.ending.into(),
            }
        };
        let one = |mut tree: Tree| {
            let slow = &tree.slow;
            let function = &followed.functions[slow.slot as usize];
            tree.inner.sort_by_key(|call| (call.begin, call.depth));
            SlowCall {
                function: function.name.clone(),
                module: function.module_name().to_owned(),
                thread: (&followed.threads[slow.thread]).into(),
                begin_ns: since(slow.begin),
                took_ns: clock.nanoseconds(slow.took),
                usual: (&usual[slow.slot as usize]).into(),
                inside: tree.inner.iter().map(inner).collect(),
                left_out: tree.left_out,
                least_ns: clock.nanoseconds(tree.least),
            }
        };
        let lost = losses::to_json(&followed.losses, view.names(), &clock, first);
        let calls = trees.into_iter().map(one).collect();
        json::write(&OutliersView { lost, calls })?;
        return view.check_whole(&args.input.path);
    }
    let mut out = Out::new();
    if trees.is_empty() {
        out.line("no call is slower than its function usually is")?;
    }
    for (at, tree) in trees.iter_mut().enumerate() {
        let slow = tree.slow;
        let stats = &usual[slow.slot as usize];
        let heading = format!(
            "{}. {} took {} at {}, in {}; of {} half take at most {}",
            at + 1,
            followed.functions[slow.slot as usize].name,
            time(clock.nanoseconds(slow.took)),
            time(clock.nanoseconds(slow.begin.saturating_sub(first))),
            followed.threads[slow.thread],
            text::calls(stats.hits),
            time(stats.percentile(500)),
        );
        out.line(Style::Bold.paint(cut(&heading, out.width.unwrap_or(usize::MAX))))?;
        write_tree(&mut tree.inner, &slow, &followed, &clock, &mut out)?;
        if tree.left_out > 0 {
            let least = time(clock.nanoseconds(tree.least));
            let count = text::calls(tree.left_out);
            let text = format!("   and {count} of less than {least}");
            out.line(Style::Dim.paint(cut(&text, out.width.unwrap_or(usize::MAX))))?;
        }
        out.line("")?;
    }
    out.finish()?;
    view.check_whole(&args.input.path)
}

/// Returns the slowest calls, the slowest first, none inside another one; `usual` has the times of
/// functions.
pub(super) fn slowest(
    input: &Input,
    part: &Part,
    wanted: Option<Matcher>,
    usual: &[Stats],
    number: usize,
) -> Result<Vec<Slow>, Error> {
    let mut view = input.view(part)?;
    let rate = u128::from(view.clock().ticks_per_second());
    let median = |stats: &Stats| {
        let ticks = u128::from(stats.percentile(500)) * rate / 1_000_000_000;
        let ticks = u64::try_from(ticks).unwrap_or(u64::MAX);
        (stats.hits >= LEAST_CALLS).then_some(ticks)
    };
    let usual = usual.iter().map(median).collect();
    let mut slowest = Slowest::new(wanted, usual, number);
    let followed = calls::follow(&mut view, &mut slowest);
    followed.map_err(|error| Error::source(&input.path, error))?;
    Ok(slowest.into_slow(number))
}

/// Reads the calls inside slow calls; `followed` has the threads and functions of all.
fn trees(
    args: &Args,
    first: u64,
    followed: &Calls<Views>,
    slow: Vec<Slow>,
) -> Result<Vec<Tree>, Error> {
    let part = (args.least / 100.0).clamp(0.0, 1.0);
    let tree = |slow: Slow| Tree {
        slow,
        least: (slow.took as f64 * part) as u64,
        around: None,
        inner: Vec::new(),
        left_out: 0,
    };
    let mut trees = Trees {
        trees: slow.into_iter().map(tree).collect(),
        first: followed,
        slots: Vec::new(),
        threads: Vec::new(),
    };
    let span = |tree: &Tree| {
        let (slow, thread) = (&tree.slow, &followed.threads[tree.slow.thread]);
        Span {
            thread: (thread.process, thread.id),
            begin: slow.begin,
            end: slow.begin.saturating_add(slow.took),
        }
    };
    let spans: Vec<Span> = trees.trees.iter().map(span).collect();
    if !spans.is_empty() {
        let mut view = args.input.view_spans(&args.part, first, &spans)?;
        let failed = |error| Error::source(&args.input.path, error);
        calls::follow(&mut view, &mut trees).map_err(failed)?;
    }
    Ok(trees.trees)
}

fn write_tree(
    inner: &mut [Inner],
    slow: &Slow,
    followed: &Calls<Views>,
    clock: &Clock,
    out: &mut Out,
) -> Result<(), Error> {
    inner.sort_by_key(|call| (call.begin, call.depth));
    for call in inner.iter() {
        let text = |ticks| time(clock.nanoseconds(ticks));
        let (took, part, own) = match call.ending {
            Ending::Lost => ["-", "-", "-"].map(str::to_owned).into(),
            _ => (
                text(call.took),
                percent(call.took, slow.took),
                text(call.own),
            ),
        };
        let how = match call.ending {
            Ending::Returned => "",
            Ending::Unwound => " (unwound)",
            Ending::Open => " (its end is missing)",
            Ending::Lost => " (its end was lost)",
            Ending::EntryOnly => " (entry only)",
        };
        let line = format!(
            "{took:>12} {part:>5} %  self {own:>12}  {}{}{how}",
            "  ".repeat(call.depth),
            followed.functions[call.slot as usize].name,
        );
        out.line(cut(&line, out.width.unwrap_or(usize::MAX)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_docs_have_the_schema() {
        json::check_schema::<OutliersView>("outliers");
    }
}
