//! The functions that the trampolines call, and the distances of return points.
//!
//! # Safety
//!
//! The unsafe code passes on what the trampolines pass.

use core::ptr;
use core::sync::atomic::AtomicUsize;

use fgraph_core::dispatch;
use fgraph_core::fgraph::Fgraph;
use fgraph_core::frame::Frame;
use fgraph_core::points::KINDS;
use fgraph_core::regs::{EntryRegs, ReturnRegs};
use fgraph_core::site::Site;
use fgraph_core::thread::Thread;

/// Makes the calling thread's state at its first hit; null if it cannot be traced.
pub type Attach = extern "C" fn() -> *const Thread;

/// Ends the process because a return address is in doubt. The arguments are the frame and the stack
/// pointer.
pub type Abort = extern "C" fn(frame: *const Frame, stack_pointer: usize) -> !;

/// The number of the system call `rt_sigprocmask`.
pub(super) const RT_SIGPROCMASK: u32 = 14;

/// The signals that are blocked while a thread's state is made, as a kernel signal set: all except
/// SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV and SIGSYS, which the thread may cause itself.
pub const BLOCKED_SIGNALS: u64 = !signal_set([4, 5, 7, 8, 11, 31]);

/// Returns a kernel signal set with these signals.
#[must_use]
pub const fn signal_set<const N: usize>(signals: [i32; N]) -> u64 {
    let (mut set, mut at) = (0, 0);
    while at < N {
        set |= 1 << (signals[at] - 1);
        at += 1;
    }
    set
}

// SAFETY: the trampolines are the part of the runtime that calls dispatch.
pub(super) static FGRAPH: &Fgraph = unsafe { fgraph_core::FGRAPH.get() };

/// The distances from a frame to its return points, by kind.
pub(super) static DISTANCES: [AtomicUsize; KINDS] = [const { AtomicUsize::new(0) }; KINDS];

pub(super) static ATTACH: AtomicUsize = AtomicUsize::new(0);
pub(super) static ABORT: AtomicUsize = AtomicUsize::new(0);

/// Called by the trampolines, see [`dispatch::enter`].
#[unsafe(link_section = "fgraph_text")]
pub(super) unsafe extern "C" fn enter(
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
pub(super) unsafe extern "C" fn enter_only(
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
pub(super) unsafe extern "C" fn is_stale(
    thread: &Thread,
    entered_sp: usize,
    address: usize,
) -> bool {
    FGRAPH.is_stale(thread, entered_sp, address)
}

/// Called by the trampolines, see [`dispatch::leave`].
#[unsafe(link_section = "fgraph_text")]
pub(super) unsafe extern "C" fn leave(
    regs: *mut ReturnRegs,
    frame: *mut Frame,
    thread: &Thread,
) -> *const Thread {
    // SAFETY: the trampoline passes the results it has saved, the frame that `enter` gave it, and
    // the state of this thread, which it has marked.
    unsafe { dispatch::leave(regs, frame, thread) }
}
