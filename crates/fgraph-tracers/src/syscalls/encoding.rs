//! Encodes system calls as the words of a mark.
//!
//! ```text
//! word 0   version | loud, end | pieces
//!      1   the time of the begin, in nanoseconds of CLOCK_MONOTONIC
//!      2   the time of the end
//!      3   the result
//!      4   process | thread
//!      5   number | core
//!      6   the six arguments
//!     12   a word for each piece: argument | after, whole, path | length
//!      ..  the bytes of all pieces
//! ```

use super::memory::{BUFFER_ARG, Memory, PIECES, Part, ROOM};

/// Number of words before the pieces.
const HEAD: usize = 12;
/// Most words of a call.
pub(super) const WORDS: usize = HEAD + PIECES + ROOM.div_ceil(8);
/// First byte of a call.
const VERSION: u64 = 1;

/// System call without its memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) entered: u64,
    /// Time and result of a call that ends.
    pub(super) end: Option<(u64, i64)>,
    pub(super) number: u64,
    pub(super) args: [u64; 6],
    pub(super) process: u32,
    pub(super) thread: u32,
    pub(super) core: u32,
}

/// Encodes a call as words, and returns their number.
pub(super) fn words(call: &Head, memory: &Memory) -> ([u64; WORDS], usize) {
    let mut words = [0; WORDS];
    let parts = memory.parts();
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let (left, result) = call.end.unwrap_or_default();
    words[0] = VERSION | u64::from(call.end.is_some()) << 8 | (parts.len() as u64) << 16;
    words[1] = call.entered;
    words[2] = left;
    words[3] = result as u64;
    words[4] = pair(call.process, call.thread);
    words[5] = pair(call.number as u32, call.core);
    let mut nth = 0;
    while nth < 6 {
        words[6 + nth] = call.args[nth];
        nth += 1;
    }
    let mut at = HEAD;
    for part in parts {
        let bits =
            u64::from(part.is_after) | u64::from(part.is_whole) << 1 | u64::from(part.is_path) << 2;
        words[at] = u64::from(part.arg) | bits << 8 | u64::from(part.len) << 16;
        at += 1;
    }
    for bytes in memory.bytes().chunks(8) {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        words[at] = u64::from_le_bytes(word);
        at += 1;
    }
    (words, at)
}

/// System call that [`SyscallMarks`](super::SyscallMarks) has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SystemCall {
    /// Time of the entry, in nanoseconds of `CLOCK_MONOTONIC`.
    pub entered: u64,
    /// Time and result of its end. The result is the kernel's, so an error is the negative `errno`.
    /// `None` for a call that begins. A call that may not return (`execve`, `exit_group`) has the
    /// time of its entry, and the result 0.
    pub end: Option<(u64, i64)>,
    /// Number of the system call: see [`known_name`](super::known_name).
    pub number: u64,
    /// Words that the kernel gets. The upper half of an `int` has no meaning.
    pub args: [u64; 6],
    /// Kernel id of the process.
    pub process: u32,
    /// Kernel id of the thread.
    pub thread: u32,
    /// Processor that the thread ran on at the call's end.
    pub core: u32,
    /// Memory that the arguments point to.
    pub pieces: Vec<Piece>,
}

/// Memory of the program that an argument points to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Piece {
    /// Index of the argument; 6 for the path of the descriptor that is the result.
    pub arg: usize,
    /// True if the piece is the path of the descriptor that the argument is, as the kernel names
    /// it: `/etc/passwd`, `pipe:[77]`.
    pub is_path: bool,
    /// Index of the buffer, if the argument points to several `struct iovec`.
    pub buffer: Option<usize>,
    /// True if the piece was copied when the call returned.
    pub is_after: bool,
    /// False if the piece was cut.
    pub is_whole: bool,
    /// Content of the memory: a text without its zero, or several texts each with its zero.
    pub bytes: Vec<u8>,
}

impl SystemCall {
    /// Decodes a call from the words of a mark, as [`What::Mark`](fgraph_trace::event::What::Mark)
    /// has them; `None` if they are no call.
    #[must_use]
    pub fn parse(words: &[u64]) -> Option<Self> {
        let words = words.get(1..)?;
        let word = |index: usize| words.get(index).copied();
        let first = word(0).filter(|word| word & 0xff == VERSION)?;
        let is_end = first >> 8 & 1 != 0;
        let count = (first >> 16 & 0xff) as usize;
        let mut args = [0; 6];
        args.copy_from_slice(words.get(6..HEAD)?);
        let parts = words.get(HEAD..HEAD + count)?;
        let bytes = words.get(HEAD + count..)?;
        let bytes: Vec<u8> = bytes.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut rest = &bytes[..];
        let mut pieces = Vec::new();
        let mut vectors = 0;
        for &part in parts {
            let part = Part {
                arg: part as u8,
                is_after: part >> 8 & 1 != 0,
                is_whole: part >> 9 & 1 != 0,
                is_path: part >> 10 & 1 != 0,
                len: (part >> 16) as u16,
            };
            let (bytes, behind) = rest.split_at_checked(part.len.into())?;
            rest = behind;
            let buffer = part.arg.checked_sub(BUFFER_ARG).map(usize::from);
            if buffer.is_none() {
                vectors = part.arg.into();
            }
            pieces.push(Piece {
                arg: buffer.map_or(part.arg.into(), |_| vectors),
                is_path: part.is_path,
                buffer,
                is_after: part.is_after,
                is_whole: part.is_whole,
                bytes: bytes.to_vec(),
            });
        }
        let (ids, numbers) = (word(4)?, word(5)?);
        Some(Self {
            entered: word(1)?,
            end: is_end.then_some((word(2)?, word(3)? as i64)),
            number: numbers & u64::from(u32::MAX),
            args,
            process: ids as u32,
            thread: (ids >> 32) as u32,
            core: (numbers >> 32) as u32,
            pieces,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_comes_back_as_it_was() {
        let head = Head {
            entered: 5,
            end: Some((9, -2)),
            number: 1,
            args: [1, u64::MAX, 11, 0, 0, 6],
            process: 77,
            thread: 78,
            core: 3,
        };
        let memory = Memory::of(1, b"hello world");
        let mark = |head: &Head| {
            let (words, len) = words(head, &memory);
            [&[8 * len as u64], &words[..len]].concat()
        };
        let all = mark(&head);
        let found = SystemCall::parse(&all).unwrap();
        assert_eq!((found.entered, found.end), (5, head.end));
        assert_eq!((found.number, found.process, found.thread), (1, 77, 78));
        assert_eq!((found.core, found.args), (3, head.args));
        let [piece] = &found.pieces[..] else {
            panic!("{found:?}")
        };
        assert_eq!((piece.arg, piece.buffer, piece.is_path), (1, None, false));
        assert_eq!(piece.bytes, b"hello world");
        let begun = mark(&Head { end: None, ..head });
        assert_eq!(SystemCall::parse(&begun).unwrap().end, None);
        // Truncated words are no call.
        for len in 0..all.len() {
            assert_eq!(SystemCall::parse(&all[..len]), None, "{len}");
        }
    }
}
