//! `fgraph graph`: the callers and callees of a function.

use std::convert::Infallible;
use std::time::Instant;

use fgraph_analysis::calls::{self, At, Call, Function, Measured, Open, Slot, Visitor};
use fgraph_analysis::losses::Losses;
use fgraph_analysis::numbers::grown;
use fgraph_analysis::tree::Tree;
use fgraph_trace::Source;
use fgraph_trace::clock::Clock;
use fgraph_trace::graph::Matcher;
use fgraph_trace::schedule::State;
use fgraph_trace::source::SourceError;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::input::{Input, Measure, Part, View, matcher, say_unknown};
use crate::json::{self, Lost};
use crate::losses;
use crate::output::{Out, Style};
use crate::overhead::Load;
use crate::summary::{Summary, of_losses};
use crate::text::{self, cut, grouped, percent, time};
use crate::unmatched;
use crate::waiting::Waiting;

/// Show the callers and callees of a function, with counts and times
///
/// Percentages are of the function's total time. A caller's line has the calls that it makes, and
/// the function's times in these; a callee's line has its times in the function's calls.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fgraph graph malloc
  fgraph graph -D 5 --time cpu 'parse*' server.data
  fgraph graph -D 20 -n 15 handle_request")]
pub(crate) struct Args {
    /// The function; a glob that matches several treats them as one
    function: String,
    #[command(flatten)]
    input: Input,
    /// The number of levels of callers and of callees to show
    #[arg(short = 'D', long, value_name = "N", default_value_t = 3)]
    depth: usize,
    /// The most lines of callers to show, and of callees: those with the longest times
    #[arg(short = 'n', long, value_name = "N")]
    lines: Option<usize>,
    /// Count this time of calls
    #[arg(long, value_name = "TIME", default_value = "wall")]
    time: Measure,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    part: Part,
}

/// The view of `graph` in JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct GraphView {
    lost: Lost,
    /// The part of the threads' processor time that recording took, in percent; without states, of
    /// all their time. Null if it is unknown.
    overhead_percent: Option<u64>,
    /// The time of calls that all times are of.
    time: Measure,
    /// The requested glob.
    function: String,
    calls: u64,
    self_ns: u64,
    /// Time in calls; nested calls of the function count once.
    total_ns: u64,
    /// The callers, longest first, each with its own callers.
    callers: Vec<GraphNode>,
    /// The callees, longest first, each with its own callees.
    callees: Vec<GraphNode>,
}

/// The calls of one function from one place.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct GraphNode {
    /// Null for callers that were not recorded.
    function: Option<String>,
    /// The file of its module, without directories.
    module: Option<String>,
    calls: u64,
    /// Total time; for a caller, the time of the requested function in its calls.
    total_ns: u64,
    /// Own time: the total time without the time of the calls inside.
    self_ns: u64,
    /// The next level away from the requested function.
    next: Vec<GraphNode>,
}

/// Name, module and number of calls of each function, by slot.
type Functions = [(String, String, u64)];

/// Returns the calls below a node, the longest first.
fn to_json(tree: &Tree, node: u32, functions: &Functions) -> Vec<GraphNode> {
    let children = tree.nodes[node as usize].children.iter();
    let child = |&child: &u32| {
        let node = &tree.nodes[child as usize];
        let function = functions.get(node.slot as usize);
        GraphNode {
            function: function.map(|(name, ..)| name.clone()),
            module: function.map(|(_, module, _)| module.clone()),
            calls: node.hits,
            total_ns: node.total,
            self_ns: node.own,
            next: to_json(tree, child, functions),
        }
    };
    children.map(child).collect()
}

/// Writes the nodes below a node, the longest first.
fn write(
    tree: &Tree,
    node: u32,
    depth: usize,
    whole: u64,
    functions: &Functions,
    out: &mut Out,
) -> Result<(), Error> {
    for &child in &tree.nodes[node as usize].children {
        let node = &tree.nodes[child as usize];
        let function = functions.get(node.slot as usize);
        let name = function.map_or("(a caller that was not recorded)", |it| it.0.as_str());
        let (hits, part) = (grouped(node.hits), percent(node.total, whole));
        let [total, own] = [node.total, node.own].map(time);
        let indent = "  ".repeat(depth);
        let line = format!("{hits:>12}  {total:>12}  {part:>5}  {own:>12}  {indent}{name}");
        out.line(cut(&line, out.width.unwrap_or(usize::MAX)))?;
        write(tree, child, depth + 1, whole, functions, out)?;
    }
    Ok(())
}

/// Stands for the callers of outermost calls. No function has it.
const NOT_RECORDED: Slot = Slot::MAX;

/// The most levels that are shown.
const MAX_DEPTH: usize = 1000;

/// The place of a call below the requested function: a node, and the depth.
type Place = Option<(u32, usize)>;

struct Graph {
    wanted: Matcher,
    depth: usize,
    clock: Clock,
    is_wanted: Vec<bool>,
    callers: Tree,
    callees: Tree,
    /// For each thread, the places of its calls.
    places: Vec<Vec<Place>>,
    /// For each thread, the number of the function's calls in progress.
    active: Vec<u32>,
    own: u64,
    hits: u64,
    total: u64,
    waiting: Waiting,
}

impl Visitor for Graph {
    type Error = Infallible;

    fn function(&mut self, function: &Function) {
        self.is_wanted
            .push((self.wanted)(&function.name, &function.module));
    }

    fn enter(&mut self, at: &At<'_>, call: &Open) -> Result<(), Infallible> {
        let thread = at.thread.index;
        let places = grown(&mut self.places, thread);
        let active = grown(&mut self.active, thread);
        let place = if self.is_wanted[call.data as usize] {
            *active += 1;
            self.waiting.begin(at);
            Some((0, 0))
        } else {
            let caller = places.last().copied().flatten();
            let near = caller.filter(|&(_, depth)| depth < self.depth);
            near.map(|(node, depth)| (self.callees.child(node, call.data), depth + 1))
        };
        places.push(place);
        Ok(())
    }

