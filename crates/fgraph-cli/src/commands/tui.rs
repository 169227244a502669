//! `fgraph tui`: a recording to look around in.
//!
//! Each view is a list of lines, of which only those that are seen are made. What keys do is in
//! [`App::key`], and what is seen in [`App::lines`]; neither knows of the terminal.

use std::io::{self, IsTerminal};

use fgraph_trace::Source;
use fgraph_trace::clock::Clock;
use fgraph_trace::graph::{FunctionGraph, Options};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;

use super::outliers::{self, Slow};
use crate::calls::{self, Call, Followed, Function, Open, Watch};
use crate::error::Error;
use crate::input::{Input, Part};
use crate::stats::Stats;
use crate::text::{grouped, percent, time};
use crate::tree::Tree;

/// Browse a recording: report, call graph, replay and outliers
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Keys:
  1 2 3 4, Tab      report, graph, replay, outliers
  arrows, j k, PageUp PageDown, Home End   move
  / then a text, n N     search, the next match, the one before
  s t c a m o       sort the report by self, total, calls, average, maximum, name
  Enter, + -        open or close a branch of the graph; elsewhere: what the line is about
  q, Ctrl-C         leave")]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    part: Part,
}

/// Lines of the replay that are held.
const MAX_LINES: usize = 100_000;
const OUTLIERS: usize = 50;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tab {
    Report,
    Graph,
    Replay,
    Outliers,
}

const TABS: [(Tab, &str); 4] = [
    (Tab::Report, "report"),
    (Tab::Graph, "graph"),
    (Tab::Replay, "replay"),
    (Tab::Outliers, "outliers"),
];

/// What is counted of a recording when it is opened.
struct Loading {
    clock: Clock,
    stats: Vec<Stats>,
    active: Vec<Vec<u32>>,
    tree: Tree,
    /// Of each thread, the node of each call that goes on.
    places: Vec<Vec<u32>>,
}

impl Watch for Loading {
    fn function(&mut self, _: &Function) {
        self.stats.push(Stats::default());
    }

    fn begin(&mut self, thread: usize, stack: &[Open]) {
        let Some(open) = stack.last() else { return };
        if self.places.len() <= thread {
            self.places.resize_with(thread + 1, Vec::new);
            self.active.resize_with(thread + 1, Vec::new);
        }
        let parent = self.places[thread].last().copied().unwrap_or(0);
        let node = self.tree.child(parent, open.slot);
        self.places[thread].push(node);
        let active = &mut self.active[thread];
        if active.len() < self.stats.len() {
            active.resize(self.stats.len(), 0);
        }
        active[open.slot as usize] += 1;
    }

    fn end(&mut self, thread: usize, _: &[Open], call: &Call) {
        let [took, own] = [call.took, call.own].map(|ticks| self.clock.nanoseconds(ticks));
        let active = &mut self.active[thread][call.slot as usize];
        *active -= 1;
        self.stats[call.slot as usize].add(took, own, *active == 0);
        if let Some(node) = self.places[thread].pop() {
            self.tree.add(node, took);
        }
    }
}

/// The part of a list that is seen.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    selected: usize,
    top: usize,
}

struct App {
    input: Input,
    part: Part,
    clock: Clock,
    first: u64,
    followed: Followed,
    stats: Vec<Stats>,
    /// Functions in the order of the report.
    order: Vec<usize>,
    tree: Tree,
    is_open: Vec<bool>,
    /// The nodes of the graph that can be seen, each with its depth.
    branches: Vec<(u32, usize)>,
    replay: Vec<String>,
    slow: Vec<Slow>,
    tab: Tab,
    cursors: [Cursor; 4],
    /// What is being typed.
    typing: Option<String>,
    needle: String,
    height: usize,
}

/// Shows it until it is left.
pub(crate) fn run(args: Args) -> Result<(), Error> {
    let mut app = App::open(args.input, args.part)?;
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(Error::Usage("tui needs a terminal".to_owned()));
    }
    let mut terminal = ratatui::try_init().map_err(Error::Output)?;
    let done = show(&mut terminal, &mut app);
    ratatui::restore();
    done
}

