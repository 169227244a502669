//! `fgraph heap`: blocks of memory by call path.
//!
//! The agent records calls of allocators only, with the calls around those that make blocks. The
//! blocks are computed in this process, in the order of the calls, so nothing is lost with the
//! program.

mod massif;
mod weights;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use fgraph_analysis::heap::{CallPath, Heap, PARTS, Sums, Whole, Wholes, shown};

use fgraph_analysis::tree::Tree;
use fgraph_trace::Source;
use fgraph_trace::clock::Clock;
use fgraph_trace::names::{LastState, Names, process_id};
use serde::Serialize;

use self::weights::Weights;
use super::export;
use crate::error::Error;
use crate::input::{Input, Part, nanoseconds};
use crate::json::{self, Lost};
use crate::launch::Target;
use crate::launch::arguments::OwnAllocators;
use crate::launch::events::Events;
use crate::losses;
use crate::output::{Out, Style, must_differ};
use crate::places::Places;
use crate::python::{advice, advice_to_record};
use crate::table::Table;
use crate::target::parse_pid;
use crate::text::{self, counted, escaped, grouped, size, time};

const EXAMPLES: &str = "\
Examples:
  fgraph heap -- ./server --once
  fgraph heap -p 1234 --growth 10s
  fgraph heap --python --sort allocated --stacks -- python3 app.py
  fgraph heap --export massif -o massif.out -- ./server; ms_print massif.out
  fgraph heap --alloc 'pool_alloc(arg1)' --free 'pool_free(arg0)' -- ./server
  fgraph record --heap -- ./server; fgraph heap

Known are malloc and its family, C++'s new and delete, anonymous mmap, Rust's global allocator, and
jemalloc, mimalloc and tcmalloc. A block belongs to the outermost of their functions: the malloc
inside new is not counted again. Sizes are the requested ones.

Counting begins with the agent: blocks from before are unknown, and so are their frees counted. A
program that ends by itself leaves the blocks that it never freed: they are shown as such, whether
it could still reach them or not. Otherwise live blocks are those when recording ended.";

/// Show blocks of memory by call path: live, at the peak, allocated in all
///
/// Runs a program, or attaches to a process with -p, and follows each block from its allocation to
/// its free. Without them it reads a recording that was made with `record --heap`. Mappings are
/// apart from the heap: an allocator's own mappings are part of it.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    /// Order of the call paths
    #[arg(long, value_name = "BY", default_value = "live")]
    sort: Sort,
    /// Add up call paths by the innermost function that is neither a library's helper nor, inside
    /// Python's functions, one of the interpreter
    #[arg(long)]
    functions: bool,
    /// Show all calls of each path
    #[arg(long)]
    stacks: bool,
    /// Show call paths as a tree from the outermost calls on, by the measure of --sort
    #[arg(long, conflicts_with_all = ["json", "growth", "stacks", "functions"])]
    tree: bool,
    /// The number of call paths to show
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20)]
    lines: usize,
    /// Attach with -p for this time, and show what has grown from its begin to its end
    #[arg(long, value_name = "TIME", value_parser = nanoseconds, requires = "pid",
        conflicts_with_all = ["time", "command"])]
    growth: Option<u64>,
    /// End after this time: `10s`
    #[arg(long, value_name = "TIME", value_parser = nanoseconds)]
    time: Option<u64>,
    #[command(flatten)]
    own: OwnAllocators,
    /// Show Python's functions in call paths too, in place of the interpreter's. It takes CPython
    /// 3.9 or later; a recording is made with `record --heap --python`
    #[arg(long)]
    python: bool,
    /// Follow neither forked processes nor executed programs
    #[arg(long)]
    no_follow: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Write call paths with the measure of --sort in a format of other programs instead: folded,
    /// svg, html, pprof. `massif` has the live bytes over time, with the call paths at the peak and
    /// at the end, in a file for each process
    #[arg(long, value_name = "FORMAT", value_parser = export::formats(FORMATS),
        conflicts_with_all = ["json", "growth", "tree"])]
    export: Option<String>,
    /// The output file of --export; `-` for standard output
    #[arg(short, long, value_name = "PATH", requires = "export")]
    output: Option<PathBuf>,
    /// Attach to a running process, or to several: `-p 1,2` or `-p 1 -p 2`
    #[arg(short, long, value_name = "PID", value_delimiter = ',', value_parser = parse_pid,
        conflicts_with_all = ["command", "path"])]
    pid: Vec<u32>,
    /// The program and its arguments
    #[arg(last = true, conflicts_with = "path")]
    command: Vec<OsString>,
}

