//! `fgraph top`: the functions of a running program by their own time.

mod user;
#[cfg(feature = "tui")]
mod view;

use std::collections::HashMap;
use std::process::ExitCode;
use std::time::Duration;

use fgraph_analysis::calls::{
    self, Active, At, Call, Calls, Function, Open, ThreadId, Views, Visitor,
};
use fgraph_analysis::numbers::grown;
use fgraph_analysis::stats::Stats;
use fgraph_trace::Source;
use fgraph_trace::clock::Clock;
use std::convert::Infallible;

use crate::error::Error;
use crate::input::nanoseconds;
use crate::launch::events::Events;
use crate::launch::interrupt::Interrupts;
use crate::launch::{Budget, Launched, What};
use crate::losses;
use crate::output::Out;
use crate::overhead;
#[cfg(feature = "tui")]
use crate::screen::Screen;
use crate::table::Table;
use crate::text::{escaped, grouped, named, percent, time};
use user::Commands;

/// Run a program and show its functions by their own time while it runs, and at the end
///
/// On a terminal this is a screen with keys, which `?` shows; elsewhere a table is written at the
/// end. The program gets an empty input, and its output is shown when the screen is closed: follow
/// a program that needs the terminal from another one, with -p. When the program ends, the screen
/// ends, too. With -p, the default of --budget is 20%.
///
/// With --user there is a line for each process: those of this user that compute most, except this
/// command, the processes that it descends from, and all that share its terminal or session. Name
/// these with -p. At the end all functions are restored.
#[derive(Debug, clap::Args)]
#[command(
    after_help = help(),
    mut_arg("command", |it| it.required_unless_present_any(["pid", "user"]))
)]
pub(crate) struct Args {
    #[command(flatten)]
    what: What,
    /// Attach to processes of this user, and show a line for each
    #[arg(long, conflicts_with_all = ["pid", "command"], requires = "processes")]
    user: bool,
    /// The most processes to attach to with --user: those that compute most
    #[arg(long, value_name = "N", requires = "user", value_parser = processes())]
    processes: Option<u16>,
    #[command(flatten)]
    budget: Budget,
    /// The number of functions in the final table
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20)]
    lines: usize,
    /// The time between updates of the screen
    #[arg(short, long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    delay: Duration,
}

const EXAMPLES: &str = "\
Examples:
  fgraph top -- ./server
  fgraph top -p 1234 -F 'parse*' --time 10s
  fgraph top --user --processes 5 --time 30s";

/// The most processes of a user: attaching takes seconds where threads are busy.
fn processes() -> clap::builder::RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..=100)
}

fn help() -> String {
    #[cfg(feature = "tui")]
    return format!("{}\n\n{EXAMPLES}", view::KEYS);
    #[cfg(not(feature = "tui"))]
    EXAMPLES.to_owned()
}

pub(super) fn interval(text: &str) -> Result<Duration, String> {
    let time = Duration::from_nanos(nanoseconds(text)?);
    match time >= Duration::from_millis(10) {
        true => Ok(time),
        false => Err("at least 10ms".to_owned()),
    }
}

/// Runs the program, and exits like it.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Error> {
    let chosen = args.processes.filter(|_| args.user).map(user::busiest);
    let program = match &chosen {
        Some(chosen) => args
            .what
            .find_any(&chosen.keys().copied().collect::<Vec<_>>()),
        None => args.what.find(Vec::new()),
    };
    let program = program?.budget_if_attached(&args.budget)?;
    #[cfg(feature = "tui")]
    if Screen::is_there() {
        let program = program.off_terminal()?;
        return program.run(|launched, interrupts| {
            let top = view::show(args.delay, chosen, launched, interrupts);
            let printed = launched.print_output();
            top?.print(args.lines).and(printed)
        });
    }
    program.run(|launched, interrupts| print(args, chosen, launched, interrupts))
}

fn print(
    args: &Args,
    chosen: Option<Commands>,
    launched: &mut Launched,
    interrupts: &Interrupts,
) -> Result<(), Error> {
    let mut events = Events::new(launched, interrupts)?.for_viewer();
    let mut top = Top::new(*events.clock(), chosen);
    let followed = calls::follow(&mut events, &mut top);
    let followed = followed.map_err(|error| Error::source("the rings", error))?;
    let first = followed.span.map_or(0, |(first, _)| first);
    losses::say(&followed.losses, events.names(), events.clock(), first);
    overhead::say(&followed, events.clock(), None, |_, _| false);
    top.print(args.lines)
}

