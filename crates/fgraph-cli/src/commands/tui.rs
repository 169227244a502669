//! `fgraph tui`: browses a recording, or a running program.
//!
//! Each view is a list of lines, of which only the visible ones are made. [`App::key`] handles
//! keys, and [`App::lines`] makes the visible lines; neither knows the terminal.

mod model;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use fgraph_trace::Source;
use fgraph_trace::graph::FunctionGraph;
use fgraph_trace::source::SourceError;
use ratatui::crossterm::event::KeyCode;

use self::model::Model;
use super::outliers::{self, Slow};
use crate::error::Error;
use crate::input::{Input, Part, View};
use crate::launch::events::Events;
use crate::launch::interrupt::Interrupts;
use crate::launch::{Target, Which};
use crate::screen::{Cursor, Looks, Pressed, Screen};
use crate::stats::Stats;
use crate::table::Table;
use crate::target::parse_pid;
use crate::text::{self, cut, escaped, grouped, percent, time};

const KEYS: &str = "\
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

/// Browse a recording, or a program while it runs: report, call graph, replay and outliers
///
/// Follows a recording that is being written. For a followed source, calls are counted by function
/// and by stack, and the newest 65,536 events and the slowest call of each function are kept. A
/// started program gets an empty input, and its output is shown at the end.
#[derive(Debug, clap::Args)]
#[command(
    after_help = KEYS,
    override_usage = "fgraph tui [OPTIONS] [FILE]\n       \
        fgraph tui [OPTIONS] -p PID\n       fgraph tui [OPTIONS] -- COMMAND..."
)]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    part: Part,
    #[command(flatten)]
    which: Which,
    /// Follow neither forked processes nor executed programs
    #[arg(long)]
    no_follow: bool,
    /// Follow a running process, and its future forked children
    #[arg(short, long, value_name = "PID", value_parser = parse_pid, conflicts_with = "command")]
    pid: Option<u32>,
    /// Start a program, and follow it
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// The most lines of the replay that are kept.
const MAX_LINES: usize = 100_000;
/// The most columns of these: deep calls are far to the right.
const MAX_COLUMNS: usize = 500;
const OUTLIERS: usize = 50;
/// The most branches that are opened at once.
const MAX_OPENED: usize = 100_000;
/// The columns for the names of all views and the state.
const TABS_WIDTH: usize = 64;

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

/// The source of the views.
enum Feed<'l> {
    File(Box<View>),
    Process(Box<Events<'l>>),
}

impl Feed<'_> {
    fn source(&mut self) -> &mut dyn Feeds {
        match self {
            Self::File(view) => &mut **view,
            Self::Process(events) => &mut **events,
        }
    }
}

/// A source that takes turns with keys.
trait Feeds {
    fn is_over(&self) -> bool;

    fn is_ready(&mut self) -> Result<bool, SourceError>;

    /// Processes the next event, if there is one.
    fn take(&mut self, model: &mut Model) -> Result<bool, SourceError>;

    /// Waits a moment, unless waiting for keys does.
    fn wait(&mut self) {}
}

impl Feeds for View {
    fn is_over(&self) -> bool {
        Source::is_over(self)
    }

    fn is_ready(&mut self) -> Result<bool, SourceError> {
        View::is_ready(self)
    }

    fn take(&mut self, model: &mut Model) -> Result<bool, SourceError> {
        model.take(self)
    }
}

impl Feeds for Events<'_> {
    fn is_over(&self) -> bool {
        Source::is_over(self)
    }

    fn is_ready(&mut self) -> Result<bool, SourceError> {
        Events::is_ready(self)
    }

    fn take(&mut self, model: &mut Model) -> Result<bool, SourceError> {
        model.take(self)
    }

    fn wait(&mut self) {
        Events::wait(self);
    }
}

