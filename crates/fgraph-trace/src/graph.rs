//! Prints a function graph in the layout of the kernel's `function_graph` tracer.
//!
//! ```text
//! # tracer: function_graph
//! #
//! # CPU  DURATION                  FUNCTION CALLS
//! # |     |   |                     |   |   |   |
//!  0)               |  main() {
//!  0)   1.382 us    |    parse();
//!  0) + 12.478 us   |  }
//! ```
//!
//! A call whose end is [not recorded](What::Entry::is_entry_only) is a line without a duration. So
//! is the end of a call that was [dropped](What::Dropped): `} /* parse dropped */`.
//! A call that is [lost](Ending::Lost) has no closing brace, and the lines after it are not
//! indented under it.

mod errno;

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Write};

use crate::clock::Clock;
use crate::event::{What, mark_text};
use crate::names::{FunctionName, Names};
use crate::pairing::{Change, Ending, Pairing};
use crate::source::{Source, SourceError};
use crate::text::{escaped, push_escaped};

/// The format of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ResultFormat {
    /// Hexadecimal, except for small negative numbers, which are written as errors: `ret=-2`.
    Kernel,
    /// Always hexadecimal.
    Hex,
    /// Decimal, with its sign.
    Decimal,
    /// Like [`Kernel`](Self::Kernel), with the names of errors: `ret=-ENOENT`.
    ErrnoName,
}

/// Returns true if the function with this name, in the module with this path, matches.
pub type Matcher = Box<dyn Fn(&str, &str) -> bool + Send>;

bitflags::bitflags! {
    /// The parts of a line. The defaults are the kernel's: the processor, the marks of long calls
    /// and the duration.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Parts: u8 {
        /// `funcgraph-abstime`: the time by the monotonic clock.
        const ABSOLUTE_TIME = 1;
        /// `funcgraph-cpu`: the processor. The column is left out if the processor is unknown at
        /// the first event.
        const CPU = 1 << 1;
        /// `funcgraph-proc`: name and id of the thread.
        const THREAD = 1 << 2;
        /// `funcgraph-duration`: the duration of calls.
        const DURATION = 1 << 3;
        /// `funcgraph-overhead`: marks long calls: `+` 10 µs, `!` 100 µs, `#` 1 ms, `*` 10 ms, `@`
        /// 100 ms, `$` 1 s.
        const OVERHEAD = 1 << 4;
        /// `funcgraph-args`: arguments, where they were recorded.
        const ARGUMENTS = 1 << 5;
        /// `funcgraph-retaddr`: the return addresses of calls, where they were recorded.
        const CALLER = 1 << 6;
        /// `funcgraph-tail`: the function's name after its closing brace.
        const TAIL = 1 << 7;
    }
}

impl Parts {
    /// Returns these parts with others if a condition holds, or without them.
    ///
    /// ```
    /// use fgraph_trace::graph::Parts;
    ///
    /// assert!(Parts::default().with(Parts::CPU, false).contains(Parts::DURATION));
    /// ```
    #[must_use]
    pub fn with(mut self, parts: Self, condition: bool) -> Self {
        self.set(parts, condition);
        self
    }
}

impl Default for Parts {
    fn default() -> Self {
        Self::CPU | Self::DURATION | Self::OVERHEAD
    }
}

/// Selects the parts of lines and the calls that are printed. The defaults are the kernel's.
///
/// It is exhaustive, since callers write it as a literal: a new field breaks them.
pub struct Options {
    /// The parts of each line.
    pub parts: Parts,
    /// `funcgraph-retval`: results, where they were recorded.
    pub result: Option<ResultFormat>,
    /// The width of the column of processors.
    pub cpu_width: usize,
    /// `sleep-time`: durations count wall-clock time. If false, the time that the thread was not on
    /// a processor is left out, where it was recorded.
    pub sleep_time: bool,
    /// `max_graph_depth`: the depth from which on calls are left out; 0 for no limit.
    pub max_depth: usize,
    /// `tracing_thresh`: the shortest duration, in nanoseconds, of calls that are printed. Only
    /// their ends are printed then. 0 prints all calls.
    pub threshold: u64,
    /// `set_graph_function`: prints only these functions, and the calls that they make.
    pub functions: Option<Matcher>,
    /// `set_graph_notrace`: leaves out these functions, and the calls that they make.
    pub without: Option<Matcher>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            parts: Parts::default(),
            result: None,
            cpu_width: 1,
            sleep_time: true,
            max_depth: 0,
            threshold: 0,
            functions: None,
            without: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("parts", &self.parts)
            .field("max_depth", &self.max_depth)
            .field("threshold", &self.threshold)
            .finish_non_exhaustive()
    }
}

