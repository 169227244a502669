//! `fgraph locks`: finds locks that are taken in orders that can deadlock, that are held long, and
//! that threads wait for.
//!
//! Calls of the C library's functions for locks are recorded like others, with the lock, the caller
//! and the result; the analysis is in this process. So nothing is lost with the program, and its
//! locks cost no more than recorded calls.

mod analysis;

use std::cmp::Reverse;
use std::process::ExitCode;

use fgraph_trace::Source;
use fgraph_trace::event::What as Did;
use fgraph_trace::names::{Names, process_id};
use fgraph_trace::pairing::Ending;
use fgraph_tracers::agent::Settings;
use fgraph_tracers::locks::functions;
use serde::Serialize;

use self::analysis::{Inversion, Lock, Locks, Name, Place, Stacks, Times};
use crate::error::Error;
use crate::json;
use crate::launch::events::Events;
use crate::launch::interrupt::Interrupts;
use crate::launch::{Launched, Target};
use crate::output::Out;
use crate::places::Places;
use crate::sources;
use crate::table::Table;
use crate::text::{self, counted, escaped, file_name, grouped, time};

const EXAMPLES: &str = "\
Examples:
  fgraph locks -- ./server
  fgraph locks -n 20 -p 1234

Seen are POSIX mutexes, read-write locks, spin locks and condition variables, which release a mutex
while they wait. The locks of Rust's standard library are no functions where they are free: of these
waits are seen, where the functions for that were not inlined.

Taking a lock while another one is held says that the other one comes first. Taking two locks in an
order that contradicts what was taken before is an inversion: it may deadlock, whether it has or
not. A lock is known by its address, until it is destroyed.";

/// Run a program and show locks that can deadlock, and those held and waited for longest
///
/// Inversions are shown when they are found, each pair of locks once per process; the tables come
/// at the end.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The number of locks in each table
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    lines: usize,
    /// Show the stacks where locks are taken, and where the holder has taken a lock for which other
    /// threads wait
    #[arg(long)]
    stacks: bool,
    /// Print one JSON object when the program has ended
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// The view of `locks` in JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct LocksView {
    /// The number of missing events.
    lost: u64,
    /// Calls on locks that could not be followed, because there are too many locks.
    not_followed: u64,
    /// Inversions, in the order in which they were found.
    inversions: Vec<InversionView>,
    /// The locks with the longest single hold.
    held: Vec<LockView>,
    /// The locks with the longest single wait.
    waited: Vec<LockView>,
}

/// Locks that were taken in contradictory orders.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct InversionView {
    process: u32,
    /// Each takes the lock that the next one holds; the last one takes that of the first.
    orders: Vec<OrderView>,
}

/// A lock that was taken while another one was held.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct OrderView {
    thread: json::Thread,
    /// The address of the lock, in hexadecimal.
    taken: String,
    /// The variable that is or contains the lock; null if it is unknown.
    taken_name: Option<String>,
    taken_at: String,
    /// The calls around it, the innermost first; empty without `--stacks`.
    taken_stack: Vec<String>,
    held: String,
    held_name: Option<String>,
    held_at: String,
    held_stack: Vec<String>,
}

/// The hold or wait times of a lock.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct LockView {
    process: u32,
    /// Its address, in hexadecimal.
    lock: String,
    /// The variable that is or contains the lock; null if it is unknown.
    name: Option<String>,
    /// The place where it was taken for the longest time.
    at: String,
    /// The calls around that, the innermost first; empty without `--stacks`.
    stack: Vec<String>,
    /// The thread that held it during the longest wait; null if it is unknown.
    holder: Option<HolderView>,
    times: u64,
    total_ns: u64,
    longest_ns: u64,
}

/// A thread that holds a lock.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct HolderView {
    thread: json::Thread,
    /// The place where it has taken the lock.
    at: String,
    /// The calls around that, the innermost first; empty without `--stacks`.
    stack: Vec<String>,
}

/// Runs the program, and exits like it.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Error> {
    let settings = Settings {
        trace: functions().map(|(name, _)| format!("{name:?}")).collect(),
        arguments: 2,
        result: true,
        callers: true,
        stacks: args.stacks,
        ..Settings::default()
    };
    let show = |launched: &mut _, interrupts: &_| show(args, launched, interrupts);
    args.target.run(settings, show)
}

