//! Locks: orders that can deadlock, holds and waits.
//!
//! [`Locks`] reads calls of [functions](fgraph_symbols::locks::functions) for locks, with two
//! arguments, the result and the caller, and judges them. A lock is known by its address, until it
//! is destroyed.

mod judge;

use std::cmp::Reverse;

use fgraph_trace::Source;
use fgraph_trace::event::What;
use fgraph_trace::names::{Names, process_id};
use fgraph_trace::pairing::Ending;
use fgraph_trace::source::SourceError;
use serde::Serialize;

pub use self::judge::Locks;
use self::judge::{Inversion, Lock, Name, Place, Times};
use crate::addresses::{Addresses, is_of_agent};
use crate::thread::Thread;

/// Locks that were taken in contradictory orders.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InversionView {
    /// The id of the process.
    pub process: u32,
    /// Each takes the lock that the next one holds; the last one takes that of the first.
    pub orders: Vec<OrderView>,
}

/// A lock that was taken while another one was held.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OrderView {
    /// The thread that took the lock.
    pub thread: Thread,
    /// The address of the lock, in hexadecimal.
    pub taken: String,
    /// The variable that is or contains the lock; null if it is unknown.
    pub taken_name: Option<String>,
    /// The place where it was taken.
    pub taken_at: String,
    /// The calls around it, the innermost first; empty without `--stacks`.
    pub taken_stack: Vec<String>,
    /// The address of the lock that was held.
    pub held: String,
    /// The variable that is or contains that lock; null if it is unknown.
    pub held_name: Option<String>,
    /// The place where the held lock was taken.
    pub held_at: String,
    /// The calls around the taking of the held lock, the innermost first.
    pub held_stack: Vec<String>,
}

/// The hold or wait times of a lock.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LockView {
    /// The id of its process.
    pub process: u32,
    /// Its address, in hexadecimal.
    pub lock: String,
    /// The variable that is or contains the lock; null if it is unknown.
    pub name: Option<String>,
    /// The place where it was taken for the longest time.
    pub at: String,
    /// The calls around this place, the innermost first; empty without `--stacks`.
    pub stack: Vec<String>,
    /// The thread that held it during the longest wait; null if it is unknown.
    pub holder: Option<HolderView>,
    /// The number of holds or waits.
    pub times: u64,
    /// Their time in all.
    pub total_ns: u64,
    /// The longest of them.
    pub longest_ns: u64,
}

/// A thread that holds a lock.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HolderView {
    /// The thread.
    pub thread: Thread,
    /// The place where it has taken the lock.
    pub at: String,
    /// The calls around this place, the innermost first; empty without `--stacks`.
    pub stack: Vec<String>,
}

impl Locks {
    /// Judges the next event of a source; `false` if there is none now.
    ///
    /// # Errors
    ///
    /// Errors of the source.
    pub fn next(&mut self, source: &mut impl Source) -> Result<bool, SourceError> {
        let Some(event) = source.next()? else {
            return Ok(false);
        };
        let (now, thread) = (event.time, (event.process, event.thread));
        match event.what {
            What::Entry {
                function,
                arguments,
                caller,
                is_entry_only,
            } => {
                let arguments = [0, 1].map(|nth| arguments.get(nth).copied().unwrap_or(0));
                // The address after the last instruction of a function belongs to another one.
                let at = caller.unwrap_or(0).saturating_sub(1);
                let stack = event.stack.get(1..).unwrap_or_default();
                let stack = self.stacks.number(stack);
                let place = Place { at, stack };
                self.enter(thread, function, arguments, place, now, source.names());
                if is_entry_only {
                    // It is unknown if it has taken the lock.
                    self.leave(thread, function, None, now, Ending::Returned);
                }
            }
            What::Return { function, result } => {
                let result = result.first().copied();
                self.leave(thread, function, result, now, Ending::Returned);
            }
            // An unwound call ends, too.
            What::Unwound { function } => {
                self.leave(thread, function, None, now, Ending::Returned);
            }
            What::Dropped { function } => self.leave(thread, function, None, now, Ending::Lost),
            What::Lost { events, ends } => self.lose(thread, events, ends),
            What::Mark(_) => {}
        }
        Ok(true)
    }

