//! Perfetto's protobuf: a packet for each begin and end, on a track for each thread, and for each
//! change of a thread's state. Packets are compressed in blocks: uncompressed, a call takes 50
//! bytes.

use std::collections::BTreeMap;
use std::io::{self, Write};

use fgraph_analysis::calls::{At, Call, Open, Slot, ThreadId, Values, Visitor};
use fgraph_trace::names::process_id;
use fgraph_trace::pairing::Ending;
use fgraph_trace::schedule::State;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use prost::Message;

use super::text::Out;
use crate::names::{process_name, thread_name};
use crate::output::{Output, Trace, ending_name};
use crate::states::{NAMES, Span};

#[derive(Clone, PartialEq, Message)]
struct TracePacket {
    #[prost(message, optional, tag = "6")]
    clock_snapshot: Option<ClockSnapshot>,
    #[prost(uint64, optional, tag = "8")]
    timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    trusted_packet_sequence_id: Option<u32>,
    #[prost(message, optional, tag = "11")]
    track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "12")]
    interned_data: Option<InternedData>,
    #[prost(uint32, optional, tag = "13")]
    sequence_flags: Option<u32>,
    #[prost(message, optional, tag = "59")]
    trace_packet_defaults: Option<TracePacketDefaults>,
    /// Further packets, by zlib.
    #[prost(bytes, optional, tag = "50")]
    compressed_packets: Option<Vec<u8>>,
    #[prost(message, optional, tag = "60")]
    track_descriptor: Option<TrackDescriptor>,
    #[prost(message, optional, tag = "117")]
    task_state: Option<TaskState>,
}

