//! Programs that fetch the values of a call, like the kernel's `fetch_insn` for its probes.
//!
//! The recorder makes a program before its first run. A callback runs it. It neither allocates nor
//! locks, takes a few nanoseconds for each word from a register, and reads memory by a system call
//! that checks whether the memory exists. An address that leads nowhere therefore costs the value,
//! never the program.

use core::mem::MaybeUninit;

use fgraph::signature::{Place, Source};
use fgraph::{Entry, Return};
use fgraph_trace::event::{self, Extension};
use fgraph_trace::values::{Behind, FAULT, MORE, Recorded, Shape};

use crate::support::kernel;

/// Most words of a call's values: an event has room for this number.
const MAX_WORDS: usize = 64;
/// Most words of one value, without those behind addresses.
const MAX_VALUE: usize = 16;
/// Most words of one text or row that are recorded.
const MAX_BEHIND: usize = 16;
const MIN_BEHIND: usize = 2;
/// No memory has a lower address than this. Null pointers lead below it.
const FIRST_ADDRESS: u64 = 4096;

/// Step of fetching values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Begins a value, with words that are zeros at first.
    Value { words: u8 },
    /// Copies bits of a register to the value.
    Load {
        source: Source,
        word: u8,
        shift: u8,
        mask: u64,
    },
    /// Reads a value from memory behind the address in a register.
    Memory {
        source: Source,
        offset: i64,
        bytes: u16,
    },
    /// Takes the address in a register.
    Address { source: Source },
    /// Reads the next address from memory, at this offset from the last one.
    Hop { offset: u64 },
    /// Reads a value from memory, at this offset from the last address.
    Last { offset: u64, bytes: u16 },
    /// Replaces a reference in the value by the memory that it refers to.
    Follow { bytes: u16 },
    /// Reads a text or a row behind the address in the value.
    Behind(Behind),
}

/// Program that fetches the values of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Program {
    steps: Box<[Step]>,
    /// Most bytes of each text and each row.
    limit: usize,
}

/// Program that is being made.
#[derive(Debug)]
pub(super) struct Fetch {
    steps: Vec<Step>,
    words: usize,
    behind: usize,
}

impl Fetch {
    pub(super) fn new() -> Self {
        Self {
            steps: Vec::new(),
            words: 0,
            behind: 0,
        }
    }

    /// Adds steps for a value; `None` if there is no room for it, or it cannot be at this place.
    pub(super) fn add(&mut self, value: &Recorded, place: &Place) -> Option<()> {
        let mut steps = Vec::new();
        let own = words(value.shape.size())?;
        let mut needed = own;
        match place {
            Place::Pieces(pieces) => {
                steps.push(Step::Value { words: own as u8 });
                for piece in pieces {
                    let (word, shift) = (piece.offset / 8, piece.offset % 8 * 8);
                    let fits = usize::from(word) < own && piece.size.checked_mul(8)? + shift <= 64;
                    steps.push(Step::Load {
                        source: piece.source,
                        word,
                        shift,
                        mask: u64::MAX.checked_shr(64 - 8 * u32::from(piece.size))?,
                    });
                    fits.then_some(())?;
                }
            }
            Place::Memory { address, offset } => {
                needed += 1;
                steps.push(Step::Memory {
                    source: *address,
                    offset: *offset,
                    bytes: u16::try_from(value.shape.size()).ok()?,
                });
            }
            Place::Behind { .. } => {}
            _ => return None,
        }
        if let Place::Behind { address, offsets } = place {
            needed += 1;
            let (offset, hops) = offsets.split_last()?;
            let (offset, bytes) = (*offset, u16::try_from(value.shape.size()).ok()?);
            steps.push(Step::Address { source: *address });
            steps.extend(hops.iter().map(|&offset| Step::Hop { offset }));
            steps.push(Step::Last { offset, bytes });
        }
        let holder = match &value.shape {
            Shape::Reference(target) => {
                let bytes = u16::try_from(target.size()).ok()?;
                needed += 1 + words(bytes.into())?;
                steps.push(Step::Follow { bytes });
                target
            }
            shape => shape,
        };
        let behind = holder.behind();
        needed += behind.len();
        let (words, count) = (self.words + needed, self.behind + behind.len());
        if words + count * MIN_BEHIND > MAX_WORDS {
            return None;
        }
        (self.words, self.behind) = (words, count);
        steps.extend(behind.into_iter().map(Step::Behind));
        self.steps.append(&mut steps);
        Some(())
    }

    pub(super) fn finish(self) -> Program {
        let free = (MAX_WORDS - self.words)
            .checked_div(self.behind)
            .unwrap_or(0);
        Program {
            steps: self.steps.into(),
            limit: free.min(MAX_BEHIND) * 8,
        }
    }
}

