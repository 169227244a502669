//! The state of the viewer: what it shows, and the position of the user in it.

use std::time::{Duration, Instant};

use fgraph_analysis::outliers::Slow;
use fgraph_analysis::stats::Stats;
use fgraph_trace::graph::FunctionGraph;
use fgraph_trace::source::SourceError;

use super::feed::Feed;
use super::model::{MAX_COLUMNS, Model};
use crate::commands::outliers;
use crate::error::Error;
use crate::input::{Input, Part, View};
use crate::screen::Cursor;
use crate::text::{cut, grouped};

/// The most lines of the replay that are kept.
const MAX_LINES: usize = 100_000;
const OUTLIERS: usize = 50;
/// The time for which events are read before keys are checked.
const TURN: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tab {
    Report,
    Graph,
    Replay,
    Outliers,
    Threads,
}

pub(super) const TABS: [(Tab, &str); 5] = [
    (Tab::Report, "report"),
    (Tab::Graph, "graph"),
    (Tab::Replay, "replay"),
    (Tab::Outliers, "outliers"),
    (Tab::Threads, "threads"),
];

/// The viewer.
pub(super) struct App {
    /// The recording, if it is one.
    pub(super) input: Option<Input>,
    pub(super) part: Part,
    pub(super) model: Model,
    /// Functions in the order of the report.
    pub(super) order: Vec<usize>,
    pub(super) sort: char,
    pub(super) is_open: Vec<bool>,
    /// The visible nodes of the graph, each with its depth.
    pub(super) branches: Vec<(u32, usize)>,
    /// `None` until it is shown.
    pub(super) replay: Option<Vec<String>>,
    pub(super) slow: Option<Vec<Slow>>,
    /// The recording once more, for the states of threads; `None` until they are shown.
    pub(super) states: Option<Box<View>>,
    pub(super) tab: Tab,
    pub(super) cursors: [Cursor; 5],
    /// The text that is being typed.
    pub(super) typing: Option<String>,
    pub(super) needle: String,
    /// A message about a key without effect.
    pub(super) said: Option<&'static str>,
    pub(super) has_help: bool,
    pub(super) is_paused: bool,
    /// True if nothing more comes.
    pub(super) is_over: bool,
    pub(super) is_ending: bool,
    pub(super) height: usize,
    pub(super) width: usize,
}

/// The result of processing events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// There may be more.
    More,
    /// No more are there now.
    All,
    /// No more come.
    Last,
}

impl App {
    pub(super) fn new(model: Model, part: Part) -> Self {
        Self {
            input: None,
            part,
            model,
            order: Vec::new(),
            sort: 's',
            is_open: Vec::new(),
            branches: Vec::new(),
            replay: None,
            slow: None,
            states: None,
            tab: Tab::Report,
            cursors: [Cursor::default(); 5],
            typing: None,
            needle: String::new(),
            said: None,
            has_help: false,
            is_paused: false,
            is_over: false,
            is_ending: false,
            height: 1,
            width: 1,
        }
    }

    /// Processes new events, for a moment at most.
    pub(super) fn take(&mut self, feed: &mut Feed<'_>) -> Result<Taken, SourceError> {
        const SOME: u32 = 1 << 10;
        let begin = Instant::now();
        let source = feed.source();
        while begin.elapsed() < TURN {
            for _ in 0..SOME {
                if !source.is_ready()? && !source.is_over() {
                    source.wait();
                    return Ok(Taken::All);
                }
                if !source.take(&mut self.model)? {
                    return Ok(Taken::Last);
                }
            }
        }
        Ok(Taken::More)
    }

    /// Handles that nothing more comes.
    pub(super) fn end(&mut self) {
        self.is_over = true;
        self.model.end();
    }

