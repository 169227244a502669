//! An alternate signal stack for the thread that patches.
//!
//! The thread's own stack may be too small for the registers of this machine, or unusable: a
//! program may free the memory without unsetting it (Ruby does), as long as no signal comes. The
//! traps of a batch do come.
//!
//! # Safety
//!
//! The unsafe code sets the calling thread's alternate stack to memory that is never unmapped and
//! that no other thread has, and restores the previous one.

use core::marker::PhantomData;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use super::memory;

/// Its size in bytes: enough for several frames with all registers, and for a handler of the
/// program that gets signals that are not ours.
const LEN: usize = 256 << 10;

/// The memory that the last thread has left. Null while a thread uses it, and before the first use.
static FREE: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());

/// The calling thread has an alternate stack with enough room until this is dropped.
#[derive(Debug)]
pub(super) struct TrapStack {
    memory: *mut u8,
    before: libc::stack_t,
    /// It belongs to the thread.
    _not_send: PhantomData<*const ()>,
}

impl TrapStack {
    /// Returns `None` if there is no memory, or if the thread runs on its alternate stack, which is
    /// writable then.
    pub(super) fn enter() -> Option<Self> {
        // Acquire pairs with the Release in `put`: the previous thread has left the memory.
        let memory = match FREE.swap(ptr::null_mut(), Ordering::Acquire) {
            free if free.is_null() => memory::map(LEN)?,
            free => free,
        };
        let stack = libc::stack_t {
            ss_sp: memory.cast(),
            ss_flags: 0,
            ss_size: LEN,
        };
        let mut before = libc::stack_t {
            ss_sp: ptr::null_mut(),
            ss_flags: 0,
            ss_size: 0,
        };
        // SAFETY: live locals, and memory that no other thread has.
        if unsafe { libc::sigaltstack(&stack, &mut before) } != 0 {
            put(memory);
            return None;
        }
        Some(Self {
            memory,
            before,
            _not_send: PhantomData,
        })
    }
}

impl Drop for TrapStack {
    fn drop(&mut self) {
        // SAFETY: a live local with the thread's previous stack.
        let is_left = unsafe { libc::sigaltstack(&self.before, ptr::null_mut()) } == 0;
        if is_left {
            put(self.memory);
        }
    }
}

/// Leaves the memory for the next thread.
fn put(memory: *mut u8) {
    // Replaces the memory of another thread, which then stays allocated.
    FREE.store(memory, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn current() -> libc::stack_t {
        // SAFETY: a zeroed stack is a stack, and a live local.
        unsafe {
            let mut stack = core::mem::zeroed();
            assert_eq!(libc::sigaltstack(ptr::null(), &mut stack), 0);
            stack
        }
    }

    #[test]
    fn a_thread_has_its_own_stack_back_afterwards() {
        let before = current();
        for _ in 0..2 {
            let stack = TrapStack::enter().unwrap();
            assert_eq!(current().ss_sp, stack.memory.cast());
            assert_eq!((current().ss_size, current().ss_flags), (LEN, 0));
        }
        assert_eq!(current().ss_sp, before.ss_sp);
        assert_eq!(current().ss_flags, before.ss_flags);
    }
}
