//! The entry trampoline: call through, do not hijack.
//!
//! A site jumps to its stub, the stub loads the address of the site's record into r11 and jumps
//! here. We save what a callee may read, offer the entry to the users, and then
//!
//! - jump to the body, when no user wants the return: the return address was never touched;
//! - or *call* the body, when one does. Its `ret` comes back to us, predicted, because it
//!   pairs with our call; we offer the return to the users and return ourselves, predicted, because
//!   our `ret` pairs with the caller's call.
//!
//! The machine stack, with S the address of the return address:
//!
//! ```text
//!             at entry            while the users are asked        while the body runs
//!
//!   S+8   stack arguments        stack arguments                  stack arguments
//!   S     return address <- rsp  return address                   return point     <- rsp
//!   S-8                          caller's rbx    <- rbx           the body's own frame
//!                                (aligned to 64)
//!                                EntryRegs       <- rsp           rbp = the shadow frame
//! ```
//!
//! A user may put something in the place of the body: then the site in the registers is another
//! when the users have been asked, and what it needs stands beneath S-8 (`trampoline/replaced.rs`).
//!
//! While the body runs, the return address and the caller's rbp are the first two words of the
//! shadow frame, and rbp points to them. The body, like any function, preserves rbp: when it
//! returns, rbp *is* the frame, without a look-up. And since the frame begins like any frame
//! record, a walker of frame pointers gets through.
//!
//! A function that returns twice, or looks at its return address, must not be called by us. For
//! those there are variants that tell the users of the entry, and then always jump.
//!
//! # Unwind information
//!
//! It is right at every instruction, because a profiler's signal may arrive at any. There are three
//! stretches:
//!
//! | stretch | CFA | rbp | rbx | return address | rsp |
//! |---|---|---|---|---|---|
//! | before `push rbx`, and the last `ret` and `jmp` | rsp+8 | as is | as is | CFA-8 | CFA |
//! | until rbp becomes the frame | rbx+16 | as is | CFA-16 | CFA-8 | CFA |
//! | from there until rbp is the caller's again | \[rbp+24\]+8 | \[rbp+0\] | \[rbp+24\]-8, then as is | \[rbp+8\] | CFA |
//!
//! In the third the CFA is the stack pointer that the caller gets back, as for any function.
//! libunwind.so.8 takes the one for the other whatever the last column says.
//!
//! Tail calls of traced functions from one another have the same `return_slot_addr`, and gdb takes
//! a stack to be corrupt whose CFAs do not ascend, or where two frames of one function have the
//! same. So `tail` is added there, of which the lowest three bits count: 7 in the frame that the
//! caller has called, 6 in the next, and so on. The stack pointer stays as it is, beside the CFA.
//! In libunwind.so.8 it does not. But that sees in the first frame that its stack pointer was moved
//! by the second, and then the 7 is not added: the caller gets the right one back.
//!
//! The personality routine is called when an unwinder that cleans up (a panic, a C++ exception,
//! `pthread_exit`, a cancellation) goes through the return point; it tells the users. A process may
//! have several unwinders, each of which understands only what it hands out itself; the address
//! that it calls from says which one it is.
//!
//! libgcc knows the frame that catches by the CFA of the frame beneath, LLVM's libunwind by its
//! stack pointer, and ours has the same one: the body returns to where our caller goes on. They
//! take our frame for the one that catches, and abort when the personality routine only lets them
//! go on. So for such a frame we catch, with the stack pointer elsewhere, and resume
//! (`fgraph_catch`).
//!
//! # Which registers
//!
//! A site with a NOP made by the compiler may rely on the ABI: rdi rsi rdx rcx r8 r9, rax (count of
//! vector arguments), r10 (static chain) and the vector arguments 0 to 7 survive, r11 is free. At
//! the return nothing survives but the results.
//!
//! At any other site the caller may know which registers the function does not touch (gcc's
//! `-fipa-ra`), and keep something in each of them. For these sites there are variants of the
//! trampoline that preserve every register, r11 included; `trampoline/code.rs` says how. Only the
//! flags do not survive.
//!
//! Vector registers are saved as wide as they are in use, with plain moves: fxsave, xsave, and even
//! asking xgetbv what is in use, cost several times what the moves do
//! (`docs/decisions/measured.md`). They are not saved for a call that only users want whose
//! callbacks leave them alone: `trampoline/short.rs`.

mod careful;
#[macro_use]
mod short;
mod code;
mod replaced;

