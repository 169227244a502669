//! The processor that a thread runs on, as the kernel keeps it up to date for the C library: the
//! word `cpu_id` of the thread's `struct rseq`.

use core::arch::asm;
use core::ptr;

/// Where `cpu_id` is in `struct rseq`.
const CPU_ID: usize = 4;

/// Where each thread has the number of its processor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessorWord {
    /// From the thread pointer; 0 where there is none.
    offset: isize,
}

impl ProcessorWord {
    /// There is one where the C library has registered threads with the kernel: glibc from 2.35 on,
    /// if it was not told otherwise.
    pub(crate) fn find() -> Self {
        // SAFETY: names with a zero at their end.
        let [offset, size] = [c"__rseq_offset", c"__rseq_size"]
            .map(|name| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) });
        if offset.is_null() || size.is_null() {
            return Self { offset: 0 };
        }
        // SAFETY: the C library has a `ptrdiff_t` and an `unsigned int` of these names, which stay
        // as they are from the start of the program on.
        let (offset, size) = unsafe { (*offset.cast::<isize>(), *size.cast::<u32>()) };
        // A size of 0 says that nothing is registered.
        let is_there = size as usize >= CPU_ID + 4 && offset != 0;
        Self {
            offset: if is_there { offset } else { 0 },
        }
    }

    /// The processor that the running thread is on; `None` if that is not known.
    #[inline(always)]
    pub(crate) fn read(self) -> Option<u32> {
        if self.offset == 0 {
            return None;
        }
        let place = ptr::without_provenance::<u32>((self.offset as usize).wrapping_add(CPU_ID));
        let found: u32;
        // SAFETY: each thread of the C library has the word there, which the kernel writes between
        // two instructions of the thread.
        unsafe {
            asm!(
                "mov {found:e}, fs:[{place}]",
                found = out(reg) found,
                place = in(reg) place,
                options(nostack, preserves_flags, readonly),
            );
        }
        // Negative where the kernel does not know the thread.
        (found as i32 >= 0).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_processor_that_the_thread_may_run_on() {
        let word = ProcessorWord::find();
        // SAFETY: a set of processors is plain data, and is filled in.
        let set = unsafe {
            let mut set: libc::cpu_set_t = core::mem::zeroed();
            assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &mut set), 0);
            set
        };
        match word.read() {
            None => assert_eq!(word.offset, 0),
            // SAFETY: as above.
            Some(found) => assert!(unsafe { libc::CPU_ISSET(found as usize, &set) }, "{found}"),
        }
    }
}
