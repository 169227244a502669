//! Threads that register, change filters and unregister at random, in a hostile program.
//!
//! # Safety
//!
//! The unsafe code sets signal stacks that no signal is handled on.

use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, TryLockError};
use std::thread;
use std::time::Duration;

use super::ledger::{Balance, List};
use crate::controllers::{Selection, User};
use crate::failures::{Failure, note};
use crate::figures::Figures;
use crate::filters::Range;
use crate::rng::Rng;

/// A random filter, most often one for the functions of towers and libraries as well.
fn filter(range: &Range, rng: &mut Rng) -> Selection {
    let (mut filter, _) = range.filter(rng);
    if !rng.once_in(4) {
        filter.push_str(" *hostile_*");
    }
    (filter, None)
}

/// Registers, changes and unregisters `users` until it is over. Gives them back, some of them
/// registered.
pub(crate) fn control(
    users: impl Iterator<Item = usize>,
    mut rng: Rng,
    range: &Range,
    is_over: &AtomicBool,
) -> (Vec<User<List>>, Figures) {
    let mut figures = Figures::default();
    let mut users: Vec<User<List>> = users.map(User::new).collect();
    for user in &mut users {
        let _turn = turn();
        user.register(filter(range, &mut rng), &mut figures);
    }
    let mut stack = UselessStack {
        small: [0; libc::MINSIGSTKSZ],
    };
    while !users.is_empty() && !is_over.load(Ordering::Relaxed) {
        // Most often the first few, so that others stay registered for long.
        let few = users.len().div_ceil(1 + rng.below(3));
        let chosen = rng.below(few);
        let user = &mut users[chosen];
        let has_stack = rng.once_in(4);
        let mut change = Rng::from_state(rng.next());
        let mut change = || {
            if !user.is_registered() {
                user.register(filter(range, &mut change), &mut figures);
            } else if change.once_in(2) {
                user.unregister(false, &mut figures);
            } else {
                user.set_filter(filter(range, &mut change), &mut figures);
            }
        };
        if has_stack {
            let _turn = TURN.write();
            stack.with(&mut rng, change);
        } else {
            let _turn = turn();
            change();
        }
        thread::sleep(Duration::from_micros(rng.below(2000) as u64));
    }
    (users, figures)
}

/// Held by each controller while it has users come and go: alone by one whose signal stack is of no
/// use, which traps of others' changes must not meet.
static TURN: RwLock<()> = RwLock::new(());

/// To be held by who changes what is traced.
pub(super) fn turn() -> RwLockReadGuard<'static, ()> {
    TURN.read().unwrap_or_else(PoisonError::into_inner)
}

/// A [`turn`], unless one has to be waited for.
pub(super) fn try_turn() -> Option<RwLockReadGuard<'static, ()>> {
    match TURN.try_read() {
        Ok(turn) => Some(turn),
        Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// An alternate signal stack that is of no use: too small for the frame of a signal, or of memory
/// that is given up. fgraph has one of its own for the thread that patches.
#[derive(Debug)]
struct UselessStack {
    /// The least that the kernel takes.
    small: [u8; libc::MINSIGSTKSZ],
}

impl UselessStack {
    const LARGE: usize = 64 << 10;

    /// Runs `work` in which no signal comes to this thread but the traps of its own changes.
    fn with(&mut self, rng: &mut Rng, work: impl FnOnce()) {
        // SAFETY: no signal is handled there, as is said above. The unmapped pages were mapped
        // here.
        unsafe {
            if rng.once_in(2) {
                set_signal_stack(self.small.as_mut_ptr(), self.small.len(), 0);
            } else {
                let rights = libc::PROT_READ | libc::PROT_WRITE;
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                let memory = libc::mmap(ptr::null_mut(), Self::LARGE, rights, flags, -1, 0);
                if memory != libc::MAP_FAILED {
                    set_signal_stack(memory.cast(), Self::LARGE, 0);
                    libc::munmap(memory, Self::LARGE);
                }
            }
        }
        work();
        // SAFETY: none is used from here on.
        unsafe { set_signal_stack(ptr::null_mut(), 0, libc::SS_DISABLE) };
    }
}

/// # Safety
///
/// The memory must be there when a signal is handled on it.
unsafe fn set_signal_stack(memory: *mut u8, len: usize, flags: i32) {
    let stack = libc::stack_t {
        ss_sp: memory.cast(),
        ss_flags: flags,
        ss_size: len,
    };
    // SAFETY: a live local; the memory by the caller.
    if unsafe { libc::sigaltstack(&stack, ptr::null_mut()) } != 0 {
        note(Failure::System, u64::MAX, 0);
    }
}

/// Checks that what has not returned is what was lost, now that no thread makes any call, and
/// unregisters the user.
pub(super) fn balance(mut user: User<List>, figures: &mut Figures) {
    let mut patience = 2000;
    while let Some(counters) = user.counters() {
        let balance = Balance::of(user.number(), counters.lost);
        patience -= 1;
        if balance.is_exact() || patience == 0 {
            balance.check(user.number(), Balance::is_exact);
            figures.left_open += balance.unreturned().iter().sum::<u64>();
            figures.balanced += balance.lost;
            user.unregister(false, figures);
        } else {
            // A thread that has been joined still exists for the kernel, for a moment.
            thread::sleep(Duration::from_millis(1));
        }
    }
}
