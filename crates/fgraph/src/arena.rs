//! The stubs of a module's sites, in one mapping within reach of all of them.
//!
//! An arena is complete when it becomes executable and never changes after that; it is never
//! unmapped, because a thread may be about to run one of its stubs at any time.
//!
//! # Safety
//!
//! The unsafe code maps fresh memory where nothing is mapped, fills it, and takes the right to write
//! away before anybody learns its address.

use core::ffi::c_void;
use core::ptr;

use fgraph_x86_64::stub;

use crate::os::{self, PAGE};

/// How far apart the places are that are tried.
const STEP: usize = 1 << 20;

/// The stubs of one module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arena {
    base: usize,
}

impl Arena {
    /// Makes room for the stubs of `count` sites, the first and the last of which are at `first`
    /// and `last`; `None` if there is none in reach.
    pub(crate) fn reserve(first: usize, last: usize, count: usize) -> Option<Self> {
        let len = Self::len(count);
        let (low, high) = stub::arena_window(first, last, len)?;
        // Below the text first: the heap grows above the program's.
        let below = (1..).map(|n| first.checked_sub(len + n * STEP));
        let below = below.map_while(|place| place.filter(|&place| place >= low));
        let above = (1..).map(|n| last.checked_add(n * STEP));
        let above = above.map_while(|place| place.filter(|&place| place <= high));
        below
            .chain(above)
            .map(|place| place & !(PAGE - 1))
            .filter(|place| (low..=high).contains(place))
            .find_map(|place| map_at(place, len))
            .map(|base| Self { base })
    }

    /// The address of stub `index`.
    pub(crate) fn stub(self, index: usize) -> usize {
        self.base + stub::HEADER_LEN + index * stub::STUB_LEN
    }

    /// Fills the arena with a stub for each record, and makes it executable. After an error, the
    /// system's number of which is returned, it is gone.
    pub(crate) fn finish(
        self,
        trampoline: usize,
        records: impl ExactSizeIterator<Item = u64>,
    ) -> Result<(), i32> {
        let len = Self::len(records.len());
        let stubs = records.len() * stub::STUB_LEN;
        let unwind = self.base + stub::HEADER_EH_FRAME;
        // SAFETY: all within the mapping, which is writable and still unknown to others.
        unsafe {
            ((self.base + stub::HEADER_TRAMPOLINE) as *mut u64).write(trampoline as u64);
            (unwind as *mut [u8; stub::EH_FRAME_LEN]).write(stub::eh_frame(
                self.stub(0),
                stubs,
                unwind,
            ));
        }
        for (index, record) in records.enumerate() {
            let at = self.stub(index);
            let code = stub::encode_stub(at, record, self.base);
            // SAFETY: as above.
            unsafe { (at as *mut [u8; stub::STUB_LEN]).write(code) };
        }
        let base = self.base as *mut c_void;
        // SAFETY: our own mapping. Registering its unwind information makes a copy of nothing: the
        // bytes stay where they are.
        unsafe {
            if libc::mprotect(base, len, libc::PROT_READ | libc::PROT_EXEC) != 0 {
                let errno = os::errno();
                libc::munmap(base, len);
                return Err(errno);
            }
            __register_frame((unwind + stub::EH_FRAME_FDE) as *const c_void);
        }
        Ok(())
    }

    fn len(count: usize) -> usize {
        (stub::HEADER_LEN + count * stub::STUB_LEN).next_multiple_of(PAGE)
    }
}

unsafe extern "C" {
    /// Of the unwinder: makes code known that is in no module.
    fn __register_frame(begin: *const c_void);
}

fn map_at(place: usize, len: usize) -> Option<usize> {
    // SAFETY: fails where something is mapped.
    let got = unsafe {
        libc::mmap(
            ptr::without_provenance_mut(place),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
            -1,
            0,
        )
    };
    if got == libc::MAP_FAILED {
        return None;
    }
    if got.addr() == place {
        return Some(got.expose_provenance());
    }
    // A kernel before 4.17 takes the flag for a hint.
    // SAFETY: just mapped.
    unsafe { libc::munmap(got, len) };
    None
}