/// A call in progress.
#[derive(Clone, Copy, Debug)]
struct Call {
    began: Moment,
    is_shown: bool,
}

/// The state of a thread.
#[derive(Debug, Default)]
struct Thread {
    calls: Pairing<Call>,
    /// The number of its calls that are printed.
    shown: usize,
    /// The numbers of calls in progress of functions that were asked for, and of functions that are
    /// left out.
    wanted: usize,
    unwanted: usize,
    /// True if the line of the next return is already written.
    is_leaf: bool,
}

const INDENT: usize = 2;
/// Calls that are nested deeper are not indented further; their depth stands before their names.
const MAX_INDENTED: usize = 64;

/// Prints the events of a source as a function graph.
///
/// A call with more than 64 calls around it is indented like one with 64. The number of calls
/// around it stands before its name and before its closing brace: `(65) parse();`.
///
/// ```
/// use fgraph_trace::event::{Kind, call};
/// use fgraph_trace::graph::{FunctionGraph, Options};
/// use fgraph_trace::ring::{RingOptions, Rings};
/// use fgraph_trace::Live;
///
/// let rings = std::sync::Arc::new(Rings::create(&RingOptions::default())?);
/// let writer = rings.writer(std::process::id(), 1).expect("there are rings enough");
/// let now = rings.clock().first().ticks;
/// writer.call(call(Kind::Entry, 7), now);
/// writer.call(call(Kind::Return, 7), now);
/// rings.finish();
/// let mut text = Vec::new();
/// let mut graph = FunctionGraph::new(Options::default());
/// graph.write_all(&mut Live::watch(rings.clone()), &mut text)?;
/// assert!(String::from_utf8(text)?.ends_with("0.000 us    |  <lost name 7>();\n"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct FunctionGraph {
    options: Options,
    threads: HashMap<(u32, u32), Thread>,
    /// The thread whose event was printed last, for each processor.
    last: HashMap<Option<u32>, (u32, u32)>,
    is_begun: bool,
    words: Vec<u64>,
    /// Words of the event's values, encoded by type.
    values: Vec<u64>,
}

/// The columns at the beginning of a line.
#[derive(Clone, Copy, Debug)]
struct Head {
    now: Moment,
    process: u32,
    thread: u32,
    cpu: Option<u32>,
}

/// The time of an event.
#[derive(Clone, Copy, Debug)]
struct Moment {
    time: u64,
    /// See [`Event::running`](crate::Event::running).
    running: Option<u64>,
}

impl Moment {
    /// Returns the nanoseconds until a later moment.
    fn until(&self, end: Self, clock: &Clock, options: &Options) -> u64 {
        match self.running.zip(end.running) {
            Some((begin, end)) if !options.sleep_time => end.saturating_sub(begin),
            _ => clock.nanoseconds(end.time.saturating_sub(self.time)),
        }
    }
}

/// The content of the column of durations.
#[derive(Clone, Copy, Debug)]
enum Took {
    Nothing,
    Nanoseconds(u64),
}