/// Calls and their times in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    hits: u64,
    own: u64,
    total: u64,
}

/// The counts of one line.
#[derive(Clone, Debug, Default)]
struct Counted {
    /// The calls that have ended.
    ended: Stats,
    /// Calls in progress, until now.
    open: Sum,
    /// Calls that were in progress when counting began, until then.
    open_before: Sum,
    /// Calls and their own time at the last update of the rates.
    before: Sum,
    /// Calls per second since then, and the own time since then.
    rate: u64,
    recent: u64,
}

impl Counted {
    fn sum(&self) -> Sum {
        let Self {
            ended,
            open,
            open_before: before,
            ..
        } = self;
        let own = (ended.own + open.own).saturating_sub(before.own);
        let total = (ended.total + open.total).saturating_sub(before.total);
        Sum {
            hits: (ended.hits + open.hits).saturating_sub(before.hits),
            own,
            // While calls are in progress, functions of one line count separately.
            total: total.max(own),
        }
    }

    /// Resets the counts; calls in progress count from now on.
    fn zero(&mut self) {
        *self = Self {
            open_before: self.open,
            ..Self::default()
        };
    }
}

/// The counts of a process.
#[derive(Debug)]
struct OfProcess {
    id: u32,
    counted: Counted,
    /// The own time of its ended calls, by the lines of functions.
    own: Vec<u64>,
}

/// The processes that have a line each.
#[derive(Debug)]
struct Processes {
    /// The command of each process that was chosen.
    commands: Commands,
    by_id: HashMap<u32, usize>,
    all: Vec<OfProcess>,
    /// The process of each thread, by their numbers.
    of_thread: Vec<usize>,
}

impl Processes {
    fn new(commands: Commands) -> Self {
        Self {
            commands,
            by_id: HashMap::new(),
            all: Vec::new(),
            of_thread: Vec::new(),
        }
    }

    /// Adds a thread, whose number is that of earlier ones.
    fn add(&mut self, thread: &ThreadId) {
        let id = thread.process_id();
        let next = self.all.len();
        let process = *self.by_id.entry(id).or_insert(next);
        if process == next {
            self.all.push(OfProcess {
                id,
                counted: Counted::default(),
                own: Vec::new(),
            });
        }
        self.of_thread.push(process);
    }

    fn of(&mut self, thread: usize) -> Option<&mut OfProcess> {
        self.all.get_mut(*self.of_thread.get(thread)?)
    }

    /// Returns the name of a process for people: its command and its id.
    fn name(&self, process: usize) -> String {
        let id = self.all[process].id;
        let command = self.commands.get(&id).map_or("", String::as_str);
        let space = if command.is_empty() { "" } else { " " };
        escaped(&format!("{command}{space}{id}")).into_owned()
    }
}

/// The threads whose functions are counted separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Thread(usize),
    Process(usize),
}

/// The counts of all lines.
#[derive(Debug)]
struct Top {
    clock: Clock,
    /// The line of each function, by its slot: functions with the same name and module share one.
    line_of: Vec<usize>,
    by_name: HashMap<String, usize>,
    /// By their lines.
    names: Vec<String>,
    functions: Vec<Counted>,
    /// By their numbers.
    threads: Vec<Counted>,
    /// The functions of one thread or process only, since it was chosen.
    chosen: Option<(Whose, Vec<Counted>)>,
    /// Set if there is a line for each process.
    processes: Option<Processes>,
    active: Active,
}

impl Top {
    fn new(clock: Clock, commands: Option<Commands>) -> Self {
        Self {
            clock,
            processes: commands.map(Processes::new),
            line_of: Vec::new(),
            by_name: HashMap::new(),
            names: Vec::new(),
            functions: Vec::new(),
            threads: Vec::new(),
            chosen: None,
            active: Active::default(),
        }
    }

    /// Returns true if a thread is the chosen one, or of the chosen process.
    fn is_of_chosen(&self, thread: usize) -> bool {
        match &self.chosen {
            Some((Whose::Thread(chosen), _)) => *chosen == thread,
            Some((Whose::Process(chosen), _)) => {
                let processes = self.processes.as_ref();
                processes.is_some_and(|it| it.of_thread.get(thread) == Some(chosen))
            }
            None => false,
        }
    }