struct App {
    /// The recording, if it is one.
    input: Option<Input>,
    part: Part,
    model: Model,
    /// Functions in the order of the report.
    order: Vec<usize>,
    sort: char,
    is_open: Vec<bool>,
    /// The visible nodes of the graph, each with its depth.
    branches: Vec<(u32, usize)>,
    /// `None` until it is shown.
    replay: Option<Vec<String>>,
    slow: Option<Vec<Slow>>,
    tab: Tab,
    cursors: [Cursor; 4],
    /// The text that is being typed.
    typing: Option<String>,
    needle: String,
    /// A message about a key without effect.
    said: Option<&'static str>,
    has_help: bool,
    is_paused: bool,
    /// True if nothing more comes.
    is_over: bool,
    is_ending: bool,
    height: usize,
}

/// The time for which events are read before keys are checked.
const TURN: Duration = Duration::from_millis(50);
/// The time between checks of a growing file, and for signals.
const LOOK: Duration = Duration::from_millis(100);
/// The time between updates of numbers. It is longer if computing them takes long.
const SHOWN: Duration = Duration::from_millis(500);

/// Shows it until it is closed.
pub(crate) fn run(args: Args) -> Result<ExitCode, Error> {
    if !Screen::is_there() {
        return Err(Error::Usage("tui needs a terminal".to_owned()));
    }
    if args.pid.is_none() && args.command.is_empty() {
        if args.which != Which::default() || args.no_follow {
            let why = "what is to be recorded is said with -p or -- COMMAND only";
            return Err(Error::Usage(why.to_owned()));
        }
        let view = args.input.follow(&args.part)?;
        let kept = view.is_growing().then(|| view.process());
        let mut app = App::new(Model::new(*view.clock(), view.first(), kept), args.part);
        app.input = Some(args.input);
        let interrupts = Interrupts::catch();
        show(&mut app, Feed::File(Box::new(view)), &interrupts)?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.part != Part::default() {
        let why = "--thread, --from and --to are parts of recordings";
        return Err(Error::Usage(why.to_owned()));
    }
    let target = Target::new(args.no_follow, args.pid, &args.command);
    let program = target.find(args.which.settings()?)?.off_terminal()?;
    let program = program.checking(args.which.patterns());
    program.run(|launched, interrupts| {
        let process = launched.process();
        let events = Events::new(launched, interrupts)?.for_viewer();
        let model = Model::new(*events.clock(), 0, Some(process));
        let mut app = App::new(model, args.part);
        let shown = show(&mut app, Feed::Process(Box::new(events)), interrupts);
        shown.and(launched.print_output())
    })
}

fn show(app: &mut App, mut feed: Feed<'_>, interrupts: &Interrupts) -> Result<(), Error> {
    let path = app.input.as_ref().map(|input| input.path.clone());
    let path = path.unwrap_or_else(|| "the rings".into());
    let mut screen = Screen::open()?;
    // When numbers changed, and how long that took.
    let mut changed: Option<(Instant, Duration)> = None;
    loop {
        let mut wait = LOOK;
        let mut is_new = changed.is_none();
        if !app.is_over {
            let taken = app.take(&mut feed);
            wait = match taken.map_err(|error| Error::source(&path, error))? {
                Taken::More => Duration::ZERO,
                Taken::All if matches!(feed, Feed::File(_)) => LOOK,
                Taken::All => Duration::ZERO,
                Taken::Last => {
                    app.end();
                    is_new = true;
                    Duration::ZERO
                }
            };
        }
        let is_due = |(when, took): (Instant, Duration)| when.elapsed() >= SHOWN.max(took * 10);
        if app.model.has_more && !app.is_paused && changed.is_none_or(is_due) || is_new {
            let begin = Instant::now();
            app.refresh()?;
            changed = Some((Instant::now(), begin.elapsed()));
            is_new = true;
        }
        if is_new {
            screen.draw(|width, height| app.lines(width, height))?;
        }
        let mut is_pressed = false;
        while let Some(pressed) = screen.pressed(wait)? {
            (is_pressed, wait) = (true, Duration::ZERO);
            let leaves = match pressed {
                Pressed::Interrupt => true,
                Pressed::Key(key) => app.key(key)?,
                Pressed::Resized => false,
            };
            if leaves {
                interrupts.add();
                break;
            }
        }
        if interrupts.count() > 0 {
            let Feed::Process(events) = &feed else {
                return Ok(());
            };
            if app.is_over {
                return Ok(());
            }
            if !app.is_ending {
                (app.is_ending, is_pressed) = (true, true);
                events.launched().signal(interrupts.newest());
            }
        }
        if is_pressed {
            screen.draw(|width, height| app.lines(width, height))?;
        }
    }
}

/// The result of processing events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    /// There may be more.
    More,
    /// No more are there now.
    All,
    /// No more come.
    Last,
}