/// Returns the number of words for a value of this many bytes.
fn words(bytes: usize) -> Option<usize> {
    Some(bytes.div_ceil(8)).filter(|&words| words <= MAX_VALUE)
}

/// Access to registers and memory.
pub(super) trait Machine {
    /// Reads a register, or a word of the stack; `None` if it does not exist.
    fn read(&self, source: Source) -> Option<u64>;

    /// Fills `into` with memory. Returns the number of bytes that could be read.
    fn peek(&self, address: u64, into: &mut [u8]) -> usize;
}

impl<D> Machine for Entry<'_, D> {
    #[inline]
    fn read(&self, source: Source) -> Option<u64> {
        match source {
            Source::Integer(index) => self.arg(index.into()),
            Source::Vector(index) => self.float_arg(index.into()).map(f64::to_bits),
            Source::Stack(index) => self.stack_arg(index.into()),
            _ => None,
        }
    }

    fn peek(&self, address: u64, into: &mut [u8]) -> usize {
        kernel::peek(self.thread_id(), address as usize, into)
    }
}

impl<D> Machine for Return<'_, D> {
    #[inline]
    fn read(&self, source: Source) -> Option<u64> {
        match source {
            Source::Integer(0) => self.result(),
            Source::Integer(1) => self.result_high(),
            Source::Vector(0) => self.float_result().map(f64::to_bits),
            Source::Vector(index) => {
                let (low, _) = self.vector_result(index.into())?.split_first_chunk()?;
                Some(u64::from_le_bytes(*low))
            }
            _ => None,
        }
    }

    fn peek(&self, address: u64, into: &mut [u8]) -> usize {
        kernel::peek(self.thread_id(), address as usize, into)
    }
}

/// Words of an event.
#[derive(Debug)]
pub(super) struct Words {
    /// Not zeroed at first, since that may be a call of a traced function.
    words: [MaybeUninit<u64>; MAX_EVENT],
    len: usize,
}

/// Most words of an event: with its head and those of its parts, the arguments, the caller, the
/// time and the stack.
const MAX_EVENT: usize = MAX_WORDS + 17 + MAX_STACK;
/// Most calls of a stack.
pub(super) const MAX_STACK: usize = 48;

impl Words {
    /// Begins an event without extensions.
    #[inline]
    pub(super) fn new(event: u64) -> Self {
        let mut words = Self {
            words: [MaybeUninit::uninit(); MAX_EVENT],
            len: 0,
        };
        words.push(event);
        words
    }

    /// Adds an extension of one word.
    #[inline]
    pub(super) fn extend(&mut self, what: Extension, word: u64) {
        self.push(event::extension(what, 1));
        self.push(word);
    }

    /// Adds an extension of the words that `fill` adds; no extension if it adds none.
    #[inline]
    pub(super) fn extend_with(&mut self, what: Extension, fill: impl FnOnce(&mut Self)) {
        let head = self.len;
        self.push(0);
        fill(self);
        let len = self.len - head - 1;
        match self.as_mut_slice().get_mut(head) {
            Some(place) if len > 0 => *place = event::extension(what, len as u16),
            _ => self.len = head,
        }
    }

    #[inline]
    pub(super) fn as_slice(&self) -> &[u64] {
        // SAFETY: `push` has written the first `len` words.
        unsafe { core::slice::from_raw_parts(self.words.as_ptr().cast(), self.len) }
    }

    #[inline]
    fn as_mut_slice(&mut self) -> &mut [u64] {
        // SAFETY: `push` has written the first `len` words.
        unsafe { core::slice::from_raw_parts_mut(self.words.as_mut_ptr().cast(), self.len) }
    }

    #[inline]
    pub(super) fn push(&mut self, word: u64) {
        if let Some(place) = self.words.get_mut(self.len) {
            place.write(word);
            self.len += 1;
        }
    }

    /// Returns the eight bytes at a place of the value that begins with word `base`.
    #[inline]
    fn at(&self, base: usize, offset: u16) -> u64 {
        let (word, bits) = (base + usize::from(offset / 8), u32::from(offset % 8) * 8);
        let get = |at| self.as_slice().get(at).copied().unwrap_or(0);
        match bits {
            0 => get(word),
            _ => get(word) >> bits | get(word + 1) << (64 - bits),
        }
    }
}

