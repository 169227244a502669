//! A processed profile of the Firefox Profiler, version 60.
//!
//! A sample is a stack and the time that the thread stayed in it, so the time of a function is
//! exact. The format wants whole columns of samples one after another, so they wait in a spool.

use std::io::{self, Write};
use std::path::Path;

use fgraph_analysis::calls::{At, Call, Open, Slot, ThreadId, Visitor};

use super::text::{Out, push, push_fraction, quoted, write_items};
use crate::names::{base_name, process_name, thread_name};
use crate::output::{Output, Trace};
use crate::spool::Spool;
use crate::stacks::{Frame, Stacks};

const VERSION: u32 = 60;
/// Decimal places of a nanosecond in milliseconds.
const MILLI: u32 = 6;

pub(crate) struct Firefox {
    out: Out,
    stacks: Stacks,
    /// Two lanes for each thread.
    spool: Spool,
    threads: Vec<State>,
}

/// State of a thread.
#[derive(Clone, Copy, Debug)]
struct State {
    start: u64,
    /// Time at which its current stack began.
    since: u64,
    samples: u64,
    marks: u64,
    /// Time of the last mark.
    marked: u64,
}

/// Lane with pairs of numbers: the stack, and its time.
fn samples(thread: usize) -> usize {
    2 * thread
}

/// Lane with the time since the previous mark, the number of bytes, and the bytes of its text.
fn marks(thread: usize) -> usize {
    2 * thread + 1
}

impl Firefox {
    pub(crate) fn new(out: Out, directory: Option<&Path>) -> io::Result<Self> {
        Ok(Self {
            out,
            stacks: Stacks::default(),
            spool: Spool::new(directory)?,
            threads: Vec::new(),
        })
    }

    /// Called before the stack changes.
    fn sample(&mut self, at: &At<'_>) -> io::Result<()> {
        let index = at.thread.index;
        let state = &mut self.threads[index];
        let time = at.time - state.since;
        if time == 0 {
            return Ok(());
        }
        state.since = at.time;
        state.samples += 1;
        let stack = self.stacks.current(at.thread) as u64;
        self.spool.push_number(samples(index), stack)?;
        self.spool.push_number(samples(index), time)
    }

