//! The heap over time in the format of valgrind's massif, which ms_print and massif-visualizer
//! read.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use fgraph_analysis::addresses::module_at;
use fgraph_analysis::heap::{CallPath, Heap, Snapshot, Sums, Timeline};
use fgraph_analysis::tree::Tree;
use fgraph_trace::clock::Clock;
use fgraph_trace::names::{Names, executed_before, process_id};
use fgraph_trace::place;

use crate::error::Error;
use crate::output::{must_differ, take_terminal};
use crate::places::Places;
use crate::sources::Sources;
use crate::text::{counted, escaped, file_name};

/// The name of the format.
pub(super) const NAME: &str = "massif";

/// The first line of each tree, as massif writes it.
const ROOT: &str = "(heap allocation functions) malloc/new/new[], --alloc-fns, etc.";

/// The shortest heap whose times have enough digits in milliseconds. For shorter ones the time is
/// in bytes that were allocated and freed.
const SHORT: u64 = 100_000_000;

/// The source of an export.
#[derive(Debug)]
pub(super) struct From<'a> {
    pub(super) names: &'a Names,
    pub(super) clock: &'a Clock,
    /// The command line of the program.
    pub(super) command: &'a [String],
    /// The id of the process that was recorded first.
    pub(super) process: u32,
    /// The recording, if it is one.
    pub(super) recording: Option<&'a PathBuf>,
}

/// The paths of a process's blocks, with the calls of each as numbers of labels, the innermost
/// first.
type Paths = Vec<(Vec<u32>, Sums)>;

/// Writes a file for each process. The first one has the name `output`, the others its name with
/// the id of the process. Without a name all have massif's.
pub(super) fn write(
    heap: Heap,
    from: &From<'_>,
    places: &mut Places,
    output: Option<&Path>,
) -> Result<(), Error> {
    let first = heap.first;
    let (paths, wholes) = heap.finish_apart(from.names, places);
    let mut labels = Labels::default();
    let mut by_process: BTreeMap<u32, Paths> = BTreeMap::new();
    for path in paths.into_iter().filter(|path| !path.is_mapping) {
        let calls = labels.of(&path, from.names);
        let paths = by_process.entry(path.process).or_default();
        paths.push((calls, path.sums));
    }
    let mappings: u64 = wholes
        .iter()
        .filter(|(key, _)| key.1)
        .map(|(_, it)| it.calls)
        .sum();
    if mappings > 0 {
        let mappings = counted(mappings, "mapping");
        say!("fgraph: {mappings} of the program's own are not in the export");
    }
    let all = wholes.iter().filter(|(key, _)| !key.1);
    let all = all.map(|(&(process, _), whole)| (process, &whole.timeline));
    let mut all: Vec<_> = all.filter(|(_, it)| !it.snapshots().is_empty()).collect();
    // The first process may have executed others before the program that the user wants.
    all.sort_by_key(|(process, _)| (process_id(*process) != from.process, Reverse(*process)));
    let Some(&(main, _)) = all.first() else {
        return Err(Error::Nothing("no block of the heap was made".to_owned()));
    };
    let is_standard = output.is_some_and(|output| output.as_os_str() == "-");
    let mut written = Vec::new();
    for (process, timeline) in &all {
        let paths = by_process.remove(process).unwrap_or_default();
        let text = text(*process, from, (timeline, first), &paths, &labels.texts);
        if is_standard {
            take_terminal();
            let mut out = io::stdout().lock();
            let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
            written.map_err(Error::Output)?;
            break;
        }
        let path = path_of(output, *process, *process == main);
        must_differ(&path, from.recording)?;
        let file = place::create(&path, 0o666);
        let done = file.and_then(|mut file| file.write_all(text.as_bytes()));
        if let Err(error) = done {
            return Err(Error::Write { path, error });
        }
        written.push((path, *process));
    }
    if is_standard && all.len() > 1 {
        let others = counted(all.len() as u64 - 1, "other heap");
        say!("fgraph: {others} left out: -o PATH writes a file for each process");
    }
    tell(&written, from.names, output.is_some());
    Ok(())
}

/// The number of files that are named.
const NAMED: usize = 5;

/// Names the files whose names the user has not given.
fn tell(written: &[(PathBuf, u32)], names: &Names, is_first_known: bool) {
    let unknown = written.get(usize::from(is_first_known)..).unwrap_or(&[]);
    for (path, process) in unknown.iter().take(NAMED) {
        let path = path.display().to_string();
        let name = names.process(*process).map_or("", |(_, name)| name);
        say!(
            "fgraph: {} has the heap of {}",
            escaped(&path),
            escaped(name)
        );
    }
    if let Some(more @ 1..) = unknown.len().checked_sub(NAMED) {
        let more = counted(more as u64, "more file");
        say!("fgraph: {more} are beside them, one for each process");
    }
}

/// Returns the path of a process's file.
fn path_of(output: Option<&Path>, process: u32, is_first: bool) -> PathBuf {
    let mut path = output
        .unwrap_or(Path::new("massif.out"))
        .as_os_str()
        .to_owned();
    if output.is_none() || !is_first {
        path.push(format!(".{}", process_id(process)));
        if let more @ 1.. = executed_before(process) {
            path.push(format!(".{more}"));
        }
    }
    path.into()
}

/// The texts of calls.
#[derive(Debug, Default)]
struct Labels {
    numbers: HashMap<(u32, u64, String), u32>,
    texts: Vec<String>,
    sources: Sources,
}

