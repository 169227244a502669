//! The screen of `fgraph top`. [`View::key`] handles keys, and [`View::lines`] makes the visible
//! lines; neither knows the terminal.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use fgraph_analysis::calls::{Calls, Context, Step, Views};
use fgraph_trace::Source;
use fgraph_trace::source::SourceError;
use ratatui::crossterm::event::KeyCode;

use super::user::Commands;
use super::{Counted, Top, Whose};
use crate::error::Error;
use crate::launch::Launched;
use crate::launch::counts::{Counts, Drained};
use crate::launch::events::Events;
use crate::launch::interrupt::Interrupts;
use crate::launch::thread_names::rename;
use crate::screen::{Cursor, Looks, Pressed, Screen, page};
use crate::table::Table;
use crate::text::{escaped, file_name, grouped, percent, time};

/// The text about keys in `--help` and after the key `?`.
pub(super) const KEYS: &str = "\
Keys:
  Left Right < >    sort by another column
  w s r c t a 5 9 m o    sort by now %, self, calls/s, calls, total, avg, p50,
                    p99, max or name
  I                 turn the order round
  / or \\ then text, Esc   only lines with the text, or one of several: a|b
  H                 a line for each thread, or for each function
  P                 a line for each process, with --user
  Enter, Esc        only the functions of the selected thread or process, or of all
  p, Space          pause: the numbers stay, and all is still counted
  z                 count from zero
  arrows, j k, PageUp PageDown, Home End   move
  ? h F1            these keys
  q F10 Ctrl-C      leave. A program that was started gets SIGINT; pressed once
                    more, the program goes on, as a process of -p does";

/// The time for which events are read before keys are checked.
const TURN: Duration = Duration::from_millis(50);

/// Shows the program until it has ended, or the screen is closed.
pub(super) fn show(
    delay: Duration,
    chosen: Option<Commands>,
    launched: &mut Launched,
    interrupts: &Interrupts,
) -> Result<Top, Error> {
    let title = match launched.command() {
        [] => String::new(),
        [program, ..] => format!("{} ", file_name(program)),
    };
    let mut events = Events::new(launched, interrupts)?.for_viewer();
    let title = match &chosen {
        Some(chosen) => format!("{} processes", chosen.len()),
        None => format!("{title}{}", events.launched().numbers()),
    };
    let rows = match &chosen {
        Some(_) => Rows::Processes,
        None => Rows::Functions,
    };
    let mut view = View {
        top: Top::new(*events.clock(), chosen),
        followed: Calls::default(),
        title: escaped(&title).into_owned(),
        shown: Vec::new(),
        order: Vec::new(),
        lost: 0,
        calls: 0,
        rate: 0,
        sort: Column::Own,
        is_turned: false,
        filter: String::new(),
        mode: Mode::List,
        rows,
        is_paused: false,
        is_ending: false,
        cursor: Cursor::default(),
        selected: None,
        height: 1,
    };
    let mut screen = Screen::open()?;
    let mut is_asked = false;
    let mut looked: Option<Instant> = None;
    loop {
        let is_over = take(&mut events, &mut view).map_err(|it| Error::source("the rings", it))?;
        if is_over {
            break;
        }
        let mut is_new = looked.is_none();
        while let Some(pressed) = screen.pressed(Duration::ZERO)? {
            is_new = true;
            let leaves = match pressed {
                Pressed::Interrupt => true,
                Pressed::Key(key) => view.key(key),
                Pressed::Resized => false,
            };
            if leaves {
                interrupts.add();
                break;
            }
        }
        if interrupts.count() > 0 && !is_asked {
            (is_asked, is_new, view.is_ending) = (true, true, true);
            events.launched().signal(interrupts.newest());
        }
        if looked.is_none_or(|looked| looked.elapsed() >= delay) {
            is_new = true;
            let drained = Drained {
                events: view.followed.counts.events,
                entries: view.followed.counts.calls,
                bytes: 0,
            };
            let counts = Counts::of(events.launched().rings(), drained);
            view.look(counts, looked.map_or(delay, |looked| looked.elapsed()));
            looked = Some(Instant::now());
        }
        if is_new {
            screen.draw(|width, height| view.lines(width, height))?;
        }
    }
    drop(screen);
    let View {
        mut top,
        mut followed,
        ..
    } = view;
    let Ok(()) = followed.finish(&Context::of(&events), &mut top);
    top.look(&followed);
    Ok(top)
}

