//! Columns that grow side by side, in one temporary file.
//!
//! ```text
//!   block     the place of the lane's next block (8 bytes), then BLOCK bytes of the lane
//! ```
//!
//! The place of a block is chosen when the previous one is written. A lane can therefore be read
//! from its beginning, and nothing in memory grows with the file.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use fgraph_analysis::numbers::grown;

/// Bytes of each lane that are held in memory.
const BLOCK: usize = 8192;
const HEADER: usize = 8;

/// Lanes of bytes; each is appended to, and read once all is written.
#[derive(Debug)]
pub(crate) struct Spool {
    file: File,
    end: u64,
    lanes: Vec<Lane>,
}

#[derive(Debug, Default)]
struct Lane {
    len: u64,
    /// Place of the first block, and place for the block that is in memory.
    first: u64,
    place: Option<u64>,
    buffer: Vec<u8>,
}

impl Spool {
    /// Creates a spool without lanes. The file has no name, and is in `directory`, or in the
    /// system's place for temporary files.
    pub(crate) fn new(directory: Option<&Path>) -> io::Result<Self> {
        Ok(Self {
            file: match directory {
                Some(directory) => tempfile::tempfile_in(directory)?,
                None => tempfile::tempfile()?,
            },
            end: 0,
            lanes: Vec::new(),
        })
    }

    fn lane(&mut self, lane: usize) -> &mut Lane {
        grown(&mut self.lanes, lane)
    }

    /// Appends bytes to a lane.
    pub(crate) fn push(&mut self, lane: usize, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let to = self.lane(lane);
            let (now, later) = bytes.split_at(bytes.len().min(BLOCK - to.buffer.len()));
            to.buffer.extend_from_slice(now);
            to.len += now.len() as u64;
            bytes = later;
            if to.buffer.len() == BLOCK {
                self.flush(lane)?;
            }
        }
        Ok(())
    }

    #[cold]
    fn flush(&mut self, lane: usize) -> io::Result<()> {
        const WHOLE: u64 = (HEADER + BLOCK) as u64;
        let lane = &mut self.lanes[lane];
        let place = lane.place.unwrap_or_else(|| {
            lane.first = self.end;
            self.end += WHOLE;
            lane.first
        });
        let next = self.end;
        self.end += WHOLE;
        lane.place = Some(next);
        self.file.seek(SeekFrom::Start(place))?;
        self.file.write_all(&next.to_le_bytes())?;
        self.file.write_all(&lane.buffer)?;
        lane.buffer.clear();
        Ok(())
    }

    /// Appends a number to a lane: seven bits a byte, the lowest first.
    pub(crate) fn push_number(&mut self, lane: usize, mut number: u64) -> io::Result<()> {
        let mut bytes = [0; 10];
        let mut len = 0;
        loop {
            bytes[len] = number as u8 & 0x7f;
            number >>= 7;
            len += 1;
            if number == 0 {
                return self.push(lane, &bytes[..len]);
            }
            bytes[len - 1] |= 0x80;
        }
    }

    /// Reads a lane from its beginning.
    pub(crate) fn read(&mut self, lane: usize) -> Reader<'_> {
        let (left, next) = match self.lanes.get(lane) {
            Some(lane) => (lane.len, lane.first),
            None => (0, 0),
        };
        Reader {
            spool: self,
            lane,
            left,
            next,
            block: Vec::new(),
            at: 0,
        }
    }
}

/// Reader of the bytes of a lane.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    spool: &'a mut Spool,
    lane: usize,
    left: u64,
    next: u64,
    block: Vec<u8>,
    at: usize,
}

impl Reader<'_> {
    fn byte(&mut self) -> io::Result<Option<u8>> {
        if self.left == 0 {
            return Ok(None);
        }
        if self.at == self.block.len() {
            self.refill()?;
        }
        let byte = self.block[self.at];
        self.at += 1;
        self.left -= 1;
        Ok(Some(byte))
    }

    #[cold]
    fn refill(&mut self) -> io::Result<()> {
        self.at = 0;
        if self.left < BLOCK as u64 {
            // The end of a lane is never written to the file.
            self.block.clone_from(&self.spool.lanes[self.lane].buffer);
            return Ok(());
        }
        let mut next = [0; HEADER];
        self.block.resize(BLOCK, 0);
        self.spool.file.seek(SeekFrom::Start(self.next))?;
        self.spool.file.read_exact(&mut next)?;
        self.spool.file.read_exact(&mut self.block)?;
        self.next = u64::from_le_bytes(next);
        Ok(())
    }

    /// Returns the next number; `None` at the end.
    pub(crate) fn number(&mut self) -> io::Result<Option<u64>> {
        let mut number = 0;
        let mut shift = 0;
        while let Some(byte) = self.byte()? {
            number |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    /// Returns the next `len` bytes, or those up to the end.
    pub(crate) fn bytes(&mut self, len: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < len
            && let Some(byte) = self.byte()?
        {
            bytes.push(byte);
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_read_as_they_were_written_whatever_came_between() {
        let mut spool = Spool::new(None).unwrap();
        let number = |lane: usize, n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (lane * 9);
        for n in 0..20_000 {
            for lane in [0, 2, 5] {
                spool.push_number(lane, number(lane, n)).unwrap();
            }
            if n % 7 == 0 {
                spool.push_number(3, n).unwrap();
            }
        }
        // More than once.
        for lane in [2, 0, 5, 2] {
            let mut reader = spool.read(lane);
            for n in 0..20_000 {
                assert_eq!(reader.number().unwrap(), Some(number(lane, n)));
            }
            assert_eq!(reader.number().unwrap(), None);
        }
        let mut reader = spool.read(3);
        let mut found = 0;
        while reader.number().unwrap().is_some() {
            found += 1;
        }
        assert_eq!(found, 20_000_u64.div_ceil(7));
        assert_eq!(spool.read(1).number().unwrap(), None);
        assert_eq!(spool.read(9).number().unwrap(), None);
    }

    #[test]
    fn a_lane_may_end_with_a_block() {
        let mut spool = Spool::new(None).unwrap();
        let bytes: Vec<u8> = (0..2 * BLOCK).map(|n| n as u8).collect();
        spool.push(0, &bytes).unwrap();
        assert_eq!(spool.read(0).bytes(u64::MAX).unwrap(), bytes);
    }
}
