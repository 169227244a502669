//! Large values in memory of their own, without the allocator. They are mapped at the start: a
//! callback may run in a sandbox that forbids to map memory.
//!
//! # Safety
//!
//! The unsafe code refers to the value in its mapping, which lives as long as the owner.

use core::marker::PhantomData;
use core::ops::Deref;
use core::ptr::NonNull;

use super::arena::Zeroed;
use super::kernel;

/// Value in a mapping of its own, all zeros at first. The kernel provides its pages as they are
/// used.
#[derive(Debug)]
pub(crate) struct Mapped<T: Zeroed>(NonNull<T>, PhantomData<T>);

// SAFETY: the mapping belongs to no thread, and the value may be sent.
unsafe impl<T: Zeroed + Send> Send for Mapped<T> {}
// SAFETY: a shared owner gives only shared references to the value.
unsafe impl<T: Zeroed + Sync> Sync for Mapped<T> {}

impl<T: Zeroed> Mapped<T> {
    /// Maps a value; `None` without memory.
    pub(crate) fn new() -> Option<Self> {
        const { assert!(align_of::<T>() <= 4096 && !core::mem::needs_drop::<T>()) }
        let memory = kernel::map(size_of::<T>())?;
        NonNull::new(memory.cast()).map(|value| Self(value, PhantomData))
    }

    /// Maps a value that is zeros again in a child of `fork`; `None` without memory.
    pub(crate) fn wiped_on_fork() -> Option<Self> {
        let this = Self::new()?;
        kernel::wipe_on_fork(this.0.as_ptr().cast(), size_of::<T>()).then_some(this)
    }
}

impl<T: Zeroed> Deref for Mapped<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: zeros are a valid value, which is mapped while `self` lives.
        unsafe { self.0.as_ref() }
    }
}

impl<T: Zeroed> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: the memory was mapped with this length, and references to it have ended.
        unsafe { kernel::unmap(self.0.as_ptr().cast(), size_of::<T>()) };
    }
}