impl FunctionGraph {
    /// Makes a printer that has printed nothing yet.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            options,
            ..Self::default()
        }
    }

    /// Prints all events that the source gives now.
    ///
    /// # Errors
    ///
    /// Fails with an error of the source, or of `out`.
    pub fn write_all(
        &mut self,
        source: &mut impl Source,
        out: &mut impl Write,
    ) -> Result<(), WriteGraphError> {
        let mut text = String::with_capacity(2 * BLOCK);
        while self.write_event(source, &mut text)? {
            if text.len() >= BLOCK {
                out.write_all(text.as_bytes())?;
                text.clear();
            }
        }
        Ok(out.write_all(text.as_bytes())?)
    }

    /// Appends the text for the source's next event, which may be empty; returns `false` if there
    /// is no event now. The heading comes before the first event.
    ///
    /// # Errors
    ///
    /// Fails with an error of the source.
    pub fn write_event(
        &mut self,
        source: &mut impl Source,
        out: &mut String,
    ) -> Result<bool, SourceError> {
        let event = source.next()?;
        if !self.is_begun {
            self.is_begun = true;
            // A reader does not know the processor of a thread that lost its first events.
            let has_cpus = event
                .is_none_or(|event| event.cpu.is_some() || matches!(event.what, What::Lost { .. }));
            if !has_cpus {
                self.options.parts.remove(Parts::CPU);
            }
            self.write_heading(out);
        }
        let Some(event) = event else {
            return Ok(false);
        };
        let head = Head {
            now: Moment {
                time: event.time,
                running: event.running,
            },
            process: event.process,
            thread: event.thread,
            cpu: event.cpu,
        };
        self.words.clear();
        self.values.clear();
        self.values.extend_from_slice(event.values);
        match event.what {
            What::Entry {
                function,
                arguments,
                caller,
                is_entry_only,
            } => {
                self.words.extend_from_slice(arguments);
                self.entry(source, &head, function, caller, is_entry_only, out);
            }
            What::Return { function, result } => {
                let result = result.first().copied();
                self.end(source, &head, function, result, Ending::Returned, out);
            }
            What::Unwound { function } => {
                self.end(source, &head, function, None, Ending::Unwound, out);
            }
            What::Dropped { function } => {
                self.end(source, &head, function, None, Ending::Lost, out);
            }
            What::Mark(words) => {
                self.words.extend_from_slice(words);
                self.mark(source, &head, out);
            }
            What::Lost { events, ends } => {
                let cpu = Cpu(head.cpu);
                push(out, format_args!("CPU:{cpu} [LOST {events} EVENTS]\n"));
                if let Some(thread) = self.threads.get_mut(&(head.process, head.thread)) {
                    thread.is_leaf = false;
                    thread.calls.lose(ends);
                    thread.settle();
                }
            }
        }
        Ok(true)
    }

    fn entry(
        &mut self,
        source: &impl Source,
        head: &Head,
        function: u32,
        caller: Option<u64>,
        is_entry_only: bool,
        out: &mut String,
    ) {
        let names = source.names();
        let (options, parts) = (&self.options, self.options.parts);
        let thread = self.threads.entry((head.process, head.thread)).or_default();
        let known = names.function(head.process, function);
        let is = |matcher: &Option<Matcher>| {
            let (name, module) = known.map_or(("", ""), |it| (&it.name, &it.module));
            matcher
                .as_ref()
                .is_some_and(|matches| matches(name, module))
        };
        thread.wanted += usize::from(thread.wanted > 0 || is(&options.functions));
        thread.unwanted += usize::from(thread.unwanted > 0 || is(&options.without));
        let is_shown = (options.functions.is_none() || thread.wanted > 0)
            && thread.unwanted == 0
            && (options.max_depth == 0 || thread.shown < options.max_depth);
        let depth = thread.shown;
        let call = Call {
            began: head.now,
            is_shown,
        };
        match is_entry_only {
            true => thread.calls.enter_only(function, head.now.time, call),
            false => thread.calls.enter(function, head.now.time, call),
        }
        thread.settle();
        let upcoming = source.upcoming();
        let end = upcoming.and_then(|next| match next.what {
            What::Return { function, result } => {
                let end = Moment {
                    time: next.time,
                    running: next.running,
                };
                Some((function, (result.first(), next.values), end))
            }
            _ => None,
        });
        let leaf = end.filter(|&(of, _, _)| of == function && !is_entry_only);
        if !is_shown || options.threshold != 0 {
            return;
        }
        thread.is_leaf = leaf.is_some();
        let took = leaf.map_or(Took::Nothing, |(_, _, end)| {
            Took::Nanoseconds(head.now.until(end, source.clock(), &self.options))
        });
        self.write_head(source.clock(), names, head, took, out);
        indent(out, depth);
        push_name(out, known, function);
        let types = names.types(head.process, function);
        if let Some(types) = types
            && parts.contains(Parts::ARGUMENTS)
            && !self.values.is_empty()
        {
            push(
                out,
                format_args!("({})", types.layout.arguments(&self.values)),
            );
        } else if parts.contains(Parts::ARGUMENTS) && !self.words.is_empty() {
            out.push('(');
            for (n, word) in self.words.iter().enumerate() {
                let comma = if n == 0 { "" } else { ", " };
                push(out, format_args!("{comma}{word:#x}"));
            }
            out.push(')');
        } else {
            out.push_str("()");
        }
        let caller = caller.filter(|_| parts.contains(Parts::CALLER));
        let result = leaf.map(|(_, result, _)| result);
        let result = result.and_then(|(word, values)| {
            let typed = types.and_then(|types| types.layout.result(values));
            CallResult::of(self.options.result?, word.copied(), typed)
        });
        let has_no_brace = leaf.is_some() || is_entry_only;
        out.push_str(if has_no_brace { ";" } else { " {" });
        if caller.is_some() || result.is_some() {
            out.push_str(" /*");
            if let Some(caller) = caller {
                push_caller(out, names, head.process, caller);
            }
            if let Some(result) = result {
                push(out, format_args!("{result}"));
            }
            out.push_str(" */");
        }
        out.push('\n');
    }

    fn end(
        &mut self,
        source: &impl Source,
        head: &Head,
        function: u32,
        result: Option<u64>,
        how: Ending,
        out: &mut String,
    ) {
        let thread = self.threads.entry((head.process, head.thread)).or_default();
        thread.calls.exit(function, head.now.time, how);
        let call = thread.settle();
        if std::mem::take(&mut thread.is_leaf) || call.is_some_and(|call| !call.is_shown) {
            return;
        }
        let only_wanted = self.options.functions.is_some();
        if call.is_none() && (only_wanted || thread.unwanted > 0) {
            return;
        }
        let depth = thread.shown;
        let ended = call.filter(|_| how != Ending::Lost);
        let took = ended.map(|call| call.began.until(head.now, source.clock(), &self.options));
        let threshold = self.options.threshold;
        if threshold != 0 && took.is_none_or(|took| took < threshold) {
            return;
        }
        let took = took.map_or(Took::Nothing, Took::Nanoseconds);
        self.write_head(source.clock(), source.names(), head, took, out);
        indent(out, depth);
        out.push('}');
        let types = source.names().types(head.process, function);
        let typed = types.and_then(|types| types.layout.result(&self.values));
        let format = self.options.result;
        let result = format.and_then(|format| CallResult::of(format, result, typed));
        let is_alone = call.is_none() || threshold != 0;
        let how = match how {
            Ending::Unwound => " unwound",
            Ending::Lost => " dropped",
            _ => "",
        };
        if self.options.parts.contains(Parts::TAIL)
            || is_alone
            || !how.is_empty()
            || result.is_some()
        {
            out.push_str(" /* ");
            push_name(
                out,
                source.names().function(head.process, function),
                function,
            );
            out.push_str(how);
            if let Some(result) = result {
                push(out, format_args!("{result}"));
            }
            out.push_str(" */");
        }
        out.push('\n');
    }

    fn mark(&mut self, source: &impl Source, head: &Head, out: &mut String) {
        let thread = self.threads.entry((head.process, head.thread)).or_default();
        // The kernel does not indent a mark in the outermost call either.
        let depth = match thread.shown {
            1 => 0,
            shown => shown,
        };
        self.write_head(source.clock(), source.names(), head, Took::Nothing, out);
        indent(out, depth);
        let text = mark_text(&self.words);
        out.push_str("/* ");
        let text = text.trim_end_matches('\n');
        for (at, character) in text.char_indices() {
            // A program must not be able to forge lines, except those of a stack, or to send
            // commands to a terminal.
            let is_of_stack = text[at..].starts_with("\n => ");
            match is_of_stack {
                true => out.push(character),
                false => push_escaped(out, character),
            }
        }
        out.push_str(" */\n");
    }

    /// Appends the heading of the columns.
    pub fn write_heading(&self, out: &mut String) {
        let parts = self.options.parts;
        out.push_str("# tracer: function_graph\n#\n");
        let columns = [
            (
                parts.contains(Parts::ABSOLUTE_TIME),
                "     TIME       ",
                "      |         ",
            ),
            (parts.contains(Parts::CPU), " CPU", " |  "),
            (
                parts.contains(Parts::THREAD),
                "  TASK/PID       ",
                "   |    |        ",
            ),
            (
                parts.contains(Parts::DURATION),
                "  DURATION   ",
                "   |   |      ",
            ),
            (
                true,
                "               FUNCTION CALLS",
                "               |   |   |   |",
            ),
        ];
        for line in 0..2 {
            out.push('#');
            for (is_there, first, second) in columns {
                if is_there {
                    out.push_str(if line == 0 { first } else { second });
                }
            }
            out.push('\n');
        }
    }

    /// Appends the columns before the functions, after a separator if another thread ran on the
    /// processor before.
    fn write_head(
        &mut self,
        clock: &Clock,
        names: &Names,
        head: &Head,
        took: Took,
        out: &mut String,
    ) {
        let now = (head.process, head.thread);
        let before = self.last.insert(head.cpu, now);
        let (parts, width) = (self.options.parts, self.options.cpu_width);
        if let Some(before) = before
            && before != now
        {
            const LINE: &str = " ------------------------------------------\n";
            out.push_str(LINE);
            push(out, format_args!(" {:>width$}) ", Cpu(head.cpu)));
            push_thread(out, names, before);
            out.push_str(" => ");
            push_thread(out, names, now);
            out.push('\n');
            out.push_str(LINE);
            out.push('\n');
        }
        if parts.contains(Parts::ABSOLUTE_TIME) {
            push(out, format_args!("{} |  ", clock.timestamp(head.now.time)));
        }
        if parts.contains(Parts::CPU) {
            push(out, format_args!(" {:>width$}) ", Cpu(head.cpu)));
        }
        if parts.contains(Parts::THREAD) {
            push_thread(out, names, now);
            out.push_str(" | ");
        }
        if parts.contains(Parts::DURATION) {
            match took {
                Took::Nothing => out.push_str("              |  "),
                Took::Nanoseconds(ns) => {
                    out.push(if parts.contains(Parts::OVERHEAD) {
                        mark(ns)
                    } else {
                        ' '
                    });
                    out.push(' ');
                    push_duration(out, ns);
                    out.push_str("|  ");
                }
            }
        }
    }
}