/// Processes new events, for a moment at most; `true` if no more come.
fn take(events: &mut Events<'_>, view: &mut View) -> Result<bool, SourceError> {
    const SOME: u32 = 1 << 10;
    let begin = Instant::now();
    while begin.elapsed() < TURN {
        for _ in 0..SOME {
            if !events.is_ready()? && !events.is_over() {
                events.wait();
                return Ok(false);
            }
            let Some(event) = events.next()? else {
                return Ok(true);
            };
            let step = Step::of(&event);
            let context = Context::of(events);
            let Ok(()) = view.followed.step(step, &context, &mut view.top);
        }
    }
    Ok(false)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Now,
    Own,
    Rate,
    Calls,
    Total,
    Average,
    P50,
    P99,
    Max,
    Name,
}

impl Column {
    /// All columns, in the order on the screen: the heading, the key that sorts by it, and its
    /// priority for being left out if there is no room.
    const ALL: [(Self, &'static str, char, u8); 10] = [
        (Self::Now, "now %", 'w', 1),
        (Self::Own, "self", 's', 2),
        (Self::Rate, "calls/s", 'r', 3),
        (Self::Calls, "calls", 'c', 6),
        (Self::Total, "total", 't', 7),
        (Self::Average, "avg", 'a', 8),
        (Self::P50, "p50", '5', 5),
        (Self::P99, "p99", '9', 4),
        (Self::Max, "max", 'm', 9),
        (Self::Name, "", 'o', 0),
    ];

    fn of(self, counted: &Counted) -> u64 {
        match self {
            Self::Now => counted.recent,
            Self::Own | Self::Name => counted.sum().own,
            Self::Rate => counted.rate,
            Self::Calls => counted.sum().hits,
            Self::Total => counted.sum().total,
            Self::Average => counted.ended.average(),
            Self::P50 => counted.ended.percentile(500),
            Self::P99 => counted.ended.percentile(990),
            Self::Max => counted.ended.max,
        }
    }

    fn text(self, counted: &Counted, all: u64) -> String {
        let value = self.of(counted);
        match self {
            Self::Now => percent(value, all),
            Self::Rate | Self::Calls => grouped(value),
            _ => time(value),
        }
    }
}

/// A line as it is shown until the next update.
#[derive(Clone, Debug)]
struct Line {
    /// The number of the function, thread or process.
    index: usize,
    name: String,
    counted: Counted,
}

/// The subject of each line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rows {
    Functions,
    Threads,
    Processes,
}

/// The current input mode.
#[derive(Debug, PartialEq, Eq)]
enum Mode {
    List,
    Filter,
    Help,
}

struct View {
    top: Top,
    followed: Calls<Views>,
    title: String,
    /// The counts at the last update.
    shown: Vec<Line>,
    lost: u64,
    calls: u64,
    rate: u64,
    /// The indices of those that are in the list, in its order.
    order: Vec<usize>,
    sort: Column,
    is_turned: bool,
    filter: String,
    mode: Mode,
    rows: Rows,
    is_paused: bool,
    is_ending: bool,
    cursor: Cursor,
    /// The line that stays selected wherever it moves; none while it is the first one.
    selected: Option<usize>,
    height: usize,
}

impl View {
    /// Updates the numbers, for the time that has passed.
    fn look(&mut self, counts: Counts, time: Duration) {
        self.top.look(&self.followed);
        self.top.rate(time);
        let calls = counts.calls.saturating_sub(self.calls);
        self.rate = (calls as f64 / time.as_secs_f64()) as u64;
        (self.calls, self.lost) = (counts.calls, counts.lost);
        if !self.is_paused {
            self.refill();
        }
    }