    /// Prints the processes with the largest time in calls, each with its busiest function.
    fn print_processes(&self, processes: &Processes, lines: usize) -> Result<(), Error> {
        let mut all: Vec<usize> = (0..processes.all.len()).collect();
        let total = |&process: &usize| processes.all[process].counted.sum().total;
        all.sort_by_key(|process| std::cmp::Reverse(total(process)));
        let mut table = Table::new(&[
            ("total", 0),
            ("calls", 1),
            ("process", 0),
            ("% self", 3),
            ("busiest function", 2),
        ]);
        for process in all.into_iter().take(lines) {
            let of = &processes.all[process];
            let sum = of.counted.sum();
            let own: u64 = of.own.iter().sum();
            let busiest = of.own.iter().enumerate().max_by_key(|(_, own)| **own);
            let busiest = busiest.filter(|(_, own)| **own > 0);
            table.row(vec![
                time(sum.total),
                grouped(sum.hits),
                processes.name(process),
                busiest.map_or(String::new(), |(_, &part)| percent(part, own)),
                busiest.map_or(String::new(), |(line, _)| self.names[line].clone()),
            ]);
        }
        let mut out = Out::new();
        table.write(&mut out)?;
        let idle = processes.commands.keys();
        let idle = idle.filter(|id| !processes.by_id.contains_key(id)).count();
        if idle > 0 {
            say!("fgraph: processes without a recorded call: {idle}");
        }
        out.finish()
    }

    /// Prints the functions with the largest own time, or the processes.
    fn print(&self, lines: usize) -> Result<(), Error> {
        if let Some(processes) = &self.processes {
            return self.print_processes(processes, lines);
        }
        let called = self.functions.iter().zip(&self.names);
        let called = called.map(|(it, name)| (it.sum(), &it.ended, name));
        let mut called: Vec<_> = called.filter(|(sum, ..)| sum.hits > 0).collect();
        called.sort_by_key(|(sum, ..)| std::cmp::Reverse(sum.own));
        let mut table = Table::new(&[
            ("self", 0),
            ("total", 3),
            ("calls", 1),
            ("avg", 2),
            ("p50", 5),
            ("p99", 4),
            ("function", 0),
        ]);
        for (sum, ended, name) in called.into_iter().take(lines) {
            table.row(vec![
                time(sum.own),
                time(sum.total),
                grouped(sum.hits),
                ended.text(ended.average()),
                ended.text(ended.percentile(500)),
                ended.text(ended.percentile(990)),
                name.clone(),
            ]);
        }
        let mut out = Out::new();
        table.write(&mut out)?;
        out.finish()
    }

    /// Iterates over all lines: of functions, of threads, of processes, and of the chosen
    /// functions.
    fn lines(&mut self) -> impl Iterator<Item = &mut Counted> {
        let chosen = self.chosen.iter_mut().flat_map(|(_, functions)| functions);
        let processes = self.processes.iter_mut().flat_map(|it| &mut it.all);
        self.functions
            .iter_mut()
            .chain(&mut self.threads)
            .chain(processes.map(|it| &mut it.counted))
            .chain(chosen)
    }

    /// Resets all counts.
    fn zero(&mut self, followed: &Calls<Views>) {
        self.look(followed);
        self.lines().for_each(Counted::zero);
    }

    /// Counts the functions of this thread or process separately from now on.
    fn choose(&mut self, whose: Option<Whose>, followed: &Calls<Views>) {
        self.chosen = whose.map(|whose| (whose, vec![Counted::default(); self.names.len()]));
        self.look(followed);
        let chosen = self.chosen.iter_mut().flat_map(|(_, functions)| functions);
        chosen.for_each(Counted::zero);
    }

    /// Counts the calls in progress.
    fn look(&mut self, followed: &Calls<Views>) {
        self.lines()
            .for_each(|counted| counted.open = Sum::default());
        followed.each_open(|thread, depth, call, is_outermost| {
            let [took, own] = [call.ran, call.own].map(|ticks| self.clock.nanoseconds(ticks));
            let add = |counted: &mut Counted, is_outermost: bool| {
                counted.open.hits += 1;
                counted.open.own += own;
                counted.open.total += if is_outermost { took } else { 0 };
            };
            let line = self.line_of[call.slot as usize];
            add(&mut self.functions[line], is_outermost);
            add(&mut self.threads[thread], depth == 0);
            if let Some(process) = self.processes.as_mut().and_then(|it| it.of(thread)) {
                add(&mut process.counted, depth == 0);
            }
            let is_chosen = self.is_of_chosen(thread);
            if let Some((_, functions)) = self.chosen.as_mut().filter(|_| is_chosen) {
                add(&mut functions[line], is_outermost);
            }
        });
    }

