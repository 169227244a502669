//! Finds the caller of a function by the unwind information of modules.
//!
//! This runs in callbacks, so it neither allocates nor locks. The modules are a snapshot that is
//! replaced when libraries are loaded or unloaded. Reading the rules for an address takes some
//! hundred nanoseconds, so the most frequent kinds are cached, each in one word, which is always
//! read and written as a whole:
//!
//! ```text
//!   bit 0   1                  2                  13            29                        63
//!       | 1 | from rbp or rsp | where rbp is saved | frame offset | address without its index |
//!       | 0 | 1               | 0                                 | ...                       |
//!
//! The second form is that of outermost functions.
//! ```
//!
//! # Safety
//!
//! The unsafe code reads two kinds of memory:
//!
//! - Unwind information, in a read-only segment of a loaded module. A thread with a return address
//!   into a module keeps it loaded.
//! - Words of the running thread's machine stack, between its stack pointer and the stack's end.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use fgraph_core::snapshot::Snapshot;
use fgraph_core::stack_provider::Position;
use fgraph_core::thread::Thread;
use fgraph_symbols::unwind_rows::{self, Base, Place, Row, Saved, UnwindTable};

use crate::process::modules::LoadedModule;

/// The modules with unwind information, by the address of their text.
static MODULES: Snapshot<Box<[Module]>> = Snapshot::new();

/// The cached rules of addresses; 0 where there are none.
static KNOWN: [AtomicU64; KNOWN_LEN] = [const { AtomicU64::new(0) }; KNOWN_LEN];
const KNOWN_LEN: usize = 4096;

/// Code, and the place of its unwind information.
#[derive(Clone, Debug)]
struct Module {
    text: Range<usize>,
    /// The segment that contains it.
    segment: Range<usize>,
    /// The start of the index.
    index: usize,
}

/// Records the loaded modules.
pub(crate) fn publish<'a>(modules: impl Iterator<Item = &'a LoadedModule>) {
    let mut all: Vec<Module> = modules.flat_map(of_module).collect();
    all.sort_unstable_by_key(|module| module.text.start);
    MODULES.replace(all.into());
    // Another function may be at an address now.
    for known in &KNOWN {
        known.store(0, Ordering::Relaxed);
    }
}

fn of_module(module: &LoadedModule) -> impl Iterator<Item = Module> {
    let table = module.unwind_index();
    let texts = module.text().collect::<Vec<_>>().into_iter();
    texts.filter_map(move |text| {
        let (index, segment) = table.clone()?;
        Some(Module {
            text,
            segment,
            index,
        })
    })
}

/// See [`StackProvider::caller`](fgraph_core::thread::StackProvider::caller).
pub(crate) fn caller(thread: &Thread, at: Position) -> Option<Position> {
    // In the call instruction: the next one may have other rules, or belong to another function.
    let address = at.address.checked_sub(1)?;
    let row = known(address).or_else(|| {
        let row = look_up(address)?;
        keep(address, row);
        Some(row)
    })?;
    follow(thread, at, row)
}

/// Returns where the caller continues, by the rules for the current address of the function.
fn follow(thread: &Thread, at: Position, row: Row) -> Option<Position> {
    let from = unwind_rows::Position {
        address: at.address as u64,
        stack_pointer: at.stack_pointer as u64,
        frame_pointer: at.frame_pointer as u64,
    };
    let caller = row.caller(from, |address| {
        // SAFETY: `at` is on the machine stack that the thread is on, or has come from by a signal.
        let word = unsafe { word(thread, at.stack_pointer, address as usize) };
        word.map(|word| word as u64)
    })?;
    Some(Position {
        address: caller.address as usize,
        stack_pointer: caller.stack_pointer as usize,
        frame_pointer: caller.frame_pointer as usize,
    })
}

/// Reads a word of the machine stack, if it is on the thread's current stack or on its thread
/// stack, and not below `stack_pointer`.
///
/// # Safety
///
/// `stack_pointer` must be on one of these, with a call in progress there.
unsafe fn word(thread: &Thread, stack_pointer: usize, address: usize) -> Option<usize> {
    let last = address.checked_add(size_of::<usize>() - 1)?;
    let are_on = |is_on: &dyn Fn(usize) -> bool| is_on(stack_pointer) && is_on(last);
    let is_one = are_on(&|address| thread.is_on_stack(address))
        || are_on(&|address| thread.thread_stack.contains(address));
    (is_one && address >= stack_pointer).then(|| {
        let word = core::ptr::with_exposed_provenance::<usize>(address);
        // SAFETY: a stack is mapped from the stack pointer of a call to its end. Volatile: other
        // code may use the word in any way.
        unsafe { word.read_volatile() }
    })
}

/// Reads the rules for an address from the unwind information of its module.
fn look_up(address: usize) -> Option<Row> {
    MODULES.read(|modules| {
        let modules = modules?;
        let behind = modules.partition_point(|module| module.text.start <= address);
        let module = modules.get(behind.checked_sub(1)?)?;
        if !module.text.contains(&address) {
            return None;
        }
        let Range { start, end } = module.segment;
        let bytes = core::ptr::with_exposed_provenance(start);
        // SAFETY: the read-only segment of a loaded module.
        let bytes = unsafe { core::slice::from_raw_parts(bytes, end - start) };
        let table = UnwindTable {
            bytes,
            address: start as u64,
            index: module.index as u64,
        };
        table.row(address as u64)
    })
}

