//! The registers of a call, as the machine layer saves them.
//!
//! The trampolines fill these records; the callbacks' [`Entry`] and [`Return`] read and write them.
//! They hold at most six integer arguments, eight vector arguments and two results of each kind,
//! which are exactly those of the System V ABI of x86-64.
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
//! The fields that every call uses come first: the nearer to the start, the shorter the
//! instructions.
//!
//! The records are also the context that callbacks get, so nothing is copied for them. The machine
//! layer passes the values that dispatch needs in registers as well, because a word that is stored
//! and loaded again arrives several cycles later. If only [fast-path](crate::eligible) users are
//! called, only the integers and the site are filled in.
//!
//! [`Entry`]: crate::Entry
//! [`Return`]: crate::Return

use core::ptr;

use crate::frame::Frame;
use crate::site::Site;
use crate::thread::Thread;

/// The number of integer arguments passed in registers.
pub const INT_ARGS: usize = 6;
/// The number of vector and floating-point arguments passed in registers.
pub const VECTOR_ARGS: usize = 8;
/// The number of result registers of each kind.
pub const RESULTS: usize = 2;

/// A vector register, as wide as the widest that the machine may have.
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

/// The displacement of the NOP that stands beside each access to saved vector registers.
pub const VECTORS_TOUCHED: u32 = 0x5645_4354;

/// Marks code that reads or writes saved vector registers. They are not saved for callbacks whose
/// code uses no vector registers, so code that finds them in memory must be recognizable. The mark
/// is a NOP that no compiler emits.
#[inline(always)]
fn touch_vectors() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the instruction has no effect.
    unsafe {
        core::arch::asm!(
            "nop dword ptr [rax + {}]",
            const VECTORS_TOUCHED,
            options(nomem, nostack, preserves_flags),
        );
    }
}

/// The words on the machine stack at a function's entry, including the one that the trampoline
/// pushes.
#[repr(C)]
#[derive(Debug)]
pub struct Link {
    /// The caller's value of the register by which the trampoline finds its stack again.
    pub saved: usize,
    /// The return address of the function.
    pub return_address: usize,
}

/// Returns the return address in a return slot on the machine stack.
///
/// # Safety
///
/// The address must be the return slot of a call in the running thread.
#[inline(always)]
pub unsafe fn return_address_at(return_slot_addr: usize) -> usize {
    // SAFETY: the caller guarantees that a return address is there.
    unsafe { ptr::with_exposed_provenance::<usize>(return_slot_addr).read() }
}

/// The argument registers at entry.
#[repr(C, align(16))]
#[derive(Debug)]
pub struct EntryRegs {
    /// Integer and pointer arguments.
    pub int: [u64; INT_ARGS],
    /// Registers with a meaning at entry that are not arguments (rax: number of vector arguments of
    /// a variadic call; r10: static chain).
    pub scratch: [u64; 2],
    /// A word for the machine layer.
    pub link: *mut Link,
    /// The site that was hit.
    pub site: *const Site,
    /// Another word for the machine layer.
    pub thread: *const Thread,
    /// The number of bytes saved of each vector; the rest of the machine's registers is zero.
    pub width: u32,
    /// The caller's frame pointer, on the slow path only.
    pub frame_pointer: usize,
    /// Padding, so that each vector is in one cache line.
    pub unused: [usize; 3],
    /// Vector and floating-point arguments.
    pub vector: [Vector; VECTOR_ARGS],
}

impl EntryRegs {
    /// Returns the address of word `index` of the stack arguments, for a call in `thread` with the
    /// return slot `return_slot_addr`. Fails with the end of the machine stack if the word is not
    /// on it.
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

    /// Reads a word of the stack arguments, which [`stack_word`](Self::stack_word) finds; `None` if
    /// it is not on the machine stack.
    pub(crate) fn read_stack_word(
        thread: &Thread,
        return_slot_addr: usize,
        index: usize,
    ) -> Option<u64> {
        let word = Self::stack_word(thread, return_slot_addr, index).ok()?;
        // SAFETY: the word is on the machine stack of the running thread.
        Some(unsafe { read_any_word(word) })
    }

    /// Extends the vectors to `width` bytes, which it returns, with the zeros that the registers
    /// hold there.
    ///
    /// # Safety
    ///
    /// No reference to the extended bytes may be in use.
    #[cold]
    pub(crate) unsafe fn widen(this: *mut Self, width: u32) -> usize {
        // SAFETY: the caller keeps the same contract.
        unsafe {
            let vectors = (&raw mut (*this).vector).cast();
            widen(vectors, VECTOR_ARGS, &raw mut (*this).width, width)
        }
    }
}

/// Reads a word of memory that may belong to any object: for example a variable of another function
/// that is uninitialised, or that another thread writes at this moment. The value is then
/// arbitrary.
///
/// Uses inline assembly, because such a read is undefined behaviour in Rust, and sanitizers report
/// it.
///
/// # Safety
///
/// The word must be mapped.
unsafe fn read_any_word(word: *const u64) -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let value;
        // SAFETY: the instruction reads the word, which is mapped, and changes nothing.
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
        // SAFETY: the caller guarantees that the word is mapped.
        unsafe { word.read_volatile() }
    }
}

/// Flag: the frame is unwound. There are no results, and the frame stays where it is.
pub const RETURN_UNWINDING: u32 = 1;
/// Flag: the frame is not the newest of the thread's stack, and stays where it is.
pub const RETURN_DEFERRED: u32 = 2;

/// The result registers at return.
#[repr(C, align(16))]
#[derive(Debug)]
pub struct ReturnRegs {
    /// Integer and pointer results.
    pub int: [u64; RESULTS],
    /// The frame of the call.
    pub frame: *mut Frame,
    /// A word for the machine layer.
    pub thread: *const Thread,
    /// The number of bytes saved of each vector; the rest of the machine's registers is zero.
    pub width: u32,
    /// The flags [`RETURN_UNWINDING`] and [`RETURN_DEFERRED`], or 0.
    pub how: u32,
    /// Vector and floating-point results.
    pub vector: [Vector; RESULTS],
}

impl ReturnRegs {
    /// Extends the vectors like [`EntryRegs::widen`].
    ///
    /// # Safety
    ///
    /// No reference to the extended bytes may be in use.
    #[cold]
    pub(crate) unsafe fn widen(this: *mut Self, width: u32) -> usize {
        // SAFETY: the caller keeps the same contract.
        unsafe {
            let vectors = (&raw mut (*this).vector).cast();
            widen(vectors, RESULTS, &raw mut (*this).width, width)
        }
    }

    /// Makes the registers for the return of a frame that is unwound, without results.
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

/// Extends `count` vectors from `*saved` bytes to `width` bytes with the zeros that the registers
/// hold there.
///
/// # Safety
///
/// The pointers must lead into one record of registers.
unsafe fn widen(vectors: *mut Vector, count: usize, saved: *mut u32, width: u32) -> usize {
    touch_vectors();
    // SAFETY: the caller guarantees the pointers; a vector has room for the widest register.
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
