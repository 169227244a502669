//! The handlers of SIGTRAP and SIGILL, and the handlers of the program before them.
//!
//! The handlers themselves are in `crate::arch::trap`; they pass other signals to `chain`. SIGILL
//! is handled only when a site needs it: see [`crate::arch::punned_jump`].
//!
//! # Safety
//!
//! The unsafe code installs and calls signal handlers. `previous` is written before the handler
//! that reads it is installed, or while it holds an action that the program itself has installed.

use core::ffi::{c_int, c_void};
use core::mem;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::arch::trap::{self, HandlerPtr};
use crate::os;
use crate::os::status::ThreadStatus;
use crate::report::error::Unsupported;

/// A signal that traps cause.
struct Trap {
    signal: c_int,
    handler: unsafe extern "C" fn(c_int, *mut c_void, *mut c_void),
    /// The function that gets the signals that are not ours.
    chain: &'static HandlerPtr<()>,
    /// True if a site needs it.
    needed: AtomicBool,
    /// The action before our handler was first installed; null before. Never freed.
    original: AtomicPtr<libc::sigaction>,
    /// The program's own action, which gets the signals that are not ours. Replaced ones are
    /// leaked: a handler may be reading them.
    previous: AtomicPtr<libc::sigaction>,
}

static SIGTRAP: Trap = Trap {
    signal: libc::SIGTRAP,
    handler: trap::sigtrap_handler,
    chain: &trap::CHAIN,
    needed: AtomicBool::new(true),
    original: AtomicPtr::new(ptr::null_mut()),
    previous: AtomicPtr::new(ptr::null_mut()),
};

static SIGILL: Trap = Trap {
    signal: libc::SIGILL,
    handler: trap::sigill_handler,
    chain: &trap::CHAIN_OF_SIGILL,
    needed: AtomicBool::new(false),
    original: AtomicPtr::new(ptr::null_mut()),
    previous: AtomicPtr::new(ptr::null_mut()),
};

/// Makes our handlers get traps first. Called before each batch, because the program may have set
/// its own handlers meanwhile, to which we then pass signals. From the first batch with an invalid
/// opcode on, this includes SIGILL.
pub(crate) fn ensure(invalid: bool) -> Result<(), Unsupported> {
    if invalid {
        SIGILL.needed.store(true, Ordering::Relaxed);
    }
    needed().try_for_each(Trap::ensure)
}

/// Replaces the handlers that the program has set meanwhile, if traps may come at all. Called at
/// each change of a filter, even if nothing is written: breakpoints trap at any time.
pub(crate) fn ensure_again() -> Result<(), Unsupported> {
    let is_set = |trap: &&Trap| !trap.original.load(Ordering::Relaxed).is_null();
    needed().filter(is_set).try_for_each(Trap::ensure)
}

fn needed() -> impl Iterator<Item = &'static Trap> {
    let all = [&SIGTRAP, &SIGILL].into_iter();
    all.filter(|trap| trap.needed.load(Ordering::Relaxed))
}

impl Trap {
    fn ensure(&self) -> Result<(), Unsupported> {
        let ours = self.handler as *const () as usize;
        // SAFETY: both actions are live locals; the handler has the signature that SA_SIGINFO
        // requires.
        unsafe {
            let mut now: libc::sigaction = mem::zeroed();
            if libc::sigaction(self.signal, ptr::null(), &mut now) != 0 {
                return Err(Unsupported::Sigtrap(os::errno()));
            }
            if now.sa_sigaction == ours {
                return Ok(());
            }
            let now = Box::into_raw(Box::new(now));
            // A failure is fine: it is set only once.
            let _ = self.original.compare_exchange(
                ptr::null_mut(),
                now,
                Ordering::Release,
                Ordering::Relaxed,
            );
            self.previous.store(now, Ordering::Release);
            self.chain.set(chain as *mut ());
            let mut action: libc::sigaction = mem::zeroed();
            action.sa_sigaction = ours;
            // On the alternate stack, if the thread has one: its own stack may be full. Not
            // deferred, so that the program's handler may itself hit a site that is being patched.
            action.sa_flags =
                libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART;
            // All other signals wait until the handler returns, which is soon: the alternate stack
            // may have no room for the frame of a second signal, and for its handler.
            libc::sigfillset(&mut action.sa_mask);
            libc::sigdelset(&mut action.sa_mask, libc::SIGTRAP);
            libc::sigdelset(&mut action.sa_mask, libc::SIGILL);
            let mut replaced: libc::sigaction = mem::zeroed();
            if libc::sigaction(self.signal, &action, &mut replaced) != 0 {
                return Err(Unsupported::Sigtrap(os::errno()));
            }
            // The program may have set another action since it was read: the newer one is kept.
            if replaced.sa_sigaction != ours && replaced.sa_sigaction != (*now).sa_sigaction {
                self.previous
                    .store(Box::into_raw(Box::new(replaced)), Ordering::Release);
            }
        }
        Ok(())
    }
}

/// A mark at the end of the kernel's data of a signal while the signal is passed on. The kernel
/// leaves zeros there, even for the next signal after a handler was left with `siglongjmp`.
const HANDED_ON: u64 = u64::from_ne_bytes(*b"fgraph\x01\x02");