/// The number of bits of an address in user space.
const ADDRESS_BITS: u32 = 47;
const INDEX_BITS: u32 = KNOWN_LEN.ilog2();
const TAG_BITS: u32 = ADDRESS_BITS - INDEX_BITS;
/// The number of bits of the frame's offset, in words.
const FRAME_BITS: u32 = 16;
/// The number of bits of the frame pointer's place, in words below the frame; 0 where it is kept.
const SAVED_BITS: u32 = 64 - TAG_BITS - FRAME_BITS - 1 - 1;

const _: () = assert!(KNOWN_LEN.is_power_of_two() && SAVED_BITS >= 8);

/// Returns the cache slot of an address, and the tag that distinguishes it from other addresses
/// there.
fn slot(address: usize) -> (&'static AtomicU64, u64) {
    let address = address as u64;
    // Functions of one program differ most in the lower bits.
    let index = (address ^ address >> INDEX_BITS) as usize % KNOWN_LEN;
    (&KNOWN[index], address >> INDEX_BITS)
}

/// Returns the rules for an address, if they are cached.
fn known(address: usize) -> Option<Row> {
    let (slot, tag) = slot(address);
    // Relaxed: the word is the only data.
    let word = slot.load(Ordering::Relaxed);
    (word != 0 && word >> (64 - TAG_BITS) == tag).then(|| unpack(word))
}

/// Caches the rules for an address, if they fit into a word.
fn keep(address: usize, row: Row) {
    let (slot, tag) = slot(address);
    if let Some(word) = pack(row).filter(|_| tag >> TAG_BITS == 0) {
        slot.store(tag << (64 - TAG_BITS) | word, Ordering::Relaxed);
    }
}

/// The word for a function without a caller.
const OUTERMOST: u64 = 0b10;

/// Encodes the rules in the lower bits of a word; never 0. The return address is directly below the
/// frame.
fn pack(row: Row) -> Option<u64> {
    if row.return_address == Saved::Lost {
        return Some(OUTERMOST);
    }
    let words = |bytes: i64, bits: u32| {
        let words = u64::try_from(bytes).ok().filter(|bytes| bytes % 8 == 0)? / 8;
        (words >> bits == 0).then_some(words)
    };
    let Place {
        base,
        offset,
        is_stored: false,
    } = row.frame
    else {
        return None;
    };
    if row.is_signal || row.return_address != Saved::At(-8) {
        return None;
    }
    let saved = match row.frame_pointer {
        Saved::Kept => 0,
        // The return address is 8 bytes below.
        Saved::At(offset) if offset < 0 => words(-offset, SAVED_BITS)?,
        _ => return None,
    };
    let by_frame_pointer = u64::from(base == Base::FramePointer);
    Some(1 | by_frame_pointer << 1 | saved << 2 | words(offset, FRAME_BITS)? << (2 + SAVED_BITS))
}

/// Decodes the rules that [`pack`] has encoded.
fn unpack(word: u64) -> Row {
    let bits = |from: u32, len: u32| (word >> from & ((1 << len) - 1)) as i64;
    Row {
        frame: Place {
            base: match bits(1, 1) {
                0 => Base::StackPointer,
                _ => Base::FramePointer,
            },
            offset: 8 * bits(2 + SAVED_BITS, FRAME_BITS),
            is_stored: false,
        },
        return_address: match bits(0, 1) {
            0 => Saved::Lost,
            _ => Saved::At(-8),
        },
        frame_pointer: match bits(2, SAVED_BITS) {
            0 => Saved::Kept,
            words => Saved::At(-8 * words),
        },
        is_signal: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(base: Base, offset: i64, frame_pointer: Saved) -> Row {
        Row {
            frame: Place {
                base,
                offset,
                is_stored: false,
            },
            return_address: Saved::At(-8),
            frame_pointer,
            is_signal: false,
        }
    }

    #[test]
    fn rules_that_fit_into_a_word_come_back_from_it() {
        for row in [
            row(Base::StackPointer, 8, Saved::Kept),
            row(Base::FramePointer, 16, Saved::At(-16)),
            row(Base::StackPointer, 8 * 0xffff, Saved::At(-8 * 0xff)),
        ] {
            let address = 0x7f12_3456_789a;
            keep(address, row);
            assert_eq!(known(address), Some(row));
            assert_eq!(known(address + (1 << INDEX_BITS)), None);
        }
    }

    #[test]
    fn an_outermost_function_stays_one() {
        let outermost = Row {
            return_address: Saved::Lost,
            ..row(Base::FramePointer, 16, Saved::At(-16))
        };
        keep(0x1234, outermost);
        assert_eq!(known(0x1234).unwrap().return_address, Saved::Lost);
    }

    #[test]
    fn rules_that_do_not_fit_are_not_kept() {
        let usual = row(Base::StackPointer, 8, Saved::Kept);
        for row in [
            row(Base::StackPointer, 8 << FRAME_BITS, Saved::Kept),
            row(Base::StackPointer, 12, Saved::Kept),
            row(Base::StackPointer, -8, Saved::Kept),
            row(Base::StackPointer, 16, Saved::At(-(8 << SAVED_BITS))),
            row(Base::StackPointer, 16, Saved::At(8)),
            Row {
                is_signal: true,
                ..usual
            },
        ] {
            assert_eq!(pack(row), None, "{row:?}");
        }
        assert!(pack(usual).is_some());
    }
}
