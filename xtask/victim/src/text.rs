//! The program's own text.
//!
//! # Safety
//!
//! The unsafe code reads the program's own text segments, which stay mapped.

use std::os::unix::ffi::OsStrExt as _;
use std::{fs, io, slice};

use fgraph_symbols::mapping::Mapping;

use crate::failures::{Failure, note};

/// A copy of an executable segment.
#[derive(Debug)]
struct Segment {
    start: usize,
    bytes: Vec<u8>,
}

/// A copy of the program's text.
#[derive(Debug)]
pub(crate) struct Snapshot(Vec<Segment>);

impl Snapshot {
    /// Copies the text as it is now.
    pub(crate) fn take() -> io::Result<Self> {
        let program = fs::read_link("/proc/self/exe")?;
        let maps = fs::read("/proc/self/maps")?;
        let segment = |mapping: Mapping<'_>| {
            let start = mapping.range.start as usize;
            let bytes = text(start, mapping.range.end as usize - start).to_vec();
            Segment { start, bytes }
        };
        let is_text = |mapping: &Mapping<'_>| {
            mapping.protection.executable && mapping.path == program.as_os_str().as_bytes()
        };
        let segments: Vec<Segment> = Mapping::all(&maps).filter(is_text).map(segment).collect();
        if segments.is_empty() {
            return Err(io::Error::other(
                "the program's text is not in /proc/self/maps",
            ));
        }
        Ok(Self(segments))
    }

    /// Notes where the text is not what it was.
    pub(crate) fn compare(&self) {
        for segment in &self.0 {
            let now = text(segment.start, segment.bytes.len());
            let differing = segment.bytes.iter().zip(now).enumerate();
            let mut last = None;
            for (offset, (was, is)) in differing.filter(|(_, (was, is))| was != is) {
                // One failure for each site.
                if last.is_none_or(|last| offset > last + 5) {
                    let bytes = u64::from(*was) << 8 | u64::from(*is);
                    note(Failure::Text, (segment.start + offset) as u64, bytes);
                }
                last = Some(offset);
            }
        }
    }
}

fn text(start: usize, len: usize) -> &'static [u8] {
    // SAFETY: a segment of the running program. fgraph may change it only while functions are
    // traced, which is not the case when it is read.
    unsafe { slice::from_raw_parts(std::ptr::with_exposed_provenance(start), len) }
}
