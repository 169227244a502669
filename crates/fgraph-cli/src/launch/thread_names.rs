//! The names of running threads.

use fgraph_analysis::calls::Thread;
use fgraph_trace::names::process_id;

/// Updates the name of a running thread: programs name threads after their first calls.
pub(crate) fn rename(thread: &mut Thread) {
    let (process, id) = (process_id(thread.process), thread.id);
    let comm = format!("/proc/{process}/task/{id}/comm");
    if let Ok(name) = std::fs::read_to_string(comm) {
        thread.name = name.trim_end().to_owned();
    }
}