    /// Updates the numbers; the selection stays.
    pub(super) fn refresh(&mut self) -> Result<(), Error> {
        let function = self.order.get(self.cursors[Tab::Report as usize].selected);
        let function = function.copied().filter(|_| self.cursors[0].selected > 0);
        let node = self
            .branches
            .get(self.cursors[Tab::Graph as usize].selected);
        let node = node.map(|&(node, _)| node);
        self.model.refresh();
        self.order = (0..self.model.stats.len()).collect();
        self.sort();
        self.is_open.resize(self.model.tree.nodes.len(), false);
        self.find_branches();
        if let Some(at) = self.order.iter().position(|&it| Some(it) == function) {
            self.cursors[Tab::Report as usize].selected = at;
        }
        if let Some(at) = self.branches.iter().position(|&(it, _)| Some(it) == node) {
            self.cursors[Tab::Graph as usize].selected = at;
        }
        if self.model.kept.is_some() {
            (self.slow, self.states) = (None, None);
            let last = self
                .replay
                .as_ref()
                .map_or(0, |lines| lines.len().saturating_sub(1));
            if self.tab == Tab::Replay && self.cursors[self.tab as usize].selected >= last {
                self.replay = None;
                self.load()?;
                self.go(usize::MAX);
            }
        }
        self.load()
    }

    /// Loads the current view.
    pub(super) fn load(&mut self) -> Result<(), Error> {
        if self.tab == Tab::Replay && self.replay.is_none() {
            match &self.model.kept {
                Some(_) => {
                    self.replay = Some(self.model.replay(0));
                    self.go(usize::MAX);
                }
                None => {
                    let part = self.part.clone();
                    self.load_replay(&part)?;
                }
            }
        }
        if self.tab == Tab::Threads
            && self.states.is_none()
            && let Some(input) = &self.input
        {
            self.states = Some(Box::new(input.view(&self.part)?));
        }
        if self.tab == Tab::Outliers && self.slow.is_none() {
            self.slow = Some(match &self.input {
                Some(input) if self.is_over && self.model.kept.is_none() => {
                    let usual = self.model.stats_by_slot();
                    outliers::slowest(input, &self.part, &usual, OUTLIERS)?
                }
                _ => self.model.slow(OUTLIERS),
            });
        }
        Ok(())
    }

    pub(super) fn load_replay(&mut self, part: &Part) -> Result<(), Error> {
        let Some(input) = &self.input else {
            return Ok(());
        };
        let mut view = input.view(part)?;
        let mut graph = FunctionGraph::new(self.model.options());
        let (mut text, mut lines, mut replay) = (String::new(), 0, Vec::new());
        let failed = |error| Error::source(&input.path, error);
        while lines < MAX_LINES && graph.write_event(&mut view, &mut text).map_err(failed)? {
            lines += 1;
            replay.extend(text.lines().map(|line| cut(line, MAX_COLUMNS).into_owned()));
            text.clear();
        }
        if lines == MAX_LINES {
            let more = format!("[the first {} events]", grouped(MAX_LINES as u64));
            replay.push(more);
        }
        self.replay = Some(replay);
        Ok(())
    }

    pub(super) fn sort(&mut self) {
        let (stats, names) = (&self.model.stats, &self.model.names);
        self.order.sort_by(|&a, &b| {
            let by = |value: &dyn Fn(&Stats) -> u64| value(&stats[b]).cmp(&value(&stats[a]));
            let by_name = names[a].cmp(&names[b]);
            let by_key = match self.sort {
                't' => by(&|stats| stats.total),
                'c' => by(&|stats| stats.hits),
                'a' => by(&Stats::average),
                '9' => by(&|stats| stats.percentile(990)),
                'm' => by(&|stats| stats.max),
                'o' => by_name,
                _ => by(&|stats| stats.own),
            };
            by_key.then(by_name)
        });
    }

    /// Finds the nodes of the graph below open ones.
    pub(super) fn find_branches(&mut self) {
        self.branches.clear();
        let children = |node: u32| self.model.tree.nodes[node as usize].children.iter().rev();
        let mut rest: Vec<(u32, usize)> = children(0).map(|&child| (child, 0)).collect();
        while let Some((node, depth)) = rest.pop() {
            self.branches.push((node, depth));
            if self.is_open[node as usize] {
                rest.extend(children(node).map(|&child| (child, depth + 1)));
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        match self.tab {
            Tab::Report => self.order.len(),
            Tab::Graph => self.branches.len(),
            Tab::Replay => self.replay.as_ref().map_or(0, Vec::len),
            Tab::Outliers => self.slow.as_ref().map_or(0, Vec::len),
            Tab::Threads => self.model.followed.threads.len(),
        }
    }

    pub(super) fn cursor(&mut self) -> &mut Cursor {
        &mut self.cursors[self.tab as usize]
    }

    pub(super) fn go(&mut self, to: usize) {
        self.cursor().selected = to.min(self.len().saturating_sub(1));
    }
}