/// The formats in which call paths can be written.
const FORMATS: [&str; 5] = ["folded", "svg", "html", "pprof", massif::NAME];

/// The order of call paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Sort {
    /// Live bytes at the end
    Live,
    /// Live blocks at the end
    Blocks,
    /// Live bytes when the process had the most
    Peak,
    /// Bytes that were allocated in all
    Allocated,
    /// The number of allocations
    Calls,
    /// The time since the oldest live block was allocated
    Age,
}

impl Sort {
    /// Returns the measure of a path, with ages up to `end`.
    fn of(self, sums: &Sums, end: u64) -> u64 {
        match self {
            Self::Live => sums.live,
            Self::Blocks => sums.blocks,
            Self::Peak => sums.peak,
            Self::Allocated => sums.allocated,
            Self::Calls => sums.calls,
            Self::Age if sums.oldest == 0 => 0,
            Self::Age => end.saturating_sub(sums.oldest),
        }
    }

    /// Returns the name of the measure and its unit, for exports; `None` if it does not add up.
    fn measure(self) -> Option<(&'static str, &'static str)> {
        Some(match self {
            Self::Live => ("live", "bytes"),
            Self::Blocks => ("live", "blocks"),
            Self::Peak => ("peak", "bytes"),
            Self::Allocated => ("allocated", "bytes"),
            Self::Calls => ("allocated", "blocks"),
            Self::Age => return None,
        })
    }
}

/// The view of `heap` in JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct HeapView {
    /// With missing events, no number is exact.
    lost: Lost,
    /// Calls that a later version of fgraph has recorded in a way that this one does not know. With
    /// these, no number is exact.
    unknown_calls: u64,
    /// Calls whose results fgraph cannot see, as of coroutines that copy the machine stack: their
    /// blocks are missing, and no number is exact.
    calls_without_end: u64,
    /// True if blocks from before the begin are unknown.
    is_attached: bool,
    /// The time in which growth is compared; null without `--growth`.
    growth_ns: Option<u64>,
    processes: Vec<ProcessView>,
    /// The call paths in the requested order.
    paths: Vec<PathView>,
    /// The number of call paths that are not shown.
    more: u64,
}

/// The blocks of a process.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ProcessView {
    process: u32,
    name: String,
    /// The state of the process when recording ended; null if it is unknown.
    end: Option<End>,
    /// The signal that had killed it; null if none is known.
    signal: Option<u32>,
    heap: WholeView,
    /// Anonymous mappings that the program has made itself, in whole pages.
    mappings: WholeView,
}

/// The state of a process when recording ended. It tells which blocks the live ones are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
enum End {
    /// It had called `exit` or returned from `main`: it has never freed its live blocks.
    Exited,
    /// A signal had ended it: live blocks may have been in use.
    Killed,
    /// It had ended in another way, as by `_exit`, or in an unknown one.
    Ended,
    /// It had executed another program.
    Executed,
    /// It ran on: live blocks may be in use.
    Running,
}

/// The sums of a process.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct WholeView {
    live_bytes: u64,
    live_blocks: u64,
    /// The most live bytes at once, and when that was.
    peak_bytes: u64,
    peak_at_ns: u64,
    allocated_bytes: u64,
    allocations: u64,
    frees: u64,
    /// Allocations without success.
    failed: u64,
    /// Frees of blocks that are unknown: they were there before, or made in an unknown way.
    unknown_frees: u64,
    /// Blocks whose free is unknown, as another block was made at their address.
    unseen_frees: u64,
}

