//! Tells all processes that have the rings that they are read.

use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

use fgraph_trace::ring::Rings;

/// Until it is dropped, or this process ends in whatever way, the rings have a reader.
#[derive(Debug)]
pub(super) struct Reader {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Reader {
    /// Returns when it is known. Where the kernel cannot tell of it, others go by the number of
    /// this process.
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
        // It is dropped when that has begun, or has failed.
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