/// Handles a trap that is not ours as it would have been handled without us.
extern "C" fn chain(signal: c_int, info: *mut c_void, context: *mut c_void) {
    let trap = if signal == libc::SIGILL {
        &SIGILL
    } else {
        &SIGTRAP
    };
    // SAFETY: the kernel, or a handler that it has called, passes a `siginfo_t`.
    let end = unsafe { info.cast::<libc::siginfo_t>().add(1).cast::<u64>().sub(1) };
    // SAFETY: this is its last word, which no signal uses.
    let outer = unsafe { end.replace(HANDED_ON) };
    // A handler of the program that was installed after ours may pass a signal on to ours that it
    // got from us.
    let action = match outer {
        HANDED_ON => &trap.original,
        _ => &trap.previous,
    };
    // SAFETY: both are set before our handler is installed; the kernel's arguments are passed on.
    // The word is still there when the handler returns.
    unsafe {
        act(&*action.load(Ordering::Acquire), signal, info, context);
        end.write(outer);
    }
}

/// Executes an action.
///
/// # Safety
///
/// The program must have installed the action; the other arguments must be those that the kernel
/// passes to a handler.
unsafe fn act(action: &libc::sigaction, signal: c_int, info: *mut c_void, context: *mut c_void) {
    // SAFETY: the caller guarantees the arguments.
    unsafe {
        match action.sa_sigaction {
            // The kernel ignores only signals that were sent: a trap kills in spite of SIG_IGN.
            libc::SIG_IGN if (*info.cast::<libc::siginfo_t>()).si_code <= 0 => {}
            libc::SIG_DFL | libc::SIG_IGN => {
                libc::signal(signal, libc::SIG_DFL);
                send_again(signal, info);
            }
            handler if action.sa_flags & libc::SA_SIGINFO != 0 => {
                block_as_asked(action, context);
                let handler: extern "C" fn(c_int, *mut c_void, *mut c_void) =
                    mem::transmute(handler);
                handler(signal, info, context);
            }
            handler => {
                block_as_asked(action, context);
                let handler: extern "C" fn(c_int) = mem::transmute(handler);
                handler(signal);
            }
        }
    }
}

/// Sends this thread the signal whose handler it runs again, to be delivered when the handler
/// returns: then the registers are those of the fault, even in a core file.
///
/// # Safety
///
/// `info` must be the kernel's argument of the handler.
unsafe fn send_again(signal: c_int, info: *mut c_void) {
    // SAFETY: the set is initialised by sigemptyset; the kernel reads the info.
    unsafe {
        let mut set: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        // The return from the handler unblocks it.
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, ptr::null_mut());
        let (process, thread) = (libc::getpid(), os::thread_id());
        libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, signal, info);
    }
}

/// Blocks the signals that must be blocked while a handler of the program runs: those that the
/// interrupted thread blocks, and those of its action. Ours stay unblocked, because the handler may
/// hit a site that is being patched. The return from the handler restores the thread's own mask.
///
/// # Safety
///
/// `context` must be the `ucontext_t` that the kernel passed to the handler.
unsafe fn block_as_asked(action: &libc::sigaction, context: *mut c_void) {
    // SAFETY: the caller guarantees the context; the sets are initialised.
    unsafe {
        let mut blocked = (*context.cast::<libc::ucontext_t>()).uc_sigmask;
        for signal in 1..=libc::SIGRTMAX() {
            if libc::sigismember(&action.sa_mask, signal) == 1 {
                libc::sigaddset(&mut blocked, signal);
            }
        }
        libc::sigdelset(&mut blocked, libc::SIGTRAP);
        if SIGILL.needed.load(Ordering::Relaxed) {
            libc::sigdelset(&mut blocked, libc::SIGILL);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &blocked, ptr::null_mut());
    }
}

/// Keeps the program's handlers from blocking traps while they run: removes traps from the masks of
/// the actions that the program has set. That changes only the effect of a trap in a handler, which
/// would end the process otherwise.
pub(crate) fn unmask() {
    unmask_all(&ThreadStatus::own());
}

/// Does the same as [`unmask`], with a known status of this thread.
pub(super) fn unmask_all(own: &ThreadStatus) {
    // Without `/proc`: all signals.
    let caught = own.caught().unwrap_or(!0);
    let signals = (1..=64).filter(|signal| caught >> (signal - 1) & 1 != 0);
    signals.for_each(unmask_in);
}

/// Removes traps from the mask of a signal's action.
fn unmask_in(signal: c_int) {
    // SAFETY: all zeros are a valid action, and all pointers are to live locals.
    unsafe {
        let mut known: libc::sigaction = mem::zeroed();
        if libc::sigaction(signal, ptr::null(), &mut known) != 0 {
            return;
        }
        loop {
            let masks = |trap: &&Trap| libc::sigismember(&known.sa_mask, trap.signal) == 1;
            if known.sa_sigaction <= libc::SIG_IGN || !needed().any(|trap| masks(&trap)) {
                return;
            }
            let mut new = known;
            needed().for_each(|trap| {
                libc::sigdelset(&mut new.sa_mask, trap.signal);
            });
            let mut replaced: libc::sigaction = mem::zeroed();
            libc::sigaction(signal, &new, &mut replaced);
            if replaced.sa_sigaction == known.sa_sigaction {
                return;
            }
            // The program has set another one since: the newer one is kept.
            libc::sigaction(signal, &replaced, ptr::null_mut());
            known = replaced;
        }
    }
}

/// Returns true if this thread blocks the signal of breakpoints.
pub(crate) fn blocked_here() -> bool {
    // SAFETY: the set is a live local, initialised by the call.
    unsafe {
        let mut blocked: libc::sigset_t = mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &mut blocked);
        libc::sigismember(&blocked, libc::SIGTRAP) == 1
    }
}

/// Returns true if traps need one of the signals in `mask`.
pub(super) fn are_in(mask: u64) -> bool {
    needed().any(|trap| mask & (1 << (trap.signal - 1)) != 0)
}
