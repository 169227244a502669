//! What is recorded of each call, and what is shown of it.

use fgraph_trace::clock::ClockKind;
use fgraph_trace::graph::{self, ResultFormat};
use fgraph_trace::ring::{Mode, RingOptions};

use super::ControlError;
use super::words::Functions;
use crate::{profiler, recorder};

/// An option: its name, what it is without being written, and whether the trace starts anew with
/// it.
const OPTIONS: [(&str, bool, bool); 16] = [
    ("funcgraph-abstime", false, false),
    ("funcgraph-args", false, true),
    ("funcgraph-cpu", true, false),
    ("funcgraph-duration", true, false),
    ("funcgraph-overhead", true, false),
    ("funcgraph-proc", false, false),
    ("funcgraph-retaddr", false, true),
    ("funcgraph-retval", false, true),
    ("funcgraph-retval-decimal", false, false),
    ("funcgraph-retval-errno", false, false),
    ("funcgraph-retval-hex", false, false),
    ("funcgraph-tail", false, false),
    ("graph-time", true, false),
    ("markers", true, false),
    ("overwrite", true, true),
    ("sleep-time", true, true),
];

/// KiB of a sub-buffer.
const SUB_BUFFER_KB: u32 = 64;

/// What was written to the files that are no lists of functions of a tracer.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    options: [bool; OPTIONS.len()],
    /// `set_graph_function`.
    pub(super) functions: Functions,
    /// `set_graph_notrace`.
    pub(super) without: Functions,
    depth: u32,
    threshold_us: u32,
    sub_buffers: u32,
    clock: ClockKind,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            options: OPTIONS.map(|(_, on, _)| on),
            functions: Functions::default(),
            without: Functions::default(),
            depth: 0,
            threshold_us: 0,
            sub_buffers: RingOptions::default().sub_buffers,
            clock: ClockKind::of_this_machine(),
        }
    }
}

impl Settings {
    /// The files of the options.
    pub(super) fn files() -> impl Iterator<Item = String> {
        OPTIONS.iter().map(|(name, ..)| format!("options/{name}"))
    }

    pub(super) fn is_on(&self, name: &str) -> bool {
        place(name).is_some_and(|place| self.options[place])
    }

    /// Whether it has this file.
    pub(super) fn has(&self, file: &str) -> bool {
        self.read(file).is_some()
    }

    /// The text of a file; `None` if it is not one of these.
    pub(super) fn read(&self, file: &str) -> Option<String> {
        Some(match file {
            "buffer_size_kb" => format!("{}\n", self.sub_buffers * SUB_BUFFER_KB),
            "max_graph_depth" => format!("{}\n", self.depth),
            "tracing_thresh" => format!("{}\n", self.threshold_us),
            "trace_clock" => {
                let name = |(name, kind): (&str, _)| match kind == self.clock {
                    true => format!("[{name}]"),
                    false => name.to_owned(),
                };
                let names: Vec<_> = clocks().map(name).collect();
                names.join(" ") + "\n"
            }
            "trace_options" => {
                let options = OPTIONS.iter().zip(self.options);
                let no = |on| if on { "" } else { "no" };
                let lines = options.map(|((name, ..), on)| format!("{}{name}\n", no(on)));
                lines.collect()
            }
            _ => format!("{}\n", u8::from(self.options[place(option(file)?)?])),
        })
    }

