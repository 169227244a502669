//! `fgraph locks`: finds locks that are taken in orders that can deadlock, that are held long, and
//! that threads wait for.
//!
//! Calls of the C library's functions for locks are recorded like others, with the lock, the caller
//! and the result; the analysis is in this process. So nothing is lost with the program, and its
//! locks cost no more than recorded calls.

use std::process::ExitCode;

use fgraph_analysis::locks::{InversionView, LockView, Locks};
use fgraph_protocol::{CallValues, Settings};
use fgraph_symbols::locks::functions;
use fgraph_trace::Source as _;
use serde::Serialize;

use crate::error::Error;
use crate::json;
use crate::launch::events::Events;
use crate::launch::interrupt::Interrupts;
use crate::launch::{Launched, Target};
use crate::output::Out;
use crate::places::Places;
use crate::table::Table;
use crate::text::{self, counted, escaped, grouped, time};

const EXAMPLES: &str = "\
Examples:
  fgraph locks -- ./server
  fgraph locks -n 20 -p 1234

Seen are POSIX mutexes, read-write locks, spin locks and condition variables, which release a mutex
while they wait. A call waits for a lock if another thread has the lock meanwhile. The locks of
Rust's standard library are no functions where they are free: of these waits are seen, where the
functions for that were not inlined.

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
    /// The number of locks that were held.
    held_locks: usize,
    /// The number of locks that were waited for.
    waited_locks: usize,
    /// The locks with the longest single hold.
    held: Vec<LockView>,
    /// The locks with the longest single wait.
    waited: Vec<LockView>,
}

/// Runs the program, and exits like it.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Error> {
    let mut settings = Settings::default();
    settings.which.trace = functions().map(|(name, _)| format!("{name:?}")).collect();
    settings.values = CallValues {
        arguments: 2,
        result: true,
        callers: true,
        stacks: args.stacks,
        ..CallValues::default()
    };
    let show = |launched: &mut _, interrupts: &_| show(args, launched, interrupts);
    args.target.run(settings, show)
}

fn show(args: &Args, launched: &mut Launched, interrupts: &Interrupts) -> Result<(), Error> {
    let failed = |error| Error::source("the rings", error);
    let rings = launched.rings().clone();
    let mut places = Places::of_running(launched.generated());
    let mut events = Events::new(launched, interrupts)?;
    let mut out = Out::new();
    let (mut locks, mut inversions) = (Locks::default(), Vec::new());
    loop {
        if !events.is_ready().map_err(failed)? {
            out.flush()?;
        }
        if !locks.next(&mut events).map_err(failed)? {
            break;
        }
        for inversion in locks.inversions(events.names(), &mut places) {
            match args.json {
                true => inversions.push(inversion),
                false => write(&inversion, &mut out)?,
            }
        }
    }
    let lost = locks.lost.saturating_add(rings.events_without_ring());
    let (held, held_locks) = locks.held(&events, &mut places, args.lines);
    let (waited, waited_locks) = locks.waited(&events, &mut places, args.lines);
    if args.json {
        return json::write(&LocksView {
            lost,
            not_followed: locks.untold,
            inversions,
            held_locks,
            waited_locks,
            held,
            waited,
        });
    }
    for (what, locks, all) in [
        ("held", held, held_locks),
        ("waited for", waited, waited_locks),
    ] {
        let mut table = Table::new(&[
            ("longest", 0),
            ("total", 2),
            ("times", 1),
            ("lock", 0),
            ("at", 0),
        ]);
        for one in locks {
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
        let count = counted(all as u64, "lock");
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

/// Writes an inversion as a line, with stacks in further lines.
fn write(inversion: &InversionView, out: &mut Out) -> Result<(), Error> {
    let name = |name: &Option<String>, lock: &String| name.as_ref().unwrap_or(lock).clone();
    let orders = inversion.orders.iter().map(|order| {
        let thread = order.thread.to_string();
        let thread = escaped(&thread);
        let taken = name(&order.taken_name, &order.taken);
        let held = name(&order.held_name, &order.held);
        let (taken_at, held_at) = (&order.taken_at, &order.held_at);
        format!("{taken} was taken by {thread} at {taken_at} with {held} of {held_at}")
    });
    let orders: Vec<String> = orders.collect();
    out.line(format_args!("inversion: {}", orders.join("; but ")))?;
    for order in &inversion.orders {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_docs_have_the_schema() {
        json::check_schema::<LocksView>("locks");
    }
}