impl Labels {
    /// Returns the numbers of the calls of a path.
    fn of(&mut self, path: &CallPath, names: &Names) -> Vec<u32> {
        let calls = path.calls.iter().zip(&path.addresses);
        let calls = calls.map(|(call, &address)| (path.process, address, call.clone()));
        let number = |key: (u32, u64, String)| {
            if let Some(known) = self.numbers.get(&key) {
                return *known;
            }
            let number = self.texts.len() as u32;
            self.texts.push(label(&key, names, &mut self.sources));
            self.numbers.insert(key, number);
            number
        };
        calls.map(number).collect()
    }
}

/// Returns the text of a call: address, function, and source line or file.
fn label(
    (process, address, call): &(u32, u64, String),
    names: &Names,
    sources: &mut Sources,
) -> String {
    let call_site = address.saturating_sub(1);
    let module = module_at(names, *process, call_site).filter(|_| *address != 0);
    let source = module.and_then(|it| sources.at(names, *process, &it.path, call_site));
    let parts = call.strip_suffix(']').and_then(|it| it.rsplit_once(" ["));
    let (name, file) = parts.unwrap_or(("???", ""));
    let place = match (source, module) {
        (Some((file, line)), _) => format!(" ({}:{line})", file_name(&file)),
        (None, Some(module)) => format!(" (in {})", module.path),
        (None, None) if file.is_empty() => String::new(),
        (None, None) => format!(" (in {file})"),
    };
    escaped(&format!("0x{address:X}: {name}{place}")).into_owned()
}

/// Returns the file of a process.
fn text(
    process: u32,
    from: &From<'_>,
    (timeline, first): (&Timeline, u64),
    paths: &Paths,
    labels: &[String],
) -> String {
    let snapshots = timeline.snapshots();
    let since = |ticks: u64| from.clock.nanoseconds(ticks.saturating_sub(first));
    let last = snapshots.len() - 1;
    let is_short = since(snapshots[last].time) < SHORT;
    let time = |snapshot: &Snapshot| match is_short {
        true => {
            let freed = snapshot.allocated.saturating_sub(snapshot.live);
            snapshot.allocated.saturating_add(freed)
        }
        false => since(snapshot.time) / 1_000_000,
    };
    let peak = snapshots.iter().position(|it| *it == timeline.peak());
    let unit = if is_short { "B" } else { "ms" };
    let name = from.names.process(process).map_or("", |(_, name)| name);
    let mut text = format!(
        "desc: fgraph heap, process {} {}\ncmd: {}\ntime_unit: {unit}\n",
        process_id(process),
        escaped(name),
        escaped(&from.command.join(" ")),
    );
    let start = Snapshot::default();
    let all = [(None, &start)].into_iter();
    let all = all.chain(
        snapshots
            .iter()
            .enumerate()
            .map(|(nth, it)| (Some(nth), it)),
    );
    for (number, (nth, snapshot)) in all.enumerate() {
        let at = if nth.is_some() { time(snapshot) } else { 0 };
        let kind = match nth {
            Some(nth) if Some(nth) == peak => "peak",
            Some(nth) if nth == last => "detailed",
            _ => "empty",
        };
        let live = snapshot.live;
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "#-----------\nsnapshot={number}\n#-----------\ntime={at}\nmem_heap_B={live}\n\
             mem_heap_extra_B=0\nmem_stacks_B=0\nheap_tree={kind}\n"
        );
        match kind {
            "peak" => write_tree(&mut text, paths, live, |sums| sums.peak, labels),
            "detailed" => write_tree(&mut text, paths, live, |sums| sums.live, labels),
            _ => {}
        }
    }
    text
}

/// Writes the tree of a snapshot: callers are below the functions that they call.
fn write_tree(
    text: &mut String,
    paths: &Paths,
    whole: u64,
    weight: fn(&Sums) -> u64,
    labels: &[String],
) {
    let mut tree = Tree::default();
    let mut named = 0_u64;
    for (calls, sums) in paths {
        let weight = weight(sums);
        if weight == 0 || calls.is_empty() {
            continue;
        }
        named = named.saturating_add(weight);
        let mut node = 0;
        for &call in calls {
            node = tree.child(node, call);
            tree.add(node, weight, 0);
        }
    }
    tree.sort();
    let rest = whole.saturating_sub(named);
    let children = tree.nodes[0].children.len() + usize::from(rest > 0);
    let _ = writeln!(text, "n{children}: {whole} {ROOT}");
    // The calls that are not written, the next one last, with their depths.
    let mut waiting: Vec<(u32, usize)> = Vec::new();
    let push = |waiting: &mut Vec<_>, node: u32, depth| {
        let children = tree.nodes[node as usize].children.iter().rev();
        waiting.extend(children.map(|child| (*child, depth)));
    };
    push(&mut waiting, 0, 1);
    while let Some((node, depth)) = waiting.pop() {
        let found = &tree.nodes[node as usize];
        let (children, total) = (found.children.len(), found.total);
        let label = &labels[found.slot as usize];
        let _ = writeln!(text, "{:depth$}n{children}: {total} {label}", "");
        push(&mut waiting, node, depth + 1);
    }
    if rest > 0 {
        let _ = writeln!(text, " n0: {rest} 0x0: ??? (calls are unknown)");
    }
}