impl Program {
    /// True if there is nothing to fetch.
    pub(super) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Fetches the values.
    #[inline]
    pub(super) fn run(&self, machine: &impl Machine, out: &mut Words) {
        let mut base = 0;
        // Null where no address could be read.
        let mut at = 0;
        for step in &self.steps {
            match *step {
                Step::Value { words } => {
                    base = out.len;
                    for _ in 0..words {
                        out.push(0);
                    }
                }
                Step::Load {
                    source,
                    word,
                    shift,
                    mask,
                } => {
                    let value = machine.read(source).unwrap_or(0) & mask;
                    if let Some(place) = out.as_mut_slice().get_mut(base + usize::from(word)) {
                        *place |= value << shift;
                    }
                }
                Step::Memory {
                    source,
                    offset,
                    bytes,
                } => {
                    let address = machine.read(source).unwrap_or(0);
                    base = whole(machine, address.wrapping_add_signed(offset), bytes, out);
                }
                Step::Address { source } => at = machine.read(source).unwrap_or(0),
                Step::Hop { offset } => {
                    at = address_behind(machine, at, offset);
                }
                Step::Last { offset, bytes } => {
                    let address = match at {
                        ..FIRST_ADDRESS => 0,
                        _ => at.wrapping_add(offset),
                    };
                    base = whole(machine, address, bytes, out);
                }
                Step::Follow { bytes } => {
                    let address = out.at(base, 0);
                    base = whole(machine, address, bytes, out);
                }
                Step::Behind(Behind::Text { data }) => {
                    text(machine, out.at(base, data), self.limit, out);
                }
                Step::Behind(Behind::Row { data, len, stride }) => {
                    let address = out.at(base, data);
                    let wanted = out.at(base, len).saturating_mul(stride.into());
                    row(machine, address, wanted, stride.into(), self.limit, out);
                }
            }
        }
    }
}

/// Room for the bytes that are read at once.
type Buffer = [u8; MAX_BEHIND * 8];

/// Reads memory. Returns the number of bytes that could be read.
#[inline(never)]
fn read(machine: &impl Machine, address: u64, len: usize, buffer: &mut Buffer) -> usize {
    match buffer.get_mut(..len) {
        Some(into) if address >= FIRST_ADDRESS => machine.peek(address, into),
        _ => 0,
    }
}

/// Reads an address from memory at an offset from another one; null if that cannot be done.
#[inline(never)]
fn address_behind(machine: &impl Machine, at: u64, offset: u64) -> u64 {
    let mut word = [0; 8];
    let place = at.wrapping_add(offset);
    match at {
        FIRST_ADDRESS.. if machine.peek(place, &mut word) == word.len() => u64::from_le_bytes(word),
        _ => 0,
    }
}

/// Reads a value of a fixed size, with its head. Returns the index of its first word. Unreadable
/// parts are zero.
fn whole(machine: &impl Machine, address: u64, bytes: u16, out: &mut Words) -> usize {
    let (len, mut buffer) = (usize::from(bytes), [0; MAX_BEHIND * 8]);
    let found = read(machine, address, len, &mut buffer);
    out.push(found as u64 | if found < len { FAULT } else { 0 });
    let base = out.len;
    push_bytes(out, &buffer, len);
    base
}

/// Reads a text up to a zero byte.
fn text(machine: &impl Machine, address: u64, limit: usize, out: &mut Words) {
    let mut buffer = [0; MAX_BEHIND * 8];
    let found = read(machine, address, limit, &mut buffer);
    let mut len = 0;
    while len < found && buffer.get(len).is_some_and(|&byte| byte != 0) {
        len += 1;
    }
    let flag = match () {
        () if len < found => 0,
        () if found == limit => MORE,
        () => FAULT,
    };
    out.push(len as u64 | flag);
    push_bytes(out, &buffer, len);
}

/// Reads a row of `wanted` bytes, or as many whole steps as there is room for.
fn row(
    machine: &impl Machine,
    address: u64,
    wanted: u64,
    stride: usize,
    limit: usize,
    out: &mut Words,
) {
    let mut buffer = [0; MAX_BEHIND * 8];
    let room = limit - limit.checked_rem(stride).unwrap_or(0);
    let len = usize::try_from(wanted).unwrap_or(room).min(room);
    let found = read(machine, address, len, &mut buffer);
    let mut flags = 0;
    if found < len {
        flags |= FAULT;
    }
    if wanted > len as u64 {
        flags |= MORE;
    }
    out.push(found as u64 | flags);
    push_bytes(out, &buffer, found);
}

/// Adds this many bytes, in whole words.
fn push_bytes(out: &mut Words, buffer: &Buffer, len: usize) {
    for bytes in buffer.chunks_exact(8).take(len.div_ceil(8)) {
        let mut word = [0; 8];
        word.copy_from_slice(bytes);
        out.push(u64::from_le_bytes(word));
    }
}