impl App {
    fn new(model: Model, part: Part) -> Self {
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
            tab: Tab::Report,
            cursors: [Cursor::default(); 4],
            typing: None,
            needle: String::new(),
            said: None,
            has_help: false,
            is_paused: false,
            is_over: false,
            is_ending: false,
            height: 1,
        }
    }

    /// Processes new events, for a moment at most.
    fn take(&mut self, feed: &mut Feed<'_>) -> Result<Taken, SourceError> {
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
    fn end(&mut self) {
        self.is_over = true;
        self.model.end();
    }

    /// Updates the numbers; the selection stays.
    fn refresh(&mut self) -> Result<(), Error> {
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
            self.slow = None;
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
    fn load(&mut self) -> Result<(), Error> {
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
        if self.tab == Tab::Outliers && self.slow.is_none() {
            self.slow = Some(match &self.input {
                Some(input) if self.is_over && self.model.kept.is_none() => {
                    let usual = self.model.stats_by_slot();
                    outliers::slowest(input, &self.part, None, &usual, OUTLIERS)?
                }
                _ => self.model.slow(OUTLIERS),
            });
        }
        Ok(())
    }

    fn load_replay(&mut self, part: &Part) -> Result<(), Error> {
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

    fn sort(&mut self) {
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
    fn find_branches(&mut self) {
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

    fn len(&self) -> usize {
        match self.tab {
            Tab::Report => self.order.len(),
            Tab::Graph => self.branches.len(),
            Tab::Replay => self.replay.as_ref().map_or(0, Vec::len),
            Tab::Outliers => self.slow.as_ref().map_or(0, Vec::len),
        }
    }

    /// Returns the cells of a line; the replay has one.
    fn cells(&self, at: usize) -> Vec<String> {
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

    fn cursor(&mut self) -> &mut Cursor {
        &mut self.cursors[self.tab as usize]
    }

    fn go(&mut self, to: usize) {
        self.cursor().selected = to.min(self.len().saturating_sub(1));
    }

    /// Returns the screen: a heading, the columns, the list, and a line of help or input.
    fn lines(&mut self, width: usize, height: usize) -> Vec<(String, Looks)> {
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

    /// Handles a key; `true` if it closes the screen.
    fn key(&mut self, key: KeyCode) -> Result<bool, Error> {
        self.said = None;
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
        if std::mem::take(&mut self.has_help) {
            return Ok(false);
        }
        let (page, len) = (self.height, self.len());
        if self.cursor().moves(key, page, len) {
            return Ok(false);
        }
        match key {
            KeyCode::Char('q') | KeyCode::F(10) => return Ok(true),
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.has_help = true,
            KeyCode::Char(digit @ '1'..='4') => self.tab = TABS[digit as usize - '1' as usize].0,
            KeyCode::Tab => self.tab = TABS[(self.tab as usize + 1) % TABS.len()].0,
            KeyCode::BackTab => self.tab = TABS[(self.tab as usize + 3) % TABS.len()].0,
            KeyCode::Char('/') => self.typing = Some(String::new()),
            KeyCode::Char('n') => self.search(true, 1),
            KeyCode::Char('N') => self.search(false, 1),
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Char(key @ ('s' | 't' | 'c' | 'a' | '9' | 'm' | 'o'))
                if self.tab == Tab::Report =>
            {
                self.sort = key;
                self.sort();
                self.go(0);
            }
            KeyCode::Char('*' | '_') if self.tab == Tab::Graph => self.open_all(key),
            KeyCode::Enter | KeyCode::Right | KeyCode::Left | KeyCode::Char('+' | '-') => {
                self.enter(key)?;
            }
            _ => {}
        }
        self.load()?;
        Ok(false)
    }

    /// Moves to the next line that contains the searched text, after `skip` lines.
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
            let cells = self.cells(at);
            let text = cells.last().map(|text| text.to_lowercase());
            text.is_some_and(|text| text.contains(&needle))
                .then_some(at)
        });
        match found {
            Some(found) => self.go(found),
            None => self.said = Some("not found"),
        }
    }

    /// Opens the selected branch with all branches in it, or closes all.
    fn open_all(&mut self, key: KeyCode) {
        if key == KeyCode::Char('_') {
            self.is_open.fill(false);
            self.find_branches();
            self.go(0);
            return;
        }
        let selected = self.cursor().selected;
        let Some(&(node, _)) = self.branches.get(selected) else {
            return;
        };
        let mut rest = vec![node];
        let mut opened = 0;
        while let Some(node) = rest.pop() {
            opened += 1;
            if opened > MAX_OPENED {
                self.said = Some("not all are opened");
                break;
            }
            self.is_open[node as usize] = true;
            rest.extend(&self.model.tree.nodes[node as usize].children);
        }
        self.find_branches();
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
                let is_open = self.is_open[node as usize];
                let opens = match key {
                    KeyCode::Right | KeyCode::Char('+') => true,
                    KeyCode::Left | KeyCode::Char('-') => false,
                    _ => !is_open,
                };
                // From a closed branch, moves to its parent.
                if key == KeyCode::Left && !is_open {
                    let parent = self.model.tree.nodes[node as usize].parent;
                    let parent = self.branches.iter().position(|&(it, _)| it == parent);
                    self.go(parent.unwrap_or(selected));
                    return Ok(());
                }
                self.is_open[node as usize] = opens;
                self.find_branches();
            }
            Tab::Replay => {}
            Tab::Outliers => {
                let slow = self.slow.as_ref().and_then(|slow| slow.get(selected));
                let Some(&slow) = slow else {
                    return Ok(());
                };
                self.show_in_replay(&slow)?;
            }
        }
        Ok(())
    }

    /// Shows the replay from the beginning of a call on.
    fn show_in_replay(&mut self, slow: &Slow) -> Result<(), Error> {
        let thread = &self.model.followed.threads[slow.thread];
        if self.input.is_some() {
            let since = slow.begin.saturating_sub(self.model.first());
            let from = self.model.clock.nanoseconds(since);
            let part = Part::from_time(from, thread.id);
            self.load_replay(&part)?;
        } else {
            let Some(at) = self.model.find_kept(slow.begin, thread.id) else {
                self.said = Some("the events of this call are not kept any more");
                return Ok(());
            };
            self.replay = Some(self.model.replay(at));
        }
        self.tab = Tab::Replay;
        self.go(0);
        Ok(())
    }

    /// Opens the branch in which a function takes the most time.
    fn show_in_graph(&mut self, line: u32) {
        let nodes = self.model.tree.nodes.iter().enumerate().skip(1);
        let of_function = nodes.filter(|(_, node)| node.slot == line);
        let Some((found, _)) = of_function.max_by_key(|(_, node)| node.total) else {
            self.said = Some("the graph is full: this function is not in it");
            return;
        };
        let found = found as u32;
        let mut parent = self.model.tree.nodes[found as usize].parent;
        while parent != 0 {
            self.is_open[parent as usize] = true;
            parent = self.model.tree.nodes[parent as usize].parent;
        }
        self.find_branches();
        self.tab = Tab::Graph;
        let at = self.branches.iter().position(|&(node, _)| node == found);
        self.go(at.unwrap_or(0));
    }
}
