//! Reasons why a file was not read or written.

use std::{error, fmt, io};

use fgraph::{Error, FilterError};
use fgraph_trace::ring::Busy;
use fgraph_trace::source::SourceError;

use crate::recorder::RecordError;

/// Reason why a file was not read or written.
#[derive(Debug)]
#[non_exhaustive]
pub enum ControlError {
    /// No file has this name.
    NoFile(String),
    /// The file cannot be written.
    ReadOnly(String),
    /// The file cannot be read.
    WriteOnly(String),
    /// A part of the written text is wrong, or selects nothing.
    Value {
        /// Name of the file.
        file: String,
        /// The wrong part.
        part: String,
    },
    /// The tracer that the file reports on is not running.
    Off(&'static str),
    /// Another reader is consuming the trace.
    Busy(Busy),
    /// The trace has no room for a mark.
    Lost,
    /// The trace could not be written as text.
    Trace(SourceError),
    /// The thread that takes snapshots could not be started.
    Thread(io::Error),
    /// Error of the recorder.
    Record(RecordError),
    /// Error of fgraph.
    Fgraph(Error),
}

impl ControlError {
    pub(super) fn value(file: &str, part: &str) -> Self {
        Self::Value {
            file: file.to_owned(),
            part: part.to_owned(),
        }
    }
}

impl From<Error> for ControlError {
    fn from(error: Error) -> Self {
        Self::Fgraph(error)
    }
}

impl From<FilterError> for ControlError {
    fn from(error: FilterError) -> Self {
        Self::Fgraph(error.into())
    }
}

impl From<RecordError> for ControlError {
    fn from(error: RecordError) -> Self {
        Self::Record(error)
    }
}

impl From<SourceError> for ControlError {
    fn from(error: SourceError) -> Self {
        Self::Trace(error)
    }
}

impl From<Busy> for ControlError {
    fn from(error: Busy) -> Self {
        Self::Busy(error)
    }
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFile(file) => write!(f, "there is no file {file}"),
            Self::ReadOnly(file) => write!(f, "{file} cannot be written"),
            Self::WriteOnly(file) => write!(f, "{file} cannot be read"),
            Self::Value { file, part } => {
                let part = part.escape_debug();
                match accepted(file) {
                    Some(accepted) => write!(f, "{file} cannot be '{part}': {accepted}"),
                    None => write!(f, "{file} has no use for '{part}'"),
                }
            }
            Self::Off(what) => write!(f, "{what} is off"),
            Self::Busy(busy) => busy.fmt(f),
            Self::Lost => f.write_str("there is no room for a mark in the trace"),
            Self::Trace(error) => write!(f, "the trace cannot be read: {error}"),
            Self::Thread(error) => write!(f, "no thread for snapshots: {error}"),
            Self::Record(error) => error.fmt(f),
            Self::Fgraph(error) => error.fmt(f),
        }
    }
}

/// Describes the values that a file accepts; `None` if it accepts no value.
fn accepted(file: &str) -> Option<&'static str> {
    Some(match file {
        "current_tracer" => "function_graph, function, nop",
        "tracing_on" | "function_profile_enabled" | "stack_tracer_enabled" | "snapshot" => "0, 1",
        "stack_max_size" => "0",
        "buffer_size_kb" | "max_graph_depth" | "tracing_thresh" => "a number",
        "trace_clock" | "function_tracers" => "reading it shows what it can be",
        _ if file.starts_with("options/") => "0, 1",
        _ => return None,
    })
}

impl error::Error for ControlError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Trace(error) => error.source(),
            Self::Thread(error) => Some(error),
            Self::Record(error) => error.source(),
            Self::Fgraph(error) => error.source(),
            _ => None,
        }
    }
}
