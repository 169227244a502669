//! The registers that a call may carry, as the machine layer saves them.
//!
//! The layout is shared by the trampolines, which fill it, and the callbacks' [`Entry`] and
//! [`Return`], which read and write it: at most six integer arguments, eight vector arguments and
//! two results of each kind (the System V ABI of x86-64 has exactly these).
//!
//! ```text
//!   EntryRegs                               Link, on the machine stack
//!   +0    int[0..6]                         +0   a register that the trampoline needs
//!   +48   scratch[0..2]                     +8   return address
//!   +64   own                               +16  stack arguments ...
//!   +72   site
//!   +80   own
//!   +88   width           bytes of each vector that are saved
//!   +96   frame pointer
//!   +128  vector[0..8]    64 bytes each
//!
//!   ReturnRegs
//!   +0    int[0..2]
//!   +16   frame
//!   +24   own
//!   +32   width           bytes of each vector that are saved
//!   +36   how
//!   +48   vector[0..2]    64 bytes each
//! ```
//!
//! What is used by every call comes first: the nearer to the start, the shorter the instructions.
//!
//! The records are at the same time the context that the callbacks are handed, so that nothing has
//! to be copied for them. What the dispatch itself needs of them, the machine layer passes to it in
//! registers as well: a word that is stored and loaded again comes several cycles late. Where only
//! [scalar](crate::scalar) users are called, no more than the integers and the site is filled in.
//!
//! [`Entry`]: crate::Entry
//! [`Return`]: crate::Return

use core::ptr;

use crate::frame::Frame;
use crate::site::Site;
use crate::thread::Thread;

/// Integer arguments that travel in registers.
pub const INT_ARGS: usize = 6;
/// Vector and floating-point arguments that travel in registers.
pub const VECTOR_ARGS: usize = 8;
/// Registers of each kind that a result may come back in.
pub const RESULTS: usize = 2;

/// One vector register, as wide as the machine may have it.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug)]
pub struct Vector(pub [u8; 64]);

impl Vector {
    pub(crate) fn f64(&self) -> f64 {
        touch_vectors();
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        f64::from_le_bytes([a, b, c, d, e, f, g, h])
    }

    pub(crate) fn set_f64(&mut self, value: f64) {
        touch_vectors();
        self.0[..8].copy_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn f32(&self) -> f32 {
        touch_vectors();
        let [a, b, c, d, ..] = self.0;
        f32::from_le_bytes([a, b, c, d])
    }

    pub(crate) fn set_f32(&mut self, value: f32) {
        touch_vectors();
        self.0[..4].copy_from_slice(&value.to_le_bytes());
    }
}

/// The displacement of the instruction without effect that stands beside each access to saved
/// vector registers.
pub const VECTORS_TOUCHED: u32 = 0x5645_4354;

/// Stands in all code that reads or writes saved vector registers. They are not saved for callbacks
/// whose code shows that it uses none: so code must show it that finds them in memory. It does by a
/// NOP that no compiler makes.
#[inline(always)]
fn touch_vectors() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: does nothing.
    unsafe {
        core::arch::asm!(
            "nop dword ptr [rax + {}]",
            const VECTORS_TOUCHED,
            options(nomem, nostack, preserves_flags),
        );
    }
}

/// What stands on the machine stack at a function's entry, with the word that the trampoline
/// pushes.
#[repr(C)]
#[derive(Debug)]
pub struct Link {
    /// The caller's value of the register that the trampoline uses to find its stack again.
    pub saved: usize,
    /// Where the function returns to.
    pub return_address: usize,
}

/// The return address that stands at a place on the machine stack.
///
/// # Safety
///
/// The place must be where that of a call in the running thread stands.
#[inline(always)]
pub unsafe fn return_address_at(return_slot_addr: usize) -> usize {
    // SAFETY: the caller vouches for the place.
    unsafe { ptr::with_exposed_provenance::<usize>(return_slot_addr).read() }
}

/// The argument registers at entry.
#[repr(C, align(16))]
#[derive(Debug)]
pub struct EntryRegs {
    /// Integer and pointer arguments.
    pub int: [u64; INT_ARGS],
    /// Registers with a meaning at entry that are no arguments (rax: count of vector arguments of
    /// a variadic call; r10: static chain).
    pub scratch: [u64; 2],
    /// A word of the machine layer's own.
    pub link: *mut Link,
    /// The site that was hit.
    pub site: *const Site,
    /// Another word of the machine layer's own.
    pub thread: *const Thread,
    /// Bytes of each vector that are saved: the rest of the machine's registers is zero.
    pub width: u32,
    /// The caller's frame pointer, on the slow path only.
    pub frame_pointer: usize,
    /// So that each vector is in one cache line.
    pub unused: [usize; 3],
    /// Vector and floating-point arguments.
    pub vector: [Vector; VECTOR_ARGS],
}