use core::arch::{asm, global_asm, naked_asm};
use core::ffi::c_void;
use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use fgraph_core::dispatch;
use fgraph_core::fgraph::{Fgraph, RETURN_POINTS};
use fgraph_core::frame::Frame;
use fgraph_core::regs::{EntryRegs, ReturnRegs};
use fgraph_core::replacement;
use fgraph_core::site::Site;
use fgraph_core::thread::Thread;

use crate::cpu;
use crate::stub::StubKind;

pub use short::shims;

/// Makes the calling thread's state at its first hit; null means that it cannot be traced.
pub type Attach = extern "C" fn() -> *const Thread;

/// Ends the process: a return address is in doubt. The arguments are the frame and the stack
/// pointer.
pub type Abort = extern "C" fn(frame: *const Frame, stack_pointer: usize) -> !;

/// The signals that no thread gets while its state is made, as the kernel has sets of signals: all
/// but SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV and SIGSYS, which the thread may cause itself.
pub const HELD_OFF: u64 = {
    let caused = [4, 5, 7, 8, 11, 31];
    let (mut set, mut at) = (!0, 0);
    while at < caused.len() {
        set &= !(1 << (caused[at] - 1));
        at += 1;
    }
    set
};

// SAFETY: the trampolines are the part of the runtime that calls dispatch.
static FGRAPH: &Fgraph = unsafe { fgraph_core::FGRAPH.get() };

static ATTACH: AtomicUsize = AtomicUsize::new(0);
static ABORT: AtomicUsize = AtomicUsize::new(0);

/// Where the variants start that call bodies, of the trampolines that are installed.
static ENTRIES: [AtomicUsize; RETURN_POINTS] = [const { AtomicUsize::new(0) }; RETURN_POINTS];

/// The state of a thread whose own is being made.
// SAFETY: only its counters are used, as it is always inside.
static ATTACHING: Thread = unsafe { Thread::always_inside() };

// Two words of thread-local storage, in the initial-exec model: two plain loads from anywhere, also
// in a signal handler and in a shared library, where `thread_local!` may call the allocator. The
// first is the state. The second is the stack pointer at which the state began to be made: a call
// above it shows that a signal handler has left that by `siglongjmp`.
global_asm!(
    ".pushsection .tbss.fgraph_thread, \"awT\", @nobits",
    ".p2align 3",
    ".globl fgraph_thread",
    ".hidden fgraph_thread",
    ".type fgraph_thread, @object",
    ".size fgraph_thread, 16",
    "fgraph_thread:",
    ".zero 16",
    ".popsection",
);

/// The calling thread's state; null before its first hit.
#[inline(always)]
pub fn current() -> *const Thread {
    let thread;
    // SAFETY: reads one word of this thread's own storage.
    unsafe {
        asm!(
            "mov {thread}, qword ptr [rip + fgraph_thread@GOTTPOFF]",
            "mov {thread}, qword ptr fs:[{thread}]",
            thread = out(reg) thread,
            options(nostack, preserves_flags, readonly),
        );
    }
    thread
}

/// Sets the calling thread's state.
///
/// # Safety
///
/// The state must be this thread's own, and stay so.
pub unsafe fn set_current(thread: *const Thread) {
    // SAFETY: writes one word of this thread's own storage.
    unsafe {
        asm!(
            "mov {place}, qword ptr [rip + fgraph_thread@GOTTPOFF]",
            "mov qword ptr fs:[{place}], {thread}",
            place = out(reg) _,
            thread = in(reg) thread,
            options(nostack, preserves_flags),
        );
    }
}

/// Notes that the calling thread's state is being made from here on, until it is
/// [set](set_current): what it calls deeper in the stack is not traced.
///
/// # Safety
///
/// The thread has no state, and gets one before this call's caller returns.
#[inline(always)]
pub unsafe fn set_attaching() {
    // SAFETY: writes two words of this thread's own storage; the state is always inside.
    unsafe {
        asm!(
            "mov {place}, qword ptr [rip + fgraph_thread@GOTTPOFF]",
            "mov qword ptr fs:[{place} + 8], rsp",
            "mov qword ptr fs:[{place}], {attaching}",
            place = out(reg) _,
            attaching = in(reg) &raw const ATTACHING,
            options(nostack, preserves_flags),
        );
    }
}

/// The bounds of the code that must never be traced, made by the linker from the section's name.
pub fn own_text() -> Range<usize> {
    unsafe extern "C" {
        #[link_name = "__start_fgraph_text"]
        static START: u8;
        #[link_name = "__stop_fgraph_text"]
        static STOP: u8;
    }
    (&raw const START).addr()..(&raw const STOP).addr()
}

