//! The function graph: each call with its duration and its depth, as the Linux kernel prints it.
//!
//! Callbacks write to a ring for each processor, without a lock: NMIs come here, too. Text is made
//! when the rings are read.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use fgraph_core::{Entry, FgraphOps, Function, Return};

use crate::clock;
use crate::cpu::{self, PROCESSORS};
use crate::serial::println;
use crate::trace::functions;

/// Events that a ring holds.
const ROOM: usize = 4096;

/// An event: the time, and in the other word function, task, depth and kind.
#[derive(Debug, Default)]
struct Slot {
    time: AtomicU64,
    word: AtomicU64,
}

#[derive(Debug)]
struct Ring {
    slots: Vec<Slot>,
    next: AtomicUsize,
}

/// An event, read.
#[derive(Clone, Copy, Debug)]
struct Event {
    processor: usize,
    time: u64,
    function: u32,
    task: u16,
    depth: u8,
    is_return: bool,
}

/// The data of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    depth: u8,
}

/// The tracer.
#[derive(Debug)]
pub(crate) struct Graph {
    rings: [Ring; PROCESSORS],
}

impl Graph {
    /// Makes a tracer with empty rings.
    pub(crate) fn new() -> Self {
        let ring = |_| Ring {
            slots: (0..ROOM).map(|_| Slot::default()).collect(),
            next: AtomicUsize::new(0),
        };
        Self {
            rings: core::array::from_fn(ring),
        }
    }

    fn put(&self, function: Function, task: u32, depth: u8, is_return: bool) {
        let ring = &self.rings[cpu::number()];
        // Relaxed: the event is read after the user is unregistered.
        let place = ring.next.fetch_add(1, Ordering::Relaxed);
        let Some(slot) = ring.slots.get(place) else {
            return;
        };
        let word = u64::from(function.index())
            | u64::from(task as u16) << 32
            | u64::from(depth) << 48
            | u64::from(is_return) << 56
            | 1 << 57;
        slot.time.store(clock::now(), Ordering::Relaxed);
        slot.word.store(word, Ordering::Relaxed);
    }

    /// Returns the number of events, and of those that found no room.
    pub(crate) fn events(&self) -> (usize, usize) {
        let counts = || {
            self.rings
                .iter()
                .map(|ring| ring.next.load(Ordering::Relaxed))
        };
        (
            counts().map(|count| count.min(ROOM)).sum(),
            counts().map(|count| count.saturating_sub(ROOM)).sum(),
        )
    }

    /// Prints the calls, at most `most` lines. Call it when the tracer is unregistered.
    pub(crate) fn print(&self, most: usize) {
        let mut events = self.sorted();
        println!("# CPU  TASK  DURATION                  FUNCTION CALLS");
        println!("# |    |     |   |                     |   |   |   |");
        let mut open: Vec<(u16, u64)> = Vec::new();
        let mut lines = 0;
        let mut at = 0;
        while at < events.len() && lines < most {
            let event = events[at];
            let name = functions::sites()[event.function as usize].name.as_str();
            let name = name.strip_prefix("kernel::").unwrap_or(name);
            let indent = usize::from(event.depth) * 2;
            let (cpu, task) = (event.processor, event.task);
            let after = events[at + 1..].iter().position(|next| next.task == task);
            let next = after.map(|after| at + 1 + after);
            let returns_next = next.filter(|&next| {
                events[next].is_return
                    && events[next].depth == event.depth
                    && events[next].function == event.function
            });
            match (event.is_return, returns_next) {
                (false, Some(next)) => {
                    let took = Micros(events[next].time.saturating_sub(event.time));
                    println!(" {cpu})  {task:>4}  {took} |  {:indent$}{name}();", "");
                    // Its return is on the same line.
                    events.remove(next);
                }
                (false, None) => {
                    println!(
                        " {cpu})  {task:>4}                |  {:indent$}{name}() {{",
                        ""
                    );
                    open.push((task, event.time));
                }
                (true, _) => {
                    let entered = open.iter().rposition(|&(of, _)| of == task);
                    let entered = entered.map(|place| open.remove(place).1);
                    match entered {
                        Some(start) => {
                            let took = Micros(event.time.saturating_sub(start));
                            println!(" {cpu})  {task:>4}  {took} |  {:indent$}}}", "");
                        }
                        None => println!(" {cpu})  {task:>4}                |  {:indent$}}}", ""),
                    }
                }
            }
            lines += 1;
            at += 1;
        }
    }

    /// Returns the events of both processors, the oldest first.
    fn sorted(&self) -> Vec<Event> {
        let mut events = Vec::new();
        for (processor, ring) in self.rings.iter().enumerate() {
            let count = ring.next.load(Ordering::Relaxed).min(ROOM);
            for slot in &ring.slots[..count] {
                let word = slot.word.load(Ordering::Relaxed);
                if word >> 57 == 0 {
                    continue;
                }
                events.push(Event {
                    processor,
                    time: slot.time.load(Ordering::Relaxed),
                    function: word as u32,
                    task: (word >> 32) as u16,
                    depth: (word >> 48) as u8,
                    is_return: word >> 56 & 1 != 0,
                });
            }
        }
        events.sort_by_key(|event| event.time);
        events
    }
}

impl FgraphOps for Graph {
    type Data = Call;

    fn entry(&self, call: &mut Entry<'_, Call>) -> Option<Call> {
        let depth = call
            .parent_data()
            .map_or(0, |parent| parent.depth.saturating_add(1));
        self.put(call.function(), call.thread_id(), depth, false);
        Some(Call { depth })
    }

    fn ret(&self, call: &mut Return<'_, Call>, data: Call) {
        self.put(call.function(), call.thread_id(), data.depth, true);
    }
}

/// A duration, as the kernel prints it.
struct Micros(u64);

impl core::fmt::Display for Micros {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:>4}.{:03} us   ", self.0 / 1000, self.0 % 1000)
    }
}
