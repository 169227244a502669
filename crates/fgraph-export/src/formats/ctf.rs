//! The Common Trace Format 1.8: a stream for each thread, and metadata that describe it.
//!
//! ```text
//!   packet    magic (4 bytes), stream (4), begin (8), end (8), content bits (8), packet bits (8),
//!             discarded events (8), process (4), thread (4), events
//!   event     kind (1), time (8), then
//!             0 entry: function (4), count (1), as many arguments (8)
//!             1 exit:  function (4), how it ended (1), count (1), as many words of the result (8)
//!             2 mark:  text, and a zero
//! ```

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use fgraph_analysis::calls::{At, Call, Function, Functions, Open, ThreadId, Visitor};
use fgraph_trace::text::is_visible;

use super::text::Appender;
use crate::names::base_name;
use crate::output::{ENDINGS, Output, Trace, ending_name};

const MAGIC: u32 = 0xc1fc_1fc1;
const HEADER: usize = 56;
/// Bytes at which a packet is written.
const PACKET: usize = 16 << 10;
const ENTRY: u8 = 0;
const EXIT: u8 = 1;
const MARK: u8 = 2;

pub(crate) struct Ctf {
    directory: PathBuf,
    streams: Vec<Stream>,
}

struct Stream {
    thread: ThreadId,
    file: Appender,
    begin: u64,
    end: u64,
    discarded: u64,
    /// True while a packet is being written.
    is_begun: bool,
    /// True if a packet reports all discarded events.
    is_told: bool,
}

impl Stream {
    /// Begins an event, in a new packet if there is none.
    fn event(&mut self, kind: u8, time: u64) -> &mut Vec<u8> {
        if self.file.buffer.is_empty() {
            self.begin = time;
            self.file.buffer.resize(HEADER, 0);
        }
        self.end = time;
        self.file.buffer.push(kind);
        self.file.buffer.extend_from_slice(&time.to_le_bytes());
        &mut self.file.buffer
    }

    fn flush(&mut self) -> io::Result<()> {
        let buffer = &mut self.file.buffer;
        let bits = buffer.len() as u64 * 8;
        let mut header = Vec::with_capacity(HEADER);
        header.extend_from_slice(&MAGIC.to_le_bytes());
        header.extend_from_slice(&0_u32.to_le_bytes());
        for word in [self.begin, self.end, bits, bits, self.discarded] {
            header.extend_from_slice(&word.to_le_bytes());
        }
        header.extend_from_slice(&self.thread.process_id().to_le_bytes());
        header.extend_from_slice(&self.thread.id.to_le_bytes());
        buffer[..HEADER].copy_from_slice(&header);
        self.is_begun = true;
        self.is_told = true;
        self.file.flush()
    }

    fn flush_long(&mut self) -> io::Result<()> {
        if self.file.buffer.len() >= PACKET {
            self.flush()?;
        }
        Ok(())
    }
}

fn push_words(buffer: &mut Vec<u8>, words: &[u64]) {
    let words = &words[..words.len().min(usize::from(u8::MAX))];
    buffer.push(words.len() as u8);
    for word in words {
        buffer.extend_from_slice(&word.to_le_bytes());
    }
}

impl Ctf {
    pub(crate) fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            streams: Vec::new(),
        }
    }
}

impl Visitor for Ctf {
    type Error = io::Error;

    fn thread(&mut self, at: &At<'_>) -> io::Result<()> {
        let mut name = format!("stream-{}-{}", at.thread.process_id(), at.thread.id);
        // Each program of a process has streams of its own.
        if let before @ 1.. = at.thread.executed_before() {
            let _ = write!(name, "-{before}");
        }
        self.streams.push(Stream {
            thread: at.thread,
            file: Appender::new(self.directory.join(name)),
            begin: at.time,
            end: at.time,
            discarded: 0,
            is_begun: false,
            is_told: true,
        });
        Ok(())
    }

    fn enter(&mut self, at: &At<'_>, call: &Open) -> io::Result<()> {
        let symbol = call.data;
        let stream = &mut self.streams[at.thread.index];
        let event = stream.event(ENTRY, at.time);
        event.extend_from_slice(&symbol.to_le_bytes());
        push_words(event, at.values.words);
        stream.flush_long()
    }

    fn exit(&mut self, at: &At<'_>, call: &Call) -> io::Result<()> {
        let stream = &mut self.streams[at.thread.index];
        let event = stream.event(EXIT, at.time);
        event.extend_from_slice(&call.slot.to_le_bytes());
        event.push(call.ending as u8);
        push_words(event, at.values.words);
        stream.flush_long()
    }

    fn mark(&mut self, at: &At<'_>, text: &str) -> io::Result<()> {
        let stream = &mut self.streams[at.thread.index];
        let event = stream.event(MARK, at.time);
        event.extend(text.bytes().filter(|&byte| byte != 0));
        event.push(0);
        stream.flush_long()
    }

