//! Events that are made up, and what becomes of them when they are followed naively.

use std::collections::HashMap;

use fgraph_trace::clock::{Anchor, Clock, ClockKind};
use fgraph_trace::event::What;
use fgraph_trace::names::{Description, DescriptionKind, Names, process_number};
use fgraph_trace::schedule::{Change, Schedule, State};
use fgraph_trace::source::{SourceError, Upcoming};
use fgraph_trace::{Event, Source};

/// The process that has described its functions; 200 is its child, 300 has its own.
pub(crate) const PARENT: u32 = 100;
pub(crate) const CHILD: u32 = 200;
pub(crate) const STRANGER: u32 = 300;

/// Processes and their threads.
pub(crate) const THREADS: [(u32, u32); 6] = [
    (PARENT, 100),
    (PARENT, 101),
    (PARENT, 102),
    (CHILD, 200),
    (CHILD, 201),
    (STRANGER, 300),
];

/// Index, name, module, address. The one with no name is shown by its address.
const FUNCTIONS: &[(u32, &str, &str, u64)] = &[
    (1, "main", "/usr/bin/server", 0x1000),
    (
        2,
        "std::vec<int, std::allocator<int>>::push(int&&)",
        "/usr/bin/server",
        0x1100,
    ),
    (
        3,
        "a \"quoted\" name, with a comma",
        "/usr/bin/server",
        0x1200,
    ),
    (4, "semi;colon", "/usr/lib/libone.so", 0x2000),
    (5, "größe_日本語", "/usr/lib/libone.so", 0x2100),
    (6, "back\\slash $x {y} (1) %s", "/usr/lib/libone.so", 0x2200),
    (7, "<T as core::Trait>::f", "/opt/other/libone.so", 0x3000),
    (8, "", "/opt/other/libone.so", 0x3100),
    (9, "two\nlines\tand a tab", "/opt/other/libone.so", 0x3200),
    (10, "twin", "/usr/lib/libone.so", 0x2300),
    (11, "twin", "/opt/other/libone.so", 0x3300),
    (12, "recursive", "/usr/bin/server", 0x1300),
];
/// Index of a function without a description.
const UNKNOWN: u32 = 40;

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Entry(u32, Vec<u64>),
    /// A call without an end.
    Only(u32, Vec<u64>),
    Return(u32, Vec<u64>),
    Unwound(u32),
    Mark(String),
    /// The number of events, and the number of ends of calls among them.
    Lost(u64, Option<u64>),
}

/// Events, each with its time in nanoseconds, process and thread.
#[derive(Debug)]
pub(crate) struct Script {
    events: Vec<(u64, u32, u32, Step)>,
    next: usize,
    words: Vec<u64>,
    clock: Clock,
    names: Names,
    schedule: Option<Schedule>,
}

/// A call, as it is expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) process: u32,
    pub(crate) thread: u32,
    pub(crate) function: String,
    pub(crate) module: String,
    pub(crate) start: u64,
    /// Until its end; if that is missing, until the last event of its thread before.
    pub(crate) duration: u64,
    /// The time for sure without the calls in it.
    pub(crate) own: u64,
    /// The time without the calls in it, as it is seen in a timeline.
    pub(crate) seen: u64,
    pub(crate) depth: usize,
    pub(crate) caller: String,
    pub(crate) ended: &'static str,
    pub(crate) arguments: Vec<u64>,
    pub(crate) result: Vec<u64>,
    /// Index of the call around it in the order of begins.
    pub(crate) parent: Option<usize>,
}

/// The times of the clocks when the script begins.
pub(crate) const MONOTONIC: u64 = 5_000_000_000_000;
pub(crate) const REALTIME: u64 = 1_700_000_000_000_000_000;
const TICKS: u64 = 77_000;

/// Index of a function that [`Script::with_python`] describes.
pub(crate) const PYTHON: u32 = 30;