    fn write_tables(&mut self, trace: &Trace<'_>) -> io::Result<()> {
        let out = &mut self.out;
        let nodes = self.stacks.nodes();
        let functions = trace.functions;
        let modules = trace.functions.modules();
        // Frames, functions and their names have the numbers of symbols. The number behind them is
        // that of the roots, which no sample and no other stack refers to.
        let root = functions.len();
        let frames = root + 1;
        let all = || 0..frames;
        write!(
            out,
            "\"shared\":{{\"stackTable\":{{\"length\":{},\"frame\":",
            nodes.len()
        )?;
        write_items(out, nodes, |line, node| match node.frame {
            Frame::Function(symbol) => push(line, symbol),
            Frame::Process(_) => push(line, root),
        })?;
        out.write_all(b",\"prefix\":")?;
        write_items(out, nodes, |line, node| match nodes[node.parent()].frame {
            Frame::Process(_) => line.extend_from_slice(b"null"),
            Frame::Function(_) => push(line, node.parent()),
        })?;
        write!(out, "}},\n\"frameTable\":{{\"length\":{frames},\"func\":")?;
        write_items(out, all(), push)?;
        out.write_all(b",\"category\":")?;
        write_items(out, all(), |line, n| {
            push(
                line,
                u8::from(n < root && trace.functions.is_python(n as Slot)),
            );
        })?;
        for (name, value) in [
            ("address", "-1"),
            ("inlineDepth", "0"),
            ("subcategory", "0"),
            ("nativeSymbol", "null"),
            ("innerWindowID", "null"),
            ("line", "null"),
            ("column", "null"),
        ] {
            write_same(out, name, frames, value)?;
        }
        write!(out, "}},\n\"funcTable\":{{\"length\":{frames},\"name\":")?;
        write_items(out, all(), push)?;
        out.write_all(b",\"resource\":")?;
        write_items(out, all(), |line, n| match n < root {
            true => push(line, functions.module_number(n as Slot)),
            false => push(line, -1),
        })?;
        for (name, value) in [
            ("isJS", "false"),
            ("relevantForJS", "false"),
            ("columnNumber", "null"),
        ] {
            write_same(out, name, frames, value)?;
        }
        let source = |n: usize| functions.get(n)?.source.as_ref();
        let mut files: Vec<&str> = (0..root)
            .filter_map(|n| source(n).map(|(file, _)| file.as_str()))
            .collect();
        files.sort_unstable();
        files.dedup();
        let files = files;
        out.write_all(b",\"source\":")?;
        write_items(out, all(), |line, n| {
            let file = source(n).and_then(|(file, _)| files.binary_search(&file.as_str()).ok());
            match file {
                Some(file) => push(line, file),
                None => line.extend_from_slice(b"null"),
            }
        })?;
        out.write_all(b",\"lineNumber\":")?;
        write_items(out, all(), |line, n| match source(n) {
            Some((_, number)) => push(line, *number),
            None => line.extend_from_slice(b"null"),
        })?;
        let count = modules.len();
        write!(out, "}},\n\"resourceTable\":{{\"length\":{count},\"name\":")?;
        write_items(out, 0..count, |line, n| push(line, frames + n))?;
        write_same(out, "lib", count, "null")?;
        write_same(out, "host", count, "null")?;
        write_same(out, "type", count, "1")?;
        out.write_all(
            b"},\n\"nativeSymbols\":{\"length\":0,\"libIndex\":[],\"address\":[],\"name\":[],\
              \"functionSize\":[]},\n",
        )?;
        write!(out, "\"sources\":{{\"length\":{}", files.len())?;
        write_same(out, "id", files.len(), "null")?;
        out.write_all(b",\"filename\":")?;
        // Their names come behind that of the markers.
        let first = frames + count + 1;
        write_items(out, 0..files.len(), |line, n| push(line, first + n))?;
        out.write_all(b"},\n\"stringArray\":")?;
        let names = functions.iter().map(|function| quoted(&function.name));
        let libraries = modules.iter().map(|path| quoted(base_name(path)));
        let texts = names
            .chain([quoted("(outside)")])
            .chain(libraries)
            .chain([quoted("Mark")])
            .chain(files.iter().map(|file| quoted(file)));
        write_items(out, texts, |line, text| {
            line.extend_from_slice(text.as_bytes());
        })?;
        out.write_all(b"},\n")
    }

    fn write_samples(&mut self, trace: &Trace<'_>, thread: &ThreadId, base: u64) -> io::Result<()> {
        let index = thread.index;
        let out = &mut self.out;
        let state = self.threads[index];
        // The last sample, outside of all calls, gives the end of the previous one.
        write!(
            out,
            "\"samples\":{{\"length\":{},\"weightType\":\"tracing-ms\",\"stack\":[",
            state.samples + 1
        )?;
        let mut line = Vec::new();
        let roots = self.stacks.nodes();
        let mut reader = self.spool.read(samples(index));
        while let Some(stack) = reader.number()?
            && reader.number()?.is_some()
        {
            line.clear();
            let is_outside = |node: &crate::stacks::Node| matches!(node.frame, Frame::Process(_));
            match roots.get(stack as usize).is_none_or(is_outside) {
                true => line.extend_from_slice(b"null"),
                false => push(&mut line, stack),
            }
            line.extend_from_slice(b",\n");
            out.write_all(&line)?;
        }
        out.write_all(b"null],\"weight\":[")?;
        let mut reader = self.spool.read(samples(index));
        while reader.number()?.is_some()
            && let Some(time) = reader.number()?
        {
            line.clear();
            push_fraction(&mut line, time, MILLI);
            line.extend_from_slice(b",\n");
            out.write_all(&line)?;
        }
        out.write_all(b"0],\"timeDeltas\":[")?;
        line.clear();
        push_fraction(&mut line, state.start.saturating_sub(base), MILLI);
        let mut reader = self.spool.read(samples(index));
        while reader.number()?.is_some()
            && let Some(time) = reader.number()?
        {
            line.extend_from_slice(b",\n");
            push_fraction(&mut line, time, MILLI);
            out.write_all(&line)?;
            line.clear();
        }
        out.write_all(&line)?;
        self.write_running(trace, thread)?;
        self.out.write_all(b"]},\n")
    }