/// `GenericKernelTaskStateEvent`: Perfetto makes the tables `sched` and `thread_state` from it, and
/// their lanes, as it does from a kernel's own events.
#[derive(Clone, PartialEq, Message)]
struct TaskState {
    #[prost(int32, optional, tag = "1")]
    cpu: Option<i32>,
    #[prost(string, optional, tag = "2")]
    comm: Option<String>,
    #[prost(int32, optional, tag = "3")]
    tid: Option<i32>,
    #[prost(int32, optional, tag = "4")]
    state: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct ClockSnapshot {
    #[prost(message, repeated, tag = "1")]
    clocks: Vec<ClockValue>,
    #[prost(uint32, optional, tag = "2")]
    primary_trace_clock: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
struct ClockValue {
    #[prost(uint32, optional, tag = "1")]
    clock_id: Option<u32>,
    #[prost(uint64, optional, tag = "2")]
    timestamp: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct TracePacketDefaults {
    #[prost(uint32, optional, tag = "58")]
    timestamp_clock_id: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
struct TrackEvent {
    #[prost(uint64, repeated, tag = "3")]
    category_iids: Vec<u64>,
    #[prost(message, repeated, tag = "4")]
    debug_annotations: Vec<DebugAnnotation>,
    #[prost(uint32, optional, tag = "9")]
    kind: Option<u32>,
    #[prost(uint64, optional, tag = "10")]
    name_iid: Option<u64>,
    #[prost(uint64, optional, tag = "11")]
    track_uuid: Option<u64>,
    #[prost(string, optional, tag = "23")]
    name: Option<String>,
    #[prost(uint64, optional, tag = "34")]
    source_location_iid: Option<u64>,
    #[prost(double, optional, tag = "44")]
    double_counter_value: Option<f64>,
}

#[derive(Clone, PartialEq, Message)]
struct DebugAnnotation {
    #[prost(string, optional, tag = "10")]
    name: Option<String>,
    #[prost(uint64, optional, tag = "3")]
    uint_value: Option<u64>,
    #[prost(string, optional, tag = "6")]
    string_value: Option<String>,
    #[prost(uint64, optional, tag = "7")]
    pointer_value: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct InternedData {
    #[prost(message, repeated, tag = "1")]
    event_categories: Vec<EventName>,
    #[prost(message, repeated, tag = "2")]
    event_names: Vec<EventName>,
    #[prost(message, repeated, tag = "4")]
    source_locations: Vec<SourceLocation>,
}

#[derive(Clone, PartialEq, Message)]
struct SourceLocation {
    #[prost(uint64, optional, tag = "1")]
    iid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    file_name: Option<String>,
    #[prost(string, optional, tag = "3")]
    function_name: Option<String>,
    #[prost(uint32, optional, tag = "4")]
    line_number: Option<u32>,
}

/// The name of an event, or a category.
#[derive(Clone, PartialEq, Message)]
struct EventName {
    #[prost(uint64, optional, tag = "1")]
    iid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    name: Option<String>,
    #[prost(message, optional, tag = "8")]
    counter: Option<CounterDescriptor>,
    #[prost(uint64, optional, tag = "5")]
    parent_uuid: Option<u64>,
    #[prost(message, optional, tag = "3")]
    process: Option<ProcessDescriptor>,
    #[prost(message, optional, tag = "4")]
    thread: Option<ThreadDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
struct CounterDescriptor {
    #[prost(string, optional, tag = "6")]
    unit_name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct ProcessDescriptor {
    #[prost(int32, optional, tag = "1")]
    pid: Option<i32>,
    #[prost(string, optional, tag = "6")]
    process_name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct ThreadDescriptor {
    #[prost(int32, optional, tag = "1")]
    pid: Option<i32>,
    #[prost(int32, optional, tag = "2")]
    tid: Option<i32>,
    #[prost(string, optional, tag = "5")]
    thread_name: Option<String>,
}

const SLICE_BEGIN: u32 = 1;
const SLICE_END: u32 = 2;
const INSTANT: u32 = 3;
const COUNTER: u32 = 4;
const STATE_CLEARED: u32 = 1;
const NEEDS_STATE: u32 = 2;
const REALTIME: u32 = 1;
const MONOTONIC: u32 = 3;
/// Perfetto's numbers of the [states](State::ALL) of threads.
const STATES: [i32; 3] = [3, 2, 4];
/// A trace is a message with a repeated field 1.
const PACKET: u8 = 1 << 3 | 2;
/// Bytes of packets that are compressed together.
const BLOCK: usize = 1 << 20;
/// Id of the only sequence.
const SEQUENCE: u32 = 1;

pub(crate) struct Perfetto {
    out: Out,
    /// Packets that are not written yet.
    packets: Vec<u8>,
    is_begun: bool,
    /// Names up to this symbol are interned.
    interned: Slot,
    /// True once the category of Python's functions is interned.
    has_python: bool,
    /// Names of processes and threads at their first event.
    processes: Vec<(u32, String)>,
    threads: Vec<String>,
}

/// Number of the category of Python's functions.
const PYTHON: u64 = 1;

/// Returns the track of a thread. Tracks of threads have even numbers, those of processes odd ones;
/// 0 is none.
fn thread_track(index: usize) -> u64 {
    2 * (index as u64 + 1)
}

/// The number of states that get a track from samples, the first ones; the rest is blocked.
const SAMPLED: usize = 2;

/// Returns the track of a sampled state, which no thread and no process has.
fn counter_track(index: usize, state: usize) -> u64 {
    (1 << 63) + 2 * index as u64 + state as u64
}

fn process_track(process: u32) -> u64 {
    2 * u64::from(process) + 1
}

impl Perfetto {
    pub(crate) fn new(out: Out) -> Self {
        Self {
            out,
            packets: Vec::new(),
            is_begun: false,
            interned: 0,
            has_python: false,
            processes: Vec::new(),
            threads: Vec::new(),
        }
    }

    fn put(&mut self, packet: &mut TracePacket) -> io::Result<()> {
        packet.trusted_packet_sequence_id = Some(SEQUENCE);
        self.packets.push(PACKET);
        let encoded = packet.encode_length_delimited(&mut self.packets);
        encoded.map_err(io::Error::other)?;
        match self.packets.len() >= BLOCK {
            true => self.write_packets(),
            false => Ok(()),
        }
    }

    /// Writes the packets as a compressed one.
    fn write_packets(&mut self) -> io::Result<()> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&self.packets)?;
        let packet = TracePacket {
            compressed_packets: Some(encoder.finish()?),
            ..TracePacket::default()
        };
        self.packets.clear();
        self.packets.push(PACKET);
        let encoded = packet.encode_length_delimited(&mut self.packets);
        encoded.map_err(io::Error::other)?;
        self.out.write_all(&self.packets)?;
        self.packets.clear();
        Ok(())
    }

    fn event(&mut self, at: &At<'_>, event: TrackEvent) -> io::Result<()> {
        self.put(&mut TracePacket {
            timestamp: Some(at.time),
            track_event: Some(TrackEvent {
                track_uuid: Some(thread_track(at.thread.index)),
                ..event
            }),
            sequence_flags: Some(NEEDS_STATE),
            ..TracePacket::default()
        })
    }

    fn describe_process(&mut self, process: u32, name: &str) -> io::Result<()> {
        self.put(&mut TracePacket {
            track_descriptor: Some(TrackDescriptor {
                uuid: Some(process_track(process)),
                process: Some(ProcessDescriptor {
                    pid: Some(process_id(process) as i32),
                    process_name: Some(name.to_owned()),
                }),
                ..TrackDescriptor::default()
            }),
            ..TracePacket::default()
        })
    }

    fn describe_thread(&mut self, thread: ThreadId, name: &str) -> io::Result<()> {
        self.put(&mut TracePacket {
            track_descriptor: Some(TrackDescriptor {
                uuid: Some(thread_track(thread.index)),
                parent_uuid: Some(process_track(thread.process)),
                thread: Some(ThreadDescriptor {
                    pid: Some(thread.process_id() as i32),
                    tid: Some(thread.id as i32),
                    thread_name: Some(name.to_owned()),
                }),
                ..TrackDescriptor::default()
            }),
            ..TracePacket::default()
        })
    }

    /// Writes the states of a thread, from its first event on. Without an end the last state goes
    /// on to the end of the trace.
    fn put_states(&mut self, trace: &Trace<'_>, thread: &ThreadId, first: u64) -> io::Result<()> {
        let name = self.threads.get(thread.index).cloned().unwrap_or_default();
        let end = trace.lives.iter().map(|life| life.1).max().unwrap_or(first);
        let mut has_counters = false;
        for span in trace.states_between(thread.id, first, end) {
            match span.state {
                // A thread without a switch: it is not known whose other slices it would cut.
                Some(State::Running) if span.cpu.is_none() => {}
                Some(state) => self.put(&mut TracePacket {
                    timestamp: Some(span.begin),
                    task_state: Some(TaskState {
                        cpu: Some(span.cpu.unwrap_or(0) as i32),
                        comm: Some(name.clone()),
                        tid: Some(thread.id as i32),
                        state: Some(STATES[state as usize]),
                    }),
                    sequence_flags: Some(NEEDS_STATE),
                    ..TracePacket::default()
                })?,
                None => {
                    if !std::mem::replace(&mut has_counters, true) {
                        self.describe_counters(thread)?;
                    }
                    self.put_shares(thread, &span)?;
                }
            }
        }
        Ok(())
    }

    /// Describes the tracks of the states that are known from samples.
    fn describe_counters(&mut self, thread: &ThreadId) -> io::Result<()> {
        for (state, name) in NAMES.into_iter().take(SAMPLED).enumerate() {
            self.put(&mut TracePacket {
                track_descriptor: Some(TrackDescriptor {
                    uuid: Some(counter_track(thread.index, state)),
                    parent_uuid: Some(thread_track(thread.index)),
                    name: Some(name.to_owned()),
                    counter: Some(CounterDescriptor {
                        unit_name: Some("%".to_owned()),
                    }),
                    ..TrackDescriptor::default()
                }),
                ..TracePacket::default()
            })?;
        }
        Ok(())
    }

    /// Writes the share of the states in the time between two samples.
    fn put_shares(&mut self, thread: &ThreadId, span: &Span) -> io::Result<()> {
        let length = (span.end - span.begin).max(1) as f64;
        for state in 0..SAMPLED {
            self.put(&mut TracePacket {
                timestamp: Some(span.begin),
                track_event: Some(TrackEvent {
                    kind: Some(COUNTER),
                    track_uuid: Some(counter_track(thread.index, state)),
                    double_counter_value: Some(span.times[state] as f64 * 100.0 / length),
                    ..TrackEvent::default()
                }),
                sequence_flags: Some(NEEDS_STATE),
                ..TracePacket::default()
            })?;
        }
        Ok(())
    }

    fn intern(&mut self, at: &At<'_>, symbol: Slot) -> io::Result<()> {
        while self.interned <= symbol {
            let next = self.interned;
            self.interned += 1;
            let function = at.functions.function(next);
            let source = function.source.as_ref();
            let location = source.map(|(file, line)| SourceLocation {
                iid: Some(u64::from(next) + 1),
                file_name: Some(file.clone()),
                function_name: Some(function.name.clone()),
                line_number: Some(*line),
            });
            let category = (at.functions.is_python(next) && !self.has_python).then(|| EventName {
                iid: Some(PYTHON),
                name: Some("python".to_owned()),
            });
            self.has_python |= category.is_some();
            self.put(&mut TracePacket {
                interned_data: Some(InternedData {
                    event_categories: category.into_iter().collect(),
                    source_locations: location.into_iter().collect(),
                    event_names: vec![EventName {
                        iid: Some(u64::from(next) + 1),
                        name: Some(at.functions.name(next).to_owned()),
                    }],
                }),
                sequence_flags: Some(NEEDS_STATE),
                ..TracePacket::default()
            })?;
        }
        Ok(())
    }
}

fn annotations(values: &Values<'_>, name: &str) -> Vec<DebugAnnotation> {
    let words = values.words.iter().enumerate();
    let words = words.map(|(n, &word)| DebugAnnotation {
        name: Some(format!("{name}{n}")),
        pointer_value: Some(word),
        ..DebugAnnotation::default()
    });
    let typed = values.typed.iter();
    let typed = typed.map(|(name, value)| DebugAnnotation {
        name: Some(name.clone()),
        string_value: Some(value.clone()),
        ..DebugAnnotation::default()
    });
    typed.chain(words).collect()
}

impl Visitor for Perfetto {
    type Error = io::Error;

    fn thread(&mut self, at: &At<'_>) -> io::Result<()> {
        if !self.is_begun {
            self.is_begun = true;
            let first = at.clock.first();
            let value = |clock, time| ClockValue {
                clock_id: Some(clock),
                timestamp: Some(time),
            };
            self.put(&mut TracePacket {
                clock_snapshot: Some(ClockSnapshot {
                    clocks: vec![
                        value(MONOTONIC, first.monotonic),
                        value(REALTIME, first.realtime),
                    ],
                    primary_trace_clock: Some(MONOTONIC),
                }),
                sequence_flags: Some(STATE_CLEARED),
                trace_packet_defaults: Some(TracePacketDefaults {
                    timestamp_clock_id: Some(MONOTONIC),
                }),
                ..TracePacket::default()
            })?;
        }
        let process = at.thread.process;
        if !self.processes.iter().any(|&(known, _)| known == process) {
            let name = process_name(at.names, process);
            self.describe_process(process, &name)?;
            self.processes.push((process, name));
        }
        let name = thread_name(at.names, process, at.thread.id);
        self.describe_thread(at.thread, &name)?;
        self.threads.push(name);
        Ok(())
    }

    fn enter(&mut self, at: &At<'_>, call: &Open) -> io::Result<()> {
        let symbol = call.data;
        self.intern(at, symbol)?;
        self.event(
            at,
            TrackEvent {
                category_iids: match at.functions.is_python(symbol) {
                    true => vec![PYTHON],
                    false => Vec::new(),
                },
                kind: Some(SLICE_BEGIN),
                name_iid: Some(u64::from(symbol) + 1),
                source_location_iid: {
                    let source = &at.functions.function(symbol).source;
                    source.is_some().then_some(u64::from(symbol) + 1)
                },
                debug_annotations: annotations(at.values, "argument"),
                ..TrackEvent::default()
            },
        )
    }

    fn exit(&mut self, at: &At<'_>, call: &Call) -> io::Result<()> {
        let mut debug_annotations = annotations(at.values, "at.values");
        if call.ending != Ending::Returned {
            debug_annotations.push(DebugAnnotation {
                name: Some("ended".to_owned()),
                string_value: Some(ending_name(call.ending).to_owned()),
                ..DebugAnnotation::default()
            });
        }
        self.event(
            at,
            TrackEvent {
                kind: Some(SLICE_END),
                debug_annotations,
                ..TrackEvent::default()
            },
        )
    }

    fn mark(&mut self, at: &At<'_>, text: &str) -> io::Result<()> {
        self.event(
            at,
            TrackEvent {
                kind: Some(INSTANT),
                name: Some(text.to_owned()),
                ..TrackEvent::default()
            },
        )
    }

    fn lost(&mut self, at: &At<'_>, events: u64) -> io::Result<()> {
        self.event(
            at,
            TrackEvent {
                kind: Some(INSTANT),
                name: Some(format!("lost {events} events")),
                debug_annotations: vec![DebugAnnotation {
                    name: Some("lost".to_owned()),
                    uint_value: Some(events),
                    ..DebugAnnotation::default()
                }],
                ..TrackEvent::default()
            },
        )
    }
}

impl Output for Perfetto {
    fn finish(mut self: Box<Self>, trace: &Trace<'_>) -> io::Result<()> {
        // Threads get their names only after they have started.
        for (process, before) in std::mem::take(&mut self.processes) {
            let name = process_name(trace.names, process);
            if name != before {
                self.describe_process(process, &name)?;
            }
        }
        for thread in trace.threads {
            let name = thread_name(trace.names, thread.process, thread.id);
            if name != self.threads[thread.index] {
                self.describe_thread(*thread, &name)?;
                self.threads[thread.index] = name;
            }
        }
        // A thread that executes another program is still the same to Perfetto.
        let mut first: BTreeMap<u32, (ThreadId, u64)> = BTreeMap::new();
        for (thread, &(begin, _)) in trace.threads.iter().zip(trace.lives) {
            let known = first.entry(thread.id).or_insert((*thread, begin));
            known.1 = known.1.min(begin);
        }
        for (thread, first) in first.into_values() {
            self.put_states(trace, &thread, first)?;
        }
        self.write_packets()?;
        self.out.flush()
    }
}