impl Script {
    /// Describes a function of Python, `app.handler`.
    pub(crate) fn with_python(mut self) -> Self {
        self.names.add(Description {
            kind: DescriptionKind::Function,
            fields: [PARENT.into(), PYTHON.into(), 0, 0],
            texts: ["app.handler", "py"].map(str::to_owned),
        });
        self
    }

    /// Events in the order of time.
    pub(crate) fn of(events: Vec<(u64, u32, u32, Step)>) -> Self {
        let first = Anchor::new(TICKS, MONOTONIC, REALTIME);
        let mut names = Names::new(PARENT);
        let mut add = |kind, fields, name: &str, module: &str| {
            let texts = [name.to_owned(), module.to_owned()];
            names.add(Description {
                kind,
                fields,
                texts,
            });
        };
        for &(index, name, module, address) in FUNCTIONS {
            let fields = [PARENT.into(), index.into(), address, 16];
            add(DescriptionKind::Function, fields, name, module);
            // Some have a known place in their source: both functions of a name, or none.
            if index % 2 == 0 && name != "twin" {
                let fields = [PARENT.into(), index.into(), u64::from(index) * 10, 0];
                add(DescriptionKind::Source, fields, "src/größe \"2\".c", "");
            }
        }
        let fields = [STRANGER.into(), 1, 0x1000, 16];
        add(
            DescriptionKind::Function,
            fields,
            "elsewhere",
            "/usr/bin/stranger",
        );
        for (process, parent, name) in [
            (PARENT, 1, "server"),
            (CHILD, PARENT, "worker \"2\"; größe"),
            (STRANGER, 1, "stranger"),
            (process_number(PARENT, 1), PARENT, "next"),
        ] {
            add(
                DescriptionKind::Process,
                [process.into(), parent.into(), 0, 0],
                name,
                "",
            );
        }
        for (process, thread) in THREADS {
            let fields = [process.into(), thread.into(), 0, 0];
            add(
                DescriptionKind::Thread,
                fields,
                &format!("thread \"{thread}\""),
                "",
            );
        }
        // A tick is half a nanosecond.
        let clock = Clock::new(ClockKind::Tsc, first, 2_000_000_000);
        Self {
            events,
            next: 0,
            words: Vec::new(),
            clock,
            names,
            schedule: None,
        }
    }

    /// Adds switches: time in nanoseconds, thread, new state, processor.
    pub(crate) fn switched(mut self, switches: &[(u64, u32, State, u32)]) -> Self {
        let schedule = self.schedule.get_or_insert_default();
        for &(time, thread, state, cpu) in switches {
            let (time, cpu) = (TICKS + 2 * time, Some(cpu));
            schedule.add(thread, Change::Switch { time, state, cpu });
        }
        self
    }

    /// Adds samples: time, thread, and its time on processors and waiting for one, in nanoseconds.
    pub(crate) fn sampled(mut self, samples: &[(u64, u32, u64, u64)]) -> Self {
        let schedule = self.schedule.get_or_insert_default();
        for &(time, thread, running, runnable) in samples {
            let sample = Change::Sample {
                time: TICKS + 2 * time,
                running: 2 * running,
                runnable: 2 * runnable,
            };
            schedule.add(thread, sample);
        }
        self
    }

