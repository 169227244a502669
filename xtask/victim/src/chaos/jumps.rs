//! `setjmp` and `longjmp`, out of traced functions and out of signal handlers.
//!
//! `setjmp` returns twice, which no Rust function may see. So here what may jump is a function that
//! is called, and the jump ends that call.
//!
//! # Safety
//!
//! Functions that are left by a jump have nothing to clean up.

use std::cell::Cell;
use std::ptr;

use super::act::Act;
use super::signals::Actor;
use super::towers::Tower;

use crate::failures::{Failure, note};
use crate::rng::Rng;

/// Where to jump to: rbx, rbp, r12 to r15, rsp.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Landing([usize; 7]);

core::arch::global_asm!(
    ".pushsection .text.fgraph_victim_jumps, \"ax\", @progbits",
    ".p2align 4",
    ".globl fgraph_victim_land",
    ".hidden fgraph_victim_land",
    ".type fgraph_victim_land, @function",
    "fgraph_victim_land:",
    ".cfi_startproc",
    "mov [rdi], rbx",
    "mov [rdi + 8], rbp",
    "mov [rdi + 16], r12",
    "mov [rdi + 24], r13",
    "mov [rdi + 32], r14",
    "mov [rdi + 40], r15",
    "mov [rdi + 48], rsp",
    "sub rsp, 8",
    ".cfi_adjust_cfa_offset 8",
    "mov rdi, rdx",
    "call rsi",
    "add rsp, 8",
    ".cfi_adjust_cfa_offset -8",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    ".size fgraph_victim_land, . - fgraph_victim_land",
    ".p2align 4",
    ".globl fgraph_victim_jump",
    ".hidden fgraph_victim_jump",
    ".type fgraph_victim_jump, @function",
    "fgraph_victim_jump:",
    ".cfi_startproc",
    "mov rbx, [rdi]",
    "mov rbp, [rdi + 8]",
    "mov r12, [rdi + 16]",
    "mov r13, [rdi + 24]",
    "mov r14, [rdi + 32]",
    "mov r15, [rdi + 40]",
    "mov rsp, [rdi + 48]",
    "mov eax, 1",
    "ret",
    ".cfi_endproc",
    ".size fgraph_victim_jump, . - fgraph_victim_jump",
    ".p2align 4",
    ".popsection",
);

unsafe extern "C" {
    /// Calls `work`, and returns whether it was left by a jump to `landing`.
    fn fgraph_victim_land(
        landing: *mut Landing,
        work: extern "C" fn(*mut ()),
        argument: *mut (),
    ) -> u32;

    fn fgraph_victim_jump(landing: *const Landing) -> !;
}

/// Calls `work` with a place that may be [jumped](jump) to meanwhile; whether it was.
pub(crate) fn land(work: &dyn Fn(*const Landing)) -> bool {
    type Work<'a> = (&'a dyn Fn(*const Landing), *const Landing);

    extern "C" fn call(work: *mut ()) {
        // SAFETY: as below.
        let (work, landing) = unsafe { *work.cast::<Work<'_>>() };
        work(landing);
    }

    let mut landing = Landing::default();
    let landing = &raw mut landing;
    let mut argument: Work<'_> = (work, landing);
    // SAFETY: both outlive the call.
    unsafe { fgraph_victim_land(landing, call, (&raw mut argument).cast()) != 0 }
}

/// Ends the call of [`land`] that made `landing`.
///
/// # Safety
///
/// It must be going on in this thread, and whatever is in between must have nothing to clean up.
pub(crate) unsafe fn jump(landing: *const Landing) -> ! {
    // SAFETY: handed on.
    unsafe { fgraph_victim_jump(landing) }
}

const MOST_LEVELS: usize = 100;

/// Jumps out of up to 100 functions, a few times from one place.
pub(crate) fn jump_out(_actor: &Actor, rng: &mut Rng) {
    let outer_levels = rng.below(10);
    let times = 1 + rng.below(20);
    let seed = rng.next();
    let done = Cell::new(0);
    let work = || {
        let mut rng = Rng::from_state(seed);
        for _ in 0..times {
            let levels = 1 + rng.below(MOST_LEVELS);
            let landing = Cell::new(ptr::null());
            // SAFETY: only functions of plain towers are in between.
            let leave = || -> u64 { unsafe { jump(landing.get()) } };
            let tower = Tower::of_plain(&mut rng, &leave);
            let jumped = land(&|place| {
                landing.set(place);
                tower.climb(levels);
            });
            done.set(done.get() + u64::from(jumped));
        }
        done.get()
    };
    let tower = Tower::of_plain(rng, &work);
    let result = tower.climb(outer_levels);
    if done.get() != times as u64 || result != tower.result(outer_levels, times as u64) {
        note(Failure::Way, Act::Jump as u64, done.get());
    }
}
