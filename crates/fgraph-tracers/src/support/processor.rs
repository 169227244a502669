//! The processor that a thread runs on, in the word `cpu_id` of the thread's `struct rseq`. The
//! kernel keeps it up to date for the C library.

use core::arch::asm;
use core::ptr;

/// Offset of `cpu_id` in `struct rseq`.
const CPU_ID: usize = 4;

/// Place of the word with the processor number of each thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessorWord {
    /// Offset from the thread pointer; 0 if there is no word.
    offset: isize,
}

impl ProcessorWord {
    /// Finds the word. It exists if the C library has registered threads with the kernel: glibc
    /// from 2.35 on, unless it was told not to.
    pub(crate) fn find() -> Self {
        // SAFETY: the names are C strings.
        let [offset, size] = [c"__rseq_offset", c"__rseq_size"]
            .map(|name| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) });
        if offset.is_null() || size.is_null() {
            return Self { offset: 0 };
        }
        // SAFETY: the C library has a `ptrdiff_t` and an `unsigned int` of these names, which do
        // not change after the start of the program.
        let (offset, size) = unsafe { (*offset.cast::<isize>(), *size.cast::<u32>()) };
        // A size of 0 means that no threads are registered.
        let is_there = size as usize >= CPU_ID + 4 && offset != 0;
        Self {
            offset: if is_there { offset } else { 0 },
        }
    }

    /// Returns the processor that the running thread is on; `None` if it is unknown.
    #[inline(always)]
    pub(crate) fn read(self) -> Option<u32> {
        if self.offset == 0 {
            return None;
        }
        let place = ptr::without_provenance::<u32>((self.offset as usize).wrapping_add(CPU_ID));
        let found: u32;
        // SAFETY: each thread of the C library has the word at this offset, and the kernel writes
        // it only between two instructions of the thread.
        unsafe {
            asm!(
                "mov {found:e}, fs:[{place}]",
                found = out(reg) found,
                place = in(reg) place,
                options(nostack, preserves_flags, readonly),
            );
        }
        // Negative if the kernel does not know the thread.
        (found as i32 >= 0).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_processor_that_the_thread_may_run_on() {
        let word = ProcessorWord::find();
        // SAFETY: a set of processors is plain data, and the call fills it in.
        let set = unsafe {
            let mut set: libc::cpu_set_t = core::mem::zeroed();
            assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &mut set), 0);
            set
        };
        match word.read() {
            None => assert_eq!(word.offset, 0),
            // SAFETY: the set is initialised.
            Some(found) => assert!(unsafe { libc::CPU_ISSET(found as usize, &set) }, "{found}"),
        }
    }
}
