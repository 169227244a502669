//! Names of processes and threads.

use std::path::Path;

use fgraph_trace::names::{Names, process_id};

/// Returns the last part of a path.
pub(crate) fn base_name(path: &str) -> &str {
    let name = Path::new(path).file_name();
    name.and_then(|name| name.to_str()).unwrap_or(path)
}

/// Returns the name of a process.
pub(crate) fn process_name(names: &Names, process: u32) -> String {
    match names.process(process) {
        Some((_, name)) if !name.is_empty() => name.to_owned(),
        _ => format!("process {}", process_id(process)),
    }
}

/// Returns the name of a thread.
pub(crate) fn thread_name(names: &Names, process: u32, thread: u32) -> String {
    match names.thread(process, thread) {
        Some(name) if !name.is_empty() => name.to_owned(),
        _ => format!("thread {thread}"),
    }
}
