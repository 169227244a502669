//! The entry trampoline, which calls the function's body instead of hijacking the return address.
//!
//! A site jumps to its stub, and the stub loads the address of the site's record into r11 and jumps
//! here. The trampoline saves the registers that a callee may read, dispatches the entry to the
//! users, and then
//!
//! - jumps to the body if no user wants the return: the return address was never changed;
//! - or *calls* the body if a user does. The body's `ret` comes back to the trampoline, predicted,
//!   because it pairs with this call. The trampoline dispatches the return and returns itself,
//!   predicted, because its `ret` pairs with the caller's call.
//!
//! The machine stack, with S the address of the return slot:
//!
//! ```text
//!             at entry            at dispatch of the entry         while the body runs
//!
//!   S+8   stack arguments        stack arguments                  stack arguments
//!   S     return address <- rsp  return address                   return point     <- rsp
//!   S-8                          caller's rbx    <- rbx           the body's own frame
//!                                (aligned to 64)
//!                                EntryRegs       <- rsp           rbp = the shadow frame
//! ```
//!
//! A user may replace the body: then the site in the registers is another one after the dispatch,
//! and its operands are below S-8 (`trampoline/replaced.rs`).
//!
//! While the body runs, the return address and the caller's rbp are the first two words of the
//! shadow frame, and rbp points to them. The body, like any function, preserves rbp: when it
//! returns, rbp *is* the frame, without a lookup. And since the frame begins like any frame record,
//! a walk along frame pointers works.
//!
//! A function that returns twice, or looks at its return address, must not be called from the
//! trampoline. For those there are entry-only variants, which dispatch the entry and then always
//! jump.
//!
//! # Unwind information
//!
//! It is right at every instruction, because a profiler's signal may arrive at any. There are three
//! stretches:
//!
//! | stretch | CFA | rbp | rbx | return address | rsp |
//! |---|---|---|---|---|---|
//! | before `push rbx`, and the last `ret` and `jmp` | rsp+8 | unchanged | unchanged | CFA-8 | CFA
//! |
//! | until rbp becomes the frame | rbx+16 | unchanged | CFA-16 | CFA-8 | CFA |
//! | from there until rbp is the caller's again | \[rbp+24\]+8 | \[rbp+0\] | \[rbp+24\]-8, then
//! unchanged | \[rbp+8\] | CFA |
//!
//! In the third stretch the CFA is the stack pointer that the caller gets back, as for any
//! function. libunwind.so.8 uses the CFA as the stack pointer whatever the last column says.
//!
//! Tail calls of traced functions from one another have the same `return_slot_addr`. gdb takes a
//! stack for corrupt if CFAs do not ascend, or if two frames of one function have the same CFA. So
//! the lowest three bits of `tail` are added there: 7 in the frame that the caller has called, 6 in
//! the next, and so on. The stack pointer itself stays correct beside the CFA. In libunwind.so.8 it
//! does not, but that sees in the first frame that its stack pointer was moved by the second, and
//! does not add the 7 then: the caller gets the right one back.
//!
//! The personality routine runs when an unwinder that cleans up (a panic, a C++ exception,
//! `pthread_exit`, a cancellation) passes the return point; it dispatches the unwinding to the
//! users. A process may have several unwinders, each of which understands only its own contexts;
//! the address of the call identifies the unwinder.
//!
//! libgcc recognizes the frame that catches by the CFA of the frame below it, LLVM's libunwind by
//! its stack pointer, and our frame has the same ones: the body returns to where our caller
//! continues. They take our frame for the one that catches, and abort if the personality routine
//! only lets them continue. So for such a frame we catch, with the stack pointer elsewhere, and
//! resume (`fgraph_catch`).
//!
//! # Preserved registers
//!
//! A site with a NOP made by the compiler may rely on the ABI: rdi rsi rdx rcx r8 r9, rax (number
//! of vector arguments), r10 (static chain) and the vector arguments 0 to 7 survive, r11 is free.
//! At the return only the results survive.
//!
//! At any other site the caller may know which registers the function does not change (gcc's
//! `-fipa-ra`), and keep values in all of them. For these sites there are variants of the
//! trampoline that preserve every register, including r11; `trampoline/save.rs` describes how. Only
//! the flags do not survive.
//!
//! Vector registers are saved in the width that is in use, with plain moves: fxsave, xsave, and
//! even reading the components in use with xgetbv, cost several times as much
//! (`docs/decisions/measured.md`). They are not saved for a call that only fast-path users want:
//! `trampoline/fast_path.rs`.

mod caller_check;
#[macro_use]
mod fast_path;
#[macro_use]
mod save;
mod body;
mod replaced;
mod table;
mod variant;

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

pub use fast_path::shims;
pub use table::Trampolines;
pub use variant::Variant;

/// Makes the calling thread's state at its first hit; null if it cannot be traced.
pub type Attach = extern "C" fn() -> *const Thread;

/// Ends the process because a return address is in doubt. The arguments are the frame and the stack
/// pointer.
pub type Abort = extern "C" fn(frame: *const Frame, stack_pointer: usize) -> !;

