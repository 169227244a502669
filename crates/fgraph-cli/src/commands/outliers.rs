//! `fgraph outliers`: the slowest calls, each with the calls inside it.
//!
//! The recording is read for the usual times of functions, for the calls that took longest, and for
//! the calls inside these. The first two are one reading if the functions were named. The last one
//! reads little more than the chunks of events with the slowest calls.

use fgraph_analysis::calls::{Calls, Ending, Views};
use fgraph_analysis::outliers::{self, Inner, Slow, Tree};
use fgraph_analysis::stats::Stats;
use fgraph_trace::Source as _;
use fgraph_trace::clock::Clock;
use serde::Serialize;

use crate::error::Error;
use crate::input::{Input, Part, Span, matcher};
use crate::json::{self, End, Lost, Times};
use crate::losses;
use crate::output::{Out, Style};
use crate::overhead;
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
    /// The part of the threads' processor time that recording took, in percent; without states, of
    /// all their time. Null if it is unknown.
    overhead_percent: Option<u64>,
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

/// Prints them.
pub(crate) fn run(args: Args) -> Result<(), Error> {
    let failed = |error| Error::source(&args.input.path, error);
    let mut view = args.input.view(&args.part)?;
    let clock = *view.clock();
    let first = view.first();
    let wanted = matcher(&args.filters)?;
    let number = args.number as usize;
    let ((followed, usual), slow) = match wanted {
        Some(wanted) => outliers::of_functions(&mut view, wanted, number).map_err(failed)?,
        None => {
            let read = outliers::usual(&mut view).map_err(failed)?;
            let slow = slowest(&args.input, &args.part, &read.1, number)?;
            (read, slow)
        }
    };
    let trees = trees(&args, first, &followed, slow)?;
    losses::say(&followed.losses, view.names(), &clock, first);
    let overhead = overhead::say(&followed, view.clock(), view.schedule(), |_, _| false);
    unmatched::check_globs(&args.filters, &view, &args.input.path)?;
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
        let one = |tree: Tree| {
            let slow = &tree.slow;
            let function = &followed.functions[slow.slot as usize];
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
        json::write(&OutliersView {
            lost,
            overhead_percent: overhead,
            calls,
        })?;
        return view.check_whole(&args.input.path);
    }
    let mut out = Out::new();
    if trees.is_empty() {
        out.line("no call is slower than its function usually is")?;
    }
    for (at, tree) in trees.iter().enumerate() {
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
        write_tree(&tree.inner, &slow, &followed, &clock, &mut out)?;
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

/// Returns the slowest calls of a recording; `usual` has the times of its functions.
pub(super) fn slowest(
    input: &Input,
    part: &Part,
    usual: &[Stats],
    number: usize,
) -> Result<Vec<Slow>, Error> {
    let slow = outliers::beyond_usual(&mut input.view(part)?, usual, number);
    slow.map_err(|error| Error::source(&input.path, error))
}

/// Reads the calls inside slow calls; `followed` has the threads and functions of all.
fn trees(
    args: &Args,
    first: u64,
    followed: &Calls<Views>,
    slow: Vec<Slow>,
) -> Result<Vec<Tree>, Error> {
    let span = |slow: &Slow| {
        let thread = &followed.threads[slow.thread];
        Span {
            thread: (thread.process, thread.id),
            begin: slow.begin,
            end: slow.begin.saturating_add(slow.took),
        }
    };
    let spans: Vec<Span> = slow.iter().map(span).collect();
    if spans.is_empty() {
        return Ok(Vec::new());
    }
    let mut view = args.input.view_spans(&args.part, first, &spans)?;
    let part = (args.least / 100.0).clamp(0.0, 1.0);
    let trees = outliers::trees(&mut view, followed, slow, part);
    trees.map_err(|error| Error::source(&args.input.path, error))
}

fn write_tree(
    inner: &[Inner],
    slow: &Slow,
    followed: &Calls<Views>,
    clock: &Clock,
    out: &mut Out,
) -> Result<(), Error> {
    for call in inner {
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