impl EntryRegs {
    /// The place of word `index` of the arguments that travel on the stack, of a call in `thread`
    /// whose return address stands at `return_slot_addr`; the end of the machine stack if the word
    /// is not on it.
    pub(crate) fn stack_word(
        thread: &Thread,
        return_slot_addr: usize,
        index: usize,
    ) -> Result<*mut u64, usize> {
        let end = thread.low.get() + thread.span.get();
        let first = return_slot_addr + size_of::<usize>();
        let word = index.saturating_mul(size_of::<u64>()).saturating_add(first);
        if word < end && end - word >= size_of::<u64>() {
            Ok(ptr::with_exposed_provenance_mut(word))
        } else {
            Err(end)
        }
    }

    /// A word of the arguments that travel on the stack, which [`stack_word`](Self::stack_word)
    /// finds; `None` if it is not on the machine stack.
    pub(crate) fn read_stack_word(
        thread: &Thread,
        return_slot_addr: usize,
        index: usize,
    ) -> Option<u64> {
        let word = Self::stack_word(thread, return_slot_addr, index).ok()?;
        // SAFETY: on the machine stack of the running thread.
        Some(unsafe { read_any_word(word) })
    }

    /// Fills the vectors up to `width` bytes, which it returns, with the zeros that the registers
    /// hold there.
    ///
    /// # Safety
    ///
    /// No reference to the bytes that are filled up may be in use.
    #[cold]
    pub(crate) unsafe fn widen(this: *mut Self, width: u32) -> usize {
        // SAFETY: handed on.
        unsafe {
            let vectors = (&raw mut (*this).vector).cast();
            widen(vectors, VECTOR_ARGS, &raw mut (*this).width, width)
        }
    }
}

/// Reads a word of memory whatever it belongs to: a variable of another function, say, that is not
/// initialised, or that another thread writes at this moment. What it holds then is not known.
///
/// By an instruction of its own, because a read in Rust would not be allowed, and sanitizers object
/// to it.
///
/// # Safety
///
/// The word must be mapped.
unsafe fn read_any_word(word: *const u64) -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let value;
        // SAFETY: reads the word, which is mapped, and changes nothing.
        unsafe {
            core::arch::asm!(
                "mov {value}, [{word}]",
                word = in(reg) word,
                value = out(reg) value,
                options(nostack, readonly, preserves_flags),
            );
        }
        value
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        // SAFETY: it is mapped.
        unsafe { word.read_volatile() }
    }
}

/// The frame is unwound: there are no results, and it stays where it is.
pub const RETURN_UNWINDING: u32 = 1;
/// The frame is not the newest of the stack that the thread has: it stays where it is.
pub const RETURN_DEFERRED: u32 = 2;

/// The result registers at return.
#[repr(C, align(16))]
#[derive(Debug)]
pub struct ReturnRegs {
    /// Integer and pointer results.
    pub int: [u64; RESULTS],
    /// The frame of the call.
    pub frame: *mut Frame,
    /// A word of the machine layer's own.
    pub thread: *const Thread,
    /// Bytes of each vector that are saved: the rest of the machine's registers is zero.
    pub width: u32,
    /// [`RETURN_UNWINDING`], [`RETURN_DEFERRED`], both, or 0.
    pub how: u32,
    /// Vector and floating-point results.
    pub vector: [Vector; RESULTS],
}

impl ReturnRegs {
    /// As [`EntryRegs::widen`].
    ///
    /// # Safety
    ///
    /// As there.
    #[cold]
    pub(crate) unsafe fn widen(this: *mut Self, width: u32) -> usize {
        // SAFETY: handed on.
        unsafe {
            let vectors = (&raw mut (*this).vector).cast();
            widen(vectors, RESULTS, &raw mut (*this).width, width)
        }
    }

    /// The registers for the return of a frame that is unwound: there are no results.
    pub(crate) fn unwinding(frame: *mut Frame, thread: *const Thread) -> Self {
        Self {
            int: [0; RESULTS],
            frame,
            thread,
            width: 0,
            how: RETURN_UNWINDING,
            vector: [Vector([0; 64]); RESULTS],
        }
    }
}

/// Fills `count` vectors of which `*saved` bytes are saved up to `width` bytes with the zeros that
/// the registers hold there.
///
/// # Safety
///
/// The pointers must be those of a record of registers.
unsafe fn widen(vectors: *mut Vector, count: usize, saved: *mut u32, width: u32) -> usize {
    touch_vectors();
    // SAFETY: the caller vouches for the pointers; a vector is as wide as any register.
    unsafe {
        if *saved < width {
            for index in 0..count {
                let vector = vectors.add(index).cast::<u8>();
                vector
                    .add(*saved as usize)
                    .write_bytes(0, (width - *saved) as usize);
            }
            *saved = width;
        }
    }
    width as usize
}
