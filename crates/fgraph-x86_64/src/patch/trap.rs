//! Handles threads that hit a site while it is patched, or continue within one.
//!
//! A thread that reaches the `int3` of a half-written site gets SIGTRAP. [`sigtrap_handler`] looks
//! the address up, and continues the thread in the stub of that site, as if the new instruction,
//! `jmp stub`, had run. The stub is also right while the site is being restored: the trampoline
//! finds that no user wants the call, and continues with the body.
//!
//! A thread that was preempted between two of the instructions under the jump traps when it
//! continues (see [`punned_jump`](crate::punned_jump)), with SIGTRAP or, at an opcode that does not
//! exist, SIGILL. It continues in the relocated prologue, at the instruction that was there.
//!
//! ```text
//!   TRAP_RANGES --> TrapRange ------------------> TrapRange --> ..., one per module
//!                   +-------+-----+---------+-------+------+
//!                   | first | end | records | count | next |
//!                   +-------+-----+----+----+-------+------+
//!                                      |
//!                                      v
//!                        Site   +-------+------+------+-------+-----+
//!                               | entry | stub | body | inner | ... |
//!                               +-------+------+------+-------+-----+
//!                               | ...                               |
//!                               +-----------------------------------+
//!                               sorted by the address that is patched
//! ```
//!
//! # Why assembly
//!
//! The handler runs while sites are being patched, and with `-Zpatchable-function-entry` every Rust
//! function has a site, in a debug build even `AtomicPtr::load`. A handler that called a site that
//! is an `int3` would trap within itself without end. Naked functions have no sites, and these call
//! nothing else. They do not use vector registers either, nor thread-local storage.
//!
//! # Installing the handler
//!
//! Use `SA_SIGINFO | SA_ONSTACK | SA_NODEFER`, with a mask that may hold any signal except SIGTRAP.
//! If SIGTRAP is *blocked* in a thread that hits an `int3`, the kernel does not wait but kills the
//! process. So SIGTRAP must not be blocked while a handler runs that may call a site, including
//! this one's successor in [`CHAIN`]. The same holds for SIGILL.

use alloc::boxed::Box;
use core::arch::naked_asm;
use core::ffi::c_int;
use core::mem::offset_of;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use fgraph_core::site::Site;

use crate::stub::SITE_LEN;

/// Offset in `siginfo_t` of `si_code`.
const SI_CODE: usize = 8;

/// Offset in `ucontext_t` of the program counter: flags, link and stack come first (40 bytes), then
/// the registers; rip is the 17th.
const UCONTEXT_RIP: usize = 40 + 16 * 8;

/// Offset in `ucontext_t` of the number of the exception; 21st of the registers.
const UCONTEXT_TRAPNO: usize = 40 + 20 * 8;

/// The sites of one module. Ranges in the list are in any order, and may overlap.
#[repr(C)]
#[derive(Debug)]
pub struct TrapRange {
    /// The address of the first site's patched bytes.
    first: usize,
    /// The address after the last site's patched bytes.
    end: usize,
    /// The sites, sorted by `entry`.
    records: *const Site,
    /// The current number of sites: 0 while the module is not loaded.
    count: AtomicUsize,
    next: *const Self,
    len: usize,
}

// SAFETY: apart from the count, which is atomic, it never changes once other threads have it.
unsafe impl Sync for TrapRange {}
// SAFETY: it points to static sites, and no field belongs to a thread.
unsafe impl Send for TrapRange {}

impl TrapRange {
    /// Makes the range of `sites`; the last one has `last_len` patched bytes.
    #[must_use]
    pub fn new(sites: &'static [Site], last_len: usize) -> Self {
        let end = |site: &Site| site.entry.saturating_add(last_len);
        Self {
            first: sites.first().map_or(0, |site| site.entry),
            end: sites.last().map_or(0, end),
            records: sites.as_ptr(),
            count: AtomicUsize::new(sites.len()),
            next: ptr::null(),
            len: sites.len(),
        }
    }

    /// Sets if the module is loaded. While it is not, no trap is at one of its sites.
    pub fn set_loaded(&self, is_loaded: bool) {
        let count = if is_loaded { self.len } else { 0 };
        self.count.store(count, Ordering::Release);
    }
}

/// A pointer for the trap handlers.
#[repr(transparent)]
#[derive(Debug)]
pub struct HandlerPtr<T>(AtomicPtr<T>);

