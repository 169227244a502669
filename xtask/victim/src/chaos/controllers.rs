//! Those who register, change filters and unregister, at random, while everything hostile goes on.
//!
//! # Safety
//!
//! The unsafe code sets signal stacks that no signal is handled on.

use std::ops::AddAssign;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, TryLockError};
use std::thread;
use std::time::Duration;

use fgraph::{Counters, Error, Handle};

use super::ledger::{self, Balance};
use super::users::Witness;
use crate::failures::{Failure, note};
use crate::filters::Range;
use crate::rng::Rng;
use crate::users::{Aligned, Payload, Taste};

/// Registrations so far, in all rounds.
static REGISTRATIONS: AtomicU64 = AtomicU64::new(0);

/// What was done, and what became of the calls.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) registrations: u64,
    /// Registrations of users that take the fast path.
    pub(crate) fast_path: u64,
    pub(crate) filter_changes: u64,
    pub(crate) unregistrations: u64,
    pub(crate) accepted: u64,
    pub(crate) returned: u64,
    pub(crate) lost: u64,
    /// Calls without a return when all threads had ended, and how many of these fgraph has counted.
    pub(crate) left_open: u64,
    pub(crate) balanced: u64,
}

impl AddAssign for Figures {
    fn add_assign(&mut self, other: Self) {
        self.registrations += other.registrations;
        self.fast_path += other.fast_path;
        self.filter_changes += other.filter_changes;
        self.unregistrations += other.unregistrations;
        self.accepted += other.accepted;
        self.returned += other.returned;
        self.lost += other.lost;
        self.left_open += other.left_open;
        self.balanced += other.balanced;
    }
}

/// A registered user, whatever its data.
trait Registered: Send {
    fn set_filter(&self, filter: &str) -> Result<(), Error>;
    fn counters(&self) -> Counters;
    fn is_eligible(&self) -> bool;
    fn is_active(&self) -> bool;
    /// Whether it could be unregistered.
    fn end(self: Box<Self>) -> bool;
}

impl<D: Payload + PartialEq, const ALL: bool> Registered for Handle<Witness<D, ALL>> {
    fn set_filter(&self, filter: &str) -> Result<(), Error> {
        // SAFETY: a witness's callbacks use atomics and memory that is there, which is allowed
        // everywhere.
        unsafe { self.set_filter(filter) }.map(drop)
    }

    fn counters(&self) -> Counters {
        self.counters()
    }

    fn is_eligible(&self) -> bool {
        self.fast_path().is_ok_and(|it| it.is_eligible())
    }

    fn is_active(&self) -> bool {
        self.status() == fgraph::UserStatus::Active
    }

    fn end(self: Box<Self>) -> bool {
        self.unregister().is_ok()
    }
}

/// Registers `user`; each has its own kind of data and taste.
fn register(user: usize, registration: u64, filter: &str) -> Result<Box<dyn Registered>, Error> {
    fn boxed<D: Payload + PartialEq>(
        user: usize,
        registration: u64,
        taste: Taste,
        filter: &str,
    ) -> Result<Box<dyn Registered>, Error> {
        // SAFETY: as in `set_filter`.
        unsafe {
            if registration.is_multiple_of(2) {
                let witness = Witness::<D, true>::new(user, registration, taste);
                Ok(Box::new(fgraph::register(witness, filter)?))
            } else {
                let witness = Witness::<D, false>::new(user, registration, taste);
                Ok(Box::new(fgraph::register(witness, filter)?))
            }
        }
    }
    match user % 8 {
        0 => boxed::<u64>(user, registration, Taste::Everything, filter),
        1 => boxed::<()>(user, registration, Taste::Everything, filter),
        2 => boxed::<Aligned>(user, registration, Taste::Everything, filter),
        3 => boxed::<[u8; 100]>(user, registration, Taste::Everything, filter),
        4 => boxed::<[u8; 1024]>(user, registration, Taste::Half, filter),
        5 => boxed::<u64>(user, registration, Taste::Nothing, filter),
        6 => boxed::<[u8; 8]>(user, registration, Taste::Half, filter),
        _ => boxed::<[u8; 16]>(user, registration, Taste::Everything, filter),
    }
}