/// The signals that are blocked while a thread's state is made, as a kernel signal set: all except
/// SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV and SIGSYS, which the thread may cause itself.
pub const BLOCKED_SIGNALS: u64 = {
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

/// The start addresses of the installed trampolines that call bodies.
static ENTRIES: [AtomicUsize; RETURN_POINTS] = [const { AtomicUsize::new(0) }; RETURN_POINTS];

/// The state of a thread whose own state is being made.
// SAFETY: only its counters are used, because it is always inside.
static ATTACHING: Thread = unsafe { Thread::always_inside() };

// Two words of thread-local storage, in the initial-exec model: two plain loads from anywhere,
// including a signal handler and a shared library, where `thread_local!` may call the allocator.
// The first word is the state. The second is the stack pointer at which making the state began: a
// call above it shows that a signal handler has left with `siglongjmp`.
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

/// Returns the calling thread's state; null before its first hit.
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
/// The state must be this thread's own, and remain so.
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

/// Notes that the calling thread's state is being made, until it is [set](set_current): calls
/// deeper in the stack are not traced.
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

/// Returns the bounds of the code that must never be traced, which the linker makes from the
/// section's name.
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

/// Called by the entry-only trampolines: like [`enter`], but there is no frame afterwards.
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
    // SAFETY: the trampoline passes the registers it has saved, the site that was hit, and the
    // state of this thread, which it has marked.
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

/// Reads a register in an unwinder's context.
pub type GetGr = unsafe extern "C" fn(context: *mut c_void, register: i32) -> usize;
/// Reads the instruction address in an unwinder's context.
pub type GetIp = unsafe extern "C" fn(context: *mut c_void) -> usize;
/// Changes a register in an unwinder's context.
pub type SetGr = unsafe extern "C" fn(context: *mut c_void, register: i32, value: usize);
/// Changes the instruction address in an unwinder's context.
pub type SetIp = unsafe extern "C" fn(context: *mut c_void, address: usize);

/// The functions that understand the contexts of one unwinder.
#[derive(Clone, Debug)]
pub struct Unwinder {
    /// The address range of the unwinder's code.
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

/// The most unwinders that can be added.
pub const MAX_UNWINDERS: usize = 3;

/// The added unwinders, followed by null.
static UNWINDERS: [AtomicPtr<Unwinder>; MAX_UNWINDERS] =
    [const { AtomicPtr::new(ptr::null_mut()) }; MAX_UNWINDERS];

/// The unwinder to which this code is linked. It may be one that was not added: a program may
/// contain its own.
static LINKED: Unwinder = Unwinder {
    text: 0..0,
    get_gr: _Unwind_GetGR,
    get_ip: _Unwind_GetIP,
    set_gr: _Unwind_SetGR,
    set_ip: _Unwind_SetIP,
};

impl Unwinder {
    /// Returns the unwinder that has called, from the address `caller`.
    #[inline(always)]
    fn at(caller: usize) -> &'static Self {
        for unwinder in &UNWINDERS {
            // SAFETY: null, or an object that is never freed.
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

/// Adds an unwinder that may call the personality routine. Beyond [`MAX_UNWINDERS`] there is no
/// room; further ones are treated like the one to which this crate is linked.
///
/// # Safety
///
/// The functions must belong to the unwinder whose code is at `text`.
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

/// A function that is called for each frame of a backtrace.
type Step = extern "C" fn(context: *mut c_void, argument: *mut c_void) -> i32;

/// Makes libgcc initialize the sizes of registers, without which `_Unwind_GetGR` aborts.
///
/// libgcc does so when it first unwinds. But a program that contains its own copy of libgcc
/// (`-static-libgcc`) unwinds with that copy, and our personality routine calls the shared one.
fn prepare_unwinder() {
    extern "C" fn stop(_context: *mut c_void, _argument: *mut c_void) -> i32 {
        const NORMAL_STOP: i32 = 4;
        NORMAL_STOP
    }
    // SAFETY: the function ignores its arguments.
    unsafe { _Unwind_Backtrace(stop, ptr::null_mut()) };
}

/// Returns true for the word that an unwinder leaves in a return slot when a trampoline catches in
/// its caller's place: the call is not over then.
pub fn is_caught(word: usize) -> bool {
    word == body::catch()
}

/// The unwinder calls this for each trampoline frame that it passes. It forwards to [`on_frame`],
/// whose last argument is the return address of this call.
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
        // We have caught in no search, so the unwinder takes our frame for its caller's. It comes
        // back, when we resume, to a frame that it cannot confuse. SAFETY: the unwinder's context;
        // `fgraph_catch` takes the exception in rax, and the frame in rbp.
        unsafe {
            (unwinder.set_gr)(context, RAX, exception.expose_provenance());
            (unwinder.set_ip)(context, body::catch());
        }
        return INSTALL_CONTEXT;
    }
    let at_return_point = at_return_point || address == body::resumed();
    // SAFETY: null or the state of this thread, which is never unmapped.
    let thread = unsafe { current().as_ref() };
    if let Some(thread) = thread
        && actions & CLEANUP_PHASE != 0
    {
        // SAFETY: the unwinder's context. At the return point rbp is the frame, whose body is being
        // unwound in this thread.
        unsafe {
            let register = |number| (unwinder.get_gr)(context, number);
            let frame = if at_return_point {
                register(RBP) as *mut Frame
            } else {
                interrupted(thread, address, register)
            };
            if !frame.is_null() && !is_inside(thread, (*frame).return_slot_addr) {
                thread.hazard_slot.clear();
                thread.entered_sp.store(Thread::INTERNAL, Ordering::Relaxed);
                caller_check::unwind(thread, frame);
                thread.entered_sp.store(0, Ordering::Relaxed);
            }
        }
    }
    CONTINUE_UNWIND
}

const RBX: i32 = 3;
const RBP: i32 = 6;

/// Returns the frame of a call that a cancellation ends at `address` in a trampoline, before its
/// body is called or after it has returned; null if no user waits for its return.
fn interrupted(thread: &Thread, address: usize, register: impl Fn(i32) -> usize) -> *mut Frame {
    let starts = ENTRIES.iter().map(|entry| entry.load(Ordering::Relaxed));
    // SAFETY: `start` is the start of a variant.
    let has_frame = |start| start != 0 && unsafe { table::has_frame(start, address) };
    let in_rbp = starts.into_iter().any(has_frame);
    let frame = if in_rbp {
        register(RBP) as *mut Frame
    } else {
        thread.dispatched.get()
    };
    // Before rbp is the frame, rbx gives the return slot. The last dispatch may have been for
    // another call than this. SAFETY: the frame is on the shadow stack.
    let is_of_call = || in_rbp || unsafe { (*frame).return_slot_addr } == register(RBX) + 8;
    if thread.shadow.is_on(frame) && is_of_call() {
        frame
    } else {
        ptr::null_mut()
    }
}

/// Returns true if a thread is inside fgraph when it comes to the frame of a call with the return
/// slot `return_slot_addr`. A callback that was left with siglongjmp leaves only a stale marking,
/// which does not count.
fn is_inside(thread: &Thread, return_slot_addr: usize) -> bool {
    match thread.entered_sp.load(Ordering::Relaxed) {
        0 => false,
        Thread::INTERNAL | Thread::UNTRACED => true,
        entered_sp => !FGRAPH.is_stale(thread, entered_sp, return_slot_addr),
    }
}

/// Sets the trampolines up, and returns those that save the registers of this machine.
///
/// # Safety
///
/// `attach` must return the calling thread's own state, or null.
pub unsafe fn install(attach: Attach, abort: Abort) -> Trampolines {
    ATTACH.store(attach as usize, Ordering::Relaxed);
    ABORT.store(abort as usize, Ordering::Relaxed);
    caller_check::install();
    prepare_unwinder();
    let twins = [Trampolines::of, Trampolines::caller_checking_of];
    let [trampolines, checking] = twins.map(|of| of(cpu::vector_bytes(), cpu::opmask_bytes()));
    let starts = |these: Trampolines| Variant::CALLING.map(|variant| these.entry(variant));
    let starts = [trampolines, checking].into_iter().flat_map(starts);
    for (entry, start) in ENTRIES.iter().zip(starts) {
        entry.store(start, Ordering::Relaxed);
    }
    let ([a, b, c], [d, e, f]) = (trampolines.return_points, checking.return_points);
    // SAFETY: these are all return points; the code that replaces bodies changes only the registers
    // of the result.
    unsafe {
        FGRAPH.set_return_points([a, b, c, d, e, f]);
        replacement::set_bodies(replaced::bodies());
    }
    trampolines
}

/// Declares that threads may be cancelled, and returns the trampolines that disable cancellation
/// during dispatch: always, until [`trust_announcements`].
///
/// # Safety
///
/// All stubs that are made from now on must lead to these.
pub unsafe fn disable_cancellation() -> Trampolines {
    caller_check::set_unannounced(true);
    Trampolines::caller_checking_of(cpu::vector_bytes(), cpu::opmask_bytes())
}

/// Declares that no thread is cancelled without a call of [`announce_cancellation`] before.
///
/// # Safety
///
/// The announcements must be complete: a callback in which a thread is cancelled would be unwound
/// in the middle.
pub unsafe fn trust_announcements() {
    caller_check::set_unannounced(false);
}

/// Announces that threads are cancelled from now on. Callbacks that are running may not be
/// shielded: wait for them, after a heavy barrier, before any thread is cancelled.
pub fn announce_cancellation() {
    caller_check::expect_cancellation();
}

/// Returns the caller-checking trampolines, which follow `callers` of [`Fgraph`].
pub fn look_at_callers() -> Trampolines {
    caller_check::look_at_callers();
    Trampolines::caller_checking_of(cpu::vector_bytes(), cpu::opmask_bytes())
}

/// Returns the shared state of all threads whose own state is being made: their calls meanwhile are
/// counted here.
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
        // Unwinders without room change nothing.
        // SAFETY: they are functions of that name, and nothing unwinds from there.
        (0..MAX_UNWINDERS).for_each(|_| unsafe { add_unwinder(&LINKED) });
        assert!(is_other(0x1000));
    }
}
