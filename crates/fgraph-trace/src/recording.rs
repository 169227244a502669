//! Recordings: files of events that say what their events mean.
//!
//! `docs/format.md` in the repository describes the format.

mod ahead;
mod block;
mod columns;
mod drain;
mod encode;
mod read;
mod schedule;
mod write;

pub use columns::CallSum;
pub use drain::{Drain, recover};
pub use read::{Damage, Info, Recording, RecordingLanes};
pub use write::RecordingWriter;

/// The first bytes of a recording.
const MAGIC: [u8; 8] = *b"FGRAPHRC";
/// The version of the format that is written. Readers refuse later ones.
const VERSION: u16 = 1;
/// Bytes of the file before the first block.
const HEADER: usize = 16;