/// Called by the trampolines, see [`dispatch::enter`].
#[unsafe(link_section = "fgraph_text")]
unsafe extern "C" fn enter(
    regs: *mut EntryRegs,
    site: &Site,
    thread: &Thread,
    return_slot_addr: usize,
    users: u64,
    stamp: u64,
) -> *mut Frame {
    // SAFETY: the trampoline passes the registers it has saved, the site that was hit, and the
    // state of this thread, which it has marked.
    unsafe { dispatch::enter(regs, site, thread, return_slot_addr, users, stamp) }
}

/// Called by the trampolines that never call a body: as [`enter`], but there is no frame
/// afterwards.
#[unsafe(link_section = "fgraph_text")]
unsafe extern "C" fn enter_only(
    regs: *mut EntryRegs,
    site: &Site,
    thread: &Thread,
    return_slot_addr: usize,
    users: u64,
    stamp: u64,
) -> *mut Frame {
    thread.entry_only.set(return_slot_addr);
    // SAFETY: as in `enter`.
    let frame = unsafe { dispatch::enter(regs, site, thread, return_slot_addr, users, stamp) };
    thread.entry_only.set(0);
    if !frame.is_null() {
        thread.retract(frame);
    }
    ptr::null_mut()
}

/// Called by the trampolines when `entered_sp` seems to be stale.
#[unsafe(link_section = "fgraph_text")]
unsafe extern "C" fn is_stale(thread: &Thread, entered_sp: usize, address: usize) -> bool {
    FGRAPH.is_stale(thread, entered_sp, address)
}

/// Called by the trampolines, see [`dispatch::leave`].
#[unsafe(link_section = "fgraph_text")]
unsafe extern "C" fn leave(
    regs: *mut ReturnRegs,
    frame: *mut Frame,
    thread: &Thread,
) -> *const Thread {
    // SAFETY: the trampoline passes the results it has saved, the frame that `enter` gave it, and
    // the state of this thread, which it has marked.
    unsafe { dispatch::leave(regs, frame, thread) }
}

/// Reads a register in the context that an unwinder hands out.
pub type GetGr = unsafe extern "C" fn(context: *mut c_void, register: i32) -> usize;
/// Reads the address of the instruction in the context that an unwinder hands out.
pub type GetIp = unsafe extern "C" fn(context: *mut c_void) -> usize;
/// Changes a register in the context that an unwinder hands out.
pub type SetGr = unsafe extern "C" fn(context: *mut c_void, register: i32, value: usize);
/// Changes the address of the instruction in the context that an unwinder hands out.
pub type SetIp = unsafe extern "C" fn(context: *mut c_void, address: usize);

/// What understands the context that code of an unwinder hands out.
#[derive(Clone, Debug)]
pub struct Unwinder {
    /// The addresses of the unwinder's code.
    pub text: Range<usize>,
    /// `_Unwind_GetGR`
    pub get_gr: GetGr,
    /// `_Unwind_GetIP`
    pub get_ip: GetIp,
    /// `_Unwind_SetGR`
    pub set_gr: SetGr,
    /// `_Unwind_SetIP`
    pub set_ip: SetIp,
}

/// At most this many unwinders can be added.
pub const MAX_UNWINDERS: usize = 3;

/// The unwinders that were added, then null.
static UNWINDERS: [AtomicPtr<Unwinder>; MAX_UNWINDERS] =
    [const { AtomicPtr::new(ptr::null_mut()) }; MAX_UNWINDERS];

/// The unwinder that we are linked to. It need not be one that was added: a program may have
/// one in it.
static LINKED: Unwinder = Unwinder {
    text: 0..0,
    get_gr: _Unwind_GetGR,
    get_ip: _Unwind_GetIP,
    set_gr: _Unwind_SetGR,
    set_ip: _Unwind_SetIP,
};

impl Unwinder {
    /// The one that has called, from the address `caller`.
    #[inline(always)]
    fn at(caller: usize) -> &'static Self {
        for unwinder in &UNWINDERS {
            // SAFETY: null, or lives for ever.
            let unwinder = unsafe { unwinder.load(Ordering::Acquire).as_ref() };
            if let Some(unwinder) = unwinder
                && unwinder.text.start <= caller
                && caller < unwinder.text.end
            {
                return unwinder;
            }
        }
        &LINKED
    }
}