    /// Writes the nanoseconds that a thread has run between each sample and the one before, if its
    /// states are known.
    fn write_running(&mut self, trace: &Trace<'_>, thread: &ThreadId) -> io::Result<()> {
        let mut spans = trace.states(thread).peekable();
        if spans.peek().is_none() {
            return Ok(());
        }
        self.out.write_all(b"],\"threadCPUDelta\":[null")?;
        let (mut time, mut before, mut line) = (self.threads[thread.index].start, 0, Vec::new());
        // The running time of the states that have ended.
        let mut ended = 0;
        let mut reader = self.spool.read(samples(thread.index));
        while reader.number()?.is_some()
            && let Some(took) = reader.number()?
        {
            time += took;
            while let Some(span) = spans.next_if(|span| span.end <= time) {
                ended += span.times[0];
            }
            let part = spans.peek().map_or(0, |span| {
                let since = u128::from(time.saturating_sub(span.begin));
                let length = u128::from(span.end - span.begin);
                (u128::from(span.times[0]) * since / length.max(1)) as u64
            });
            let ran = ended + part;
            line.clear();
            line.extend_from_slice(b",\n");
            push(&mut line, ran.saturating_sub(before));
            self.out.write_all(&line)?;
            before = ran;
        }
        Ok(())
    }

    fn write_markers(&mut self, index: usize, base: u64, name: usize) -> io::Result<()> {
        let out = &mut self.out;
        let state = self.threads[index];
        let count = state.marks as usize;
        write!(out, "\"markers\":{{\"length\":{count},\"startTime\":[")?;
        let mut line = Vec::new();
        let mut time = state.start;
        let mut reader = self.spool.read(marks(index));
        while let Some(since) = reader.number()? {
            let len = reader.number()?.unwrap_or(0);
            reader.bytes(len)?;
            time += since;
            push_fraction(&mut line, time.saturating_sub(base), MILLI);
            out.write_all(&line)?;
            line.clear();
            line.extend_from_slice(b",\n");
        }
        out.write_all(b"],\"data\":[")?;
        let mut comma = "";
        let mut reader = self.spool.read(marks(index));
        while reader.number()?.is_some() {
            let len = reader.number()?.unwrap_or(0);
            let text = String::from_utf8_lossy(&reader.bytes(len)?).into_owned();
            write!(
                out,
                "{comma}{{\"type\":\"Mark\",\"text\":{}}}",
                quoted(&text)
            )?;
            comma = ",\n";
        }
        out.write_all(b"]")?;
        for (column, value) in [
            ("name", name.to_string().as_str()),
            ("endTime", "null"),
            ("phase", "0"),
            ("category", "0"),
        ] {
            write_same(out, column, count, value)?;
        }
        out.write_all(b"}")
    }
}

/// Writes a column with the same value in all rows.
fn write_same(out: &mut Out, name: &str, count: usize, value: &str) -> io::Result<()> {
    write!(out, ",\"{name}\":")?;
    write_items(out, 0..count, |line, _| {
        line.extend_from_slice(value.as_bytes());
    })
}

impl Visitor for Firefox {
    type Error = io::Error;

    fn thread(&mut self, at: &At<'_>) -> io::Result<()> {
        self.stacks.thread(at.thread);
        self.threads.push(State {
            start: at.time,
            since: at.time,
            samples: 0,
            marks: 0,
            marked: at.time,
        });
        Ok(())
    }

    fn enter(&mut self, at: &At<'_>, call: &Open) -> io::Result<()> {
        let symbol = call.data;
        self.sample(at)?;
        self.stacks.begin(at.thread, symbol);
        Ok(())
    }

    fn exit(&mut self, at: &At<'_>, call: &Call) -> io::Result<()> {
        self.sample(at)?;
        self.stacks.end(at.thread, call);
        Ok(())
    }