impl Thread {
    /// Counts the calls that the last event has begun and ended. Returns the last one that has
    /// ended.
    fn settle(&mut self) -> Option<Call> {
        let mut ended = None;
        while let Some(change) = self.calls.change() {
            match change {
                Change::Began => {
                    let call = self.calls.calls().last();
                    self.shown += usize::from(call.is_some_and(|call| call.data.is_shown));
                }
                Change::Ended(call) => {
                    self.shown -= usize::from(call.data.is_shown);
                    self.wanted = self.wanted.saturating_sub(1);
                    self.unwanted = self.unwanted.saturating_sub(1);
                    ended = Some(call.data);
                }
            }
        }
        ended
    }
}

/// Bytes of text that are written with one call.
const BLOCK: usize = 64 << 10;

fn push(out: &mut String, text: fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = fmt::Write::write_fmt(out, text);
}

fn indent(out: &mut String, depth: usize) {
    let indented = depth.min(MAX_INDENTED);
    out.extend(std::iter::repeat_n(' ', indented * INDENT));
    if depth > indented {
        push(out, format_args!("({depth}) "));
    }
}

fn push_name(out: &mut String, known: Option<&FunctionName>, function: u32) {
    match known {
        Some(known) if !known.name.is_empty() => out.push_str(&escaped(&known.name)),
        Some(known) => push(out, format_args!("{:#x}", known.address)),
        None => push(out, format_args!("<lost name {function}>")),
    }
}