    /// Takes the current counts.
    fn refill(&mut self) {
        let line = |(index, counted): (usize, &Counted), name: String| Line {
            index,
            name,
            counted: counted.clone(),
        };
        self.shown = match self.rows {
            Rows::Threads => {
                self.followed.threads.iter_mut().for_each(rename);
                let threads = self.top.threads.iter().enumerate();
                let name = |index: usize| escaped(&self.followed.threads[index].to_string()).into();
                threads.map(|it| line(it, name(it.0))).collect()
            }
            Rows::Processes => {
                let processes = self.top.processes.iter();
                let each = processes.flat_map(|processes| {
                    let all = processes.all.iter().enumerate();
                    all.map(|(at, it)| line((at, &it.counted), processes.name(at)))
                });
                each.collect()
            }
            Rows::Functions => {
                let functions = match &self.top.chosen {
                    Some((_, functions)) => functions,
                    None => &self.top.functions,
                };
                let functions = functions.iter().enumerate();
                functions
                    .map(|it| line(it, self.top.names[it.0].clone()))
                    .collect()
            }
        };
        self.shown.retain(|line| line.counted.sum().hits > 0);
        self.arrange();
    }

    /// Sorts the lines that the filter leaves.
    fn arrange(&mut self) {
        let filter = self.filter.to_lowercase();
        let words: Vec<&str> = filter.split('|').filter(|word| !word.is_empty()).collect();
        let is_left = |line: &Line| {
            let name = line.name.to_lowercase();
            words.is_empty() || words.iter().any(|word| name.contains(word))
        };
        let mut order: Vec<_> = (0..self.shown.len())
            .filter(|&at| is_left(&self.shown[at]))
            .map(|at| (self.sort.of(&self.shown[at].counted), at))
            .collect();
        let name = |at: usize| &self.shown[at].name;
        match self.sort {
            Column::Name => order.sort_by_key(|&(_, at)| name(at)),
            _ => order.sort_by_key(|&(value, at)| (Reverse(value), name(at))),
        }
        if self.is_turned {
            order.reverse();
        }
        self.order = order.into_iter().map(|(_, at)| at).collect();
        let is_it = |&at: &usize| Some(self.shown[at].index) == self.selected;
        match self.order.iter().position(is_it) {
            Some(at) => self.cursor.selected = at,
            None => {
                self.selected = None;
                self.cursor.selected = 0;
            }
        }
    }

    /// Returns the screen: its title, the headings, the lines, and a line of help or input.
    fn lines(&mut self, width: usize, height: usize) -> Vec<(String, Looks)> {
        if self.mode == Mode::Help {
            let lines = KEYS.lines().map(|line| (line.to_owned(), Looks::Plain));
            return lines.collect();
        }
        self.height = height.saturating_sub(3).max(1);
        let from = self.cursor.see(self.height, self.order.len());
        let seen = self.order.iter().skip(from).take(self.height);
        let columns = Column::ALL.map(|(column, heading, _, way)| {
            let heading = match (column, self.rows) {
                (Column::Name, Rows::Threads) => "thread",
                (Column::Name, Rows::Processes) => "process",
                (Column::Name, Rows::Functions) => "function",
                _ => heading,
            };
            let is_sorted = column == self.sort;
            let mark = match (is_sorted, self.is_turned) {
                (false, _) => "",
                (true, false) => "↓",
                (true, true) => "↑",
            };
            // Columns do not move with each number.
            let least = match column {
                Column::Now => 6,
                Column::Name => 0,
                _ => 10,
            };
            let heading = format!("{heading}{mark}");
            (
                format!("{heading:>least$}"),
                if is_sorted { 0 } else { way },
            )
        });
        let columns = columns
            .each_ref()
            .map(|(heading, way)| (heading.as_str(), *way));
        let mut table = Table::new(&columns);
        let all = self.shown.iter().map(|line| line.counted.recent).sum();
        for &at in seen {
            let Line { name, counted, .. } = &self.shown[at];
            let cell = |(column, ..): (Column, _, _, _)| match column {
                Column::Name => name.clone(),
                _ => column.text(counted, all),
            };
            table.row(Column::ALL.map(cell).to_vec());
        }
        let head = (self.heading(), Looks::Plain);
        let selected = self.cursor.selected - from;
        page(
            head,
            table.lines(Some(width)),
            selected,
            self.foot(),
            height,
        )
    }