/// A call path.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct PathView {
    process: u32,
    /// The function of the allocator.
    allocator: String,
    /// True if its blocks are mappings.
    is_mapping: bool,
    /// The calls around it, the innermost first; with `--functions` only one.
    calls: Vec<String>,
    live_bytes: u64,
    live_blocks: u64,
    /// Live bytes when the process had the most.
    peak_bytes: u64,
    allocated_bytes: u64,
    allocations: u64,
    /// Time since its oldest live block was allocated; null if there is none.
    oldest_ns: Option<u64>,
    /// The change of live bytes in each fourth of the time; empty without `--growth`.
    growth_bytes: Vec<i64>,
}

impl Args {
    /// True if it reads a recording.
    fn reads(&self) -> bool {
        self.pid.is_empty() && self.command.is_empty()
    }

    fn is_massif(&self) -> bool {
        self.export.as_deref() == Some(massif::NAME)
    }
}

/// Runs the program, and exits like it; or shows a recording.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Error> {
    if args.is_massif() && (args.sort != Sort::Live || args.functions) {
        let why = "massif has live bytes by whole call paths: it takes neither --sort nor \
                   --functions";
        return Err(Error::Usage(why.to_owned()));
    }
    if args.reads() {
        if !args.own.is_empty() {
            let why = "--alloc and --free need a program, or a process with -p; for a recording, \
                       `record --heap` has them";
            return Err(Error::Usage(why.to_owned()));
        }
        args.input.expect("--heap")?;
        let mut view = args.input.view(&Part::default())?;
        let read =
            Heap::read(&mut view, None).map_err(|error| Error::source(&args.input.path, error))?;
        let of = (view.process(), view.command());
        show(args, read, &view, of, Places::default())?;
        view.check_whole(&args.input.path)?;
        return Ok(ExitCode::SUCCESS);
    }
    let target = Target::new(args.no_follow, &args.pid, &args.command);
    let program = target.find(args.own.settings())?.python(args.python);
    let time = args.growth.or(args.time).map(Duration::from_nanos);
    let program = program.checking(args.own.patterns()).for_time(time);
    // A process that runs does not wait: its events need room.
    let program = program.buffer((!args.pid.is_empty()).then_some(BUFFER));
    program.run_whole(|launched, interrupts| {
        let places = Places::of_running(launched.generated());
        let mut events = Events::new(launched, interrupts)?;
        let read = Heap::read(&mut events, args.growth);
        let mut read = read.map_err(|error| Error::source("the rings", error))?;
        let without_ring = events.launched().rings().events_without_ring();
        if without_ring > 0 {
            read.losses.add((0, 0), without_ring, 0, 0);
        }
        let launched = events.launched();
        let of = (launched.process(), launched.command());
        show(args, read, &events, of, places)
    })
}

/// The size of a thread's ring in a process that runs.
const BUFFER: u64 = 64 << 20;

fn show(
    args: &Args,
    heap: Heap,
    source: &impl Source,
    (process, command): (u32, &[String]),
    mut places: Places,
) -> Result<(), Error> {
    let (names, clock) = (source.names(), source.clock());
    let (end, first) = (heap.blocks.last, heap.first);
    if !is_measured(args, &heap)? {
        return Ok(());
    }
    say_of_python(args, names);
    if args.is_massif() {
        let from = massif::From {
            names,
            clock,
            command,
            process,
            recording: args.reads().then_some(&args.input.path),
        };
        return massif::write(heap, &from, &mut places, args.output.as_deref());
    }
    let mut view = HeapView {
        lost: losses::to_json(&heap.losses, names, clock, first),
        unknown_calls: heap.blocks.unknown(),
        calls_without_end: heap.blocks.without_end,
        is_attached: !args.pid.is_empty(),
        growth_ns: args.growth,
        processes: Vec::new(),
        paths: Vec::new(),
        more: 0,
    };
    let (mut lines, wholes) = heap.finish(names, &mut places, args.functions);
    let key = |line: &CallPath| match args.growth {
        Some(_) => line.sums.growth().iter().sum::<i64>().max(0) as u64,
        None => args.sort.of(&line.sums, end),
    };
    if let Some(format) = &args.export {
        return write_export(args, format, &lines, &|line| key(line), names);
    }
    if args.tree {
        return write_tree(args, &lines, &|line| key(line));
    }
    // Lines of equal keys are in an order that does not depend on addresses.
    lines.sort_by_cached_key(|line| {
        let sums = &line.sums;
        let then = Reverse((sums.live, sums.allocated));
        (Reverse(key(line)), then, line.calls.clone(), line.process)
    });
    view.more = lines.len().saturating_sub(args.lines) as u64;
    lines.truncate(args.lines);
    let paths = lines.into_iter();
    view.paths = paths.map(|line| PathView::of(line, end, clock)).collect();
    view.processes = ProcessView::all(&wholes, first, source);
    match args.json {
        true => json::write(&view),
        false => write(args, &view),
    }
}

