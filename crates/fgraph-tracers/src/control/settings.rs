//! Settings that choose the recorded and the shown properties of each call.

use fgraph_trace::clock::ClockKind;
use fgraph_trace::graph::{self, Parts, ResultFormat};
use fgraph_trace::ring::{Mode, RingOptions};

use super::ControlError;
use super::words::Functions;
use crate::{profiler, recorder};

/// Options: the name, the default, and whether the trace restarts when it changes.
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

/// Size of a sub-buffer in KiB.
const SUB_BUFFER_KB: u32 = 64;

/// Values written to the files that are not a tracer's list of functions.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    options: [bool; OPTIONS.len()],
    /// Value of `set_graph_function`.
    pub(super) functions: Functions,
    /// Value of `set_graph_notrace`.
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
    /// Lists the files of the options.
    pub(super) fn files() -> impl Iterator<Item = String> {
        OPTIONS.iter().map(|(name, ..)| format!("options/{name}"))
    }

    pub(super) fn is_on(&self, name: &str) -> bool {
        place(name).is_some_and(|place| self.options[place])
    }

    /// True if a file of this name exists.
    pub(super) fn has(&self, file: &str) -> bool {
        self.read(file).is_some()
    }

    /// Returns the text of a file; `None` if it is not one of these.
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

    /// Writes to a file. Returns true if the trace must restart.
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

    /// Returns the recorder's options for the tracer of this name.
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

    /// Returns the profiler's options, which choose its clocks.
    pub(super) fn profiler(&self) -> profiler::Options {
        profiler::Options {
            graph_time: self.is_on("graph-time"),
            sleep_time: self.is_on("sleep-time"),
        }
    }

    /// Returns the options of the shown text, without the functions.
    pub(super) fn graph(&self) -> graph::Options {
        let formats = [
            ("funcgraph-retval-hex", ResultFormat::Hex),
            ("funcgraph-retval-decimal", ResultFormat::Decimal),
            ("funcgraph-retval-errno", ResultFormat::ErrnoName),
        ];
        let chosen = formats.into_iter().find(|(name, _)| self.is_on(name));
        let format = chosen.map_or(ResultFormat::Kernel, |(_, format)| format);
        let parts = [
            ("funcgraph-abstime", Parts::ABSOLUTE_TIME),
            ("funcgraph-cpu", Parts::CPU),
            ("funcgraph-proc", Parts::THREAD),
            ("funcgraph-duration", Parts::DURATION),
            ("funcgraph-overhead", Parts::OVERHEAD),
            ("funcgraph-args", Parts::ARGUMENTS),
            ("funcgraph-retaddr", Parts::CALLER),
            ("funcgraph-tail", Parts::TAIL),
        ];
        let parts = parts.into_iter().filter(|(name, _)| self.is_on(name));
        graph::Options {
            parts: parts.map(|(_, part)| part).collect(),
            result: self.is_on("funcgraph-retval").then_some(format),
            sleep_time: self.is_on("sleep-time"),
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

/// Lists the clocks of this machine.
fn clocks() -> impl Iterator<Item = (&'static str, ClockKind)> {
    let all = [("mono", ClockKind::Monotonic), ("x86-tsc", ClockKind::Tsc)];
    let best = ClockKind::of_this_machine();
    all.into_iter()
        .filter(move |(_, kind)| *kind == ClockKind::Monotonic || *kind == best)
}
