//! Reasons why a file was not read or written.

use std::io;

use fgraph::{Error, FilterError};
use fgraph_trace::ring::Busy;
use fgraph_trace::source::SourceError;

use crate::recorder::RecordError;

/// Reason why a file was not read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// No file has this name.
    #[error("there is no file {0}")]
    NoFile(String),
    /// The file cannot be written.
    #[error("{0} cannot be written")]
    ReadOnly(String),
    /// The file cannot be read.
    #[error("{0} cannot be read")]
    WriteOnly(String),
    /// A part of the written text is wrong, or selects nothing.
    #[error("{file} {}", refused(file, part))]
    Value {
        /// Name of the file.
        file: String,
        /// The wrong part.
        part: String,
    },
    /// The tracer that the file reports on is not running.
    #[error("{0} is off")]
    Off(&'static str),
    /// Another reader is consuming the trace.
    #[error(transparent)]
    Busy(#[from] Busy),
    /// The trace has no room for a mark.
    #[error("there is no room for a mark in the trace")]
    Lost,
    /// The trace could not be written as text.
    #[error("the trace cannot be read")]
    Trace(#[from] SourceError),
    /// The thread that takes snapshots could not be started.
    #[error("no thread for snapshots")]
    Thread(#[source] io::Error),
    /// Error of the recorder.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Error of fgraph.
    #[error(transparent)]
    Fgraph(#[from] Error),
}

impl ControlError {
    pub(super) fn value(file: &str, part: &str) -> Self {
        Self::Value {
            file: file.to_owned(),
            part: part.to_owned(),
        }
    }
}

impl From<FilterError> for ControlError {
    fn from(error: FilterError) -> Self {
        Self::Fgraph(error.into())
    }
}

/// Says why a file does not accept a value.
fn refused(file: &str, part: &str) -> String {
    let part = part.escape_debug();
    match accepted(file) {
        Some(accepted) => format!("cannot be '{part}': {accepted}"),
        None => format!("has no use for '{part}'"),
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