fn show(terminal: &mut DefaultTerminal, app: &mut App) -> Result<(), Error> {
    loop {
        let drawn = terminal.draw(|frame| {
            let area = frame.area();
            let (width, height) = (area.width.into(), area.height.into());
            let lines = app.lines(width, height).into_iter().map(|(line, looks)| {
                let style = match looks {
                    Looks::Plain => Style::new(),
                    Looks::Heading => Style::new().add_modifier(Modifier::BOLD),
                    Looks::Selected => Style::new().add_modifier(Modifier::REVERSED),
                };
                Line::styled(line, style)
            });
            frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), area);
        });
        drawn.map_err(Error::Output)?;
        if let Event::Key(key) = event::read().map_err(Error::Output)?
            && key.kind != KeyEventKind::Release
        {
            let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
            if is_control && key.code == KeyCode::Char('c') || app.key(key.code)? {
                return Ok(());
            }
        }
    }
}

/// How a line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Looks {
    Plain,
    Heading,
    Selected,
}

impl App {
    fn open(input: Input, part: Part) -> Result<Self, Error> {
        let mut view = input.view(&part)?;
        let (clock, first) = (*view.clock(), view.first());
        let mut loading = Loading {
            clock,
            stats: Vec::new(),
            active: Vec::new(),
            tree: Tree::new(),
            places: Vec::new(),
        };
        let followed = calls::follow(&mut view, &mut loading);
        let followed = followed.map_err(|error| Error::source(&input.path, error))?;
        let slow = outliers::slowest(&input, &part, None, &loading.stats, OUTLIERS)?;
        let mut tree = loading.tree;
        tree.sort();
        let mut app = Self {
            clock,
            first,
            order: (0..loading.stats.len()).collect(),
            stats: loading.stats,
            is_open: vec![false; tree.nodes.len()],
            tree,
            branches: Vec::new(),
            replay: Vec::new(),
            slow,
            followed,
            tab: Tab::Report,
            cursors: [Cursor::default(); 4],
            typing: None,
            needle: String::new(),
            height: 1,
            input,
            part,
        };
        app.sort('s');
        app.find_branches();
        let part = app.part.clone();
        app.load_replay(&part)?;
        Ok(app)
    }

    fn load_replay(&mut self, part: &Part) -> Result<(), Error> {
        let mut view = self.input.view(part)?;
        let mut graph = FunctionGraph::new(Options {
            arguments: true,
            ..Options::default()
        });
        let (mut text, mut lines) = (String::new(), 0);
        let failed = |error| Error::source(&self.input.path, error);
        while lines < MAX_LINES && graph.write_event(&mut view, &mut text).map_err(failed)? {
            lines += 1;
        }
        self.replay = text.lines().map(str::to_owned).collect();
        if lines == MAX_LINES {
            let more = format!("[the first {} events]", grouped(MAX_LINES as u64));
            self.replay.push(more);
        }
        Ok(())
    }

    fn sort(&mut self, key: char) {
        let (stats, functions) = (&self.stats, &self.followed.functions);
        self.order.sort_by(|&a, &b| {
            let by = |value: &dyn Fn(&Stats) -> u64| value(&stats[b]).cmp(&value(&stats[a]));
            let by_name = functions[a].name.cmp(&functions[b].name);
            let by_key = match key {
                't' => by(&|stats| stats.total),
                'c' => by(&|stats| stats.hits),
                'a' => by(&Stats::average),
                'm' => by(&|stats| stats.max),
                'o' => by_name,
                _ => by(&|stats| stats.own),
            };
            by_key.then(by_name)
        });
    }

    /// Finds the nodes of the graph that are below open ones.
    fn find_branches(&mut self) {
        self.branches.clear();
        let children = |node: u32| self.tree.nodes[node as usize].children.iter().rev();
        let mut rest: Vec<(u32, usize)> = children(0).map(|&child| (child, 0)).collect();
        while let Some((node, depth)) = rest.pop() {
            self.branches.push((node, depth));
            if self.is_open[node as usize] {
                rest.extend(children(node).map(|&child| (child, depth + 1)));
            }
        }
    }

