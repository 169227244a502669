//! Why a file was not read or written.

use std::{error, fmt, io};

use fgraph::{Error, FilterError};
use fgraph_trace::ring::Busy;
use fgraph_trace::source::SourceError;

use crate::recorder::RecordError;

/// Why a file was not read or written.
#[derive(Debug)]
#[non_exhaustive]
pub enum ControlError {
    /// There is no file of this name.
    NoFile(String),
    /// The file cannot be written.
    ReadOnly(String),
    /// The file cannot be read.
    WriteOnly(String),
    /// A part of what was written is wrong, or selects nothing.
    Value {
        /// The file.
        file: String,
        /// The part.
        part: String,
    },
    /// What the file tells of is not at work.
    Off(&'static str),
    /// Another reader empties the trace.
    Busy(Busy),
    /// There is no room for a mark in the trace.
    Lost,
    /// The trace could not be written as text.
    Trace(SourceError),
    /// The thread that takes snapshots cannot be started.
    Thread(io::Error),
    /// What the recorder says.
    Record(RecordError),
    /// What fgraph says.
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

/// The values that a file takes, in words; `None` if it takes no value.
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