/// Adds an unwinder that may call the personality routine. There is no room for more than
/// [`MAX_UNWINDERS`]; others are taken to be the one that this crate is linked to.
///
/// # Safety
///
/// The functions must be those of the unwinder whose code is at `text`.
pub unsafe fn add_unwinder(unwinder: &'static Unwinder) {
    let added = ptr::from_ref(unwinder).cast_mut();
    let (null, release) = (ptr::null_mut(), Ordering::Release);
    let is_free = |place: &AtomicPtr<Unwinder>| {
        place
            .compare_exchange(null, added, release, Ordering::Relaxed)
            .is_ok()
    };
    let _ = UNWINDERS.iter().any(is_free);
}

unsafe extern "C" {
    fn _Unwind_GetGR(context: *mut c_void, register: i32) -> usize;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
    fn _Unwind_SetGR(context: *mut c_void, register: i32, value: usize);
    fn _Unwind_SetIP(context: *mut c_void, address: usize);
    fn _Unwind_Backtrace(step: Step, argument: *mut c_void) -> i32;
}

/// What is called for each frame of a backtrace.
type Step = extern "C" fn(context: *mut c_void, argument: *mut c_void) -> i32;

/// Has libgcc fill in the sizes of registers, which `_Unwind_GetGR` aborts without.
///
/// It does so when it unwinds for the first time. But a program that has a copy of libgcc in it
/// (`-static-libgcc`) unwinds by that, and our personality routine asks the shared one.
fn prepare_unwinder() {
    extern "C" fn stop(_context: *mut c_void, _argument: *mut c_void) -> i32 {
        const NORMAL_STOP: i32 = 4;
        NORMAL_STOP
    }
    // SAFETY: the function does nothing with what it is given.
    unsafe { _Unwind_Backtrace(stop, ptr::null_mut()) };
}

/// True for the word that an unwinder leaves where a call's return address was, when a trampoline
/// catches in its caller's place: the call is not over then.
pub fn is_caught(word: usize) -> bool {
    word == code::catch()
}

/// The unwinder calls this for each trampoline frame that it goes through: as [`on_frame`], whose
/// last argument is the address that this returns to.
#[unsafe(naked)]
#[unsafe(link_section = "fgraph_text")]
unsafe extern "C-unwind" fn personality() {
    // The rules are those of the CIE: a signal may come here, and its handler unwind.
    naked_asm!(".cfi_startproc", "mov r9, [rsp]", "jmp {}", ".cfi_endproc", sym on_frame);
}

/// The personality routine, called from the address `caller`.
#[unsafe(link_section = "fgraph_text")]
unsafe extern "C-unwind" fn on_frame(
    _version: i32,
    actions: i32,
    _class: u64,
    exception: *mut u8,
    context: *mut c_void,
    caller: usize,
) -> i32 {
    const CLEANUP_PHASE: i32 = 2;
    const HANDLER_FRAME: i32 = 4;
    const INSTALL_CONTEXT: i32 = 7;
    const CONTINUE_UNWIND: i32 = 8;
    const RAX: i32 = 0;
    let unwinder = Unwinder::at(caller);
    // SAFETY: the unwinder passes its context.
    let address = unsafe { (unwinder.get_ip)(context) };
    let at_return_point = FGRAPH.is_return_point(address);
    if at_return_point && actions & HANDLER_FRAME != 0 {
        // We have said in no search that we catch: the unwinder takes our frame for its caller's.
        // It comes back, when we resume, to a frame that it cannot mistake. SAFETY: the context
        // again; `fgraph_catch` takes the exception in rax, and the frame in rbp.
        unsafe {
            (unwinder.set_gr)(context, RAX, exception.expose_provenance());
            (unwinder.set_ip)(context, code::catch());
        }
        return INSTALL_CONTEXT;
    }
    let at_return_point = at_return_point || address == code::resumed();
    // SAFETY: null or the state of this thread, which is never unmapped.
    let thread = unsafe { current().as_ref() };
    if let Some(thread) = thread
        && actions & CLEANUP_PHASE != 0
    {
        // SAFETY: the context again. At the return point rbp is the frame, whose body is being
        // unwound in this thread.
        unsafe {
            let register = |number| (unwinder.get_gr)(context, number);
            let frame = if at_return_point {
                register(RBP) as *mut Frame
            } else {
                interrupted(thread, address, register)
            };
            if !frame.is_null() && !is_inside(thread, (*frame).return_slot_addr) {
                thread.mark.clear();
                thread.entered_sp.store(Thread::INTERNAL, Ordering::Relaxed);
                careful::unwind(thread, frame);
                thread.entered_sp.store(0, Ordering::Relaxed);
            }
        }
    }
    CONTINUE_UNWIND
}