impl<T> HandlerPtr<T> {
    const fn null() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Sets the pointer, for handlers that run from now on.
    ///
    /// # Safety
    ///
    /// It must point to the kind of object that the static's documentation says.
    pub unsafe fn set(&self, to: *mut T) {
        // Release: a thread that traps sees the whole target.
        self.0.store(to, Ordering::Release);
    }
}

impl HandlerPtr<TrapRange> {
    /// Adds a range to the list, for handlers that run from now on.
    ///
    /// # Safety
    ///
    /// The sites are sorted by `entry`, and a thread that traps at one may continue in its stub, or
    /// in its relocated prologue.
    pub unsafe fn push(&self, range: TrapRange) -> &'static TrapRange {
        let new = Box::leak(Box::new(range));
        let mut next = self.0.load(Ordering::Acquire);
        loop {
            new.next = next;
            // Release: a thread that traps sees all of the range.
            match self
                .0
                .compare_exchange(next, new, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return new,
                Err(now) => next = now,
            }
        }
    }
}

/// The youngest range; null before there is one.
///
/// A thread may be iterating over the list at any time: ranges and records are never freed.
pub static TRAP_RANGES: HandlerPtr<TrapRange> = HandlerPtr::null();

/// The handler for SIGILLs that are not ours, see [`CHAIN`].
pub static CHAIN_OF_SIGILL: HandlerPtr<()> = HandlerPtr::null();

/// The handler for SIGTRAPs that are not ours: an `extern "C" fn(c_int, *mut siginfo_t, *mut
/// c_void)`.
///
/// Null ignores them. If the previous action was the default one, the function set here must
/// restore it and send the signal again.
pub static CHAIN: HandlerPtr<()> = HandlerPtr::null();

/// The number of times that threads have hit a trap of ours.
pub static TRAPS: AtomicU64 = AtomicU64::new(0);

/// Returns the address at which to continue after a trap at `trap_ip`: in the stub of the site
/// there if `or_at` is not 0, or in the relocated prologue, at an instruction within a site; 0 if
/// the trap is not ours.
///
/// # Safety
///
/// [`TRAP_RANGES`] is null, or leads to objects as documented there.
#[unsafe(naked)]
pub unsafe extern "C" fn resume_address(trap_ip: usize, or_at: usize) -> usize {
    naked_asm!(
        ".cfi_startproc",
        "mov r11, rsi",
        // Through the GOT, since a shared library may not know where its own symbol ends up.
        "mov rdx, qword ptr [rip + {ranges}@GOTPCREL]",
        // It needs no fence: the target was written before the pointer.
        "mov rdx, qword ptr [rdx]", // rdx: the range
        // Iterates over the ranges: there are as many as patched modules.
        "2:",
        "test rdx, rdx",
        "jz 9f",
        "cmp rdi, qword ptr [rdx + {first}]",
        "jb 7f",
        "cmp rdi, qword ptr [rdx + {end}]",
        "jae 7f",
        // Binary search: records r8 .. r9 are yet to be compared, all before r8 start at or before
        // the address.
        "mov rsi, qword ptr [rdx + {records}]",
        "xor r8d, r8d",
        "mov r9, qword ptr [rdx + {count}]",
        "3:",
        "cmp r8, r9",
        "jae 5f",
        "lea rax, [r8 + r9]", // the sum of two indices does not overflow
        "shr rax, 1",
        "imul r10, rax, {stride}",
        "cmp rdi, qword ptr [rsi + r10 + {entry}]",
        "jb 4f",
        "lea r8, [rax + 1]",
        "jmp 3b",
        "4:",
        "mov r9, rax",
        "jmp 3b",
        // The last site that starts at or before the address.
        "5:",
        "sub r8, 1",
        "jb 7f",
        "imul r10, r8, {stride}",
        "add rsi, r10",
        "mov rax, rdi",
        "sub rax, qword ptr [rsi + {entry}]",
        "jz 6f",
        "cmp rax, {site_len}",
        "jae 7f",
        // Within a site: continue in the relocated prologue, at the instruction that started there,
        // if one did.
        "movzx eax, byte ptr [rsi + rax + {inner} - 1]",
        "test eax, eax",
        "jz 7f",
        "add rax, qword ptr [rsi + {body}]",
        "ret",
        "6:",
        "test r11, r11",
        "jz 7f",
        "mov rax, qword ptr [rsi + {stub}]",
        "ret",
        "7:", // not in this range
        "mov rdx, qword ptr [rdx + {next}]",
        "jmp 2b",
        "9:", // in none
        "xor eax, eax",
        "ret",
        ".cfi_endproc",
        ranges = sym TRAP_RANGES,
        first = const offset_of!(TrapRange, first),
        end = const offset_of!(TrapRange, end),
        records = const offset_of!(TrapRange, records),
        count = const offset_of!(TrapRange, count),
        next = const offset_of!(TrapRange, next),
        stride = const size_of::<Site>(),
        entry = const offset_of!(Site, entry),
        stub = const offset_of!(Site, stub),
        body = const offset_of!(Site, body),
        inner = const offset_of!(Site, inner),
        site_len = const SITE_LEN,
    )
}