    fn mark(&mut self, at: &At<'_>, text: &str) -> io::Result<()> {
        let index = at.thread.index;
        let state = &mut self.threads[index];
        let since = at.time - state.marked;
        state.marked = at.time;
        state.marks += 1;
        self.spool.push_number(marks(index), since)?;
        self.spool.push_number(marks(index), text.len() as u64)?;
        self.spool.push(marks(index), text.as_bytes())
    }

    fn lost(&mut self, at: &At<'_>, events: u64) -> io::Result<()> {
        self.mark(at, &format!("lost {events} events"))
    }
}

impl Output for Firefox {
    fn finish(mut self: Box<Self>, trace: &Trace<'_>) -> io::Result<()> {
        // Times count from the start of the recording.
        let (base, start) = (trace.clock.first().monotonic, trace.clock.first().realtime);
        let mut line = Vec::new();
        push_fraction(&mut line, start, MILLI);
        self.out.write_all(
            b"{\"meta\":{\"interval\":0.000001,\"product\":\"fgraph\",\"processType\":0,\
              \"stackwalk\":0,\"version\":27,\"symbolicated\":true,\
              \"symbolicationNotSupported\":true,\"usesOnlyOneStackType\":true,\
              \"sourceCodeIsNotOnSearchfox\":true,\"keepProfileThreadOrder\":true,\
              \"categories\":[",
        )?;
        let categories: &[_] = match trace.functions.has_python() {
            true => &[("Native", "orange"), ("Python", "blue")],
            false => &[("Calls", "blue")],
        };
        for (n, (name, color)) in categories.iter().enumerate() {
            let comma = if n == 0 { "" } else { "," };
            write!(
                self.out,
                "{comma}{{\"name\":\"{name}\",\"color\":\"{color}\",\
                 \"subcategories\":[\"Other\"]}}"
            )?;
        }
        self.out.write_all(
            b"],\
              \"markerSchema\":[{\"name\":\"Mark\",\"tooltipLabel\":\"{marker.data.text}\",\
              \"tableLabel\":\"{marker.data.text}\",\"chartLabel\":\"{marker.data.text}\",\
              \"display\":[\"marker-chart\",\"marker-table\",\"timeline-overview\"],\
              \"fields\":[{\"key\":\"text\",\"label\":\"Text\",\"format\":\"string\"}]}],\
              \"startTime\":",
        )?;
        self.out.write_all(&line)?;
        if trace.schedule.is_some() {
            let units = br#","sampleUnits":{"time":"ms","eventDelay":"ms","threadCPUDelta":"ns"}"#;
            self.out.write_all(units)?;
        }
        write!(self.out, ",\"preprocessedProfileVersion\":{VERSION}}},")?;
        self.out.write_all(b"\"libs\":[],\"pages\":[],\n")?;
        self.write_tables(trace)?;
        self.out.write_all(b"\"threads\":[")?;
        let mark_name = trace.functions.len() + 1 + trace.functions.modules().len();
        for thread in trace.threads {
            let comma = if thread.index == 0 { "" } else { "," };
            let name = quoted(&thread_name(trace.names, thread.process, thread.id));
            let process = quoted(&process_name(trace.names, thread.process));
            write!(
                self.out,
                "{comma}\n{{\"processType\":\"default\",\"processStartupTime\":0,\
                 \"processShutdownTime\":null,\"registerTime\":0,\"unregisterTime\":null,\
                 \"pausedRanges\":[],\"name\":{name},\"processName\":{process},\
                 \"isMainThread\":{},\"pid\":\"{}\",\"tid\":{},",
                thread.id == thread.process_id(),
                process_key(thread),
                thread.id
            )?;
            self.write_samples(trace, thread, base)?;
            self.write_markers(thread.index, base, mark_name)?;
            self.out.write_all(b"}")?;
        }
        self.out.write_all(b"]}\n")?;
        self.out.flush()
    }
}

/// Returns the id of a thread's process. For the later programs of a process a number follows, by
/// which the Firefox Profiler itself distinguishes processes of the same id.
fn process_key(thread: &ThreadId) -> String {
    match thread.executed_before() {
        0 => thread.process_id().to_string(),
        before => format!("{}.{before}", thread.process_id()),
    }
}