impl PathView {
    /// Returns the view of a call path at the time `end`, in ticks.
    fn of(line: CallPath, end: u64, clock: &Clock) -> Self {
        Self {
            process: process_id(line.process),
            allocator: line.allocator,
            is_mapping: line.is_mapping,
            calls: line.calls,
            live_bytes: line.sums.live,
            live_blocks: line.sums.blocks,
            peak_bytes: line.sums.peak,
            allocated_bytes: line.sums.allocated,
            allocations: line.sums.calls,
            oldest_ns: (line.sums.oldest != 0)
                .then(|| clock.nanoseconds(end.saturating_sub(line.sums.oldest))),
            growth_bytes: line.sums.growth(),
        }
    }
}

impl WholeView {
    /// Returns the view of all blocks; `first` is the time of the first event, in ticks.
    fn of(whole: &Whole, first: u64, clock: &Clock) -> Self {
        Self {
            live_bytes: whole.live,
            live_blocks: whole.blocks,
            peak_bytes: whole.peak,
            peak_at_ns: clock.nanoseconds(whole.peak_at.saturating_sub(first)),
            allocated_bytes: whole.allocated,
            allocations: whole.calls,
            frees: whole.freed,
            failed: whole.failed,
            unknown_frees: whole.unknown,
            unseen_frees: whole.replaced,
        }
    }
}

impl ProcessView {
    /// Returns the views of all processes; `first` is the time of the first event, in ticks.
    fn all(wholes: &Wholes, first: u64, source: &impl Source) -> Vec<Self> {
        let (names, clock) = (source.names(), source.clock());
        let mut processes: Vec<Self> = Vec::new();
        let mut last = None;
        for (&(process, maps), sums) in wholes {
            if last.replace(process) != Some(process) {
                let name = names.process(process).map_or("", |(_, name)| name);
                let (end, signal) = end_of(process, names);
                processes.push(Self {
                    process: process_id(process),
                    name: name.to_owned(),
                    end,
                    signal,
                    heap: WholeView::default(),
                    mappings: WholeView::default(),
                });
            }
            if let Some(last) = processes.last_mut() {
                let whole = match maps {
                    true => &mut last.mappings,
                    false => &mut last.heap,
                };
                *whole = WholeView::of(sums, first, clock);
            }
        }
        processes
    }
}

/// Says what is missing. Returns false if there is nothing to show.
///
/// # Errors
///
/// The recording has no calls of allocators, or none with arguments.
fn is_measured(args: &Args, heap: &Heap) -> Result<bool, Error> {
    let unknown = heap.blocks.unknown();
    if unknown > 0 {
        let calls = text::calls(unknown);
        say!(
            "fgraph: {calls} of allocators in a form that this version does not know: a later one \
             made the recording, and no number is exact"
        );
    }
    let without_end = heap.blocks.without_end;
    if without_end > 0 && (heap.blocks.has_arguments || !args.reads()) {
        let calls = text::calls(without_end);
        say!(
            "fgraph: the results of {calls} of allocators were not seen: their blocks are missing, \
             and no number is exact. Coroutines that copy the stack (greenlet, gevent), and code \
             that a runtime has compiled, make such calls"
        );
    }
    if !heap.blocks.is_found && args.reads() {
        return Err(Error::Nothing(format!(
            "{} has no call of a known allocator; `fgraph record --heap` records them",
            args.input.path.display()
        )));
    }
    if !heap.blocks.is_found && !args.json {
        say!(
            "fgraph: no function of a known allocator was called: `fgraph heap --help` lists them"
        );
        return Ok(false);
    }
    if args.reads() && heap.blocks.is_found && !heap.blocks.has_arguments {
        return Err(Error::Nothing(format!(
            "{} has calls of allocators without their arguments; record again, with --heap",
            args.input.path.display()
        )));
    }
    Ok(true)
}

