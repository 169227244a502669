//! Measures the time of each format for an event, and its memory.
//!
//! ```text
//! cargo run --release -p fgraph-export --features svg --example throughput -- [EVENTS..]
//! ```
//!
//! Each export runs in a process of its own. The source makes up its events, in 4 threads, without
//! keeping them; the row `(source)` reads them and writes nothing.

use std::env;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use fgraph_export::{Export, Format};
use fgraph_trace::clock::{Anchor, Clock, ClockKind};
use fgraph_trace::event::What;
use fgraph_trace::names::{Description, DescriptionKind, Names};
use fgraph_trace::source::{SourceError, Upcoming};
use fgraph_trace::{Event, Source};

const FUNCTIONS: u32 = 300;
const THREADS: u32 = 4;
/// Some 10,000 stacks are distinct.
const DEPTH: usize = 9;
const PROCESS: u32 = 1000;

/// Makes up calls at random; the same ones each time.
struct MadeUp {
    clock: Clock,
    names: Names,
    left: u64,
    time: u64,
    random: u64,
    stacks: Vec<Vec<u32>>,
}

impl MadeUp {
    fn new(events: u64) -> Self {
        let mut names = Names::new(PROCESS);
        for function in 0..FUNCTIONS {
            names.add(Description {
                kind: DescriptionKind::Function,
                fields: [
                    PROCESS.into(),
                    function.into(),
                    0x1000 + u64::from(function) * 64,
                    64,
                ],
                texts: [
                    format!("library::module::Type<T>::function_{function}"),
                    format!("/usr/lib/library{}.so", function % 3),
                ],
            });
        }
        Self {
            clock: Clock::new(ClockKind::Monotonic, Anchor::default(), 1_000_000_000),
            names,
            left: events,
            time: 1_000_000_000,
            random: 0x9e37_79b9_7f4a_7c15,
            stacks: vec![Vec::new(); THREADS as usize],
        }
    }
}

impl Source for MadeUp {
    fn next(&mut self) -> Result<Option<Event<'_>>, SourceError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let random = self.random;
        self.time += 20 + (random >> 40 & 0xff);
        // A thread goes on for a while, as they do.
        let thread = (self.left >> 6) as usize % self.stacks.len();
        let stack = &mut self.stacks[thread];
        let is_entry = stack.len() < 2 || stack.len() < DEPTH && random & 1 == 0;
        let what = if is_entry {
            // Each function calls three others.
            let caller = stack.last().copied().unwrap_or(0);
            let function = (caller * 3 + 1 + (random >> 8) as u32 % 3) % FUNCTIONS;
            stack.push(function);
            What::Entry {
                function,
                arguments: &[],
                caller: None,
                is_entry_only: false,
            }
        } else {
            let function = stack.pop().unwrap_or(0);
            What::Return {
                function,
                result: &[],
            }
        };
        Ok(Some(Event::new(
            self.time,
            PROCESS,
            PROCESS + thread as u32,
            what,
        )))
    }

    fn upcoming(&self) -> Option<Upcoming<'_>> {
        None
    }

    fn is_over(&self) -> bool {
        self.left == 0
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    fn names(&self) -> &Names {
        &self.names
    }
}

/// The most memory that this process has had, in KiB.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn size(path: &Path) -> u64 {
    match fs::read_dir(path) {
        Ok(files) => files.flatten().map(|file| size(&file.path())).sum(),
        Err(_) => fs::metadata(path).map_or(0, |file| file.len()),
    }
}

fn measure(format: &str, events: u64) -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("export");
    let mut source = MadeUp::new(events);
    let begin = Instant::now();
    if let Ok(format) = format.parse::<Format>() {
        let mut export = Export::create(format, &path)?;
        export.advance(&mut source)?;
        export.finish(&source)?;
    } else {
        while let Some(event) = source.next()? {
            std::hint::black_box(event);
        }
    }
    let took = begin.elapsed();
    println!(
        "{format:12} {events:>12} {:>8.1} {:>8.2} {:>8.1} {:>10.1}",
        took.as_nanos() as f64 / events as f64,
        took.as_secs_f64(),
        peak() as f64 / 1024.0,
        size(&path) as f64 / (1024.0 * 1024.0),
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let [only, format, events] = arguments.as_slice()
        && only == "--only"
    {
        return measure(format, events.parse()?);
    }
    let counts = match arguments.as_slice() {
        [] => vec!["1000000".to_owned(), "10000000".to_owned()],
        counts => counts.to_vec(),
    };
    println!("format             events ns/event  seconds peak MiB output MiB");
    let names = Format::ALL.iter().map(|format| format.name());
    for format in std::iter::once("(source)").chain(names) {
        for events in &counts {
            let program = env::current_exe()?;
            let status = Command::new(program)
                .args(["--only", format, events])
                .status()?;
            if !status.success() {
                return Err(format!("{format} has failed").into());
            }
        }
    }
    Ok(())
}
