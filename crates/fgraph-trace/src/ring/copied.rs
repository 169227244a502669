//! Copies rings out of the memory of a process that has ended, as a core file has it.

use std::io;
use std::ops::Range;

use super::Rings;
use super::layout::{Geometry, MAGIC, at, ring, sub};
use super::memory::Memory;
use crate::primitive::{AtomicU64, Ordering};

/// Bytes of a word.
const WORD: usize = 8;

impl Rings {
    /// The first bytes of the memory of rings. The last one is the version of the layout.
    pub const MAGIC: [u8; 8] = MAGIC.to_le_bytes();

    /// Copies rings that are not mapped in this process. The copy is [finished](Self::finish).
    ///
    /// `read` copies bytes from an offset of their memory on, and returns their number, which is
    /// smaller than requested where the rest is not known. It is called for the parts in use, with
    /// at most 64 KiB each. Events in unknown parts are missing from the copy. Zeros take no memory
    /// there.
    ///
    /// # Errors
    ///
    /// Fails with [`InvalidData`](io::ErrorKind::InvalidData) if there are no rings, or rings of an
    /// unknown version; with [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) if a part of their
    /// headers is unknown; with an error of `read`, or if there is no memory for the copy.
    pub fn copy_of(mut read: impl FnMut(u64, &mut [u8]) -> io::Result<usize>) -> io::Result<Self> {
        let mut source = Source {
            read: &mut read,
            bytes: Vec::new(),
        };
        let mut header = [0; at::HEADER];
        for (place, word) in header.iter_mut().zip(source.words(0, at::HEADER)?) {
            *place = u64::from_ne_bytes(*word);
        }
        let geometry = Geometry::read(&header)?;
        let memory = Memory::new(&geometry)?;
        if source.copy(0, memory.headers())? < geometry.headers() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let this = Self { memory, geometry };
        this.abandon();
        this.finish();
        this.copy_part(0, 0..this.table_used(), &mut source)?;
        for ring in 0..this.ring_count() {
            let opened = this.ring_header(ring).get(ring::HEAD);
            let opened = opened.map_or(0, |opened| opened.load(Ordering::Relaxed));
            // No more places are in use than sub-buffers were opened.
            let places = opened.min(geometry.sub_buffers.into()) as usize;
            let index = ring as usize + 1;
            this.copy_part(index, 0..geometry.sub_buffer(0).start, &mut source)?;
            for place in 0..places {
                let start = geometry.sub_buffer(place).start;
                let used = this.copy_part(index, start..start + sub::HEADER, &mut source)?;
                let used = used.get(sub::USED);
                let used = used.map_or(0, |used| used.load(Ordering::Relaxed) as u32 as usize);
                let events = start + sub::HEADER..start + sub::HEADER + used.min(geometry.room());
                this.copy_part(index, events, &mut source)?;
            }
        }
        Ok(this)
    }

    /// Copies a range of words of a part. Returns those that are known.
    fn copy_part(
        &self,
        index: usize,
        range: Range<usize>,
        source: &mut Source<'_>,
    ) -> io::Result<&[AtomicU64]> {
        let part = self.geometry.part(index);
        let start = part.start + range.start;
        // Nothing is mapped for a part that is not there.
        if range.is_empty() || source.words(start, 1)?.is_empty() {
            return Ok(&[]);
        }
        let words = self.memory.part(index, &part, range.end);
        let words = &words.ok_or(io::ErrorKind::OutOfMemory)?[range];
        let known = source.copy(start, words)?;
        Ok(&words[..known])
    }
}

/// Reads the memory of rings.
struct Source<'a> {
    read: &'a mut dyn FnMut(u64, &mut [u8]) -> io::Result<usize>,
    bytes: Vec<u8>,
}