fn show(args: &Args, launched: &mut Launched, interrupts: &Interrupts) -> Result<(), Error> {
    let failed = |error| Error::source("the rings", error);
    let rings = launched.rings().clone();
    let mut events = Events::new(launched, interrupts)?;
    let mut out = Out::new();
    let mut places = Places::default();
    let (mut locks, mut stacks) = (Locks::default(), Stacks::default());
    let mut inversions = Vec::new();
    loop {
        if !events.is_ready().map_err(failed)? {
            out.flush()?;
        }
        let Some(event) = events.next().map_err(failed)? else {
            break;
        };
        let (now, thread) = (event.time, (event.process, event.thread));
        match event.what {
            Did::Entry {
                function,
                arguments,
                caller,
                is_entry_only,
            } => {
                let arguments = [0, 1].map(|nth| arguments.get(nth).copied().unwrap_or(0));
                // The address after the last instruction of a function belongs to another one.
                let at = caller.unwrap_or(0).saturating_sub(1);
                let stack = stacks.number(event.stack.get(1..).unwrap_or_default());
                let place = Place { at, stack };
                locks.enter(thread, function, arguments, place, now, events.names());
                if is_entry_only {
                    // It is unknown if it has taken the lock.
                    locks.leave(thread, function, None, now, Ending::Returned);
                }
            }
            Did::Return { function, result } => {
                let result = result.first().copied();
                locks.leave(thread, function, result, now, Ending::Returned);
            }
            // An unwound call ends, too.
            Did::Unwound { function } => {
                locks.leave(thread, function, None, now, Ending::Returned);
            }
            Did::Dropped { function } => locks.leave(thread, function, None, now, Ending::Lost),
            Did::Lost { events, ends } => locks.lose(thread, events, ends),
            Did::Mark(_) => {}
        }
        for inversion in std::mem::take(&mut locks.inversions) {
            match args.json {
                true => {
                    inversions.push(inversion.to_json(events.names(), &mut places, &stacks));
                }
                false => inversion.write(events.names(), &mut places, &stacks, &mut out)?,
            }
        }
    }
    let lost = locks.lost.saturating_add(rings.events_without_ring());
    let held = longest(&locks, Times::held, &events);
    let waited = longest(&locks, Times::waited, &events);
    if args.json {
        let mut view = |all: &[Longest<'_>]| {
            let shown = all.iter().take(args.lines);
            let view = shown.map(|one| one.to_json(&events, &mut places, &stacks));
            view.collect()
        };
        return json::write(&LocksView {
            lost,
            not_followed: locks.untold,
            inversions,
            held: view(&held),
            waited: view(&waited),
        });
    }
    for (what, all) in [("held", held), ("waited for", waited)] {
        let mut table = Table::new(&[
            ("longest", 0),
            ("total", 2),
            ("times", 1),
            ("lock", 0),
            ("at", 0),
        ]);
        for one in all.iter().take(args.lines) {
            let one = one.to_json(&events, &mut places, &stacks);
            table.row(vec![
                time(one.longest_ns),
                time(one.total_ns),
                grouped(one.times),
                one.name.unwrap_or(one.lock),
                one.at,
            ]);
            one.stack
                .iter()
                .for_each(|call| table.note(format!("  {call}")));
            if let Some(holder) = one.holder {
                let thread = holder.thread.to_string();
                let thread = escaped(&thread);
                table.note(format!("held by {thread} at {}", holder.at));
                let stack = holder.stack.iter();
                stack.for_each(|call| table.note(format!("  {call}")));
            }
        }
        let count = counted(all.len() as u64, "lock");
        out.line(format_args!("{count} {what}"))?;
        table.write(&mut out)?;
    }
    if lost > 0 {
        say!(
            "fgraph: {} lost, and what they would have told",
            counted(lost, "event")
        );
    }
    if locks.untold > 0 {
        say!(
            "fgraph: {} of further locks not followed",
            text::calls(locks.untold)
        );
    }
    out.finish()
}

