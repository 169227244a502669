//! The lines of the viewer's screen.

use fgraph_analysis::calls::Thread;
use fgraph_trace::Source as _;

use super::app::{App, TABS, Tab};
use crate::screen::{Looks, page};
use crate::table::Table;
use crate::text::{self, cut, escaped, grouped, percent, time};

/// The keys, as the help shows them.
pub(super) const KEYS: &str = "\
Keys:
  1 2 3 4 5, Tab    report, graph, replay, outliers, threads
  arrows, j k, PageUp PageDown, Home End   move
  / then a text, n N     search, the next match, the one before
  s t a 9 m c o     sort the report by self, total, avg, p99, max, calls, name
  Enter, + -        open or close a branch of the graph; elsewhere: what the
                    line is about
  Left              to what the branch is in
  * _               open all that is in the branch; close all branches
  p, Space          pause, where more is to come
  ? h F1            these keys
  q F10 Ctrl-C      leave. A program that was started gets SIGINT; pressed once
                    more, the program goes on, as a process of -p does";

/// The columns for the names of all views and the state.
const TABS_WIDTH: usize = 75;

/// The columns before a lane of states.
const LANE_AT: usize = 55;
/// The columns for the name of a thread.
const NAME_WIDTH: usize = 18;
/// The signs of the states in the order of [`State::ALL`](fgraph_trace::schedule::State::ALL).
const SIGNS: [char; 3] = ['█', '▒', '·'];

impl App {
    /// Returns a thread's percentages of time in each state, and its lane: a sign for the state
    /// with the most time in each part of the recording. Empty texts if the states are not known.
    fn states_of(&self, thread: &Thread) -> [String; 4] {
        let schedule = self.states.as_ref().and_then(|view| view.schedule());
        let (first, last) = self.model.followed.span.unwrap_or((0, 0));
        let times = |from, to| {
            let times = schedule?.between(thread.id, from, to)?;
            Some([times.running, times.runnable, times.blocked])
        };
        let Some(all) = times(thread.first, thread.last) else {
            return Default::default();
        };
        let parts = self.width.saturating_sub(LANE_AT).max(10) as u64;
        let at = |part: u64| {
            let since = u128::from(last - first) * u128::from(part) / u128::from(parts);
            first + since as u64
        };
        let sign = |part: u64| {
            let (from, to) = (at(part).max(thread.first), at(part + 1).min(thread.last));
            if from >= to {
                return ' ';
            }
            let times = times(from, to).unwrap_or_default();
            let most = (0..times.len()).max_by_key(|&state| times[state]);
            SIGNS[most.unwrap_or(0)]
        };
        let whole = all.iter().sum::<u64>().max(1);
        let [running, runnable, blocked] = all.map(|time| format!("{} %", percent(time, whole)));
        [running, runnable, blocked, (0..parts).map(sign).collect()]
    }

    /// Returns the cells of a line; the replay has one.
    pub(super) fn cells(&self, at: usize) -> Vec<String> {
        let model = &self.model;
        match self.tab {
            Tab::Report => {
                let function = self.order[at];
                let stats = &model.stats[function];
                vec![
                    stats.text(stats.own),
                    stats.text(stats.total),
                    stats.text(stats.average()),
                    stats.text(stats.percentile(990)),
                    stats.text(stats.max),
                    grouped(stats.hits),
                    model.names[function].clone(),
                ]
            }
            Tab::Graph => {
                let (node, depth) = self.branches[at];
                let found = &model.tree.nodes[node as usize];
                let sign = match (found.children.is_empty(), self.is_open[node as usize]) {
                    (true, _) => ' ',
                    (false, true) => '-',
                    (false, false) => '+',
                };
                let indent = "  ".repeat(depth);
                vec![
                    time(found.total),
                    grouped(found.hits),
                    format!("{indent}{sign} {}", model.names[found.slot as usize]),
                ]
            }
            Tab::Replay => {
                let line = self.replay.as_ref().map(|lines| lines[at].clone());
                line.into_iter().collect()
            }
            Tab::Outliers => {
                let Some(slow) = self.slow.as_ref().map(|slow| &slow[at]) else {
                    return Vec::new();
                };
                let function = model.line_of[slow.slot as usize];
                let since = slow.begin.saturating_sub(model.first());
                let thread = model.followed.threads[slow.thread].to_string();
                vec![
                    time(model.clock.nanoseconds(slow.took)),
                    model.stats[function].text(model.stats[function].percentile(500)),
                    time(model.clock.nanoseconds(since)),
                    format!("{} in {}", model.names[function], escaped(&thread)),
                ]
            }
            Tab::Threads => {
                let thread = &model.followed.threads[at];
                let [running, runnable, blocked, lane] = self.states_of(thread);
                let name = thread.to_string();
                let name = cut(&escaped(&name), NAME_WIDTH).into_owned();
                vec![
                    running,
                    runnable,
                    blocked,
                    format!("{name:<NAME_WIDTH$} {lane}"),
                ]
            }
        }
    }

