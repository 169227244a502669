//! The handler of SIGTRAP, and whoever had the signal before.
//!
//! The handler itself is in `fgraph_x86_64::trap`; what it does not know it hands to `chain`.
//!
//! # Safety
//!
//! The unsafe code installs and calls signal handlers. `PREVIOUS` is written before the handler that
//! reads it is installed, or while it holds an action that was installed by the program itself.

use core::cell::Cell;
use core::ffi::{c_int, c_void};
use core::mem;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, Instant};

use fgraph_x86_64::trap;

use crate::error::Unsupported;
use crate::os;

/// What stood before our handler was first installed; null before. Never freed.
static ORIGINAL: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

/// The program's own action, which gets the traps that are not ours. Replaced ones are leaked: a
/// handler may be reading them.
static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

/// Sees to it that SIGTRAP comes to us first. Called before each batch, because the program may
/// have set its own handler meanwhile, which then becomes the one that we hand on to.
pub(crate) fn ensure() -> Result<(), Unsupported> {
    let ours = trap::sigtrap_handler as *const () as usize;
    // SAFETY: both actions are live locals; the handler has the signature that SA_SIGINFO asks for.
    unsafe {
        let mut now: libc::sigaction = mem::zeroed();
        if libc::sigaction(libc::SIGTRAP, ptr::null(), &mut now) != 0 {
            return Err(Unsupported::Sigtrap(os::errno()));
        }
        if now.sa_sigaction == ours {
            return Ok(());
        }
        let now = Box::into_raw(Box::new(now));
        // Failing is fine: it is set only once.
        let _ =
            ORIGINAL.compare_exchange(ptr::null_mut(), now, Ordering::Release, Ordering::Relaxed);
        PREVIOUS.store(now, Ordering::Release);
        trap::CHAIN.store(chain as *mut (), Ordering::Release);
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = ours;
        // On the alternate stack, if the thread has one: its own may be full. Not deferred, so that
        // the program's handler may itself run into a site that is being patched.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART;
        // Everything else waits until the handler is done, which takes no time: the alternate stack may
        // have no room for the frame of a second signal, and for what its handler does.
        libc::sigfillset(&mut action.sa_mask);
        libc::sigdelset(&mut action.sa_mask, libc::SIGTRAP);
        if libc::sigaction(libc::SIGTRAP, &action, ptr::null_mut()) != 0 {
            return Err(Unsupported::Sigtrap(os::errno()));
        }
    }
    Ok(())
}

thread_local! {
    /// The trap that this thread is handing on.
    static HANDED_ON: Cell<*mut c_void> = const { Cell::new(ptr::null_mut()) };
}

/// Does with a trap that is not ours what would have been done without us.
extern "C" fn chain(signal: c_int, info: *mut c_void, context: *mut c_void) {
    let outer = HANDED_ON.replace(context);
    // A handler of the program that was installed after ours may hand on to ours what it got from us.
    let action = if outer == context {
        &ORIGINAL
    } else {
        &PREVIOUS
    };
    // SAFETY: both are set before our handler is installed; what the kernel has passed is handed on.
    unsafe { act(&*action.load(Ordering::Acquire), signal, info, context) };
    HANDED_ON.set(outer);
}

/// Does what an action says.
///
/// # Safety
///
/// The action must be one that the program has installed, the rest what the kernel passes to a handler.
unsafe fn act(action: &libc::sigaction, signal: c_int, info: *mut c_void, context: *mut c_void) {
    // SAFETY: the caller vouches for everything.
    unsafe {
        match action.sa_sigaction {
            // The kernel ignores only what was sent: an int3 kills all the same.
            libc::SIG_IGN if (*info.cast::<libc::siginfo_t>()).si_code != libc::SI_KERNEL => {}
            libc::SIG_DFL | libc::SIG_IGN => {
                libc::signal(signal, libc::SIG_DFL);
                libc::raise(signal);
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

/// Blocks the signals that are to be blocked while a handler of the program runs: those that the
/// interrupted thread blocks, and those of its action. But not SIGTRAP, because the handler may meet
/// a site that is being patched. The return from the signal puts the thread's own mask back.
///
/// # Safety
///
/// `context` must be the `ucontext_t` that the kernel passed to the handler.
unsafe fn block_as_asked(action: &libc::sigaction, context: *mut c_void) {
    // SAFETY: the caller vouches for the context; the sets are initialised.
    unsafe {
        let mut blocked = (*context.cast::<libc::ucontext_t>()).uc_sigmask;
        for signal in 1..=libc::SIGRTMAX() {
            if libc::sigismember(&action.sa_mask, signal) == 1 {
                libc::sigaddset(&mut blocked, signal);
            }
        }
        libc::sigdelset(&mut blocked, libc::SIGTRAP);
        libc::pthread_sigmask(libc::SIG_SETMASK, &blocked, ptr::null_mut());
    }
}

/// A thread other than this one that blocks SIGTRAP and goes on doing so, if there is any.
///
/// Threads that are being made or are at their end block all signals for a moment, and run none of
/// the program's functions meanwhile; these are waited for. `None` without `/proc`, where it cannot
/// be known.
pub(crate) fn blocked_somewhere() -> Option<u32> {
    /// Far longer than the moment takes.
    const PATIENCE: Duration = Duration::from_millis(100);
    let mut blocked = look_for_blocked()?;
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_micros(100));
        blocked = look_for_blocked()?;
    }
    Some(blocked)
}

fn look_for_blocked() -> Option<u32> {
    let own = os::thread_id();
    let tasks = std::fs::read_dir("/proc/self/task").ok()?;
    tasks
        .filter_map(|task| task.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .find(|&thread| thread != own && blocks_sigtrap(thread) == Some(true))
}

fn blocks_sigtrap(thread: u32) -> Option<bool> {
    let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).ok()?;
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigBlk:"))?;
    let mask = u64::from_str_radix(mask.trim(), 16).ok()?;
    Some(mask & (1 << (libc::SIGTRAP - 1)) != 0)
}
