//! Runs code one instruction at a time and unwinds from each.
//!
//! At every instruction of a stub, a trampoline or a body, an unwinder that comes by in a signal
//! handler must find the caller, with the registers that a callee has to preserve as the caller has
//! them, and everything above it. And at every instruction the handler may call traced functions
//! itself.

use std::arch::asm;
use std::ffi::{c_int, c_void};
use std::mem;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use fgraph_x86_64::trampoline;

use crate::FGRAPH;
use crate::machine::{CALLEE_SAVED, CALLER_HAS, Place, RBP, RBX};

/// Subject of a run.
#[derive(Clone)]
pub(crate) struct Run {
    /// Code of the caller.
    pub(crate) driver: Range<usize>,
    /// Other code, besides the trampolines, that the unwinder must pass.
    pub(crate) through: [Range<usize>; 2],
    /// Called by the handler, if not null.
    pub(crate) nested: Option<extern "C" fn()>,
}

static RUN: Place<Option<Run>> = Place::new(None);
/// Frames from the driver on, as seen while it runs itself.
static ABOVE: AtomicUsize = AtomicUsize::new(0);
static STEPS: AtomicUsize = AtomicUsize::new(0);
static FAILED: Place<Option<(usize, &'static str)>> = Place::new(None);

/// True if `check` runs its call step by step.
pub(crate) static ON: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    fn _Unwind_Backtrace(
        each: extern "C" fn(*mut c_void, *mut c_void) -> c_int,
        argument: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
    fn _Unwind_GetCFA(context: *mut c_void) -> usize;
    fn _Unwind_GetGR(context: *mut c_void, register: c_int) -> u64;
}

/// The numbers that DWARF gives to `CALLEE_SAVED`.
fn dwarf(register: usize) -> c_int {
    match register {
        RBX => 3,
        RBP => 6,
        other => other as c_int,
    }
}

struct Walk {
    run: Run,
    /// Instruction pointer of the frame beneath.
    ip: usize,
    cfa: usize,
    /// Frames from the driver on.
    above: usize,
    wrong: Option<&'static str>,
    /// True if the driver itself was interrupted: its registers may be anything.
    in_driver: bool,
}

extern "C" fn each_frame(context: *mut c_void, walk: *mut c_void) -> c_int {
    // SAFETY: the unwinder passes its context and what was given to it.
    unsafe {
        let walk = &mut *walk.cast::<Walk>();
        let (ip, cfa) = (_Unwind_GetIP(context), _Unwind_GetCFA(context));
        // Where a body is back, or runs, the trampoline has nothing on the machine stack.
        let may_stay = trampoline::own_text().contains(&walk.ip) || FGRAPH.is_return_point(walk.ip);
        if cfa < walk.cfa || cfa == walk.cfa && !may_stay {
            walk.wrong = Some("a CFA that does not ascend");
        }
        (walk.ip, walk.cfa) = (ip, cfa);
        if walk.above != 0 {
            walk.above += 1;
        } else if walk.run.driver.contains(&ip) {
            walk.above = 1;
            let has = CALLER_HAS.get();
            for register in CALLEE_SAVED {
                let found = _Unwind_GetGR(context, dwarf(register));
                if found != has.general[register] && !walk.in_driver {
                    walk.wrong = Some("a register of the caller's");
                }
            }
        }
    }
    0
}

extern "C" fn on_step(_: c_int, _: *mut c_void, context: *mut c_void) {
    let Some(run) = RUN.get() else { return };
    // SAFETY: the kernel passes a ucontext.
    let ip =
        unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RIP as usize] };
    let ip = ip as usize;
    let in_driver = run.driver.contains(&ip);
    let in_code =
        trampoline::own_text().contains(&ip) || run.through.iter().any(|range| range.contains(&ip));
    if !in_driver && !in_code {
        return;
    }
    let nested = run.nested;
    let mut walk = Walk {
        run,
        ip: 0,
        cfa: 0,
        above: 0,
        wrong: None,
        in_driver,
    };
    // SAFETY: `each_frame` has the signature the unwinder calls.
    unsafe { _Unwind_Backtrace(each_frame, (&raw mut walk).cast()) };
    if in_driver && ABOVE.load(Ordering::Relaxed) == 0 {
        ABOVE.store(walk.above, Ordering::Relaxed);
    }
    if walk.above < 4 || walk.above != ABOVE.load(Ordering::Relaxed) {
        walk.wrong = Some("a chain that is not complete");
    }
    if let Some(wrong) = walk.wrong
        && FAILED.get().is_none()
    {
        FAILED.set(Some((ip, wrong)));
    }
    if in_code {
        STEPS.fetch_add(1, Ordering::Relaxed);
        if let Some(nested) = nested {
            nested();
        }
    }
}

/// Sets or clears the flag that makes the processor trap after each instruction, and returns
/// whether it was set.
fn set_trap_flag(on: bool) -> bool {
    const TRAP_FLAG: u64 = 0x100;
    let flags: u64;
    // SAFETY: the kernel turns the trap into SIGTRAP, for which there is a handler whenever the
    // flag is set.
    unsafe {
        asm!("pushfq", "pop {}", out(reg) flags);
        let new = if on {
            flags | TRAP_FLAG
        } else {
            flags & !TRAP_FLAG
        };
        asm!("push {}", "popfq", in(reg) new);
    }
    flags & TRAP_FLAG != 0
}

/// Calls `code` without steps.
pub(crate) fn at_once<R>(code: impl FnOnce() -> R) -> R {
    let on = set_trap_flag(false);
    let result = code();
    set_trap_flag(on);
    result
}

/// Calls `code` step by step. Returns how many instructions were looked at, or the first one that
/// was not right.
pub(crate) fn run(run: Run, code: impl FnOnce()) -> Result<usize, String> {
    ABOVE.store(0, Ordering::Relaxed);
    STEPS.store(0, Ordering::Relaxed);
    FAILED.set(None);
    // SAFETY: the handler is one for SA_SIGINFO; no other test of this process uses SIGTRAP. The
    // kernel clears the flag for the handler.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = on_step as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        let mut before = mem::zeroed();
        assert_eq!(libc::sigaction(libc::SIGTRAP, &action, &mut before), 0);
        RUN.set(Some(run));
        set_trap_flag(true);
        code();
        set_trap_flag(false);
        RUN.set(None);
        libc::sigaction(libc::SIGTRAP, &before, ptr::null_mut());
    }
    match FAILED.get() {
        None => Ok(STEPS.load(Ordering::Relaxed)),
        Some((ip, wrong)) => {
            let own = trampoline::own_text();
            Err(format!(
                "at {ip:#x} (the trampolines are at {own:x?}): {wrong}"
            ))
        }
    }
}
