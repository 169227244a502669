//! Rings that a program makes for itself.

use std::io;

use fgraph_trace::ring::{Mode, RingOptions, Rings};
use serde::{Deserialize, Serialize};

/// The size of rings that a program makes for itself, as in [`RingOptions`].
///
/// It is exhaustive, since callers write it as a literal: a new field breaks them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnRings {
    /// The number of threads that may have a ring at the same time.
    pub rings: u32,
    /// Sub-buffers of a ring.
    pub sub_buffers: u32,
    /// Bytes of a sub-buffer.
    pub sub_buffer_bytes: u32,
    /// Bytes for descriptions of functions.
    pub table_bytes: u32,
}

impl OwnRings {
    /// The size of such rings.
    #[must_use]
    pub fn of(options: &RingOptions) -> Self {
        Self {
            rings: options.rings,
            sub_buffers: options.sub_buffers,
            sub_buffer_bytes: options.sub_buffer_bytes,
            table_bytes: options.table_bytes,
        }
    }

    /// Makes the rings, in memory that forked children share.
    ///
    /// # Errors
    ///
    /// Fails like [`Rings::create`].
    pub fn create(&self) -> io::Result<Rings> {
        Rings::create(&RingOptions {
            mode: Mode::Overwrite,
            rings: self.rings,
            sub_buffers: self.sub_buffers,
            sub_buffer_bytes: self.sub_buffer_bytes,
            table_bytes: self.table_bytes,
            clock: None,
        })
    }
}
