//! Finds the caller of a function by the unwind information of modules.
//!
//! This runs in callbacks, so it neither allocates nor locks. The modules are a snapshot that is
//! replaced when libraries are loaded or unloaded. Reading the rules for an address takes some
//! hundred nanoseconds, so the most frequent kinds are cached: see [`known_rules`].
//!
//! # Safety
//!
//! The unsafe code reads two kinds of memory:
//!
//! - Unwind information, in a read-only segment of a loaded module. A thread with a return address
//!   into a module keeps it loaded.
//! - Words of the running thread's machine stack, between its stack pointer and the stack's end.

use core::ops::Range;

use fgraph_core::dispatch::known_rules::{self, Rules};
use fgraph_core::snapshot::Snapshot;
use fgraph_core::stack_provider::Position;
use fgraph_core::thread::Thread;
use fgraph_symbols::unwind_rows::{self, Base, Place, Row, Saved, UnwindTable};

use crate::process::modules::LoadedModule;

/// The modules with unwind information, by the address of their text.
static MODULES: Snapshot<Box<[Module]>> = Snapshot::new();

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
    known_rules::forget_all();
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
    let row = known_rules::known(address).map(row_of).or_else(|| {
        let row = look_up(address)?;
        if let Some(rules) = rules_of(row) {
            known_rules::keep(address, rules);
        }
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

/// Returns the rules as they are cached, if they are of a frequent kind: the return address is
/// directly below the frame.
fn rules_of(row: Row) -> Option<Rules> {
    if row.return_address == Saved::Lost {
        return Some(Rules::Outermost);
    }
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
        Saved::At(offset) if offset < 0 => usize::try_from(-offset).ok()?,
        _ => return None,
    };
    Some(Rules::Caller {
        by_frame_pointer: base == Base::FramePointer,
        frame: usize::try_from(offset).ok()?,
        saved,
    })
}

/// Returns the row for cached rules.
fn row_of(rules: Rules) -> Row {
    let (base, frame, saved) = match rules {
        Rules::Outermost => (Base::StackPointer, 0, None),
        Rules::Caller {
            by_frame_pointer: true,
            frame,
            saved,
        } => (Base::FramePointer, frame, Some(saved)),
        Rules::Caller { frame, saved, .. } => (Base::StackPointer, frame, Some(saved)),
    };
    Row {
        frame: Place {
            base,
            offset: frame as i64,
            is_stored: false,
        },
        return_address: match saved {
            None => Saved::Lost,
            Some(_) => Saved::At(-8),
        },
        frame_pointer: match saved {
            None | Some(0) => Saved::Kept,
            Some(saved) => Saved::At(-(saved as i64)),
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
    fn rules_have_all_of_a_frequent_row() {
        for row in [
            row(Base::StackPointer, 8, Saved::Kept),
            row(Base::FramePointer, 16, Saved::At(-16)),
            row(Base::StackPointer, 8 * 0xffff, Saved::At(-8 * 0xff)),
        ] {
            assert_eq!(rules_of(row).map(row_of), Some(row));
        }
        let outermost = Row {
            return_address: Saved::Lost,
            ..row(Base::FramePointer, 16, Saved::At(-16))
        };
        assert_eq!(rules_of(outermost), Some(Rules::Outermost));
    }

    #[test]
    fn rows_of_other_kinds_have_no_rules() {
        let usual = row(Base::StackPointer, 8, Saved::Kept);
        for row in [
            row(Base::StackPointer, -8, Saved::Kept),
            row(Base::StackPointer, 16, Saved::At(8)),
            Row {
                is_signal: true,
                ..usual
            },
        ] {
            assert_eq!(rules_of(row), None, "{row:?}");
        }
    }
}