    fn len(&self) -> usize {
        match self.tab {
            Tab::Report => self.order.len(),
            Tab::Graph => self.branches.len(),
            Tab::Replay => self.replay.len(),
            Tab::Outliers => self.slow.len(),
        }
    }

    fn line(&self, at: usize) -> String {
        match self.tab {
            Tab::Report => {
                let function = self.order[at];
                let stats = &self.stats[function];
                format!(
                    "{:>12} {:>12} {:>12} {:>12}  {}",
                    time(stats.own),
                    time(stats.total),
                    time(stats.average()),
                    grouped(stats.hits),
                    self.followed.functions[function].name
                )
            }
            Tab::Graph => {
                let (node, depth) = self.branches[at];
                let found = &self.tree.nodes[node as usize];
                let sign = match (found.children.is_empty(), self.is_open[node as usize]) {
                    (true, _) => ' ',
                    (false, true) => '-',
                    (false, false) => '+',
                };
                format!(
                    "{:>12} {:>12}  {}{sign} {}",
                    time(found.total),
                    grouped(found.hits),
                    "  ".repeat(depth),
                    self.followed.functions[found.slot as usize].name
                )
            }
            Tab::Replay => self.replay[at].clone(),
            Tab::Outliers => {
                let slow = &self.slow[at];
                let usual = self.stats[slow.slot as usize].percentile(500);
                let since = slow.begin.saturating_sub(self.first);
                format!(
                    "{:>12} {:>12} {:>12}  {} in {}",
                    time(self.clock.nanoseconds(slow.took)),
                    time(usual),
                    time(self.clock.nanoseconds(since)),
                    self.followed.functions[slow.slot as usize].name,
                    self.followed.threads[slow.thread]
                )
            }
        }
    }

    fn cursor(&mut self) -> &mut Cursor {
        &mut self.cursors[self.tab as usize]
    }

    fn go(&mut self, to: usize) {
        self.cursor().selected = to.min(self.len().saturating_sub(1));
    }

    /// The screen: a heading, the columns, the list, and a line of help or of what is typed.
    fn lines(&mut self, width: usize, height: usize) -> Vec<(String, Looks)> {
        self.height = height.saturating_sub(3).max(1);
        let (len, room) = (self.len(), self.height);
        let cursor = self.cursor();
        let selected = cursor.selected;
        cursor.top = cursor
            .top
            .clamp((selected + 1).saturating_sub(room), selected);
        let top = cursor.top;
        let mut tabs = String::new();
        for (n, (tab, name)) in TABS.iter().enumerate() {
            let (open, close) = if *tab == self.tab {
                ('[', ']')
            } else {
                (' ', ' ')
            };
            tabs.push_str(&format!("{open}{} {name}{close} ", n + 1));
        }
        let columns = match self.tab {
            Tab::Report => "        self        total          avg        calls  function",
            Tab::Graph => "       total        calls  function",
            Tab::Replay => "",
            Tab::Outliers => "        took  half take at           at  function",
        };
        let mut lines = vec![(tabs, Looks::Heading), (columns.to_owned(), Looks::Heading)];
        for at in top..len.min(top + room) {
            let looks = if at == selected {
                Looks::Selected
            } else {
                Looks::Plain
            };
            lines.push((self.line(at), looks));
        }
        lines.resize(
            height.saturating_sub(1).max(1),
            (String::new(), Looks::Plain),
        );
        let place = percent(selected as u64 + 1, len.max(1) as u64);
        let foot = match &self.typing {
            Some(text) => format!("/{text}"),
            None => format!("{place} %  q leave  / search  Enter open  1-4 views"),
        };
        lines.push((foot, Looks::Heading));
        for (line, looks) in &mut lines {
            *line = crate::text::cut(line, width).into_owned();
            if *looks == Looks::Selected {
                *line = format!("{line:width$}");
            }
        }
        lines
    }