impl Inversion {
    /// Writes it as a line, with stacks in further lines.
    fn write(
        &self,
        names: &Names,
        places: &mut Places,
        stacks: &Stacks,
        out: &mut Out,
    ) -> Result<(), Error> {
        let view = self.to_json(names, places, stacks);
        let name = |name: &Option<String>, lock: &String| name.as_ref().unwrap_or(lock).clone();
        let orders = view.orders.iter().map(|order| {
            let thread = order.thread.to_string();
            let thread = escaped(&thread);
            let taken = name(&order.taken_name, &order.taken);
            let held = name(&order.held_name, &order.held);
            let (taken_at, held_at) = (&order.taken_at, &order.held_at);
            format!("{taken} was taken by {thread} at {taken_at} with {held} of {held_at}")
        });
        let orders: Vec<String> = orders.collect();
        out.line(format_args!("inversion: {}", orders.join("; but ")))?;
        for order in &view.orders {
            for (place, stack) in [
                (&order.taken_at, &order.taken_stack),
                (&order.held_at, &order.held_stack),
            ] {
                if !stack.is_empty() {
                    out.line(format_args!("  {place}"))?;
                }
                for call in stack {
                    out.line(format_args!("    {call}"))?;
                }
            }
        }
        Ok(())
    }

    fn to_json(&self, names: &Names, places: &mut Places, stacks: &Stacks) -> InversionView {
        let process = self.process;
        let orders = self.orders.iter();
        let orders = orders.map(|order| OrderView {
            thread: json::Thread::of(names, process, order.thread),
            taken: format!("{:#x}", order.taken),
            taken_name: places.data(names, process, order.taken),
            taken_at: places.at(names, process, order.taken_at.at),
            taken_stack: stack(names, places, process, stacks.get(order.taken_at.stack)),
            held: format!("{:#x}", order.held),
            held_name: places.data(names, process, order.held),
            held_at: places.at(names, process, order.held_at.at),
            held_stack: stack(names, places, process, stacks.get(order.held_at.stack)),
        });
        InversionView {
            process: process_id(process),
            orders: orders.collect(),
        }
    }
}

/// Returns the calls that return to some addresses.
fn stack(names: &Names, places: &mut Places, process: u32, addresses: &[u64]) -> Vec<String> {
    let addresses = addresses.iter();
    let calls = addresses.map(|address| places.at(names, process, address.saturating_sub(1)));
    calls.collect()
}

/// A lock, with its longest hold or wait.
struct Longest<'l> {
    name: Name,
    times: &'l Times,
}

impl Longest<'_> {
    fn to_json(&self, events: &Events<'_>, places: &mut Places, stacks: &Stacks) -> LockView {
        let ((process, address), times) = (self.name, self.times);
        let (clock, names) = (events.clock(), events.names());
        let mut around = |place: Place| stack(names, places, process, stacks.get(place.stack));
        let (own, holders) = (
            around(times.place),
            times.holder.map(|holder| around(holder.place)),
        );
        LockView {
            process: process_id(process),
            lock: format!("{address:#x}"),
            name: places.data(names, process, address),
            at: places.at(names, process, times.place.at),
            stack: own,
            holder: times.holder.zip(holders).map(|(holder, stack)| HolderView {
                thread: json::Thread::of(names, process, holder.thread),
                at: places.at(names, process, holder.place.at),
                stack,
            }),
            times: times.count,
            total_ns: clock.nanoseconds(times.sum),
            longest_ns: clock.nanoseconds(times.longest),
        }
    }
}

/// Returns the locks of the program with the longest holds or waits, longest first.
fn longest<'l>(locks: &'l Locks, of: fn(&Lock) -> &Times, events: &Events<'_>) -> Vec<Longest<'l>> {
    // The agent's own locks do not belong to the program.
    let is_ours = |process: u32, at: u64| {
        let module = sources::module_at(events.names(), process, at);
        module.is_some_and(|module| file_name(&module.path).starts_with("fgraph-agent-"))
    };
    let locks = locks.locks.iter();
    let mut locks: Vec<_> = locks
        .map(|(&name, lock)| Longest {
            name,
            times: of(lock),
        })
        .filter(|one| one.times.count > 0 && !is_ours(one.name.0, one.times.place.at))
        .collect();
    locks.sort_by_key(|one| (Reverse(one.times.longest), one.name));
    locks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_docs_have_the_schema() {
        json::check_schema::<LocksView>("locks");
    }
}