    /// Calls of all threads at random, with all that may happen to them. The same seed always gives
    /// the same calls.
    pub(crate) fn random(seed: u64, events: usize) -> Self {
        let mut state = seed | 1;
        let mut random = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 16) % below
        };
        let mut stacks: Vec<Vec<u32>> = vec![Vec::new(); THREADS.len()];
        let mut all = Vec::new();
        let mut time = 1000;
        while all.len() < events {
            let index = random(THREADS.len() as u64) as usize;
            let (process, thread) = THREADS[index];
            // Often no time passes.
            time += random(4) * random(1000);
            let stack = &mut stacks[index];
            let step = match random(100) {
                0 => Step::Mark(format!("mark \"{}\" größe; at {time}", all.len())),
                1 => {
                    // Ends are missing, and it is known or not how many.
                    let ends = (stack.len() - stack.len() / 2) as u64;
                    stack.truncate(stack.len() / 2);
                    let is_known = random(3) > 0;
                    Step::Lost(ends + 1 + random(50), is_known.then_some(ends))
                }
                2 => Step::Return(13 + random(3) as u32, vec![]),
                3 if stack.len() > 1 => {
                    // Thrown through some calls.
                    for _ in 0..random(3) {
                        stack.pop();
                    }
                    stack.pop().map_or(Step::Lost(1, None), Step::Unwound)
                }
                n if stack.is_empty() || stack.len() < 12 && n < 55 => {
                    let last = stack.last().copied();
                    let function = match random(16) {
                        0..=2 => last.unwrap_or(1),
                        3 => UNKNOWN,
                        n => 1 + (n as u32 - 4),
                    };
                    let arguments = match random(4) {
                        0 => vec![random(u64::MAX), random(9)],
                        _ => vec![],
                    };
                    if random(16) == 0 {
                        Step::Only(function, arguments)
                    } else {
                        stack.push(function);
                        Step::Entry(function, arguments)
                    }
                }
                _ => {
                    let function = stack.pop().unwrap_or(1);
                    let result = if random(4) == 0 {
                        vec![random(100)]
                    } else {
                        vec![]
                    };
                    Step::Return(function, result)
                }
            };
            all.push((time, process, thread, step));
        }
        Self::of(all)
    }

    fn function(process: u32, index: u32) -> (String, String) {
        if process == STRANGER && index == 1 {
            return ("elsewhere".to_owned(), "/usr/bin/stranger".to_owned());
        }
        match FUNCTIONS.iter().find(|function| function.0 == index) {
            Some(&(_, "", module, address)) => (format!("{address:#x}"), module.to_owned()),
            Some(&(_, name, module, _)) => (name.to_owned(), module.to_owned()),
            None => (format!("<lost name {index}>"), String::new()),
        }
    }

    /// The calls in the order in which they begin.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let mut rows: Vec<Row> = Vec::new();
        let mut stacks: HashMap<u32, (u64, Vec<(u32, usize)>)> = HashMap::new();
        let end = |rows: &mut Vec<Row>, row: usize, time: u64, ended: &'static str| {
            let row = &mut rows[row];
            row.duration = MONOTONIC + time - row.start;
            row.ended = ended;
        };
        for &(time, process, thread, ref step) in &self.events {
            let (before, stack) = stacks.entry(thread).or_default();
            let before = std::mem::replace(before, time);
            let missing = |rows: &mut Vec<Row>, row| end(rows, row, before, "missing");
            let innermost = stack.last().map(|&(_, row)| row);
            // The time since the event before belongs to the innermost call, if that is known.
            let mut is_known = !matches!(step, Step::Lost(..));
            let ended = match step {
                Step::Return(index, _) => Some((index, "returned")),
                Step::Unwound(index) => Some((index, "unwound")),
                _ => None,
            };
            if let Some((index, ended)) = ended
                && let Some(depth) = stack.iter().rposition(|(open, _)| open == index)
            {
                is_known = depth + 1 == stack.len();
                stack
                    .drain(depth + 1..)
                    .for_each(|(_, row)| missing(&mut rows, row));
                if let Some((_, row)) = stack.pop() {
                    end(&mut rows, row, time, ended);
                    if let Step::Return(_, result) = step {
                        rows[row].result.clone_from(result);
                    }
                }
            }
            if let Some(innermost) = innermost.filter(|_| is_known) {
                rows[innermost].own += time - before;
            }
            match step {
                Step::Entry(index, arguments) | Step::Only(index, arguments) => {
                    let is_only = matches!(step, Step::Only(..));
                    let (function, module) = Self::function(process, *index);
                    rows.push(Row {
                        process,
                        thread,
                        function,
                        module,
                        start: MONOTONIC + time,
                        duration: 0,
                        own: 0,
                        seen: 0,
                        depth: stack.len(),
                        caller: innermost.map_or(String::new(), |row| rows[row].function.clone()),
                        ended: if is_only { "entry_only" } else { "open" },
                        arguments: arguments.clone(),
                        result: Vec::new(),
                        parent: innermost,
                    });
                    if !is_only {
                        stack.push((*index, rows.len() - 1));
                    }
                }
                Step::Lost(_, ends) => {
                    let ends = ends.map_or(stack.len(), |ends| ends as usize);
                    stack
                        .drain(stack.len().saturating_sub(ends)..)
                        .for_each(|(_, row)| missing(&mut rows, row));
                }
                _ => {}
            }
        }
        let last = self.events.iter().map(|event| event.0).max().unwrap_or(0);
        for (before, stack) in stacks.into_values() {
            if let Some(&(_, innermost)) = stack.last() {
                rows[innermost].own += last - before;
            }
            for (_, row) in stack {
                end(&mut rows, row, last, "open");
            }
        }
        for at in 0..rows.len() {
            let duration = rows[at].duration;
            rows[at].seen = rows[at].seen.wrapping_add(duration);
            if let Some(parent) = rows[at].parent {
                rows[parent].seen = rows[parent].seen.wrapping_sub(duration);
            }
        }
        rows
    }

    /// Thread, time and text of marks.
    pub(crate) fn marks(&self) -> Vec<(u32, u64, String)> {
        let mark = |event: &(u64, u32, u32, Step)| match &event.3 {
            Step::Mark(text) => Some((event.2, MONOTONIC + event.0, text.clone())),
            _ => None,
        };
        self.events.iter().filter_map(mark).collect()
    }

    /// Thread and number of events that are missing.
    pub(crate) fn lost(&self) -> Vec<(u32, u64)> {
        let lost = |event: &(u64, u32, u32, Step)| match event.3 {
            Step::Lost(events, _) => Some((event.2, events)),
            _ => None,
        };
        self.events.iter().filter_map(lost).collect()
    }

    /// Thread and time of what is missing, and how many events that is.
    pub(crate) fn events_lost(&self) -> Vec<(u32, u64, u64)> {
        let lost = |event: &(u64, u32, u32, Step)| match event.3 {
            Step::Lost(events, _) => Some((event.2, MONOTONIC + event.0, events)),
            _ => None,
        };
        self.events.iter().filter_map(lost).collect()
    }

    /// The words of arguments and results, added up.
    pub(crate) fn words(&self) -> u64 {
        let rows = self.events.iter().flat_map(|event| match &event.3 {
            Step::Entry(_, words) | Step::Only(_, words) => words.clone(),
            _ => vec![],
        });
        rows.fold(0, u64::wrapping_add)
    }
}

