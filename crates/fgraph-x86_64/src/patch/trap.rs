//! What a thread does that meets a site being patched, or goes on within one.
//!
//! A thread that comes to the `int3` of a half-written site gets SIGTRAP. [`sigtrap_handler`] looks
//! the address up, and continues the thread in the stub of that site: as if the new instruction,
//! `jmp stub`, had run. The stub is right also when the site is on its way back: the trampoline
//! finds that no user wants the call, and goes on with the body.
//!
//! A thread that was preempted between two of the instructions that the jump lies over traps when
//! it goes on (see [`punned_jump`](crate::punned_jump)), by SIGTRAP or, at an opcode that does not
//! exist, SIGILL. It is continued in the relocated copy of the instruction that stood there.
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
//! function has one, in a debug build even `AtomicPtr::load`. A handler that called a site that is
//! an `int3` would trap within itself for ever. Naked functions have no sites, and these call
//! nothing else. They do not touch vector registers either, nor the thread's own storage.
//!
//! # Installing the handler
//!
//! `SA_SIGINFO | SA_ONSTACK | SA_NODEFER`, with a mask that may hold any signal but SIGTRAP. When
//! SIGTRAP is *blocked* in a thread that meets an `int3`, the kernel does not wait but kills the
//! process: so SIGTRAP must not be blocked while a handler runs that may call a site, this one's
//! successor in [`CHAIN`] included. The same goes for SIGILL.

use alloc::boxed::Box;
use core::arch::naked_asm;
use core::ffi::c_int;
use core::mem::offset_of;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use fgraph_core::site::Site;

use crate::stub::SITE_LEN;

/// Where `siginfo_t` has `si_code`.
const SI_CODE: usize = 8;

/// Where `ucontext_t` has the program counter: flags, link and stack come first (40 bytes), then
/// the registers, of which rip is the 17th.
const UCONTEXT_RIP: usize = 40 + 16 * 8;

/// The sites of one module. Those of the list are in any order, and may overlap.
#[repr(C)]
#[derive(Debug)]
pub struct TrapRange {
    /// Address of the first site's patched bytes.
    first: usize,
    /// Address behind the last site's patched bytes.
    end: usize,
    /// The sites, sorted by `entry`.
    records: *const Site,
    /// How many of them there are now: 0 while the module is not loaded.
    count: AtomicUsize,
    next: *const Self,
    len: usize,
}

// SAFETY: but for the count, which is atomic, it is never changed once others have it.
unsafe impl Sync for TrapRange {}
// SAFETY: as above.
unsafe impl Send for TrapRange {}

impl TrapRange {
    /// That of `sites`, the last of which has `last_len` bytes that are patched.
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

    /// Says whether the module is loaded. While it is not, no trap is one of its sites.
    pub fn set_loaded(&self, is_loaded: bool) {
        let count = if is_loaded { self.len } else { 0 };
        self.count.store(count, Ordering::Release);
    }
}

/// A pointer that the handlers of traps follow.
#[repr(transparent)]
#[derive(Debug)]
pub struct HandlerPtr<T>(AtomicPtr<T>);

impl<T> HandlerPtr<T> {
    const fn null() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Sets it, for handlers that run from now on.
    ///
    /// # Safety
    ///
    /// It must lead to what is said at the static.
    pub unsafe fn set(&self, to: *mut T) {
        // Release: a thread that traps sees all of what it leads to.
        self.0.store(to, Ordering::Release);
    }
}