    /// Takes the inversions that were found since the last call, each pair of locks once per
    /// process.
    pub fn inversions(
        &mut self,
        names: &Names,
        addresses: &mut impl Addresses,
    ) -> Vec<InversionView> {
        let found = std::mem::take(&mut self.inversions);
        let found = found.iter();
        found
            .map(|it| self.inversion(it, names, addresses))
            .collect()
    }

    /// Returns the first `most` locks that were held, those with the longest single hold first, and
    /// the number of all.
    pub fn held(
        &self,
        source: &impl Source,
        addresses: &mut impl Addresses,
        most: usize,
    ) -> (Vec<LockView>, usize) {
        self.longest(|lock| &lock.held, source, addresses, most)
    }

    /// Returns the first `most` locks that were waited for, those with the longest single wait
    /// first, and the number of all.
    pub fn waited(
        &self,
        source: &impl Source,
        addresses: &mut impl Addresses,
        most: usize,
    ) -> (Vec<LockView>, usize) {
        self.longest(|lock| &lock.waited, source, addresses, most)
    }

    fn inversion(
        &self,
        found: &Inversion,
        names: &Names,
        addresses: &mut impl Addresses,
    ) -> InversionView {
        let process = found.process;
        let orders = found.orders.iter();
        let orders = orders.map(|order| OrderView {
            thread: Thread::of(names, process, order.thread),
            taken: format!("{:#x}", order.taken),
            taken_name: addresses.variable(names, process, order.taken),
            taken_at: addresses.at(names, process, order.taken_at.at),
            taken_stack: self.stack(order.taken_at, process, names, addresses),
            held: format!("{:#x}", order.held),
            held_name: addresses.variable(names, process, order.held),
            held_at: addresses.at(names, process, order.held_at.at),
            held_stack: self.stack(order.held_at, process, names, addresses),
        });
        InversionView {
            process: process_id(process),
            orders: orders.collect(),
        }
    }

    fn longest(
        &self,
        of: fn(&Lock) -> &Times,
        source: &impl Source,
        addresses: &mut impl Addresses,
        most: usize,
    ) -> (Vec<LockView>, usize) {
        let (names, clock) = (source.names(), source.clock());
        let locks = self.locks.iter().map(|(&name, lock)| (name, of(lock)));
        // The agent's own locks do not belong to the program.
        let is_ours = |(name, times): &(Name, &Times)| is_of_agent(names, name.0, times.place.at);
        let mut locks: Vec<_> = locks
            .filter(|lock| lock.1.count > 0 && !is_ours(lock))
            .collect();
        locks.sort_by_key(|(name, times)| (Reverse(times.longest), *name));
        let all = locks.len();
        locks.truncate(most);
        let view = |((process, address), times): (Name, &Times)| LockView {
            process: process_id(process),
            lock: format!("{address:#x}"),
            name: addresses.variable(names, process, address),
            at: addresses.at(names, process, times.place.at),
            stack: self.stack(times.place, process, names, addresses),
            holder: times.holder.map(|holder| HolderView {
                thread: Thread::of(names, process, holder.thread),
                at: addresses.at(names, process, holder.place.at),
                stack: self.stack(holder.place, process, names, addresses),
            }),
            times: times.count,
            total_ns: clock.nanoseconds(times.sum),
            longest_ns: clock.nanoseconds(times.longest),
        };
        (locks.into_iter().map(view).collect(), all)
    }

    /// Returns the calls around a place.
    fn stack(
        &self,
        place: Place,
        process: u32,
        names: &Names,
        addresses: &mut impl Addresses,
    ) -> Vec<String> {
        let calls = self.stacks.get(place.stack).iter();
        let calls = calls.map(|address| addresses.at(names, process, address.saturating_sub(1)));
        calls.collect()
    }
}
