//! Blocks: the parts of a recording. Each can be read without the others.
//!
//! ```text
//!   +0   "FGBK"
//!   +4   kind
//!   +5   packing of the body: 0 none, 1 zstd
//!   +6   bytes of the head, 16 bits
//!   +8   bytes of head and body as they stand here, 32 bits
//!   +12  bytes of the body when it is unpacked, 32 bits
//!   +16  CRC-32 of bytes 4 to 16, of the head and of the body as it stands here
//!   +20  head, then body
//! ```

use std::{fmt, io};

use zstd::bulk::{Compressor, Decompressor};

/// The kind of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Info = 1,
    Descriptions = 2,
    Events = 3,
    Anchor = 4,
    Index = 5,
    End = 6,
    Schedule = 7,
}

impl Kind {
    pub(super) fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            1 => Self::Info,
            2 => Self::Descriptions,
            3 => Self::Events,
            4 => Self::Anchor,
            5 => Self::Index,
            6 => Self::End,
            7 => Self::Schedule,
            _ => return None,
        })
    }
}

pub(super) const MAGIC: [u8; 4] = *b"FGBK";
pub(super) const HEADER: usize = 20;
/// The longest block, packed or not. A header with a longer one is damaged.
pub(super) const MAX: usize = 64 << 20;
/// The zstd level: much faster than the default, and the output is not much larger.
const LEVEL: i32 = 1;
/// The shortest body that is packed.
const PACKED_FROM: usize = 64;

/// Packs bodies, in memory that is allocated once.
#[derive(Default)]
pub(super) struct Packer {
    compressor: Option<Compressor<'static>>,
    packed: Vec<u8>,
}

impl fmt::Debug for Packer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packer").finish_non_exhaustive()
    }
}

impl Packer {
    /// Appends a block to `out`. Bodies and heads come from this crate, which makes them short
    /// enough.
    pub(super) fn append(
        &mut self,
        out: &mut Vec<u8>,
        kind: Kind,
        head: &[u8],
        body: &[u8],
    ) -> io::Result<()> {
        let is_packed = body.len() >= PACKED_FROM && self.pack(body)? < body.len();
        let stored = if is_packed { &self.packed } else { body };
        append(out, kind, head, body.len(), stored, is_packed)
    }

    /// Packs a body, and returns the number of packed bytes.
    fn pack(&mut self, body: &[u8]) -> io::Result<usize> {
        let compressor = match &mut self.compressor {
            Some(compressor) => compressor,
            none => none.insert(Compressor::new(LEVEL)?),
        };
        self.packed.clear();
        self.packed
            .reserve(zstd::zstd_safe::compress_bound(body.len()));
        compressor.compress_to_buffer(body, &mut self.packed)
    }
}

/// Appends a block whose stored body has `len` bytes when it is unpacked.
fn append(
    out: &mut Vec<u8>,
    kind: Kind,
    head: &[u8],
    len: usize,
    stored: &[u8],
    is_packed: bool,
) -> io::Result<()> {
    let too_long = |_| io::Error::from(io::ErrorKind::FileTooLarge);
    let head_len = u16::try_from(head.len()).map_err(too_long)?;
    let [stored_len, len] = [head.len() + stored.len(), len].map(u32::try_from);
    let start = out.len();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&[kind as u8, u8::from(is_packed)]);
    out.extend_from_slice(&head_len.to_le_bytes());
    out.extend_from_slice(&stored_len.map_err(too_long)?.to_le_bytes());
    out.extend_from_slice(&len.map_err(too_long)?.to_le_bytes());
    let checksum = checksum(&out[start + 4..start + 16], head, stored);
    out.extend_from_slice(&checksum.to_le_bytes());
    out.extend_from_slice(head);
    out.extend_from_slice(stored);
    Ok(())
}

fn checksum(header: &[u8], head: &[u8], stored: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    for bytes in [header, head, stored] {
        hasher.update(bytes);
    }
    hasher.finalize()
}

/// The header of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    /// The kind; `None` for one that this version does not know.
    pub(super) kind: Option<Kind>,
    is_packed: bool,
    head_len: usize,
    /// Bytes after the header.
    pub(super) stored_len: usize,
    /// Bytes of the unpacked body.
    pub(super) len: usize,
    bytes: [u8; 12],
    checksum: u32,
}