/// Returns the state of a process when recording ended, and the signal that had killed it.
fn end_of(process: u32, names: &Names) -> (Option<End>, Option<u32>) {
    let end = match names.last_state(process) {
        Some(LastState::Exited) => End::Exited,
        Some(LastState::Killed { signal }) => return (Some(End::Killed), Some(signal)),
        Some(LastState::Ended) => End::Ended,
        Some(LastState::Executed) => End::Executed,
        Some(LastState::Running) => End::Running,
        // A later version's.
        Some(_) | None => return (None, None),
    };
    (Some(end), None)
}

/// Says how call paths have Python's functions, if the program has an interpreter.
fn say_of_python(args: &Args, names: &Names) {
    let gain = "puts Python's functions into the call paths";
    let advice = match args.reads() {
        true => advice_to_record(names, "record --heap", gain),
        false => advice(names, args.python, gain),
    };
    if let Some(advice) = advice {
        say!("fgraph: {advice}");
    }
}

/// Parts of the whole, in thousandths, that a call needs to be shown in a tree.
const LEAST_PART: u64 = 5;

/// Writes call paths as a tree.
fn write_tree(
    args: &Args,
    lines: &[CallPath],
    weight: &dyn Fn(&CallPath) -> u64,
) -> Result<(), Error> {
    let Some((kind, unit)) = args.sort.measure() else {
        return Err(Error::Usage(AGES.to_owned()));
    };
    let mut tree = Tree::default();
    let mut numbers: HashMap<&str, u32> = HashMap::new();
    let mut names = Vec::new();
    let mut whole = 0_u64;
    for line in lines {
        let weight = weight(line);
        whole = whole.saturating_add(weight);
        let calls = line.calls.iter().rev().map(String::as_str);
        let mut node = 0;
        for call in calls.chain([line.allocator.as_str()]) {
            let slot = *numbers.entry(call).or_insert_with(|| {
                names.push(call);
                names.len() as u32 - 1
            });
            node = tree.child(node, slot);
            tree.add(node, weight, 0);
        }
    }
    tree.sort();
    let mut out = Out::new();
    let part = "%";
    let heading = format!("{unit:>12}  {part:>5}  by call path: {kind} {unit}");
    out.line(Style::Bold.paint(heading))?;
    // The calls that are not written, the next one last, with their depths.
    let mut rest: Vec<(u32, usize)> = Vec::new();
    let push = |rest: &mut Vec<_>, node: u32, depth| {
        let children = tree.nodes[node as usize].children.iter().rev();
        rest.extend(children.map(|child| (*child, depth)));
    };
    push(&mut rest, 0, 0);
    while let Some((node, depth)) = rest.pop() {
        let found = &tree.nodes[node as usize];
        if found.total.saturating_mul(1000) < whole.saturating_mul(LEAST_PART) || whole == 0 {
            continue;
        }
        let amount = match unit {
            "bytes" => size(found.total),
            _ => grouped(found.total),
        };
        let (part, name) = (
            text::percent(found.total, whole),
            names[found.slot as usize],
        );
        let (indent, name) = ("  ".repeat(depth), escaped(name));
        let line = format!("{amount:>12}  {part:>5}  {indent}{name}");
        out.line(text::cut(&line, out.width.unwrap_or(usize::MAX)))?;
        push(&mut rest, node, depth + 1);
    }
    out.finish()
}

