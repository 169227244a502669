//! Machine stacks that are nobody's home: those of coroutines and of signal handlers.
//!
//! All are in one reservation, so that an address tells which kind it is on:
//!
//! ```text
//!   | guard, stack | guard, stack | ... | guard, stack, stack, stack, ... |
//!     apart: mapped each by itself        together: in one mapping
//! ```

#[path = "../../../../crates/fgraph/tests/common/switch.rs"]
pub(super) mod switch;

use std::io;
use std::ops::Range;
use std::ptr;
use std::sync::{Mutex, OnceLock};

/// Bytes of a stack, with its guard if it has one.
const STACK: usize = 128 << 10;
const GUARD: usize = 4096;
const APART: usize = 96;
const TOGETHER: usize = 24;

#[derive(Debug)]
struct Reservation {
    low: usize,
    apart: Mutex<Vec<usize>>,
    together: Mutex<Vec<usize>>,
}

static RESERVATION: OnceLock<Reservation> = OnceLock::new();

/// Reserves the memory.
pub(crate) fn prepare() -> io::Result<()> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let len = (APART + TOGETHER + 1) * STACK;
    // SAFETY: a new mapping.
    let memory = unsafe { libc::mmap(ptr::null_mut(), len, prot, flags, -1, 0) };
    if memory == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let low = memory.expose_provenance();
    for guard in (0..=APART).map(|index| low + index * STACK) {
        protect(guard)?;
    }
    let apart = (0..APART).map(|index| low + index * STACK).collect();
    let first = low + APART * STACK + GUARD;
    let together = (0..TOGETHER).map(|index| first + index * STACK).collect();
    RESERVATION.get_or_init(|| Reservation {
        low,
        apart: Mutex::new(apart),
        together: Mutex::new(together),
    });
    Ok(())
}

fn protect(guard: usize) -> io::Result<()> {
    let guard = ptr::with_exposed_provenance_mut(guard);
    // SAFETY: a page of ours that nobody uses.
    if unsafe { libc::mprotect(guard, GUARD, libc::PROT_NONE) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Returns true if an address is on one of these stacks.
#[inline(always)]
pub(crate) fn contains(address: usize) -> bool {
    RESERVATION.get().is_some_and(|reservation| {
        address.wrapping_sub(reservation.low) < (APART + TOGETHER + 1) * STACK
    })
}

/// A stack.
#[derive(Debug)]
pub(crate) struct StackMemory {
    low: usize,
    is_apart: bool,
}

impl StackMemory {
    /// One with a guard before it, or one of several in one mapping. `None` if none is left.
    pub(crate) fn take(is_apart: bool) -> Option<Self> {
        let low = list(is_apart)?.lock().ok()?.pop()?;
        Some(Self { low, is_apart })
    }

    /// The bytes that may be used.
    pub(crate) fn usable(&self) -> Range<usize> {
        let guard = if self.is_apart { GUARD } else { 0 };
        self.low + guard..self.low + STACK
    }

    /// The earlier content is gone: it is zero, or was never mapped.
    pub(crate) fn forget(&self) {
        let Range { start, end } = self.usable();
        // SAFETY: nobody runs on it any more.
        unsafe {
            libc::madvise(
                ptr::with_exposed_provenance_mut(start),
                end - start,
                libc::MADV_DONTNEED,
            )
        };
    }
}

impl Drop for StackMemory {
    fn drop(&mut self) {
        if let Some(mut list) = list(self.is_apart).and_then(|list| list.lock().ok()) {
            list.push(self.low);
        }
    }
}

fn list(is_apart: bool) -> Option<&'static Mutex<Vec<usize>>> {
    let reservation = RESERVATION.get()?;
    Some(if is_apart {
        &reservation.apart
    } else {
        &reservation.together
    })
}
