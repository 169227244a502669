//! pprof's profile: a sample for each stack, in compressed protobuf.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};

use fgraph_trace::names::process_id;
use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;

use super::text::Out;
use crate::names::process_name;
use crate::output::Trace;
use crate::stacks::{Frame, Stacks};
use crate::states::NAMES;

#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    time_nanos: i64,
    #[prost(int64, tag = "10")]
    duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    period: i64,
    #[prost(int64, tag = "14")]
    default_sample_type: i64,
}

#[derive(Clone, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    kind: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    label: Vec<Label>,
}

#[derive(Clone, PartialEq, Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    text: i64,
    #[prost(int64, tag = "3")]
    number: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Mapping {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    memory_start: u64,
    #[prost(uint64, tag = "3")]
    memory_limit: u64,
    #[prost(int64, tag = "5")]
    filename: i64,
    #[prost(int64, tag = "6")]
    build_id: i64,
    #[prost(bool, tag = "7")]
    has_functions: bool,
    #[prost(bool, tag = "8")]
    has_filenames: bool,
    #[prost(bool, tag = "9")]
    has_line_numbers: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    mapping_id: u64,
    #[prost(uint64, tag = "3")]
    address: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
    #[prost(int64, tag = "5")]
    start_line: i64,
}

/// Set of texts; the first one is empty.
struct Strings {
    all: Vec<String>,
    known: HashMap<String, i64>,
}

impl Strings {
    fn number(&mut self, text: &str) -> i64 {
        if let Some(&known) = self.known.get(text) {
            return known;
        }
        let number = self.all.len() as i64;
        self.all.push(text.to_owned());
        self.known.insert(text.to_owned(), number);
        number
    }
}

pub(crate) fn pprof(stacks: &Stacks, trace: &Trace<'_>, out: &mut Out) -> io::Result<()> {
    let mut strings = Strings {
        all: Vec::new(),
        known: HashMap::new(),
    };
    strings.number("");
    let mut profile = head(trace, &mut strings);
    profile.mapping = mappings(trace, &mut strings);
    add_functions(trace, &mut strings, &mut profile);
    let mut gzip = GzEncoder::new(out, Compression::fast());
    let mut buffer = Vec::new();
    let mut put = |profile: &Profile| {
        // Consecutive messages count as one message with all their fields.
        buffer.clear();
        profile.encode(&mut buffer).map_err(io::Error::other)?;
        gzip.write_all(&buffer)
    };
    put(&profile)?;
    let keys = [strings.number("pid"), strings.number("process")];
    for (at, (calls, own)) in stacks.cut().into_iter().enumerate() {
        if calls == 0 {
            continue;
        }
        let mut value = vec![number(calls), number(own)];
        if trace.weight.is_some() {
            // The calls only carry weights.
            value.remove(0);
            if own == 0 {
                continue;
            }
        }
        let sample = sample(stacks, (at, value), trace, (keys, &mut strings));
        put(&Profile {
            sample: vec![sample],
            ..Profile::default()
        })?;
    }
    put(&Profile {
        string_table: strings.all,
        ..Profile::default()
    })?;
    gzip.finish()?;
    Ok(())
}

/// Returns the modules, the program first.
fn mappings(trace: &Trace<'_>, strings: &mut Strings) -> Vec<Mapping> {
    let modules = trace.functions.modules().iter().map(String::as_str);
    let mut modules: Vec<(&str, u64)> = modules.zip(1..).collect();
    // Readers take the first one for the program.
    if let Some(program) = trace.program() {
        match modules.iter().position(|(path, _)| *path == program) {
            Some(place) => modules[..=place].rotate_right(1),
            None => modules.insert(0, (program, modules.len() as u64 + 1)),
        }
    }
    let functions = (0..).zip(trace.functions.iter());
    let with_sources: HashSet<u64> = functions
        .filter(|(_, function)| function.source.is_some())
        .map(|(slot, _)| trace.functions.module_number(slot) as u64 + 1)
        .collect();
    let mut mappings = Vec::new();
    for (path, id) in modules {
        // Addresses in the process that loaded it first.
        let module = trace.names.module_of_path(path);
        let range = module.map(|module| (module.start, module.end));
        let (memory_start, memory_limit) = range.unwrap_or_default();
        let has_sources = with_sources.contains(&id);
        mappings.push(Mapping {
            id,
            memory_start,
            memory_limit,
            filename: strings.number(path),
            build_id: strings.number(module.map_or("", |it| &it.build_id)),
            has_functions: true,
            has_filenames: has_sources,
            has_line_numbers: has_sources,
        });
    }
    mappings
}

/// Adds the functions, each with a location.
fn add_functions(trace: &Trace<'_>, strings: &mut Strings, profile: &mut Profile) {
    for (slot, function) in (0..).zip(trace.functions.iter()) {
        let id = u64::from(slot) + 1;
        let name = strings.number(&function.name);
        let source = function.source.as_ref();
        let (file, line) = source.map_or(("", 0), |(file, line)| (file, *line));
        profile.function.push(Function {
            id,
            name,
            system_name: name,
            filename: strings.number(file),
            start_line: line.into(),
        });
        profile.location.push(Location {
            id,
            mapping_id: trace.functions.module_number(slot) as u64 + 1,
            address: function.address,
            line: vec![Line {
                function_id: id,
                line: line.into(),
            }],
        });
    }
}

/// Returns the sample of the stack whose innermost frame is at this node. The keys are those of the
/// labels for the number and the name of a process.
fn sample(
    stacks: &Stacks,
    (mut at, value): (usize, Vec<i64>),
    trace: &Trace<'_>,
    ([pid, process], strings): ([i64; 2], &mut Strings),
) -> Sample {
    let nodes = stacks.nodes();
    let mut sample = Sample {
        value,
        ..Sample::default()
    };
    loop {
        match nodes[at].frame {
            Frame::Function(symbol) => sample.location_id.push(u64::from(symbol) + 1),
            Frame::Process(id) => {
                sample.label = vec![
                    Label {
                        key: pid,
                        text: 0,
                        number: process_id(id).into(),
                    },
                    Label {
                        key: process,
                        text: strings.number(&process_name(trace.names, id)),
                        number: 0,
                    },
                ];
                break;
            }
        }
        at = nodes[at].parent();
    }
    sample
}

fn head(trace: &Trace<'_>, strings: &mut Strings) -> Profile {
    let mut value = |kind, unit| ValueType {
        kind: strings.number(kind),
        unit: strings.number(unit),
    };
    let kind = trace.measured.map_or("time", |state| NAMES[state as usize]);
    let (kind, unit) = trace.weight.unwrap_or((kind, "nanoseconds"));
    let (calls, time) = (value("calls", "count"), value(kind, unit));
    let sample_type = match trace.weight {
        None => vec![calls, time.clone()],
        Some(_) => vec![time.clone()],
    };
    let clock = trace.clock.first();
    let since = trace.start.saturating_sub(clock.monotonic);
    Profile {
        default_sample_type: time.kind,
        sample_type,
        time_nanos: number(clock.realtime.saturating_add(since)),
        duration_nanos: number(trace.end - trace.start),
        period_type: Some(time),
        period: 1,
        ..Profile::default()
    }
}

fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
