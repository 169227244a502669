//! The description of a thread in rings.

use fgraph_trace::names::{DescriptionKind, process_number};
use fgraph_trace::ring::Rings;

use crate::support::kernel;

/// Describes the calling thread, whose kernel id is `thread`, by its present name. Its process has
/// executed this number of programs before. Does nothing if the rings have no room.
///
/// Makes two system calls, and neither allocates nor locks.
pub fn describe_thread(rings: &Rings, executed: u32, thread: u32) {
    let process = process_number(kernel::process(), executed);
    let mut name = [0; 16];
    let name = kernel::thread_name(&mut name).to_str().unwrap_or("");
    let now = rings.clock().kind().now();
    let fields = [process.into(), thread.into(), now, 0];
    rings.describe(DescriptionKind::Thread, fields, [name, ""]);
}