    /// Returns the visible lines, below their headings.
    fn table(&self, seen: std::ops::Range<usize>, width: usize) -> Vec<String> {
        let heading = |name: &str, key: char| match self.sort == key {
            true => format!("{:>10}", format!("{name}↓")),
            false => format!("{name:>10}"),
        };
        let columns = match self.tab {
            Tab::Report => vec![
                (heading("self", 's'), 0),
                (heading("total", 't'), 1),
                (heading("avg", 'a'), 3),
                (heading("p99", '9'), 4),
                (heading("max", 'm'), 5),
                (heading("calls", 'c'), 2),
                (heading("function", 'o').trim_start().to_owned(), 0),
            ],
            Tab::Graph => vec![
                (heading("total", ' '), 0),
                (heading("calls", ' '), 1),
                ("function".to_owned(), 0),
            ],
            Tab::Replay => {
                let lines = seen.flat_map(|at| self.cells(at));
                return [String::new()].into_iter().chain(lines).collect();
            }
            Tab::Outliers => vec![
                (heading("took", ' '), 0),
                (heading("half take", ' '), 1),
                (heading("at", ' '), 2),
                ("function".to_owned(), 0),
            ],
            Tab::Threads => vec![
                (format!("{} running", SIGNS[0]), 0),
                (format!("{} runnable", SIGNS[1]), 0),
                (format!("{} blocked", SIGNS[2]), 0),
                ("thread".to_owned(), 0),
            ],
        };
        let columns: Vec<(&str, u8)> = columns
            .iter()
            .map(|(name, way)| (&name[..], *way))
            .collect();
        let mut table = Table::new(&columns);
        seen.for_each(|at| table.row(self.cells(at)));
        table.lines(Some(width))
    }

    /// Returns the screen: a heading, the columns, the list, and a line of help or input.
    pub(super) fn lines(&mut self, width: usize, height: usize) -> Vec<(String, Looks)> {
        if self.has_help {
            let lines = KEYS.lines().map(|line| (line.to_owned(), Looks::Plain));
            return lines.collect();
        }
        self.height = height.saturating_sub(3).max(1);
        self.width = width;
        let (len, room) = (self.len(), self.height);
        let cursor = self.cursor();
        let top = cursor.see(room, len);
        let selected = cursor.selected;
        let mut tabs = String::new();
        // If there is no room for all, the current one is shown.
        let is_narrow = width < TABS_WIDTH;
        for (n, (tab, name)) in TABS.iter().enumerate() {
            let is_it = *tab == self.tab;
            let (open, close) = if is_it { ('[', ']') } else { (' ', ' ') };
            let name = if is_narrow && !is_it { "" } else { name };
            let space = if name.is_empty() { "" } else { " " };
            tabs.push_str(&format!("{open}{}{space}{name}{close}", n + 1));
        }
        tabs.push_str(&format!(" {}", self.state()));
        let seen = top..len.min(top + room);
        let foot = match (&self.typing, self.said) {
            (Some(text), _) => format!("/{text}█"),
            (None, Some(said)) => said.to_owned(),
            (None, None) => {
                let place = percent(selected as u64 + 1, len.max(1) as u64);
                format!("{place} %  q leave  ? keys  / search  Enter open  1-5 views")
            }
        };
        let table = self.table(seen, width);
        page((tabs, Looks::Heading), table, selected - top, foot, height)
    }

    /// Returns the progress.
    fn state(&self) -> String {
        let followed = &self.model.followed;
        let mut text = text::calls(followed.counts.calls);
        let lost = followed.losses.events();
        if lost > 0 {
            text.push_str(&format!(", lost {}", grouped(lost)));
        }
        text.push_str(match (self.is_over, self.is_ending, self.is_paused) {
            (true, ..) if self.input.is_none() => ", ended",
            (true, ..) => "",
            (_, true, _) => ", waits for the program's end",
            (_, _, true) => ", paused",
            _ => ", more to come",
        });
        text
    }
}
