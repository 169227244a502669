//! The lines of the viewer's screen.

use super::app::{App, TABS, Tab};
use crate::screen::Looks;
use crate::table::Table;
use crate::text::{self, escaped, grouped, percent, time};

/// The keys, as the help shows them.
pub(super) const KEYS: &str = "\
Keys:
  1 2 3 4, Tab      report, graph, replay, outliers
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
const TABS_WIDTH: usize = 64;

impl App {
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
        let mut lines = vec![(tabs, Looks::Heading)];
        let seen = top..len.min(top + room);
        for (at, line) in self.table(seen, width).into_iter().enumerate() {
            let looks = match at.checked_sub(1) {
                None => Looks::Heading,
                Some(at) if top + at == selected => Looks::Selected,
                Some(_) => Looks::Plain,
            };
            lines.push((line, looks));
        }
        lines.resize(
            height.saturating_sub(1).max(1),
            (String::new(), Looks::Plain),
        );
        let foot = match (&self.typing, self.said) {
            (Some(text), _) => format!("/{text}█"),
            (None, Some(said)) => said.to_owned(),
            (None, None) => {
                let place = percent(selected as u64 + 1, len.max(1) as u64);
                format!("{place} %  q leave  ? keys  / search  Enter open  1-4 views")
            }
        };
        lines.push((foot, Looks::Heading));
        lines
    }

    /// Returns the progress.
    fn state(&self) -> String {
        let followed = &self.model.followed;
        let mut text = text::calls(followed.entries);
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