/// Makes the handler of a signal that a trap causes.
macro_rules! handler {
    (
        $(#[$doc:meta])*
        $name:ident, chain: $chain:ident, $not_ours:literal,
        at: $at:literal, behind: $behind:literal $(, $operand:ident: $value:expr)?
    ) => {
        $(#[$doc])*
        ///
        /// `info` is a `siginfo_t`, `ucontext` a `ucontext_t` (glibc and musl lay them out alike).
        ///
        /// # Safety
        ///
        /// Only the kernel calls it, for that signal and with `SA_SIGINFO`. [`TRAP_RANGES`] and the
        /// chain are as documented there.
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(
            signal: c_int,
            info: *mut core::ffi::c_void,
            ucontext: *mut core::ffi::c_void,
        ) {
            naked_asm!(
                ".cfi_startproc",
                concat!("cmp dword ptr [rsi + {si_code}], ", $not_ours),
                // The arguments are needed again. Three words also align the stack for the call.
                "push rdi",
                ".cfi_adjust_cfa_offset 8",
                "push rsi",
                ".cfi_adjust_cfa_offset 8",
                "push rdx",
                ".cfi_adjust_cfa_offset 8",
                "mov rdi, qword ptr [rdx + {rip}]",
                concat!("sub rdi, ", $behind),
                concat!("mov esi, ", $at),
                // Through the GOT and not through a PLT, which may have to resolve the symbol
                // first.
                "call qword ptr [rip + {resume}@GOTPCREL]",
                "pop rdx",
                ".cfi_adjust_cfa_offset -8",
                "pop rsi",
                ".cfi_adjust_cfa_offset -8",
                "pop rdi",
                ".cfi_adjust_cfa_offset -8",
                "test rax, rax",
                "jz 2f",
                "mov qword ptr [rdx + {rip}], rax", // where the kernel lets the thread go on
                "mov rax, qword ptr [rip + {traps}@GOTPCREL]",
                "lock inc qword ptr [rax]",
                "ret",
                // Not ours. Everything is as at entry: the next handler may replace this one.
                "2:",
                "mov rax, qword ptr [rip + {chain}@GOTPCREL]",
                "mov rax, qword ptr [rax]",
                "test rax, rax",
                "jz 3f",
                "jmp rax",
                "3:",
                "ret",
                ".cfi_endproc",
                si_code = const SI_CODE,
                rip = const UCONTEXT_RIP,
                $($operand = const $value,)?
                resume = sym resume_address,
                traps = sym TRAPS,
                chain = sym $chain,
            )
        }
    };
}

handler!(
    /// The handler of SIGTRAP.
    sigtrap_handler,
    chain: CHAIN,
    // SI_KERNEL or TRAP_BRKPT, which an `int3` causes; the latter if another program emulates the
    // kernel. Single steps, watchpoints and `kill` have other codes. But TRAP_BRKPT is also the
    // code of a debug exception, number 1, without a reason: an `int1`, or a single step under a
    // hypervisor that has lost the reason.
    "0x80
     je 4f
     cmp dword ptr [rsi + {si_code}], 1
     jne 2f
     cmp qword ptr [rdx + {trapno}], 1
     je 2f
     4:",
    at: "1",
    // int3 is a trap: rip is after it.
    behind: "1",
    trapno: UCONTEXT_TRAPNO
);

handler!(
    /// The handler of SIGILL. No site begins with an opcode that does not exist, so a SIGILL at a
    /// site's start is not ours.
    sigill_handler,
    chain: CHAIN_OF_SIGILL,
    // The code of a signal by `kill` is not positive.
    "0
     jle 2f",
    at: "0",
    behind: "0"
);

#[cfg(test)]
pub(crate) mod tests;