    /// Computes the rates of this time, the last one.
    fn rate(&mut self, time: Duration) {
        for counted in self.lines() {
            let now = counted.sum();
            let calls = now.hits.saturating_sub(counted.before.hits);
            counted.rate = (calls as f64 / time.as_secs_f64()) as u64;
            counted.recent = now.own.saturating_sub(counted.before.own);
            counted.before = now;
        }
    }
}

impl Visitor for Top {
    type Error = Infallible;

    fn thread(&mut self, at: &At<'_>) -> Result<(), Infallible> {
        if let Some(processes) = &mut self.processes {
            processes.add(&at.thread);
        }
        Ok(())
    }

    fn function(&mut self, function: &Function) {
        let name = named(&function.name, function.module_name());
        let name = escaped(&name).into_owned();
        let next = self.names.len();
        let line = *self.by_name.entry(name.clone()).or_insert(next);
        self.line_of.push(line);
        if line != next {
            return;
        }
        self.names.push(name);
        self.functions.push(Counted::default());
        if let Some((_, functions)) = &mut self.chosen {
            functions.push(Counted::default());
        }
    }

    fn enter(&mut self, at: &At<'_>, call: &Open) -> Result<(), Infallible> {
        let thread = at.thread.index;
        grown(&mut self.threads, thread);
        self.active.begin(thread, self.line_of[call.data as usize]);
        Ok(())
    }

    fn exit(&mut self, at: &At<'_>, call: &Call) -> Result<(), Infallible> {
        let thread = at.thread.index;
        let line = self.line_of[call.slot as usize];
        let is_outermost = self.active.end(thread, line);
        let clock = self.clock;
        calls::count(call, &clock, is_outermost, &mut self.functions[line].ended);
        let is_chosen = self.is_of_chosen(thread);
        if let Some((_, functions)) = self.chosen.as_mut().filter(|_| is_chosen) {
            calls::count(call, &clock, is_outermost, &mut functions[line].ended);
        }
        if let Some(process) = self.processes.as_mut().and_then(|it| it.of(thread)) {
            calls::count(
                call,
                &clock,
                at.around.is_empty(),
                &mut process.counted.ended,
            );
            *grown(&mut process.own, line) += clock.nanoseconds(call.measured.own);
        }
        let thread = &mut self.threads[thread].ended;
        calls::count(call, &clock, at.around.is_empty(), thread);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use fgraph_trace::Event;
    use fgraph_trace::clock::ClockKind;
    use fgraph_trace::event::What;
    use fgraph_trace::names::Names;
    use fgraph_trace::ring::{RingOptions, Rings};

    use super::*;
    use fgraph_analysis::calls::{Context, Step};

    #[test]
    fn calls_after_a_loss_are_in_none_of_those_before() {
        let options = RingOptions {
            clock: Some(ClockKind::Monotonic),
            ..RingOptions::default()
        };
        let clock = Rings::create(&options).unwrap().clock();
        let (mut top, mut followed) = (Top::new(clock, None), Calls::<Views>::default());
        let names = Names::default();
        let context = Context {
            names: &names,
            clock: &clock,
            schedule: None,
        };
        let mut step = |time, what| {
            let event = Event::new(time, 9, 1, what);
            let Ok(()) = followed.step(Step::of(&event), &context, &mut top);
        };
        let entry = What::entry;
        let end = What::returned;
        step(0, entry(1));
        step(10, entry(2));
        step(17, entry(3));
        step(
            20,
            What::Lost {
                events: 5,
                ends: None,
            },
        );
        for time in [100, 200, 300] {
            step(time, entry(2));
            step(time + 10, entry(3));
            step(time + 20, end(3));
            step(time + 30, end(2));
        }
        top.look(&followed);
        let sums: Vec<_> = top.functions.iter().map(Counted::sum).collect();
        let of = |at: usize| (sums[at].hits, sums[at].own, sums[at].total);
        // The first call of 2 went on until the last event before the loss at least.
        assert_eq!(of(1), (4, 7 + 3 * 20, 7 + 3 * 30));
        let thread = top.threads[0].sum();
        assert!(thread.total >= thread.own && thread.own >= 90, "{thread:?}");
    }
}