    fn exit(&mut self, at: &At<'_>, call: &Call) -> Result<(), Infallible> {
        let thread = at.thread.index;
        let Some((node, _)) = self.places[thread].pop().flatten() else {
            return Ok(());
        };
        let Measured { ran, own } = call.measured;
        let [took, own] = [ran, own].map(|it| self.clock.nanoseconds(it));
        if !self.is_wanted[call.slot as usize] {
            self.callees.add(node, took, own);
            return Ok(());
        }
        self.active[thread] -= 1;
        self.waiting.end(at, call);
        self.hits += 1;
        self.own = self.own.saturating_add(own);
        if self.active[thread] == 0 {
            self.total = self.total.saturating_add(took);
        }
        // The time of a nested call is part of the outer one's.
        let took = if self.active[thread] == 0 { took } else { 0 };
        let mut node = 0;
        for caller in at.around.iter().rev().take(self.depth) {
            node = self.callers.child(node, caller.data);
            self.callers.add(node, took, own);
        }
        if at.around.is_empty() {
            node = self.callers.child(node, NOT_RECORDED);
            self.callers.add(node, took, own);
        }
        Ok(())
    }
}

/// The result of a pass over the recording, which a summary keeps.
#[derive(Debug, Serialize, Deserialize)]
struct Passed {
    callers: Tree,
    callees: Tree,
    own: u64,
    hits: u64,
    total: u64,
    waiting: Waiting,
    load: Load,
    #[serde(with = "of_losses")]
    losses: Losses,
    unknown_threads: u64,
}

/// Reads all calls of a view.
fn pass(
    args: &Args,
    wanted: Matcher,
    view: &mut View,
    state: Option<State>,
) -> Result<Passed, SourceError> {
    let mut graph = Graph {
        wanted,
        depth: args.depth.min(MAX_DEPTH),
        clock: *view.clock(),
        is_wanted: Vec::new(),
        callers: Tree::default(),
        callees: Tree::default(),
        places: Vec::new(),
        active: Vec::new(),
        own: 0,
        hits: 0,
        total: 0,
        waiting: Waiting::of(args.time),
    };
    let followed = calls::follow_in(view, state, &mut graph)?;
    Ok(Passed {
        callers: graph.callers,
        callees: graph.callees,
        own: graph.own,
        hits: graph.hits,
        total: graph.total,
        waiting: graph.waiting,
        load: Load::of(&followed),
        unknown_threads: followed.unknown_threads(),
        losses: followed.losses,
    })
}

/// Prints it.
pub(crate) fn run(args: Args) -> Result<(), Error> {
    let mut view = args.input.view(&args.part)?;
    let globs = std::slice::from_ref(&args.function);
    let matcher = || Ok(matcher(globs)?.unwrap_or_else(|| Box::new(|_, _| true)));
    let wanted: Matcher = matcher()?;
    let failed = |error| Error::source(&args.input.path, error);
    let state = view.state_of(args.time, &args.input.path)?;
    let depth = args.depth.min(MAX_DEPTH);
    let summary = view.summary(&("graph", &args.function, depth, args.time));
    let mut graph = match summary.as_ref().and_then(Summary::find) {
        Some(passed) => passed,
        None => {
            let begun = Instant::now();
            let passed = pass(&args, matcher()?, &mut view, state).map_err(failed)?;
            if let Some(summary) = summary.filter(|_| view.has_all()) {
                summary.keep(begun, &passed);
            }
            passed
        }
    };
    say_unknown(graph.unknown_threads);
    losses::say(&graph.losses, view.names(), view.clock(), view.first());
    let load = &graph.load;
    let overhead = load.say(view.clock(), view.schedule(), wanted);
    graph.waiting.say();
    if graph.hits == 0 {
        unmatched::check_globs(globs, &view, &args.input.path)?;
        view.check_whole(&args.input.path)?;
        return Err(Error::Nothing(format!(
            "no call of {} is in the recording",
            args.function
        )));
    }
    for tree in [&mut graph.callers, &mut graph.callees] {
        tree.sort();
        tree.keep_longest(args.lines.unwrap_or(usize::MAX));
    }
    let functions = &load.functions;
    if args.json {
        let (names, clock, first) = (view.names(), view.clock(), view.first());
        json::write(&GraphView {
            lost: losses::to_json(&graph.losses, names, clock, first),
            overhead_percent: overhead,
            time: args.time,
            function: args.function,
            calls: graph.hits,
            self_ns: graph.own,
            total_ns: graph.total,
            callers: to_json(&graph.callers, 0, functions),
            callees: to_json(&graph.callees, 0, functions),
        })?;
        return view.check_whole(&args.input.path);
    }
    let mut out = Out::new();
    let heading = format!(
        "{}: {}, total {}, self {}",
        text::escaped(&args.function),
        text::calls(graph.hits),
        time(graph.total),
        time(graph.own)
    );
    out.line(Style::Bold.paint(heading))?;
    for (name, tree) in [("called by", &graph.callers), ("calls", &graph.callees)] {
        out.line("")?;
        let [calls, total, part, own] = ["calls", "total", "%", "self"];
        let heading = format!("{calls:>12}  {total:>12}  {part:>5}  {own:>12}  {name}");
        out.line(Style::Bold.paint(heading))?;
        write(tree, 0, 0, graph.total, functions, &mut out)?;
    }
    out.finish()?;
    view.check_whole(&args.input.path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_docs_have_the_schema() {
        json::check_schema::<GraphView>("graph");
    }
}