/// A user in the hands of its controller.
pub(crate) struct User {
    number: usize,
    handle: Option<Box<dyn Registered>>,
}

/// A random filter, most often one for the functions of towers and libraries as well.
fn filter(range: &Range, rng: &mut Rng) -> String {
    let (mut filter, _) = range.filter(rng);
    if !rng.once_in(4) {
        filter.push_str(" *hostile_*");
    }
    filter
}

/// Registers, changes and unregisters `users` until it is over. Gives them back, some of them
/// registered.
pub(crate) fn control(
    users: impl Iterator<Item = usize>,
    mut rng: Rng,
    range: &Range,
    is_over: &AtomicBool,
) -> (Vec<User>, Figures) {
    let mut figures = Figures::default();
    let mut users: Vec<User> = users
        .map(|number| User {
            number,
            handle: None,
        })
        .collect();
    for user in &mut users {
        let _turn = turn();
        user.register(range, &mut rng, &mut figures);
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
            if user.handle.is_none() {
                user.register(range, &mut change, &mut figures);
            } else if change.once_in(2) {
                user.unregister(&mut figures);
            } else {
                user.set_filter(range, &mut change, &mut figures);
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
        // SAFETY: no signal is handled there, as is said above. What is unmapped was mapped here.
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

impl User {
    fn register(&mut self, range: &Range, rng: &mut Rng, figures: &mut Figures) {
        let registration = REGISTRATIONS.fetch_add(1, Ordering::Relaxed) + 1;
        ledger::open(self.number, registration);
        match register(self.number, registration, &filter(range, rng)) {
            Ok(handle) => {
                figures.registrations += 1;
                figures.fast_path += u64::from(handle.is_eligible());
                self.handle = Some(handle);
            }
            Err(error) => self.refused("register", &error),
        }
    }

    fn set_filter(&self, range: &Range, rng: &mut Rng, figures: &mut Figures) {
        let Some(handle) = &self.handle else { return };
        if let Err(error) = handle.set_filter(&filter(range, rng)) {
            self.refused("set_filter", &error);
        }
        figures.filter_changes += 1;
    }

    fn unregister(&mut self, figures: &mut Figures) {
        let Some(handle) = self.handle.take() else {
            return;
        };
        if !handle.is_active() {
            note(Failure::Refused, self.number as u64, 0);
        }
        let lost = handle.counters().lost;
        if !handle.end() {
            note(Failure::Refused, self.number as u64, 3);
        }
        let balance = Balance::of(self.number, lost);
        balance.check_possible(self.number);
        ledger::close(self.number);
        figures.unregistrations += 1;
        figures.accepted += balance.accepted.iter().sum::<u64>();
        figures.returned += balance.returned.iter().sum::<u64>();
        figures.lost += lost;
    }

    /// Checks that what has not returned is what was lost, now that no thread makes any call, and
    /// unregisters the user.
    pub(crate) fn balance(mut self, figures: &mut Figures) {
        let Some(handle) = &self.handle else { return };
        let mut patience = 2000;
        let balance = loop {
            let balance = Balance::of(self.number, handle.counters().lost);
            patience -= 1;
            if balance.is_exact() || patience == 0 {
                break balance;
            }
            // A thread that has been joined still exists for the kernel, for a moment.
            thread::sleep(Duration::from_millis(1));
        };
        balance.check(self.number, Balance::is_exact);
        figures.left_open += balance.unreturned().iter().sum::<u64>();
        figures.balanced += balance.lost;
        self.unregister(figures);
    }

    fn refused(&self, operation: &str, error: &Error) {
        eprintln!("{operation} of user {}: {error}", self.number);
        note(Failure::Refused, self.number as u64, 1);
    }
}