/// The error for ages where measures are added up.
const AGES: &str = "ages do not add up: give another --sort";

/// Writes call paths with weights in a format of other programs.
fn write_export(
    args: &Args,
    format: &str,
    lines: &[CallPath],
    weight: &dyn Fn(&CallPath) -> u64,
    names: &Names,
) -> Result<(), Error> {
    let format = export::format(format)?;
    let Some((kind, unit)) = args.sort.measure() else {
        return Err(Error::Usage(AGES.to_owned()));
    };
    let mut processes: Vec<u32> = lines.iter().map(|line| line.process).collect();
    processes.sort_unstable();
    processes.dedup();
    let processes = processes.into_iter();
    let processes = processes.map(|it| (it, names.process(it).map_or("", |(_, name)| name)));
    let mut weights = Weights::new(processes);
    let mut numbers: HashMap<&str, u32> = HashMap::new();
    for line in lines {
        let calls = line.calls.iter().rev().map(String::as_str);
        let calls = calls.chain([line.allocator.as_str()]).map(|call| {
            let next = numbers.len() as u32;
            let (name, module) = match call.strip_suffix(']').and_then(|it| it.rsplit_once(" [")) {
                Some(both) => both,
                None => (call, ""),
            };
            (*numbers.entry(call).or_insert(next), name, module)
        });
        weights.add(line.process, calls, weight(line));
    }
    let path = export::path_of(format, args.output.as_deref());
    if args.reads() {
        must_differ(&path, [&args.input.path])?;
    }
    let from = Path::new("the heap");
    export::write_to(&path, format, &mut weights, from, |export| {
        export.weigh(kind, unit)
    })?;
    Ok(())
}

/// The most calls of a path in one line.
const SHOWN: usize = 5;

fn write(args: &Args, view: &HeapView) -> Result<(), Error> {
    let mut out = Out::new();
    if view.lost.events > 0 {
        let lost = counted(view.lost.events, "event");
        say!("fgraph: {lost} lost: no number is exact");
    }
    let several = view.processes.len() > 1;
    for process in &view.processes {
        let of = match several {
            true => format!("{} {}: ", escaped(&process.name), process.process),
            false => String::new(),
        };
        for (kind, block, whole) in [
            ("heap", "block", &process.heap),
            ("mappings", "mapping", &process.mappings),
        ] {
            if whole.allocations + whole.unknown_frees == 0 {
                continue;
            }
            for line in whole.lines(kind, block, process) {
                out.line(format_args!("{of}{line}"))?;
            }
        }
    }
    out.line("")?;
    table_of(args, view).write(&mut out)?;
    if view.more > 0 {
        let more = counted(view.more, "more call path");
        out.line(format_args!("and {more}, see -n"))?;
    }
    out.finish()
}

/// Returns the table of call paths.
fn table_of(args: &Args, view: &HeapView) -> Table {
    let several = view.processes.len() > 1;
    // Blocks of other processes may be live.
    let have_all_exited = view.processes.iter().all(|it| it.end == Some(End::Exited));
    let live = if have_all_exited {
        "never freed"
    } else {
        "live"
    };
    let columns: &[_] = match view.growth_ns {
        Some(_) => &[
            ("growth", 0),
            ("steady", 1),
            ("blocks", 2),
            ("allocated", 3),
            ("calls", 4),
        ],
        None => &[
            (live, 0),
            ("blocks", 2),
            ("peak", 1),
            ("allocated", 3),
            ("calls", 4),
        ],
    };
    let columns = [columns, &[("oldest", 5), ("by", 0)]].concat();
    let mut table = Table::new(&columns);
    for path in &view.paths {
        let growth: i64 = path.growth_bytes.iter().sum();
        let steady = path.growth_bytes.iter().filter(|part| **part > 0).count();
        let mut cells = match view.growth_ns {
            Some(_) => vec![signed_size(growth), format!("{steady}/{PARTS}")],
            None => vec![size(path.live_bytes)],
        };
        cells.push(grouped(path.live_blocks));
        if view.growth_ns.is_none() {
            cells.push(size(path.peak_bytes));
        }
        cells.push(size(path.allocated_bytes));
        cells.push(grouped(path.allocations));
        cells.push(path.oldest_ns.map_or_else(|| "-".to_owned(), time));
        let of = match several {
            true => format!("{}: ", path.process),
            false => String::new(),
        };
        cells.push(format!("{of}{}", name_of(path, args.stacks)));
        table.row(cells);
        if args.stacks {
            path.calls
                .iter()
                .for_each(|call| table.note(escaped(call).into_owned()));
        }
    }
    table
}