impl HandlerPtr<TrapRange> {
    /// Puts a range on the list, for handlers that run from now on.
    ///
    /// # Safety
    ///
    /// The sites are sorted by `entry`, and a thread that traps at one may go on in its stub, or in
    /// its copy.
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

/// The youngest of the ranges; null before there is one.
///
/// A thread may be in the list at any time: ranges and records live for ever.
pub static TRAP_RANGES: HandlerPtr<TrapRange> = HandlerPtr::null();

/// The handler that gets the SIGILLs that are not ours; as [`CHAIN`].
pub static CHAIN_OF_SIGILL: HandlerPtr<()> = HandlerPtr::null();

/// The handler that gets the SIGTRAPs that are not ours: an
/// `extern "C" fn(c_int, *mut siginfo_t, *mut c_void)`.
///
/// Null: they are ignored. Where the action before ours was the default one, the function to put
/// here has to restore it and send the signal again.
pub static CHAIN: HandlerPtr<()> = HandlerPtr::null();

/// How many threads have met a trap of ours.
pub static TRAPS: AtomicU64 = AtomicU64::new(0);

/// Where to continue after a trap at `trap_ip`: in the stub of the site that is there, if `or_at`
/// is not 0, or in the relocated copy of an instruction within it; 0 when there is nothing of ours.
///
/// # Safety
///
/// [`TRAP_RANGES`] is null, or it and everything it leads to is as documented there.
#[unsafe(naked)]
pub unsafe extern "C" fn resume_address(trap_ip: usize, or_at: usize) -> usize {
    naked_asm!(
        ".cfi_startproc",
        "mov r11, rsi",
        // Through the GOT, since a shared library may not know where its own symbol ends up.
        "mov rdx, qword ptr [rip + {ranges}@GOTPCREL]",
        // It needs no fence: what is reached through the pointer was written before it.
        "mov rdx, qword ptr [rdx]", // rdx: the range
        // Ranges, one after the other: there are as many as patched modules.
        "2:",
        "test rdx, rdx",
        "jz 9f",
        "cmp rdi, qword ptr [rdx + {first}]",
        "jb 7f",
        "cmp rdi, qword ptr [rdx + {end}]",
        "jae 7f",
        // Records, by halves: r8 .. r9 are yet to be compared, all before r8 start at or before it.
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
        // Within: to the copy of the instruction that started there, if one did.
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

/// A handler of a signal that a trap causes.
macro_rules! handler {
    (
        $(#[$doc:meta])*
        $name:ident, chain: $chain:ident, $not_ours:literal,
        at: $at:literal, behind: $behind:literal
    ) => {
        $(#[$doc])*
        ///
        /// `info` is a `siginfo_t`, `ucontext` a `ucontext_t` (glibc and musl lay them out alike).
        ///
        /// # Safety
        ///
        /// To be called by the kernel only, for that signal and with `SA_SIGINFO`. [`TRAP_RANGES`]
        /// and the chain are as documented there.
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(
            signal: c_int,
            info: *mut core::ffi::c_void,
            ucontext: *mut core::ffi::c_void,
        ) {
            naked_asm!(
                ".cfi_startproc",
                concat!("cmp dword ptr [rsi + {si_code}], ", $not_ours),
                // The arguments are needed again. Three words also make the stack aligned for the
                // call.
                "push rdi",
                ".cfi_adjust_cfa_offset 8",
                "push rsi",
                ".cfi_adjust_cfa_offset 8",
                "push rdx",
                ".cfi_adjust_cfa_offset 8",
                "mov rdi, qword ptr [rdx + {rip}]",
                concat!("sub rdi, ", $behind),
                concat!("mov esi, ", $at),
                // Through the GOT and not through a PLT, which may want to resolve the symbol
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
                // Not ours. Everything is as at entry: the next one may take our place.
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
    // SI_KERNEL or TRAP_BRKPT: what an `int3` causes, the latter where something else stands in for
    // the kernel. Single steps, watchpoints and `kill` have others.
    "0x80
     je 4f
     cmp dword ptr [rsi + {si_code}], 1
     jne 2f
     4:",
    at: "1",
    // int3 is a trap: the thread stands behind it.
    behind: "1"
);

handler!(
    /// The handler of SIGILL. No site begins with an opcode that does not exist, so a thread that
    /// comes to its start is on its own.
    sigill_handler,
    chain: CHAIN_OF_SIGILL,
    // What `kill` sends is not positive.
    "0
     jle 2f",
    at: "0",
    behind: "0"
);

#[cfg(test)]
pub(crate) mod tests;
