//! Detects a running signal handler by the frame that the kernel has put on the stack for it.
//!
//! ```text
//!   words of the frame, at an address that is 8 more than a multiple of 16
//!   +0    where the handler returns to
//!   +1    flags of the context; 0; the alternate stack
//!   +6    the registers of what was interrupted: the stack pointer at +21, the segments at +24
//! ```
//!
//! # Safety
//!
//! The unsafe code reads the running thread's own stack.

use core::ptr;

/// Number of words of the frame that are checked.
const LEN: usize = 25;
const FLAGS: usize = 1;
const LINK: usize = 2;
const STACK_POINTER: usize = 21;
const SEGMENTS: usize = 24;

/// Flags `UC_FP_XSTATE`, `UC_SIGCONTEXT_SS` and `UC_STRICT_RESTORE_SS`.
const KNOWN_FLAGS: u64 = 0b111;
/// Code segment of programs. Older kernels do not write their stack segment.
const CODE: u64 = 0x33;
const STACK: [u64; 2] = [0x2b, 0];

/// Returns true if a signal handler may run on the stack that ends at `end`, which must be the
/// running thread's. It may take for a running one the frame that an earlier handler left in memory
/// that a function has reserved but not written.
pub(crate) fn is_running(end: usize) -> bool {
    let here = 0_u64;
    let start = ptr::from_ref(&here).addr() & !15;
    let frames = (start + 8..end.saturating_sub(8 * LEN)).step_by(16);
    // SAFETY: the address is between the running thread's stack pointer and the end of its stack.
    // Another thread may write there, so nothing relies on two reads being equal.
    let word = |at: usize| unsafe { ptr::with_exposed_provenance::<u64>(at).read_volatile() };
    frames
        .into_iter()
        .any(|at| is_frame(at, end, |n| word(at + 8 * n)))
}

/// Returns true if a frame may be at `at` of a stack that ends at `end`.
fn is_frame(at: usize, end: usize, word: impl Fn(usize) -> u64) -> bool {
    let segments = word(SEGMENTS);
    let interrupted = word(STACK_POINTER);
    segments & 0xffff == CODE
        && STACK.contains(&(segments >> 48))
        && word(0) != 0
        && word(FLAGS) & !KNOWN_FLAGS == 0
        && word(LINK) == 0
        && (at as u64..=end as u64).contains(&interrupted)
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn end_of_this_stack() -> usize {
        let mut attributes = core::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
        let (mut start, mut len) = (ptr::null_mut(), 0);
        // SAFETY: the call fills in the attributes of the running thread, which are then read.
        unsafe {
            assert_eq!(
                libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()),
                0
            );
            libc::pthread_attr_getstack(attributes.as_ptr(), &mut start, &mut len);
            libc::pthread_attr_destroy(attributes.as_mut_ptr());
        }
        start.addr() + len
    }

    /// 1 if no handler was found, 2 if one was.
    static FOUND: AtomicU32 = AtomicU32::new(0);

    extern "C" fn handle(_: libc::c_int) {
        // The stack is the thread's own, so its end is above the interrupted code's frames.
        let found = is_running(END.load(Ordering::Relaxed) as usize);
        FOUND.store(1 + u32::from(found), Ordering::Relaxed);
    }

    static END: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(0);

    #[test]
    fn a_handler_is_found_while_it_runs() {
        let end = end_of_this_stack();
        END.store(end as u64, Ordering::Relaxed);
        assert!(!is_running(end));
        // SAFETY: the handler only stores to atomics, and nothing else here uses the signal.
        unsafe {
            let handler = handle as extern "C" fn(libc::c_int);
            libc::signal(libc::SIGUSR1, handler as *const () as usize);
            libc::raise(libc::SIGUSR1);
        }
        assert_eq!(FOUND.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_handler_is_found_below_other_frames() {
        #[inline(never)]
        fn deeper(levels: u32, end: usize) -> bool {
            let room = core::hint::black_box([1_u64; 40]);
            let found = match levels {
                0 => is_running(end),
                levels => deeper(levels - 1, end),
            };
            core::hint::black_box(room);
            found
        }
        assert!(!deeper(50, end_of_this_stack()));
    }
}