/// Functions that start programs and threads.
const STARTS: [&str; 6] = [
    "_start",
    "__libc_start_main",
    "__libc_start_call_main",
    "start_thread",
    "clone3",
    "clone",
];

/// Returns a path in one line, with the module after the last of several calls in it.
fn name_of(path: &PathView, only_allocator: bool) -> String {
    if only_allocator || path.calls.is_empty() {
        return escaped(&path.allocator).into_owned();
    }
    let parts = |call: &'_ str| match call.rsplit_once(" [") {
        Some((name, module)) => (name.to_owned(), module.to_owned()),
        None => (call.to_owned(), String::new()),
    };
    let calls = shown(&path.calls).iter();
    let mut calls: Vec<_> = calls.map(|call| parts(call)).collect();
    let is_start = |(name, _): &(String, String)| STARTS.contains(&name.as_str());
    while calls.len() > 1 && calls.last().is_some_and(is_start) {
        calls.pop();
    }
    let mut text = String::new();
    for (nth, (name, module)) in calls.iter().take(SHOWN).enumerate() {
        let next = calls.get(nth + 1).filter(|_| nth + 1 < SHOWN);
        text += name;
        if !module.is_empty() && next.is_none_or(|(_, next)| next != module) {
            text += &format!(" [{module}");
        }
        if next.is_some() {
            text += " < ";
        }
    }
    if calls.len() > SHOWN {
        text += " < …";
    }
    escaped(&text).into_owned()
}

fn signed_size(bytes: i64) -> String {
    match bytes {
        0 => "0 B".to_owned(),
        1.. => format!("+{}", size(bytes as u64)),
        _ => format!("-{}", size(bytes.unsigned_abs())),
    }
}

impl ProcessView {
    /// Returns the moment at which its live blocks were live, if it is known.
    fn when(&self) -> String {
        match self.end {
            Some(End::Exited) => " before the program ended".to_owned(),
            Some(End::Killed) => {
                let signal = self.signal.unwrap_or(0);
                format!(" when signal {signal} ended the program")
            }
            Some(End::Ended) => " when the process ended".to_owned(),
            Some(End::Executed) => " when it executed another program".to_owned(),
            Some(End::Running) => " when recording ended".to_owned(),
            None => String::new(),
        }
    }
}

impl WholeView {
    /// Returns its lines; `kind` is heap or mappings, `block` the word for one.
    fn lines(&self, kind: &str, block: &str, process: &ProcessView) -> Vec<String> {
        let (bytes, blocks) = (size(self.live_bytes), counted(self.live_blocks, block));
        let live = match process.end {
            Some(End::Exited) => format!("{bytes} in {blocks} never freed"),
            _ => format!("{bytes} live in {blocks}"),
        };
        let mut lines = vec![format!(
            "{kind}: {live}{}, peak {} at {}, {} allocated by {}",
            process.when(),
            size(self.peak_bytes),
            time(self.peak_at_ns),
            size(self.allocated_bytes),
            text::calls(self.allocations),
        )];
        let counts = [
            (self.failed, "allocation", "failed"),
            (self.unknown_frees, "free", "of unknown blocks, from before"),
            (self.unseen_frees, "free", "not seen"),
        ];
        for (count, noun, what) in counts {
            if count > 0 {
                lines.push(format!("{kind}: {} {what}", counted(count, noun)));
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_docs_have_the_schema() {
        json::check_schema::<HeapView>("heap");
    }
}