/// Appends the return address of a call: a function and the distance from its start, or an address.
fn push_caller(out: &mut String, names: &Names, process: u32, caller: u64) {
    match names.symbol(process, caller) {
        Some((known, distance)) => {
            let (name, size) = (escaped(&known.name), known.size);
            push(out, format_args!(" <-{name}+{distance:#x}/{size:#x}"));
        }
        None => push(out, format_args!(" <-{caller:#x}")),
    }
}

/// Returns the number of a Linux error by its name.
///
/// ```
/// use fgraph_trace::graph::error_number;
///
/// assert_eq!(error_number("ENOENT"), Some(2));
/// assert_eq!(error_number("ENOSUCH"), None);
/// ```
#[must_use]
pub fn error_number(name: &str) -> Option<u64> {
    errno::number(name)
}

/// Returns the name of a Linux error by its number.
///
/// ```
/// use fgraph_trace::graph::error_name;
///
/// assert_eq!(error_name(2).as_deref(), Some("ENOENT"));
/// assert_eq!(error_name(4095), None);
/// ```
#[must_use]
pub fn error_name(number: u64) -> Option<String> {
    errno::name(number)
}

/// Returns the error number if the result may be one.
fn errno_of(result: u64) -> Option<i64> {
    // A negative `int` may come with its upper half clear.
    let value = if result >> 31 == 1 {
        i64::from(result as u32 as i32)
    } else {
        result as i64
    };
    (-4095..0).contains(&value).then_some(value)
}

