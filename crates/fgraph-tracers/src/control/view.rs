//! Formats events as the text of a tracer.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fgraph::Untraced;
use fgraph_trace::clock::Clock;
use fgraph_trace::event::{What, mark_text};
use fgraph_trace::graph::FunctionGraph;
use fgraph_trace::names::Names;
use fgraph_trace::source::{Event, Lanes, Merge, SourceError, Upcoming};
use fgraph_trace::{Live, Source};

use crate::support::caller::ReturnsTo;

/// Text of a current tracer.
#[derive(Debug)]
pub(super) enum View {
    Graph(FunctionGraph),
    Calls(Calls),
}

impl View {
    /// Appends the text of the source's next event; `false` if there is none now.
    pub(super) fn write_event(
        &mut self,
        source: &mut impl Source,
        out: &mut String,
    ) -> Result<bool, SourceError> {
        match self {
            Self::Graph(graph) => graph.write_event(source, out),
            Self::Calls(calls) => calls.write_event(source, out),
        }
    }
}

/// Text of the tracer `function`: a line for each call.
#[derive(Debug, Default)]
pub(super) struct Calls {
    is_begun: bool,
    /// Names of the calling functions, keyed by the return address.
    callers: HashMap<u64, String>,
}

/// The kernel's heading without `irq-info`, which a process does not have.
const HEADING: &str = "\
# tracer: function
#
#           TASK-PID     CPU#     TIMESTAMP  FUNCTION
#              | |         |         |         |
";

impl Calls {
    fn write_event(
        &mut self,
        source: &mut impl Source,
        out: &mut String,
    ) -> Result<bool, SourceError> {
        if !self.is_begun {
            self.is_begun = true;
            out.push_str(HEADING);
        }
        let Some(event) = source.next()? else {
            return Ok(false);
        };
        let (time, process, thread) = (event.time, event.process, event.thread);
        let cpu = event
            .cpu
            .map_or("---".to_owned(), |cpu| format!("{cpu:03}"));
        let mut caller = None;
        let text = match event.what {
            What::Entry {
                function,
                caller: address,
                ..
            } => {
                caller = address;
                Ok(function)
            }
            What::Mark(words) => Err(mark_text(words)),
            What::Lost { events, .. } => {
                let _ = writeln!(out, "CPU:{cpu} [LOST {events} EVENTS]");
                return Ok(true);
            }
            _ => return Ok(true),
        };
        let names = source.names();
        let name = names.thread(process, thread).unwrap_or("<...>");
        let time = source.clock().timestamp(time);
        let _ = write!(out, "{name:>16}-{thread:<7} [{cpu}]  {time}: ");
        match text {
            Ok(function) => {
                match names.function(process, function) {
                    Some(known) if !known.name.is_empty() => out.push_str(&known.name),
                    Some(known) => _ = write!(out, "{:#x}", known.address),
                    None => _ = write!(out, "<lost name {function}>"),
                }
                if let Some(caller) = caller {
                    let name = self.callers.entry(caller);
                    let name = name.or_insert_with(|| ReturnsTo(caller as usize).to_string());
                    let _ = write!(out, " <-{name}");
                }
            }
            Err(text) if text.starts_with(STACK) => out.push_str(text.trim_end()),
            Err(text) => _ = write!(out, "tracing_mark_write: {}", text.trim_end()),
        }
        out.push('\n');
        Ok(true)
    }
}

/// Start of the mark of a stack.
pub(super) const STACK: &str = "<stack trace>";

/// Skips the events until a time.
pub(super) fn leave_out<L: Lanes>(
    events: &mut Merge<L>,
    until: &AtomicU64,
) -> Result<(), SourceError> {
    let until = until.load(Ordering::Relaxed);
    while events.next_time()?.is_some_and(|time| time <= until) {
        events.next()?;
    }
    Ok(())
}

/// Text of the trace, each call once: the kernel's `trace_pipe`. Reading waits for text, and ends
/// with the tracer.
#[derive(Debug)]
pub struct TracePipe {
    events: Taken,
    view: View,
    text: String,
    /// Number of bytes of the text that were read.
    read: usize,
    is_begun: bool,
}

/// Events consumed from rings, and the time up to which they were.
#[derive(Debug)]
struct Taken {
    live: Live,
    until: Arc<AtomicU64>,
}

impl Source for Taken {
    fn next(&mut self) -> Result<Option<Event<'_>>, SourceError> {
        let event = self.live.next()?;
        if let Some(event) = &event {
            self.until.fetch_max(event.time, Ordering::Relaxed);
        }
        Ok(event)
    }

    fn upcoming(&self) -> Option<Upcoming<'_>> {
        self.live.upcoming()
    }

    fn is_over(&self) -> bool {
        self.live.is_over()
    }

    fn clock(&self) -> &Clock {
        self.live.clock()
    }

    fn names(&self) -> &Names {
        self.live.names()
    }
}

/// Time for which a reader waits before it checks whether the tracer has ended.
const WAIT: Duration = Duration::from_millis(100);
/// Bytes of text that are formatted at once.
const BLOCK: usize = 64 << 10;

impl TracePipe {
    /// Stores the time of each consumed event in `until`.
    pub(super) fn new(live: Live, view: View, until: Arc<AtomicU64>) -> Self {
        Self {
            events: Taken { live, until },
            view,
            text: String::new(),
            read: 0,
            is_begun: false,
        }
    }

    /// Formats the events that are there, and waits at most `wait` for some; `false` if there are
    /// none.
    pub(super) fn fill(&mut self, wait: Duration) -> Result<bool, SourceError> {
        let _untraced = Untraced::new();
        if self.read < self.text.len() {
            return Ok(true);
        }
        self.text.clear();
        self.read = 0;
        if !self.events.live.wait(wait)? {
            return Ok(false);
        }
        if !self.is_begun {
            // If the previous reader left part of a sub-buffer, that begins with events that it
            // consumed.
            leave_out(&mut self.events.live, &self.events.until)?;
            self.is_begun = true;
        }
        while self.text.len() < BLOCK && self.view.write_event(&mut self.events, &mut self.text)? {}
        Ok(!self.text.is_empty())
    }

    /// Returns all text that there is now.
    pub(super) fn drain(&mut self, wait: Duration) -> Result<String, SourceError> {
        let mut all = String::new();
        while self.fill(wait)? {
            all.push_str(&self.text[self.read..]);
            self.read = self.text.len();
        }
        Ok(all)
    }
}

impl TracePipe {
    /// Returns the text that has come since the last read, after waiting at most `wait`; empty if
    /// none has come. `None` when the tracer has ended.
    ///
    /// # Errors
    ///
    /// Says what is wrong with the events.
    pub fn next_text(&mut self, wait: Duration) -> Result<Option<&str>, SourceError> {
        if !self.fill(wait)? {
            let live = &mut self.events.live;
            let is_over = live.is_over() && !live.is_ready()?;
            return Ok((!is_over).then_some(""));
        }
        let from = std::mem::replace(&mut self.read, self.text.len());
        Ok(Some(&self.text[from..]))
    }
}

impl Read for TracePipe {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while !self.fill(WAIT).map_err(io::Error::other)? {
            let live = &mut self.events.live;
            if live.is_over() && !live.is_ready().map_err(io::Error::other)? {
                return Ok(0);
            }
        }
        let from = &self.text.as_bytes()[self.read..];
        let len = from.len().min(buffer.len());
        buffer[..len].copy_from_slice(&from[..len]);
        self.read += len;
        Ok(len)
    }
}