    fn heading(&self) -> String {
        let mut text = format!(
            "{}: {} calls, {}/s, lost {}, threads {}",
            self.title,
            grouped(self.calls),
            grouped(self.rate),
            grouped(self.lost),
            self.followed.threads.len()
        );
        let chosen = match (&self.top.chosen, &self.top.processes) {
            (Some((Whose::Thread(thread), _)), _) => {
                let thread = self.followed.threads[*thread].to_string();
                Some(escaped(&thread).into_owned())
            }
            (Some((Whose::Process(process), _)), Some(processes)) => Some(processes.name(*process)),
            _ => None,
        };
        if let Some(chosen) = chosen {
            text.push_str(&format!("; only {chosen}"));
        }
        text
    }

    fn foot(&self) -> String {
        let state = match (self.is_ending, self.is_paused) {
            (true, _) => "[waits for the program's end] ",
            (_, true) => "[paused] ",
            _ => "",
        };
        match (&self.mode, self.filter.as_str()) {
            (Mode::Filter, filter) => format!("/{filter}█"),
            (_, "") => format!("{state}q leave  ? keys  / filter  <> sort  H threads  p pause"),
            (_, filter) => format!("{state}only {filter}  (/ Esc all)  q leave  ? keys"),
        }
    }

    /// Handles a key; `true` if it closes the screen.
    fn key(&mut self, key: KeyCode) -> bool {
        match self.mode {
            Mode::Help => self.mode = Mode::List,
            Mode::Filter => self.filter_key(key),
            Mode::List => return self.list_key(key),
        }
        false
    }

    fn filter_key(&mut self, key: KeyCode) {
        match key {
            KeyCode::Char(character) => self.filter.push(character),
            KeyCode::Backspace => _ = self.filter.pop(),
            KeyCode::Enter => self.mode = Mode::List,
            KeyCode::Esc => {
                self.filter.clear();
                self.mode = Mode::List;
            }
            _ => {}
        }
        self.arrange();
    }

    fn list_key(&mut self, key: KeyCode) -> bool {
        if self.cursor.moves(key, self.height, self.order.len()) {
            let at = self.order.get(self.cursor.selected);
            self.selected = at.map(|&at| self.shown[at].index);
            return false;
        }
        match key {
            KeyCode::Char('q') | KeyCode::F(10) => return true,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.mode = Mode::Help,
            KeyCode::Char('/' | '\\') | KeyCode::F(3 | 4) => self.mode = Mode::Filter,
            KeyCode::Left | KeyCode::Char('<') => self.sort_next(Column::ALL.len() - 1),
            KeyCode::Right | KeyCode::Char('>') => self.sort_next(1),
            KeyCode::Char('I') => self.is_turned = !self.is_turned,
            KeyCode::Char('p' | ' ') => {
                self.is_paused = !self.is_paused;
                if !self.is_paused {
                    self.refill();
                }
            }
            KeyCode::Char('z') => {
                self.top.zero(&self.followed);
                self.refill();
            }
            KeyCode::Char('H') => self.show(Rows::Threads),
            KeyCode::Char('P') if self.top.processes.is_some() => self.show(Rows::Processes),
            KeyCode::Enter if self.rows != Rows::Functions => {
                let whose = match self.rows {
                    Rows::Processes => Whose::Process,
                    _ => Whose::Thread,
                };
                let at = self.order.get(self.cursor.selected);
                let chosen = at.map(|&at| whose(self.shown[at].index));
                self.top.choose(chosen, &self.followed);
                self.show(self.rows);
            }
            KeyCode::Esc if !self.filter.is_empty() => self.filter.clear(),
            KeyCode::Esc => {
                self.top.choose(None, &self.followed);
                self.rows = Rows::Functions;
                self.begin_list();
            }
            KeyCode::Char(key) => {
                let all = Column::ALL;
                if let Some((column, ..)) = all.into_iter().find(|(_, _, of, _)| *of == key) {
                    self.sort = column;
                }
            }
            _ => {}
        }
        self.arrange();
        false
    }

    fn sort_next(&mut self, step: usize) {
        let all = Column::ALL;
        let at = all.iter().position(|(column, ..)| *column == self.sort);
        self.sort = all[(at.unwrap_or(0) + step) % all.len()].0;
    }

    /// Shows these rows, or functions if these are shown.
    fn show(&mut self, rows: Rows) {
        self.rows = match self.rows == rows {
            true => Rows::Functions,
            false => rows,
        };
        self.begin_list();
    }

    fn begin_list(&mut self) {
        self.filter.clear();
        self.selected = None;
        self.refill();
    }
}
