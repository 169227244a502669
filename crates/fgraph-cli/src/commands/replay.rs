//! `fgraph replay`: a recording, call by call.

pub(super) mod calls;

use clap::ValueEnum;
use fgraph_trace::Source;
use fgraph_trace::graph::{FunctionGraph, Options, Parts, ResultFormat};

use crate::debuginfod::Debuginfod;
use crate::error::Error;
use crate::input::{Input, Part, matcher, nanoseconds};
use crate::output::Out;
use crate::places;
use crate::sources::say_changes;
use crate::unmatched;

/// Show each call with its time, indented, like the kernel's function graph
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fgraph replay -F handle -D 3
  fgraph replay -t 10ms --abstime --proc server.data
  fgraph replay --json --from 1.5s --to 2s")]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    /// Only functions with these names, and their callees
    #[arg(short = 'F', long = "filter", value_name = "GLOB")]
    filters: Vec<String>,
    /// Without functions with these names, and their callees
    #[arg(short = 'N', long = "notrace", value_name = "GLOB")]
    without: Vec<String>,
    /// Leave out calls that are nested deeper
    #[arg(
        short = 'D',
        long,
        value_name = "N",
        default_value_t = 0,
        hide_default_value = true
    )]
    depth: usize,
    /// Only calls that took at least this long, at their ends: `10us`
    #[arg(short = 't', long, value_name = "TIME", value_parser = nanoseconds)]
    threshold: Option<u64>,
    /// Leave out of durations the time in which the thread was not on a processor
    #[arg(long)]
    on_cpu: bool,
    /// Show the time of each line, by the monotonic clock
    #[arg(long)]
    abstime: bool,
    /// Show the thread of each line
    #[arg(long)]
    proc: bool,
    /// Repeat the function's name at its end
    #[arg(long)]
    tail: bool,
    /// Leave out the column of processors
    #[arg(long)]
    no_cpu: bool,
    /// Show results, where they were recorded
    #[arg(long, value_name = "FORMAT")]
    results: Option<Results>,
    /// Print one JSON object for each call, when it ends, each mark, and each loss of events
    #[arg(long, conflicts_with_all = ["abstime", "proc", "tail", "no_cpu", "results"])]
    json: bool,
    #[command(flatten)]
    part: Part,
    #[command(flatten)]
    debuginfod: Debuginfod,
}

/// The format of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Results {
    /// Hexadecimal, except for errors
    Kernel,
    Hex,
    Decimal,
    /// Like `kernel`, with the names of errors
    Errno,
}

/// Prints it.
pub(crate) fn run(args: Args) -> Result<(), Error> {
    let mut view = args.input.view(&args.part)?;
    places::name_functions(&mut view, args.debuginfod);
    if args.on_cpu {
        view.give_running(&args.input.path)?;
    }
    let options = Options {
        functions: matcher(&args.filters)?,
        without: matcher(&args.without)?,
        max_depth: args.depth,
        threshold: args.threshold.unwrap_or(0),
        sleep_time: !args.on_cpu,
        parts: (Parts::default() | Parts::ARGUMENTS)
            .with(Parts::ABSOLUTE_TIME, args.abstime)
            .with(Parts::THREAD, args.proc)
            .with(Parts::TAIL, args.tail)
            .with(Parts::CPU, !args.no_cpu),
        result: Some(match args.results {
            None | Some(Results::Kernel) => ResultFormat::Kernel,
            Some(Results::Hex) => ResultFormat::Hex,
            Some(Results::Decimal) => ResultFormat::Decimal,
            Some(Results::Errno) => ResultFormat::ErrnoName,
        }),
        ..Options::default()
    };
    say_changes(&args.input.path, view.names());
    let failed = |error| Error::source(&args.input.path, error);
    if args.json {
        calls::Calls::new(&options).write(&mut view, failed)?;
        unmatched::check_globs(&args.filters, &view, &args.input.path)?;
        return view.check_whole(&args.input.path);
    }
    let mut graph = FunctionGraph::new(options);
    let (mut out, mut text) = (Out::new(), String::new());
    const BLOCK: usize = 1 << 16;
    while graph.write_event(&mut view, &mut text).map_err(failed)? {
        if text.len() >= BLOCK {
            out.text(&text)?;
            text.clear();
        }
    }
    out.text(&text)?;
    unmatched::check_globs(&args.filters, &view, &args.input.path)?;
    out.finish()?;
    view.check_whole(&args.input.path)
}
