//! `fgraph top`: where the time of a running program goes, again and again.

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use fgraph_trace::Source;
use fgraph_trace::clock::Clock;

use crate::calls::{self, Call, Function, Open, Watch};
use crate::error::Error;
use crate::launch::events::Events;
use crate::launch::interrupt::Interrupts;
use crate::launch::{Launched, What};
use crate::output::Out;
use crate::stats::Stats;
use crate::table::Table;
use crate::text::{escaped, grouped, named, time};

/// Run a program and show its functions by their own time, every second and at the end
///
/// On a terminal the table takes the place of the one before; elsewhere it is written at the end
/// only. Calls are counted when they end.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    what: What,
    /// How many functions are shown
    #[arg(long, value_name = "N", default_value_t = 20)]
    lines: usize,
}

/// How often the table is shown.
const SHOWN: Duration = Duration::from_secs(1);
/// How many calls end between two looks at the time.
const PATIENCE: u32 = 1 << 10;

/// Runs the program, and ends as it does.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Error> {
    let show = |launched: &mut _, interrupts: &_| show(args, launched, interrupts);
    args.what.run(show)
}

fn show(args: &Args, launched: &mut Launched, interrupts: &Interrupts) -> Result<(), Error> {
    let mut events = Events::new(launched, interrupts)?;
    let mut top = Top {
        clock: *events.clock(),
        functions: Vec::new(),
        lines: args.lines,
        is_shown: io::stdout().is_terminal(),
        calls: 0,
        last: Instant::now(),
    };
    calls::follow(&mut events, &mut top).map_err(|error| Error::source("the rings", error))?;
    top.show()
}

#[derive(Debug)]
struct Top {
    clock: Clock,
    /// By their slots: a name, and what was counted.
    functions: Vec<(String, Stats)>,
    lines: usize,
    /// Whether it is shown before the end.
    is_shown: bool,
    /// Calls that have ended since it was looked at the time.
    calls: u32,
    last: Instant,
}

impl Top {
    fn show(&self) -> Result<(), Error> {
        let mut called: Vec<_> = self.functions.iter().filter(|it| it.1.hits > 0).collect();
        called.sort_by_key(|(_, stats)| std::cmp::Reverse(stats.own));
        let mut table = Table::new(&[
            ("self", 0),
            ("total", 3),
            ("calls", 1),
            ("avg", 2),
            ("p99", 4),
            ("function", 0),
        ]);
        for (name, stats) in called.into_iter().take(self.lines) {
            table.row(vec![
                time(stats.own),
                time(stats.total),
                grouped(stats.hits),
                time(stats.average()),
                time(stats.percentile(990)),
                name.clone(),
            ]);
        }
        let mut out = Out::new();
        if self.is_shown {
            // From the upper left corner on, all is new.
            out.text("\x1b[H\x1b[J")?;
        }
        table.write(&mut out)?;
        out.finish()
    }
}

impl Watch for Top {
    fn function(&mut self, function: &Function) {
        let name = named(&function.name, function.module_name());
        let name = escaped(&name).into_owned();
        self.functions.push((name, Stats::default()));
    }

    fn end(&mut self, _thread: usize, stack: &[Open], call: &Call) {
        if let Some((_, stats)) = self.functions.get_mut(call.slot as usize) {
            let [took, own] = [call.took, call.own].map(|ticks| self.clock.nanoseconds(ticks));
            let is_outermost = !stack.iter().any(|open| open.slot == call.slot);
            stats.add(took, own, is_outermost);
        }
        self.calls += 1;
        if self.is_shown && self.calls >= PATIENCE && self.last.elapsed() >= SHOWN {
            self.calls = 0;
            self.last = Instant::now();
            // Where it cannot be shown now, the end says so.
            let _ = self.show();
        }
    }
}
