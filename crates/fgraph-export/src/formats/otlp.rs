//! OpenTelemetry's protobuf: a span for each call, at its end.
//!
//! A file is a list of any number of `ResourceSpans`, which is also the encoding of the messages
//! `TracesData` and `ExportTraceServiceRequest`. Only fields that are written are declared.

use std::io::{self, Write};

use fgraph_analysis::calls::{self, At, Call, Values, Visitor};
use fgraph_analysis::numbers::grown;
use fgraph_trace::names::{Names, process_id};
use fgraph_trace::pairing::Ending;
use prost::Message;

use super::text::Out;
use crate::names::{process_name, thread_name};
use crate::output::{Output, Trace, date, ending_name};

#[derive(Clone, PartialEq, Message)]
struct TracesData {
    #[prost(message, repeated, tag = "1")]
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    spans: Vec<Span>,
}

#[derive(Clone, PartialEq, Message)]
struct Scope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
struct Span {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    start: u64,
    #[prost(fixed64, tag = "8")]
    end: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

/// One of these fields is set.
#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(string, optional, tag = "1")]
    text: Option<String>,
    #[prost(int64, optional, tag = "3")]
    number: Option<i64>,
}

/// Kind of a span within a program.
const INTERNAL: i32 = 1;
/// Most spans that are held in memory.
const BATCH: usize = 1000;

pub(crate) struct Otlp {
    host: String,
    out: Out,
    /// Running calls of each thread.
    open: Vec<Vec<Open>>,
    /// Process of the spans that are not written yet.
    process: Option<u32>,
    spans: Vec<Span>,
    traces: u64,
    ids: u64,
}

/// Running call.
struct Open {
    trace: u64,
    id: u64,
    arguments: Vec<KeyValue>,
}

fn text(key: impl Into<String>, text: impl Into<String>) -> KeyValue {
    KeyValue {
        key: key.into(),
        value: Some(AnyValue {
            text: Some(text.into()),
            number: None,
        }),
    }
}

fn number(key: &str, number: impl Into<i64>) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue {
            text: None,
            number: Some(number.into()),
        }),
    }
}

fn values(values: &Values<'_>, prefix: &str, letter: char) -> Vec<KeyValue> {
    let typed = values.typed.iter();
    let typed = typed.map(|(name, value)| text(format!("{prefix}{name}"), value.as_str()));
    let words = values.words.iter().enumerate();
    let words = words.map(|(n, word)| text(format!("{prefix}{letter}{n}"), format!("{word:#x}")));
    typed.chain(words).collect()
}

impl Otlp {
    pub(crate) fn new(out: Out) -> Self {
        Self {
            host: String::new(),
            out,
            open: Vec::new(),
            process: None,
            spans: Vec::new(),
            traces: 0,
            ids: 0,
        }
    }

    fn id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    /// Returns a span with the fields of its thread and its function.
    fn span(&self, at: &At<'_>, name: &str, begin: u64) -> Span {
        let thread = thread_name(at.names, at.thread.process, at.thread.id);
        Span {
            name: name.to_owned(),
            kind: INTERNAL,
            start: date(at.clock, begin),
            end: date(at.clock, at.time),
            attributes: vec![
                number("thread.id", at.thread.id),
                text("thread.name", thread),
            ],
            ..Span::default()
        }
    }

    /// Sets the ids of a span. The ids of a trace begin with the time at which the recording began.
    fn put(&mut self, at: &At<'_>, (trace, id, parent): (u64, u64, u64), mut span: Span) {
        let recording = at.clock.first().realtime;
        span.trace_id = [recording.to_be_bytes(), trace.to_be_bytes()].concat();
        span.span_id = id.to_be_bytes().to_vec();
        if parent != 0 {
            span.parent_span_id = parent.to_be_bytes().to_vec();
        }
        self.spans.push(span);
    }