impl Source for Script {
    fn next(&mut self) -> Result<Option<Event<'_>>, SourceError> {
        let Some((time, process, thread, step)) = self.events.get(self.next) else {
            return Ok(None);
        };
        self.next += 1;
        let what = match step {
            Step::Entry(function, arguments) | Step::Only(function, arguments) => What::Entry {
                function: *function,
                arguments,
                caller: None,
                is_entry_only: matches!(step, Step::Only(..)),
            },
            Step::Return(function, result) => What::Return {
                function: *function,
                result,
            },
            Step::Unwound(function) => What::Unwound {
                function: *function,
            },
            Step::Mark(text) => {
                self.words = vec![text.len() as u64];
                for bytes in text.as_bytes().chunks(8) {
                    let mut word = [0; 8];
                    word[..bytes.len()].copy_from_slice(bytes);
                    self.words.push(u64::from_le_bytes(word));
                }
                What::Mark(&self.words)
            }
            Step::Lost(events, ends) => What::Lost {
                events: *events,
                ends: *ends,
            },
        };
        Ok(Some(Event::new(TICKS + 2 * time, *process, *thread, what)))
    }

    fn upcoming(&self) -> Option<Upcoming<'_>> {
        None
    }

    fn is_over(&self) -> bool {
        self.next == self.events.len()
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    fn names(&self) -> &Names {
        &self.names
    }

    fn schedule(&self) -> Option<&Schedule> {
        self.schedule.as_ref()
    }
}
