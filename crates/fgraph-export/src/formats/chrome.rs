//! The JSON of Chrome's tracing: an object for each begin and end.

use std::io::{self, Write};

use fgraph_analysis::calls::{At, Call, Open, Slot, Values, Visitor};
use fgraph_trace::pairing::Ending;

use super::text::{Out, push, push_fraction, quoted};
use crate::output::{Output, Trace, ending_name};

pub(crate) struct Chrome {
    out: Out,
    line: Vec<u8>,
    /// Names in quotes.
    names: Vec<String>,
    is_begun: bool,
}

impl Chrome {
    pub(crate) fn new(out: Out) -> Self {
        Self {
            out,
            line: Vec::new(),
            names: Vec::new(),
            is_begun: false,
        }
    }

    /// Begins an object with all fields but those of the event.
    fn open(&mut self, phase: &str, at: &At<'_>) {
        self.separate();
        self.line.extend_from_slice(b"{\"ph\":\"");
        self.line.extend_from_slice(phase.as_bytes());
        self.line.extend_from_slice(b"\",\"pid\":");
        push(&mut self.line, at.thread.process_id());
        self.line.extend_from_slice(b",\"tid\":");
        push(&mut self.line, at.thread.id);
        self.line.extend_from_slice(b",\"ts\":");
        push_fraction(&mut self.line, at.time, 3);
    }

    fn separate(&mut self) {
        self.line.clear();
        self.line.extend_from_slice(if self.is_begun {
            b",\n"
        } else {
            b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n"
        });
        self.is_begun = true;
    }

    fn name(&mut self, at: &At<'_>, symbol: Slot) {
        while self.names.len() <= symbol as usize {
            let next = at.functions.name(self.names.len() as Slot);
            self.names.push(quoted(next));
        }
        self.line.extend_from_slice(b",\"name\":");
        let name = self.names[symbol as usize].as_bytes();
        self.line.extend_from_slice(name);
    }

    /// Writes the names and values of an object, each with a comma behind it.
    fn values(&mut self, values: &Values<'_>, letter: u8) {
        for (name, value) in &values.typed {
            let _ = write!(self.line, "{}:{},", quoted(name), quoted(value));
        }
        for (n, &word) in values.words.iter().enumerate() {
            self.line.push(b'"');
            self.line.push(letter);
            push(&mut self.line, n);
            // Numbers of JSON may be rounded.
            self.line.extend_from_slice(b"\":\"");
            let _ = write!(self.line, "{word:#x}");
            self.line.extend_from_slice(b"\",");
        }
    }

    fn close(&mut self) -> io::Result<()> {
        self.line.push(b'}');
        self.out.write_all(&self.line)
    }
}

impl Visitor for Chrome {
    type Error = io::Error;

    fn enter(&mut self, at: &At<'_>, call: &Open) -> io::Result<()> {
        let symbol = call.data;
        self.open("B", at);
        self.name(at, symbol);
        if at.functions.is_python(symbol) {
            self.line.extend_from_slice(b",\"cat\":\"python\"");
        }
        if !at.values.is_empty() {
            self.line.extend_from_slice(b",\"args\":{");
            self.values(at.values, b'a');
            self.line.pop();
            self.line.push(b'}');
        }
        self.close()
    }

    fn exit(&mut self, at: &At<'_>, call: &Call) -> io::Result<()> {
        self.open("E", at);
        self.name(at, call.slot);
        if call.ending != Ending::Returned || !at.values.is_empty() {
            self.line.extend_from_slice(b",\"args\":{");
            self.values(at.values, b'r');
            let _ = write!(self.line, "\"ended\":\"{}\"}}", ending_name(call.ending));
        }
        self.close()
    }

    fn mark(&mut self, at: &At<'_>, text: &str) -> io::Result<()> {
        self.open("i", at);
        let _ = write!(self.line, ",\"s\":\"t\",\"name\":{}", quoted(text));
        self.close()
    }

    fn lost(&mut self, at: &At<'_>, events: u64) -> io::Result<()> {
        self.open("i", at);
        let _ = write!(
            self.line,
            ",\"s\":\"t\",\"cat\":\"lost\",\"name\":\"lost {events} events\""
        );
        self.close()
    }
}

impl Output for Chrome {
    fn finish(mut self: Box<Self>, trace: &Trace<'_>) -> io::Result<()> {
        let mut describe = |kind: &str, process: u32, thread: u32, name: &str| {
            self.separate();
            let _ = write!(
                self.line,
                "{{\"ph\":\"M\",\"pid\":{process},\"tid\":{thread},\"name\":\"{kind}\",\
                 \"args\":{{\"name\":{}}}}}",
                quoted(name)
            );
            self.out.write_all(&self.line)
        };
        for (process, name) in trace.process_ids() {
            describe("process_name", process, process, &name)?;
        }
        for ((process, thread), name) in trace.thread_ids() {
            describe("thread_name", process, thread, &name)?;
        }
        if !self.is_begun {
            self.out.write_all(b"{\"traceEvents\":[")?;
        }
        self.out.write_all(b"\n]}\n")?;
        self.out.flush()
    }
}