    /// Writes to a file, and says whether the trace starts anew with it.
    pub(super) fn write(&mut self, file: &str, text: &str) -> Result<bool, ControlError> {
        let wrong = || ControlError::value(file, text);
        let number = || text.parse::<u32>().map_err(|_| wrong());
        match file {
            "buffer_size_kb" => {
                let count = number()?.div_ceil(SUB_BUFFER_KB).max(2);
                if count > 4096 {
                    return Err(wrong());
                }
                self.sub_buffers = count;
                return Ok(true);
            }
            "max_graph_depth" => self.depth = number()?,
            "tracing_thresh" => self.threshold_us = number()?,
            "trace_clock" => {
                let mut clocks = clocks();
                let (_, kind) = clocks.find(|(name, _)| *name == text).ok_or_else(wrong)?;
                self.clock = kind;
                return Ok(true);
            }
            "trace_options" => {
                let mut changed = self.clone();
                let mut anew = false;
                for word in text.split_whitespace() {
                    let set = match (place(word), word.strip_prefix("no").and_then(place)) {
                        (Some(place), _) => (place, true),
                        (None, Some(place)) => (place, false),
                        (None, None) => return Err(ControlError::value(file, word)),
                    };
                    anew |= changed.set(set.0, set.1);
                }
                *self = changed;
                return Ok(anew);
            }
            _ => {
                let place = option(file).and_then(place);
                let place = place.ok_or_else(|| ControlError::NoFile(file.to_owned()))?;
                let on = match text {
                    "0" => false,
                    "1" => true,
                    _ => return Err(wrong()),
                };
                return Ok(self.set(place, on));
            }
        }
        Ok(false)
    }

    fn set(&mut self, place: usize, on: bool) -> bool {
        let before = std::mem::replace(&mut self.options[place], on);
        before != on && OPTIONS[place].2
    }

    /// What is recorded for a tracer of this name.
    pub(super) fn recorder(&self, name: &str) -> recorder::Options {
        let is_graph = name == "function_graph";
        let mode = match self.is_on("overwrite") {
            true => Mode::Overwrite,
            false => Mode::Drop,
        };
        recorder::Options {
            rings: RingOptions {
                mode,
                sub_buffers: self.sub_buffers,
                sub_buffer_bytes: SUB_BUFFER_KB << 10,
                clock: Some(self.clock),
                ..RingOptions::default()
            },
            arguments: if is_graph && self.is_on("funcgraph-args") {
                6
            } else {
                0
            },
            result: is_graph && self.is_on("funcgraph-retval"),
            caller: !is_graph || self.is_on("funcgraph-retaddr"),
            running: is_graph && !self.is_on("sleep-time"),
            ..recorder::Options::default()
        }
    }

    /// Which times the profiler takes.
    pub(super) fn profiler(&self) -> profiler::Options {
        profiler::Options {
            graph_time: self.is_on("graph-time"),
            sleep_time: self.is_on("sleep-time"),
        }
    }

    /// What is shown, but for functions.
    pub(super) fn graph(&self) -> graph::Options {
        let formats = [
            ("funcgraph-retval-hex", ResultFormat::Hex),
            ("funcgraph-retval-decimal", ResultFormat::Decimal),
            ("funcgraph-retval-errno", ResultFormat::ErrnoName),
        ];
        let chosen = formats.into_iter().find(|(name, _)| self.is_on(name));
        let format = chosen.map_or(ResultFormat::Kernel, |(_, format)| format);
        graph::Options {
            cpu: self.is_on("funcgraph-cpu"),
            overhead: self.is_on("funcgraph-overhead"),
            thread: self.is_on("funcgraph-proc"),
            duration: self.is_on("funcgraph-duration"),
            sleep_time: self.is_on("sleep-time"),
            absolute_time: self.is_on("funcgraph-abstime"),
            tail: self.is_on("funcgraph-tail"),
            arguments: self.is_on("funcgraph-args"),
            result: self.is_on("funcgraph-retval").then_some(format),
            caller: self.is_on("funcgraph-retaddr"),
            max_depth: self.depth as usize,
            threshold: u64::from(self.threshold_us) * 1000,
            ..graph::Options::default()
        }
    }
}

fn option(file: &str) -> Option<&str> {
    file.strip_prefix("options/")
}

fn place(name: &str) -> Option<usize> {
    OPTIONS.iter().position(|(known, ..)| *known == name)
}

/// The clocks of this machine.
fn clocks() -> impl Iterator<Item = (&'static str, ClockKind)> {
    let all = [("mono", ClockKind::Monotonic), ("x86-tsc", ClockKind::Tsc)];
    let best = ClockKind::of_this_machine();
    all.into_iter()
        .filter(move |(_, kind)| *kind == ClockKind::Monotonic || *kind == best)
}