impl Header {
    /// Reads a header; `None` if these bytes are none.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..HEADER)?;
        if bytes[..4] != MAGIC || bytes[5] > 1 {
            return None;
        }
        let word = |at: usize| {
            let word = bytes[at..at + 4].try_into().unwrap_or_default();
            u32::from_le_bytes(word)
        };
        let this = Self {
            kind: Kind::from_bits(bytes[4]),
            is_packed: bytes[5] == 1,
            head_len: u16::from_le_bytes([bytes[6], bytes[7]]).into(),
            stored_len: word(8) as usize,
            len: word(12) as usize,
            bytes: bytes[4..16].try_into().unwrap_or_default(),
            checksum: word(16),
        };
        let is_well = this.head_len <= this.stored_len && this.stored_len.max(this.len) <= MAX;
        is_well.then_some(this)
    }

    /// Returns true if the bytes after the header match their checksum.
    pub(super) fn is_whole(&self, stored: &[u8]) -> bool {
        stored.len() == self.stored_len && checksum(&self.bytes, &[], stored) == self.checksum
    }

    /// Returns the head in the bytes after the header.
    pub(super) fn head<'a>(&self, stored: &'a [u8]) -> &'a [u8] {
        stored.get(..self.head_len).unwrap_or(stored)
    }

    /// Unpacks the body in the bytes after the header.
    pub(super) fn body(&self, stored: &[u8]) -> Option<Vec<u8>> {
        let mut unpacker = Unpacker::default();
        unpacker.body(self, stored)?;
        Some(unpacker.body)
    }
}

/// Unpacks bodies, in memory that is allocated once.
#[derive(Default)]
pub(super) struct Unpacker {
    decompressor: Option<Decompressor<'static>>,
    body: Vec<u8>,
}

impl fmt::Debug for Unpacker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unpacker").finish_non_exhaustive()
    }
}

impl Unpacker {
    /// Unpacks the body in the bytes after a header.
    pub(super) fn body(&mut self, header: &Header, stored: &[u8]) -> Option<&[u8]> {
        let packed = stored.get(header.head_len..)?;
        self.body.clear();
        if header.is_packed {
            let decompressor = match &mut self.decompressor {
                Some(decompressor) => decompressor,
                none => none.insert(Decompressor::new().ok()?),
            };
            self.body.reserve(header.len);
            decompressor
                .decompress_to_buffer(packed, &mut self.body)
                .ok()?;
        } else {
            self.body.extend_from_slice(packed);
        }
        (self.body.len() == header.len).then_some(&self.body[..])
    }
}

/// Appends a number, seven bits a byte, lowest first; all bytes but the last have the highest bit
/// set.
#[inline]
pub(super) fn push(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Takes a number from the front of `bytes`.
#[inline]
pub(super) fn pull(bytes: &mut &[u8]) -> Option<u64> {
    let (&first, rest) = bytes.split_first()?;
    *bytes = rest;
    if first < 0x80 {
        return Some(first.into());
    }
    let mut value = u64::from(first & 0x7f);
    for shift in (7..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

pub(super) fn push_text(out: &mut Vec<u8>, text: &str) {
    push(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// Takes a text from the front of `bytes`. Bytes that are not UTF-8 are replaced.
pub(super) fn pull_text(bytes: &mut &[u8]) -> Option<String> {
    let len = usize::try_from(pull(bytes)?).ok()?;
    let text = bytes.get(..len)?;
    *bytes = &bytes[len..];
    Some(String::from_utf8_lossy(text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_too_long_ones_do_not() {
        let mut bytes = Vec::new();
        let numbers = [
            0,
            1,
            127,
            128,
            16_383,
            16_384,
            u64::from(u32::MAX),
            u64::MAX,
        ];
        for number in numbers {
            push(&mut bytes, number);
        }
        let mut rest = &bytes[..];
        assert_eq!(numbers.map(|_| pull(&mut rest).unwrap()), numbers);
        assert_eq!(pull(&mut rest), None);
        assert_eq!(pull(&mut &[0xff; 11][..]), None);
        assert_eq!(pull(&mut &[0x80][..]), None);
    }

    #[test]
    fn a_block_with_a_changed_bit_is_not_whole() {
        let mut block = Vec::new();
        let mut packer = Packer::default();
        packer
            .append(&mut block, Kind::Info, b"head", &[7; 300])
            .unwrap();
        for bit in 0..block.len() * 8 {
            let mut bad = block.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let whole = Header::read(&bad).is_some_and(|header| header.is_whole(&bad[HEADER..]));
            assert!(!whole, "bit {bit}");
        }
        let header = Header::read(&block).unwrap();
        let stored = &block[HEADER..];
        assert!(header.is_whole(stored));
        assert_eq!(
            (header.head(stored), header.body(stored).as_deref()),
            (&b"head"[..], Some(&[7; 300][..]))
        );
    }
}