const RBX: i32 = 3;
const RBP: i32 = 6;

/// The frame of a call that ends at `address` in a trampoline, before its body is called or after
/// it is back, because a cancellation acts there; null if no user waits for its return.
fn interrupted(thread: &Thread, address: usize, register: impl Fn(i32) -> usize) -> *mut Frame {
    let starts = ENTRIES.iter().map(|entry| entry.load(Ordering::Relaxed));
    // SAFETY: where a variant starts.
    let has_frame = |start| start != 0 && unsafe { code::has_frame(start, address) };
    let in_rbp = starts.into_iter().any(has_frame);
    let frame = if in_rbp {
        register(RBP) as *mut Frame
    } else {
        thread.asked.get()
    };
    // Before rbp is the frame rbx tells the place of the return address. The users may have been
    // asked about another call than this. SAFETY: it is on the shadow stack.
    let is_of_call = || in_rbp || unsafe { (*frame).return_slot_addr } == register(RBX) + 8;
    if thread.shadow.is_on(frame) && is_of_call() {
        frame
    } else {
        ptr::null_mut()
    }
}

/// Whether a thread is inside fgraph, and not only marked so by a callback that was left by
/// siglongjmp, when it comes to the frame of a call whose return address stood at
/// `return_slot_addr`.
fn is_inside(thread: &Thread, return_slot_addr: usize) -> bool {
    match thread.entered_sp.load(Ordering::Relaxed) {
        0 => false,
        Thread::INTERNAL | Thread::UNTRACED => true,
        entered_sp => !FGRAPH.is_stale(thread, entered_sp, return_slot_addr),
    }
}

/// Which trampoline a site's calls go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// For sites that carry a NOP made by the compiler: what the ABI lets a callee read survives.
    Plain,
    /// For sites without: every general register and vector registers 0 to 15 survive entry and
    /// return, only flags and what is AVX-512's alone do not.
    Preserve,
    /// As `Preserve`, and vector registers 16 to 31 and the opmasks survive too.
    PreserveAll,
    /// As `Preserve`, but users are not told of the return: for functions that must not be called
    /// from elsewhere, because they return twice or look at their return address.
    EntryOnly,
    /// As `EntryOnly`, but with what survives `PreserveAll`.
    EntryOnlyAll,
}

impl Variant {
    /// Every variant, in the order of their numbers.
    pub const ALL: [Self; 5] = [
        Self::Plain,
        Self::Preserve,
        Self::PreserveAll,
        Self::EntryOnly,
        Self::EntryOnlyAll,
    ];

    /// The variants that [tell users of the return](Self::returns).
    const CALLING: [Self; 3] = [Self::Plain, Self::Preserve, Self::PreserveAll];

    /// The variant that preserves at least as much, but does not tell users of the return.
    #[must_use]
    pub const fn entry_only(self) -> Self {
        match self {
            Self::PreserveAll | Self::EntryOnlyAll => Self::EntryOnlyAll,
            Self::Plain | Self::Preserve | Self::EntryOnly => Self::EntryOnly,
        }
    }

    /// Which stub leads to it.
    #[must_use]
    pub const fn stub(self) -> StubKind {
        match self {
            Self::Plain => StubKind::Plain,
            _ => StubKind::Preserving,
        }
    }

    /// Address of the word that holds the trampoline's address, in the header of stubs at `header`.
    #[must_use]
    pub const fn word(self, header: usize) -> usize {
        header + self as usize * size_of::<usize>()
    }

    /// Whether users are told of the return: the body is called if one of them wants that.
    #[must_use]
    pub const fn returns(self) -> bool {
        !matches!(self, Self::EntryOnly | Self::EntryOnlyAll)
    }
}

/// Where the stubs jump to: the address of each variant of the entry trampoline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trampolines {
    /// By number of the variant.
    entries: [usize; Variant::ALL.len()],
    /// Where bodies return to that the variants have called which tell of the return.
    pub return_points: [usize; Variant::CALLING.len()],
    /// Bytes of each vector register that survive.
    pub vector_bytes: u32,
}

impl Trampolines {
    /// No trampolines: no calls go through them.
    pub const NONE: Self = Self {
        entries: [0; Variant::ALL.len()],
        return_points: [0; Variant::CALLING.len()],
        vector_bytes: 0,
    };