    /// Readers find discarded events by comparing the packet after them with the previous one.
    fn lost(&mut self, at: &At<'_>, events: u64) -> io::Result<()> {
        let stream = &mut self.streams[at.thread.index];
        if !stream.is_begun && stream.file.buffer.is_empty() {
            stream.file.buffer.resize(HEADER, 0);
        }
        if !stream.file.buffer.is_empty() {
            stream.flush()?;
        }
        (stream.begin, stream.end) = (at.time, at.time);
        stream.discarded = stream.discarded.saturating_add(events);
        stream.is_told = false;
        Ok(())
    }
}

impl Output for Ctf {
    fn finish(mut self: Box<Self>, trace: &Trace<'_>) -> io::Result<()> {
        for stream in &mut self.streams {
            if !stream.is_told && stream.file.buffer.is_empty() {
                stream.file.buffer.resize(HEADER, 0);
            }
            if !stream.file.buffer.is_empty() {
                stream.flush()?;
            }
        }
        fs::write(self.directory.join("metadata"), metadata(trace))
    }
}

fn metadata(trace: &Trace<'_>) -> String {
    let first = trace.clock.first();
    // Offset from the monotonic clock to the time of day.
    let offset = first.realtime.saturating_sub(first.monotonic);
    let (seconds, rest) = (offset / 1_000_000_000, offset % 1_000_000_000);
    let mut text = format!(
        "/* CTF 1.8 */
typealias integer {{ size = 8; align = 8; signed = false; }} := uint8_t;
typealias integer {{ size = 32; align = 8; signed = false; }} := uint32_t;
typealias integer {{ size = 64; align = 8; signed = false; }} := uint64_t;
typealias integer {{ size = 64; align = 8; signed = false; base = 16; }} := word_t;

trace {{
    major = 1;
    minor = 8;
    byte_order = le;
    packet.header := struct {{
        uint32_t magic;
        uint32_t stream_id;
    }};
}};

env {{
    domain = \"ust\";
    tracer_name = \"fgraph\";
}};

clock {{
    name = monotonic;
    freq = 1000000000;
    offset_s = {seconds};
    offset = {rest};
}};

typealias integer {{
    size = 64; align = 8; signed = false; map = clock.monotonic.value;
}} := time_t;

stream {{
    id = 0;
    packet.context := struct {{
        time_t timestamp_begin;
        time_t timestamp_end;
        uint64_t content_size;
        uint64_t packet_size;
        uint64_t events_discarded;
        uint32_t pid;
        uint32_t tid;
    }};
    event.header := struct {{
        uint8_t id;
        time_t timestamp;
    }};
}};

enum ending : uint8_t {{"
    );
    for (n, ending) in ENDINGS.into_iter().enumerate() {
        let _ = write!(text, " {} = {n},", ending_name(ending));
    }
    text.push_str(" };\n\nenum function : uint32_t {\n");
    for (n, label) in labels(trace.functions).iter().enumerate() {
        let _ = writeln!(text, "    {label} = {n},");
    }
    if trace.functions.is_empty() {
        // An enumeration has at least one member.
        text.push_str("    none = 0,\n");
    }
    let _ = write!(
        text,
        "}};

event {{
    id = {ENTRY};
    name = \"entry\";
    stream_id = 0;
    fields := struct {{
        enum function function;
        uint8_t argument_count;
        word_t arguments[argument_count];
    }};
}};

event {{
    id = {EXIT};
    name = \"exit\";
    stream_id = 0;
    fields := struct {{
        enum function function;
        enum ending ended;
        uint8_t result_count;
        word_t result[result_count];
    }};
}};

event {{
    id = {MARK};
    name = \"mark\";
    stream_id = 0;
    fields := struct {{
        string {{ encoding = UTF8; }} text;
    }};
}};
"
    );
    text
}

/// Returns the names of functions in quotes. Functions of the same name are distinguished by their
/// modules, those of the same module by their addresses.
fn labels(functions: &Functions) -> Vec<String> {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for function in functions.iter() {
        *counts.entry(&function.name).or_default() += 1;
    }
    let mut seen = HashSet::new();
    let label = |function: &Function| {
        let name = &function.name;
        let mut label = name.clone();
        if counts.get(name.as_str()).is_some_and(|&count| count > 1) {
            let module = base_name(&function.module);
            label = format!("{name} [{module}]");
        }
        if seen.contains(&label) {
            let _ = write!(label, " {:#x}", function.address);
        }
        let mut suffix = 2;
        let whole = label.len();
        while !seen.insert(label.clone()) {
            label.truncate(whole);
            let _ = write!(label, " #{suffix}");
            suffix += 1;
        }
        in_quotes(&label)
    };
    functions.iter().map(label).collect()
}

/// Returns a text in quotes as in C.
fn in_quotes(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                quoted.push('\\');
                quoted.push(c);
            }
            c if !is_visible(c) => quoted.push(' '),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