/// The result of a call.
enum CallResult<T> {
    Word(ResultFormat, u64),
    Typed(T),
}

impl<T: fmt::Display> CallResult<T> {
    fn of(format: ResultFormat, word: Option<u64>, typed: Option<T>) -> Option<Self> {
        let word = || Some(Self::Word(format, word?));
        typed.map(Self::Typed).or_else(word)
    }
}

impl<T: fmt::Display> fmt::Display for CallResult<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (format, result) = match self {
            Self::Word(format, result) => (*format, *result),
            Self::Typed(value) => return write!(f, " ret={value}"),
        };
        match (format, errno_of(result)) {
            (ResultFormat::Decimal, _) => write!(f, " ret={}", result as i64),
            (ResultFormat::Kernel, Some(error)) => write!(f, " ret={error}"),
            (ResultFormat::ErrnoName, Some(error)) => match errno::name(error.unsigned_abs()) {
                Some(name) => write!(f, " ret=-{name}"),
                None => write!(f, " ret={error}"),
            },
            _ => write!(f, " ret={result:#x}"),
        }
    }
}

/// Appends a thread's name and id, centred in fourteen columns.
fn push_thread(out: &mut String, names: &Names, (process, thread): (u32, u32)) {
    const WIDTH: usize = 14;
    let name = names.thread(process, thread).unwrap_or("<...>");
    let name: String = name.chars().take(7).collect();
    let name = escaped(&name);
    push(out, format_args!("{:^WIDTH$}", format!("{name}-{thread}")));
}

/// A processor, or that it is unknown.
struct Cpu(Option<u32>);

impl fmt::Display for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(cpu) => fmt::Display::fmt(&cpu, f),
            None => f.pad("-"),
        }
    }
}

fn mark(ns: u64) -> char {
    match ns {
        1_000_000_001.. => '$',
        100_000_001.. => '@',
        10_000_001.. => '*',
        1_000_001.. => '#',
        100_001.. => '!',
        10_001.. => '+',
        _ => ' ',
    }
}

/// Appends microseconds with at most seven digits, where these suffice.
fn push_duration(out: &mut String, ns: u64) {
    let begin = out.len();
    let (us, rest) = (ns / 1000, ns % 1000);
    push(out, format_args!("{us}"));
    let whole = out.len() - begin;
    if whole < 7 {
        push(out, format_args!(".{rest:03}"));
        out.truncate(begin + 8.min(whole + 4));
    }
    let len = out.len() - begin;
    out.push_str(" us ");
    out.extend(std::iter::repeat_n(' ', 8_usize.saturating_sub(len)));
}

/// Why a graph was not printed to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteGraphError {
    /// The source failed.
    #[error("the events cannot be read")]
    Source(#[from] SourceError),
    /// The text could not be written.
    #[error("the text cannot be written")]
    Io(#[from] io::Error),
}