    /// Does what a key asks for; `true` if that is to leave.
    fn key(&mut self, key: KeyCode) -> Result<bool, Error> {
        if let Some(text) = &mut self.typing {
            match key {
                KeyCode::Char(character) => text.push(character),
                KeyCode::Backspace => _ = text.pop(),
                KeyCode::Esc => self.typing = None,
                KeyCode::Enter => {
                    self.needle = self.typing.take().unwrap_or_default();
                    self.search(true, 0);
                }
                _ => {}
            }
            return Ok(false);
        }
        let (selected, page) = (self.cursor().selected, self.height);
        match key {
            KeyCode::Char('q') => return Ok(true),
            KeyCode::Char(digit @ '1'..='4') => self.tab = TABS[digit as usize - '1' as usize].0,
            KeyCode::Tab => self.tab = TABS[(self.tab as usize + 1) % TABS.len()].0,
            KeyCode::Down | KeyCode::Char('j') => self.go(selected + 1),
            KeyCode::Up | KeyCode::Char('k') => self.go(selected.saturating_sub(1)),
            KeyCode::PageDown => self.go(selected + page),
            KeyCode::PageUp => self.go(selected.saturating_sub(page)),
            KeyCode::Home => self.go(0),
            KeyCode::End => self.go(usize::MAX),
            KeyCode::Char('/') => self.typing = Some(String::new()),
            KeyCode::Char('n') => self.search(true, 1),
            KeyCode::Char('N') => self.search(false, 1),
            KeyCode::Char(key @ ('s' | 't' | 'c' | 'a' | 'm' | 'o')) if self.tab == Tab::Report => {
                self.sort(key);
                self.go(0);
            }
            KeyCode::Enter | KeyCode::Right | KeyCode::Left | KeyCode::Char('+' | '-') => {
                self.enter(key)?;
            }
            _ => {}
        }
        Ok(false)
    }

    /// Goes to the next line with the text that was searched for, after `skip` lines.
    fn search(&mut self, is_down: bool, skip: usize) {
        let (len, from) = (self.len(), self.cursor().selected);
        let needle = self.needle.to_lowercase();
        let found = (skip..len.saturating_add(skip).min(len + 1)).find_map(|step| {
            let at = if is_down {
                from + step
            } else {
                from + len - step % len.max(1)
            };
            let at = at % len.max(1);
            self.line(at).to_lowercase().contains(&needle).then_some(at)
        });
        if let Some(found) = found {
            self.go(found);
        }
    }

    fn enter(&mut self, key: KeyCode) -> Result<(), Error> {
        let selected = self.cursor().selected;
        match self.tab {
            Tab::Report => {
                let Some(&function) = self.order.get(selected) else {
                    return Ok(());
                };
                self.show_in_graph(function as u32);
            }
            Tab::Graph => {
                let Some(&(node, _)) = self.branches.get(selected) else {
                    return Ok(());
                };
                let is_open = &mut self.is_open[node as usize];
                *is_open = match key {
                    KeyCode::Right | KeyCode::Char('+') => true,
                    KeyCode::Left | KeyCode::Char('-') => false,
                    _ => !*is_open,
                };
                self.find_branches();
            }
            Tab::Replay => {}
            Tab::Outliers => {
                let Some(&slow) = self.slow.get(selected) else {
                    return Ok(());
                };
                let since = slow.begin.saturating_sub(self.first);
                let from = self.clock.nanoseconds(since);
                let part = Part::from_time(from, self.followed.threads[slow.thread].id);
                self.load_replay(&part)?;
                self.tab = Tab::Replay;
                self.go(0);
            }
        }
        Ok(())
    }

    /// Opens the branch in which a function takes the most time.
    fn show_in_graph(&mut self, slot: u32) {
        let nodes = self.tree.nodes.iter().enumerate().skip(1);
        let of_function = nodes.filter(|(_, node)| node.slot == slot);
        let Some((found, _)) = of_function.max_by_key(|(_, node)| node.total) else {
            return;
        };
        let found = found as u32;
        let mut parent = self.tree.nodes[found as usize].parent;
        while parent != 0 {
            self.is_open[parent as usize] = true;
            parent = self.tree.nodes[parent as usize].parent;
        }
        self.find_branches();
        self.tab = Tab::Graph;
        let at = self.branches.iter().position(|&(node, _)| node == found);
        self.go(at.unwrap_or(0));
    }
}