    /// Makes room for a span of this thread's process.
    fn make_room(&mut self, at: &At<'_>) -> io::Result<()> {
        if self.process != Some(at.thread.process) || self.spans.len() >= BATCH {
            self.flush(at.names)?;
            self.process = Some(at.thread.process);
        }
        Ok(())
    }

    /// Writes the held spans.
    fn flush(&mut self, names: &Names) -> io::Result<()> {
        let Some(process) = self.process.filter(|_| !self.spans.is_empty()) else {
            return Ok(());
        };
        let resource = Resource {
            attributes: vec![
                text("service.name", process_name(names, process)),
                text("host.name", self.host.as_str()),
                number("process.pid", process_id(process)),
            ],
        };
        let scope = Scope {
            name: "fgraph".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let data = TracesData {
            resource_spans: vec![ResourceSpans {
                resource: Some(resource),
                scope_spans: vec![ScopeSpans {
                    scope: Some(scope),
                    spans: std::mem::take(&mut self.spans),
                }],
            }],
        };
        self.out.write_all(&data.encode_to_vec())
    }

    /// Adds a span without a duration, in the innermost call.
    fn moment(&mut self, at: &At<'_>, name: &str) -> io::Result<()> {
        self.make_room(at)?;
        let innermost = self.open.get(at.thread.index).and_then(|open| open.last());
        let (trace, parent) = innermost.map_or((0, 0), |open| (open.trace, open.id));
        let trace = match trace {
            0 => self.trace(),
            trace => trace,
        };
        let id = self.id();
        let span = self.span(at, name, at.time);
        self.put(at, (trace, id, parent), span);
        Ok(())
    }

    fn trace(&mut self) -> u64 {
        self.traces += 1;
        self.traces
    }
}

impl Visitor for Otlp {
    type Error = io::Error;

    fn enter(&mut self, at: &At<'_>, _: &calls::Open) -> io::Result<()> {
        let around = grown(&mut self.open, at.thread.index)
            .last()
            .map(|open| open.trace);
        let trace = around.unwrap_or_else(|| self.trace());
        let id = self.id();
        let arguments = values(at.values, "fgraph.argument.", 'a');
        self.open[at.thread.index].push(Open {
            trace,
            id,
            arguments,
        });
        Ok(())
    }

    fn exit(&mut self, at: &At<'_>, call: &Call) -> io::Result<()> {
        self.make_room(at)?;
        let calls = self.open.get_mut(at.thread.index);
        let Some((open, parent)) = calls.and_then(|calls| {
            let open = calls.pop()?;
            Some((open, calls.last().map_or(0, |parent| parent.id)))
        }) else {
            return Ok(());
        };
        let mut span = self.span(at, at.functions.name(call.slot), call.begin);
        let function = at.functions.function(call.slot);
        span.attributes
            .push(text("code.function.name", span.name.clone()));
        if let Some((file, line)) = &function.source {
            span.attributes.push(text("code.file.path", file.as_str()));
            span.attributes.push(number("code.line.number", *line));
        }
        span.attributes
            .push(text("fgraph.module", at.functions.module_of(call.slot)));
        if call.ending != Ending::Returned {
            span.attributes
                .push(text("fgraph.ended", ending_name(call.ending)));
        }
        span.attributes.extend(open.arguments);
        span.attributes.extend(values(at.values, "fgraph.", 'r'));
        self.put(at, (open.trace, open.id, parent), span);
        Ok(())
    }

    fn mark(&mut self, at: &At<'_>, text: &str) -> io::Result<()> {
        self.moment(at, text)
    }

    fn lost(&mut self, at: &At<'_>, events: u64) -> io::Result<()> {
        self.moment(at, &format!("lost {events} events"))
    }
}

impl Output for Otlp {
    fn set_host(&mut self, host: &str) {
        self.host = host.to_owned();
    }

    fn finish(mut self: Box<Self>, trace: &Trace<'_>) -> io::Result<()> {
        self.flush(trace.names)?;
        self.out.flush()
    }
}
