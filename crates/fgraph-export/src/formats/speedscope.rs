//! Speedscope's JSON: the begins and ends of each thread, one thread after the other.

use std::io::{self, Write};
use std::path::Path;

use fgraph_analysis::calls::{At, Call, Open, Visitor};

use super::text::{Out, push, quoted, write_items};
use crate::names::{process_name, thread_name};
use crate::output::{Output, Trace};
use crate::spool::Spool;

pub(crate) struct Speedscope {
    out: Out,
    /// Pairs of numbers of each thread: the time since the previous pair, and twice the function,
    /// plus one at an end.
    spool: Spool,
    /// First and last time of each thread, in the state that counts.
    spans: Vec<(u64, u64)>,
    /// Bytes of the lines of events, which are written at the end.
    waiting: u64,
}

/// Bytes of the line of an event without its numbers.
const LINE: u64 = 29;

fn digits(number: u64) -> u64 {
    u64::from(number.checked_ilog10().unwrap_or(0)) + 1
}

impl Speedscope {
    pub(crate) fn new(out: Out, directory: Option<&Path>) -> io::Result<Self> {
        Ok(Self {
            out,
            spool: Spool::new(directory)?,
            spans: Vec::new(),
            waiting: 0,
        })
    }

    fn push(&mut self, at: &At<'_>, event: u64) -> io::Result<()> {
        let lane = at.thread.index;
        let last = &mut self.spans[lane].1;
        let since = at.measured - *last;
        *last = at.measured;
        self.waiting += LINE + digits(event / 2) + digits(at.measured);
        self.spool.push_number(lane, since)?;
        self.spool.push_number(lane, event)
    }

    fn write_thread(&mut self, lane: usize) -> io::Result<()> {
        let (start, end) = self.spans[lane];
        write!(
            self.out,
            "\"unit\":\"nanoseconds\",\"startValue\":{start},\"endValue\":{end},\"events\":["
        )?;
        let mut reader = self.spool.read(lane);
        let (mut time, mut line) = (start, Vec::new());
        let mut comma: &[u8] = b"\n";
        while let Some(since) = reader.number()?
            && let Some(event) = reader.number()?
        {
            time += since;
            line.clear();
            line.extend_from_slice(comma);
            comma = b",\n";
            line.extend_from_slice(match event & 1 {
                0 => b"{\"type\":\"O\",\"frame\":",
                _ => b"{\"type\":\"C\",\"frame\":",
            });
            push(&mut line, event / 2);
            line.extend_from_slice(b",\"at\":");
            push(&mut line, time);
            line.push(b'}');
            self.out.write_all(&line)?;
        }
        self.out.write_all(b"]")
    }
}

impl Visitor for Speedscope {
    type Error = io::Error;

    fn thread(&mut self, at: &At<'_>) -> io::Result<()> {
        self.spans.push((at.measured, at.measured));
        Ok(())
    }

    fn enter(&mut self, at: &At<'_>, call: &Open) -> io::Result<()> {
        let symbol = call.data;
        self.push(at, 2 * u64::from(symbol))
    }

    fn exit(&mut self, at: &At<'_>, call: &Call) -> io::Result<()> {
        self.push(at, 2 * u64::from(call.slot) + 1)
    }
}

impl Output for Speedscope {
    fn waiting(&self) -> u64 {
        self.waiting
    }

    fn finish(mut self: Box<Self>, trace: &Trace<'_>) -> io::Result<()> {
        self.out.write_all(
            b"{\"$schema\":\"https://www.speedscope.app/file-format-schema.json\",\
              \"exporter\":\"fgraph\",\"activeProfileIndex\":0,\"shared\":{\"frames\":",
        )?;
        write_items(&mut self.out, trace.functions.iter(), |line, function| {
            let (name, file) = (quoted(&function.name), quoted(&function.module));
            let _ = write!(line, "{{\"name\":{name},\"file\":{file}}}");
        })?;
        self.out.write_all(b"},\"profiles\":[")?;
        for thread in trace.threads {
            let comma = if thread.index == 0 { "" } else { "," };
            let name = format!(
                "{} ({}), {} ({})",
                process_name(trace.names, thread.process),
                thread.process_id(),
                thread_name(trace.names, thread.process, thread.id),
                thread.id
            );
            write!(
                self.out,
                "{comma}\n{{\"type\":\"evented\",\"name\":{},",
                quoted(&name)
            )?;
            self.write_thread(thread.index)?;
            self.out.write_all(b"}")?;
        }
        self.out.write_all(b"]}\n")?;
        self.out.flush()
    }
}
