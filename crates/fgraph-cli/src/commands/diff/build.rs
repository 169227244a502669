//! The calls of all recordings of one build.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use fgraph_analysis::calls::{self, Active, At, Call, Ending, Function, Open, Slot, Visitor};
use fgraph_analysis::numbers::grown;
use fgraph_analysis::pairs::Key;
use fgraph_analysis::tree::Tree;
use fgraph_trace::Source as _;
use fgraph_trace::clock::Clock;
use fgraph_trace::graph::Matcher;
use std::convert::Infallible;

use super::times::Times;
use crate::error::Error;
use crate::input::{Part, View, open};
use crate::json::Lost;
use crate::losses;
use crate::off;
use crate::text::grouped;

/// The calls of a function in one recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Counts {
    pub(super) calls: f64,
    pub(super) own: Times,
    pub(super) total: Times,
}

/// All recordings of one build.
#[derive(Debug)]
pub(super) struct Build {
    /// The functions that were called.
    pub(super) keys: Vec<Key>,
    /// All functions that were called, also those that the filter leaves out.
    pub(super) known: HashSet<Key>,
    /// For each function, the counts in each recording.
    pub(super) counts: Vec<Vec<Counts>>,
    /// The calls of all recordings by caller and function; `None` if the caller was not recorded.
    pub(super) edges: HashMap<(Option<Slot>, Slot), u64>,
    /// The calls of all recordings by stack, with the times of all of them.
    pub(super) tree: Tree,
    /// Functions whose calls are incomplete because they were switched off for some time.
    pub(super) off: HashSet<Key>,
    pub(super) recordings: usize,
    pub(super) lost: Lost,
    /// Machines, and arguments of the recorded command.
    pub(super) hosts: BTreeSet<String>,
    pub(super) arguments: BTreeSet<Vec<String>>,
    /// An error if a recording is incomplete.
    pub(super) whole: Result<(), Error>,
}

impl Build {
    /// Reads the recordings of a build. `losses` gets a line for each one with missing events.
    pub(super) fn read(
        paths: &[PathBuf],
        wanted: Option<&Matcher>,
        losses: &mut Vec<String>,
    ) -> Result<Self, Error> {
        let mut build = Self {
            keys: Vec::new(),
            known: HashSet::new(),
            counts: Vec::new(),
            edges: HashMap::new(),
            tree: Tree::default(),
            off: HashSet::new(),
            recordings: paths.len(),
            lost: Lost::default(),
            hosts: BTreeSet::new(),
            arguments: BTreeSet::new(),
            whole: Ok(()),
        };
        let mut known = HashMap::new();
        for (recording, path) in paths.iter().enumerate() {
            losses.extend(build.add(recording, path, wanted, &mut known)?);
        }
        build.edges = edges(&build.tree);
        Ok(build)
    }

    /// Adds a recording. Returns a line if events are missing in it.
    fn add(
        &mut self,
        recording: usize,
        path: &Path,
        wanted: Option<&Matcher>,
        known: &mut HashMap<Key, Slot>,
    ) -> Result<Option<String>, Error> {
        let opened = open(path)?;
        let info = opened.lanes().info();
        self.hosts.insert(format!("{}, {}", info.host, info.system));
        let arguments = info.command.iter().skip(1).cloned().collect();
        self.arguments.insert(arguments);
        let failed = |error| Error::source(path, error);
        let mut view = View::of(opened, &Part::default()).map_err(failed)?;
        let mut reader = Reader {
            clock: *view.clock(),
            slots: Vec::new(),
            known,
            wanted,
            recording,
            active: Active::default(),
            nodes: Vec::new(),
            build: self,
        };
        let followed = calls::follow(&mut view, &mut reader).map_err(failed)?;
        let (names, clock, first) = (view.names(), view.clock(), view.first());
        let lost = losses::to_json(&followed.losses, names, clock, first);
        let line = (lost.events > 0).then(|| {
            let [events, durations] = [lost.events, lost.durations].map(grouped);
            let path = crate::text::escaped(&path.display().to_string()).into_owned();
            format!("{path}: {events} events were lost, and with them {durations} durations")
        });
        self.lost.events += lost.events;
        self.lost.durations += lost.durations;
        self.lost.threads.extend(lost.threads);
        let off = off::functions(view.names()).into_iter();
        self.off.extend(off.map(|it| (it.name, it.module)));
        if let Err(error) = view.check_whole(path) {
            self.whole = Err(error);
        }
        Ok(line)
    }
}

/// Returns the number of calls by caller and function.
fn edges(tree: &Tree) -> HashMap<(Option<Slot>, Slot), u64> {
    let mut edges = HashMap::new();
    for node in tree.nodes.iter().filter(|node| node.hits > 0) {
        let caller = (node.parent != 0).then(|| tree.nodes[node.parent as usize].slot);
        *edges.entry((caller, node.slot)).or_default() += node.hits;
    }
    edges
}

/// Counts the calls of one recording.
struct Reader<'b> {
    clock: Clock,
    /// For each function of the recording, its slot in the build; `None` if it is not selected.
    slots: Vec<Option<Slot>>,
    known: &'b mut HashMap<Key, Slot>,
    wanted: Option<&'b Matcher>,
    recording: usize,
    active: Active,
    /// For each thread, the nodes of its calls in the tree.
    nodes: Vec<Vec<u32>>,
    build: &'b mut Build,
}

impl Reader<'_> {
    fn slot(&self, slot: Slot) -> Option<Slot> {
        self.slots[slot as usize]
    }
}

impl Visitor for Reader<'_> {
    type Error = Infallible;

    fn function(&mut self, function: &Function) {
        let key = (function.name.clone(), function.module_name().to_owned());
        self.build.known.insert(key.clone());
        if self
            .wanted
            .is_some_and(|wanted| !wanted(&function.name, &function.module))
        {
            self.slots.push(None);
            return;
        }
        let next = self.build.keys.len() as Slot;
        let slot = *self.known.entry(key.clone()).or_insert(next);
        if slot == next {
            let counts = vec![Counts::default(); self.build.recordings];
            self.build.keys.push(key);
            self.build.counts.push(counts);
        }
        self.slots.push(Some(slot));
    }

    fn enter(&mut self, at: &At<'_>, call: &Open) -> Result<(), Infallible> {
        let thread = at.thread.index;
        let Some(slot) = self.slot(call.data) else {
            return Ok(());
        };
        self.active.begin(thread, slot as usize);
        let nodes = grown(&mut self.nodes, thread);
        let parent = nodes.last().copied().unwrap_or(0);
        nodes.push(self.build.tree.child(parent, slot));
        Ok(())
    }

    fn exit(&mut self, at: &At<'_>, call: &Call) -> Result<(), Infallible> {
        let thread = at.thread.index;
        let Some(slot) = self.slot(call.slot) else {
            return Ok(());
        };
        let is_outermost = self.active.end(thread, slot as usize);
        let [ran, own] = [call.ran, call.own].map(|it| self.clock.nanoseconds(it));
        let counts = &mut self.build.counts[slot as usize][self.recording];
        counts.calls += 1.0;
        if call.ending != Ending::EntryOnly {
            counts.own.add(own);
            if is_outermost {
                counts.total.add(ran);
            }
        }
        if let Some(node) = self.nodes[thread].pop() {
            self.build.tree.add(node, ran, own);
        }
        Ok(())
    }
}