impl Source<'_> {
    /// Returns the words of a range that are known, from its start on.
    fn words(&mut self, start: usize, count: usize) -> io::Result<&[[u8; WORD]]> {
        self.bytes.resize(count * WORD, 0);
        let len = (self.read)((start * WORD) as u64, &mut self.bytes)?;
        let len = len.min(self.bytes.len());
        Ok(self.bytes[..len].as_chunks().0)
    }

    /// Copies words from `start` on to places that are zero, and returns the number of known ones.
    fn copy(&mut self, start: usize, places: &[AtomicU64]) -> io::Result<usize> {
        const AT_ONCE: usize = (64 << 10) / WORD;
        let mut done = 0;
        for places in places.chunks(AT_ONCE) {
            let words = self.words(start + done, places.len())?;
            for (place, word) in places.iter().zip(words) {
                // Memory that is never written to is never allocated.
                if *word != [0; WORD] {
                    place.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
                }
            }
            done += words.len();
            if words.len() < places.len() {
                break;
            }
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;

    use super::*;
    use crate::event::{Kind, call};
    use crate::names::DescriptionKind;
    use crate::ring::{Mode, RingOptions};
    use crate::{Snapshot, Source as _};

    /// Rings with the file that has their memory.
    fn rings(mode: Mode) -> (Rings, File) {
        let options = RingOptions {
            mode,
            rings: 3,
            sub_buffers: 4,
            sub_buffer_bytes: 4096,
            table_bytes: 64 << 10,
            clock: None,
        };
        Rings::create_shared(&options).unwrap()
    }

    fn fill(rings: &Rings, thread: u32, events: u64) {
        let writer = rings.writer(7, thread).unwrap();
        (1..=events).for_each(|time| _ = writer.call(call(Kind::Entry, 1), time));
    }

    /// Copies the bytes of a file up to `end`.
    fn copy(file: &File, end: u64) -> io::Result<Rings> {
        Rings::copy_of(|at, bytes| {
            let known = (end.saturating_sub(at) as usize).min(bytes.len());
            file.read_at(&mut bytes[..known], at)
        })
    }

    /// The time of each event, by thread.
    fn times(rings: &Rings) -> Vec<(u32, u64)> {
        let (mut snapshot, mut times) = (Snapshot::take(rings), Vec::new());
        while let Some(event) = snapshot.next().unwrap() {
            times.push((event.thread, event.time));
        }
        times
    }

    #[test]
    fn a_copy_has_what_the_rings_have() {
        for mode in [Mode::Drop, Mode::Overwrite] {
            let (rings, file) = rings(mode);
            rings.describe(DescriptionKind::Thread, [7, 1, 0, 0], ["main", ""]);
            fill(&rings, 1, 10);
            fill(&rings, 2, 5000);
            let copy = copy(&file, u64::MAX).unwrap();
            assert!(copy.is_finished() && !rings.is_finished());
            assert_eq!(copy.names().descriptions(), rings.names().descriptions());
            rings.finish();
            assert_eq!(times(&copy), times(&rings), "{mode:?}");
            assert!(crate::Live::consume(Arc::new(copy)).is_ok());
        }
    }

    #[test]
    fn a_part_is_copied_as_far_as_it_is_known() {
        let (rings, file) = rings(Mode::Overwrite);
        // Both have a ring at the same time.
        let writers = [1, 2].map(|thread| rings.writer(7, thread).unwrap());
        for time in 0..10 {
            writers
                .iter()
                .for_each(|writer| _ = writer.call(call(Kind::Entry, 1), time));
        }
        let end = rings.geometry.part(2).start as u64 * 8;
        let copy = copy(&file, end).unwrap();
        let threads: Vec<u32> = times(&copy).iter().map(|it| it.0).collect();
        assert_eq!(threads, [1; 10]);
    }

    #[test]
    fn what_are_no_rings_is_not_copied() {
        let (_rings, file) = rings(Mode::Drop);
        let kind = |end| copy(&file, end).unwrap_err().kind();
        assert_eq!(kind(0), io::ErrorKind::InvalidData);
        assert_eq!(kind(4096), io::ErrorKind::UnexpectedEof);
    }
}
