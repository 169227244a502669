//! Announces a reader to all processes that have the rings.

use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

use fgraph_trace::ring::Rings;

/// The rings have a reader until this is dropped, or this process ends in any way.
#[derive(Debug)]
pub(super) struct Reader {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Reader {
    /// Returns after the announcement. If the kernel does not support it, other processes use the
    /// id of this process.
    pub(super) fn start(rings: &Arc<Rings>) -> Self {
        let (end, is_over) = mpsc::channel();
        let (begun, has_begun) = mpsc::channel::<()>();
        let rings = Arc::clone(rings);
        let wait = move || {
            drop(begun);
            // It ends when there is no sender any more.
            let _ = is_over.recv();
        };
        let read = move || _ = rings.while_read(wait);
        let thread = thread::Builder::new()
            .name("fgraph-reader".to_owned())
            .spawn(read);
        // It is dropped after the start, or after a failure.
        let _ = has_begun.recv();
        Self {
            end: Some(end),
            thread: thread.ok(),
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        drop(self.end.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