    /// Where the trampoline of a variant starts.
    #[must_use]
    pub const fn entry(&self, variant: Variant) -> usize {
        self.entries[variant as usize]
    }

    /// The trampolines for a machine with vector registers of `vector_bytes` (16, 32 or 64) and, in
    /// the last case, opmasks of `opmask_bytes` (2 or 8).
    ///
    /// On a machine that has more, the rest does not survive; on one that has less, they cannot
    /// run.
    pub fn of(vector_bytes: u32, opmask_bytes: u32) -> Self {
        code::trampolines(vector_bytes, opmask_bytes, false)
    }

    /// The trampolines that hold cancellation off while users are asked and told, and look at who
    /// calls; else as [`of`].
    ///
    /// [`of`]: Self::of
    pub fn careful_of(vector_bytes: u32, opmask_bytes: u32) -> Self {
        code::trampolines(vector_bytes, opmask_bytes, true)
    }
}

/// Sets the trampolines up and returns those that save what this machine has.
///
/// # Safety
///
/// `attach` must give the calling thread's own state, or null.
pub unsafe fn install(attach: Attach, abort: Abort) -> Trampolines {
    ATTACH.store(attach as usize, Ordering::Relaxed);
    ABORT.store(abort as usize, Ordering::Relaxed);
    careful::install();
    prepare_unwinder();
    let twins = [Trampolines::of, Trampolines::careful_of];
    let [trampolines, careful] = twins.map(|of| of(cpu::vector_bytes(), cpu::opmask_bytes()));
    let starts = |these: Trampolines| Variant::CALLING.map(|variant| these.entry(variant));
    let starts = [trampolines, careful].into_iter().flat_map(starts);
    for (entry, start) in ENTRIES.iter().zip(starts) {
        entry.store(start, Ordering::Relaxed);
    }
    let ([a, b, c], [d, e, f]) = (trampolines.return_points, careful.return_points);
    // SAFETY: these are all; the code in the place of bodies changes no register but those of the
    // result.
    unsafe {
        FGRAPH.set_return_points([a, b, c, d, e, f]);
        replacement::set_bodies(replaced::bodies());
    }
    trampolines
}

/// Says that threads may be cancelled, and returns the trampolines that hold it off: always, until
/// [`trust_announcements`].
///
/// # Safety
///
/// All stubs that are made from now on must lead to these.
pub unsafe fn hold_cancellation() -> Trampolines {
    careful::set_unannounced(true);
    Trampolines::careful_of(cpu::vector_bytes(), cpu::opmask_bytes())
}

/// Says that no thread is cancelled without [`announce_cancellation`] before.
///
/// # Safety
///
/// It must be true: a callback that is cancelled is unwound in the middle.
pub unsafe fn trust_announcements() {
    careful::set_unannounced(false);
}

/// Says that threads are cancelled from now on. Callbacks that run meanwhile may not be shielded:
/// they must be waited for, after a heavy barrier, before any thread is cancelled.
pub fn announce_cancellation() {
    careful::expect_cancellation();
}

/// The trampolines that look at who calls, as `callers` of [`Fgraph`] says.
pub fn look_at_callers() -> Trampolines {
    careful::look_at_callers();
    Trampolines::careful_of(cpu::vector_bytes(), cpu::opmask_bytes())
}

/// The state of all threads whose own is being made: what they call meanwhile is counted here.
///
/// # Safety
///
/// Only its counters may be used.
pub unsafe fn attaching() -> &'static Thread {
    &ATTACHING
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unwinder_is_known_by_the_address_that_it_calls_from() {
        static OTHER: Unwinder = Unwinder {
            text: 0x1000..0x2000,
            get_gr: _Unwind_GetGR,
            get_ip: _Unwind_GetIP,
            set_gr: _Unwind_SetGR,
            set_ip: _Unwind_SetIP,
        };
        let is_other = |caller| ptr::eq(Unwinder::at(caller), &OTHER);
        assert!(!is_other(0x1000));
        // SAFETY: they are functions of that name, and nothing unwinds from there.
        unsafe { add_unwinder(&OTHER) };
        assert!(is_other(0x1000) && is_other(0x1fff));
        assert!(!is_other(0xfff) && !is_other(0x2000));
        // What there is no room for changes nothing.
        // SAFETY: as above.
        (0..MAX_UNWINDERS).for_each(|_| unsafe { add_unwinder(&LINKED) });
        assert!(is_other(0x1000));
    }
}
