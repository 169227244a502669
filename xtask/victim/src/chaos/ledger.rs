//! The books of users whose calls return in any order, or not at all.
//!
//! Control may go anywhere here, so which calls are open is not a stack for each thread, as it is
//! in [`crate::ledger`]. A user's call has a *token*, which is in the data that it carries, and a
//! place in the user's list of open calls. A return must bring a token that is there, and takes it
//! away.
//!
//! *The balance.* A call is made on the own stack of a thread, or *away* from it, on a coroutine's
//! or a signal handler's. When no thread is left that makes traced calls:
//!
//! - of the calls on threads' own stacks, all that have not returned are lost, exactly: fgraph
//!   drops the frames of threads that are gone when it is asked for its counters;
//! - of those away, at most all that have not returned: where a coroutine was dropped in the middle
//!   nobody can say that it will not go on, and where one was left by a jump what is left on its
//!   stack may still look like a call.
//! - Where a signal handler has left fgraph itself, or a callback, in the middle, each user may
//!   have counted one call that fgraph has not, or the other way round.
//!
//! While threads run, no more may be lost than have not returned.
//!
//! A forked child has a copy of the books, in which it checks its own calls; they do not come back.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use fgraph::Counters;

use super::{libraries, memory, towers};
use crate::failures::{Failure, must, note};
use crate::figures::Figures;
use crate::formula::mix;
use crate::functions;
use crate::users::{Books, Call, Identity, Left, Payload, Taste};

/// Most calls of one user that can be open. Lost ones stay until its registration ends.
const OPEN_MAX: usize = 1 << 15;
/// Places to look at for one that is free.
const TRIES: u64 = 8;
/// Bits of a token that say which call of a registration it is of.
const SERIAL_BITS: u32 = 40;

/// A place for an open call.
#[derive(Debug, Default)]
struct Place {
    /// Its token; 0, or one of an earlier registration: none.
    token: AtomicU64,
    function: AtomicUsize,
    argument: AtomicU64,
    depth: AtomicUsize,
    stack_pointer: AtomicUsize,
    return_address: AtomicUsize,
}

impl Place {
    fn write(&self, call: Call) {
        self.function.store(call.function, Ordering::Relaxed);
        self.argument.store(call.argument, Ordering::Relaxed);
        self.depth.store(call.depth, Ordering::Relaxed);
        self.stack_pointer
            .store(call.stack_pointer, Ordering::Relaxed);
        self.return_address
            .store(call.return_address, Ordering::Relaxed);
    }

    fn read(&self, token: u64) -> Call {
        Call {
            token,
            function: self.function.load(Ordering::Relaxed),
            argument: self.argument.load(Ordering::Relaxed),
            depth: self.depth.load(Ordering::Relaxed),
            stack_pointer: self.stack_pointer.load(Ordering::Relaxed),
            return_address: self.return_address.load(Ordering::Relaxed),
        }
    }
}

/// Calls on threads' own stacks, and away from them.
#[derive(Debug, Default)]
struct Count([AtomicU64; 2]);

impl Count {
    #[inline(always)]
    fn add(&self, stack_pointer: usize) {
        let is_away = memory::contains(stack_pointer);
        self.0[usize::from(is_away)].fetch_add(1, Ordering::Relaxed);
    }

    fn read(&self) -> [u64; 2] {
        self.0.each_ref().map(|count| count.load(Ordering::SeqCst))
    }
}

/// A user's books.
#[derive(Debug)]
struct Book {
    /// The number of its registration, 0 while there is none.
    registration: AtomicU64,
    serial: AtomicU64,
    accepted: Count,
    returned: Count,
    places: Box<[Place]>,
}

static BOOKS: OnceLock<Box<[Book]>> = OnceLock::new();
/// Signal handlers that have left code at an unknown place.
static MIDWAY: AtomicU64 = AtomicU64::new(0);
/// True if they may.
static MAY_LEAVE_MIDWAY: AtomicBool = AtomicBool::new(false);

/// Makes books for this number of users.
pub(crate) fn prepare(users: usize) {
    let book = || Book {
        registration: AtomicU64::new(0),
        serial: AtomicU64::new(0),
        accepted: Count::default(),
        returned: Count::default(),
        places: (0..OPEN_MAX).map(|_| Place::default()).collect(),
    };
    BOOKS.get_or_init(|| (0..users).map(|_| book()).collect());
}

#[inline(always)]
fn book(user: usize) -> &'static Book {
    must(must(BOOKS.get()).get(user))
}

/// A round begins, in which signal handlers may leave anywhere, or may not. No thread is calling.
pub(crate) fn begin(may_leave_midway: bool) {
    MIDWAY.store(0, Ordering::SeqCst);
    MAY_LEAVE_MIDWAY.store(may_leave_midway, Ordering::SeqCst);
}

/// Returns true if a signal handler may leave code at an unknown place.
pub(crate) fn may_leave_midway() -> bool {
    MAY_LEAVE_MIDWAY.load(Ordering::Relaxed)
}

/// A signal handler is about to do so.
pub(crate) fn leave_midway() {
    MIDWAY.fetch_add(1, Ordering::SeqCst);
}

/// The books of calls that return in any order, or not at all: each user has a list.
#[derive(Debug)]
pub(crate) struct List;

impl Books for List {
    // A handler may leave a callback in the middle of a name.
    const HAS_NAMES: bool = false;

    fn open(user: usize, registration: u64) {
        let book = book(user);
        for count in book.accepted.0.iter().chain(&book.returned.0) {
            count.store(0, Ordering::Relaxed);
        }
        book.serial.store(0, Ordering::Relaxed);
        book.registration.store(registration, Ordering::SeqCst);
    }

    #[inline(always)]
    fn is_open(user: usize, registration: u64) -> bool {
        book(user).registration.load(Ordering::Relaxed) == registration
    }

    fn close(user: usize, counters: Counters) -> Figures {
        let balance = Balance::of(user, counters.lost);
        balance.check(user, Balance::is_possible);
        book(user).registration.store(0, Ordering::SeqCst);
        Figures {
            accepted: balance.accepted.iter().sum(),
            returned: balance.returned.iter().sum(),
            lost: balance.lost,
            ..Figures::default()
        }
    }

    #[inline(always)]
    fn is_ours(function: usize) -> bool {
        functions::index_of(function).is_some()
            || towers::contains(function)
            || libraries::contains(function)
    }

    #[inline(always)]
    fn enter(watcher: Identity, taste: Taste, _thread: usize, call: Call) -> Option<u64> {
        let is_wanted = match taste {
            Taste::Everything => true,
            Taste::Half => mix(call.stack_pointer as u64 ^ call.function as u64) & 1 == 0,
            Taste::Nothing => false,
        };
        if !is_wanted {
            return None;
        }
        let book = book(watcher.user);
        for _ in 0..TRIES {
            let serial = book.serial.fetch_add(1, Ordering::Relaxed);
            let token = watcher.registration << SERIAL_BITS | serial;
            let place = must(book.places.get(serial as usize % OPEN_MAX));
            let before = place.token.load(Ordering::Relaxed);
            if before != 0 && before >> SERIAL_BITS == token >> SERIAL_BITS {
                continue;
            }
            // Before the other words: while this thread waits for a processor, so many calls may be
            // accepted that another one comes to the same place.
            let claim = watcher.registration << SERIAL_BITS | ((1 << SERIAL_BITS) - 1);
            let claimed =
                place
                    .token
                    .compare_exchange(before, claim, Ordering::Acquire, Ordering::Relaxed);
            if claimed.is_err() {
                continue;
            }
            place.write(call);
            place.token.store(token, Ordering::Release);
            book.accepted.add(call.stack_pointer);
            return Some(token);
        }
        None
    }

    #[inline(always)]
    fn leave(user: usize, _thread: usize, token: Option<u64>, stack_pointer: usize) -> Left {
        book(user).returned.add(stack_pointer);
        let Some(token) = token else {
            return Left::Unknown;
        };
        let place = place(user, token);
        let call = place.read(token);
        let taken = place
            .token
            .compare_exchange(token, 0, Ordering::AcqRel, Ordering::Relaxed);
        match taken {
            Ok(_) => Left::Open(call),
            Err(_) => Left::Unpaired,
        }
    }

    /// On a thread's own stack the call around is one that has not returned and was made there as
    /// well, not deeper. Elsewhere several coroutines may share a shadow stack, and one of them may
    /// return, in another thread, at this moment.
    #[inline(always)]
    fn is_parent<D: Payload + PartialEq>(
        user: usize,
        _thread: usize,
        parent: Option<&D>,
        stack_pointer: usize,
    ) -> bool {
        let Some(token) = parent.and_then(Payload::token) else {
            return true;
        };
        let is_right = |call: Call| {
            call.stack_pointer >= stack_pointer && !memory::contains(call.stack_pointer)
        };
        memory::contains(stack_pointer) || find(user, token).is_some_and(is_right)
    }
}

/// Returns the open call with that token. Where handlers leave midway it may not be open.
#[inline(always)]
fn find(user: usize, token: u64) -> Option<Call> {
    let place = place(user, token);
    let is_open = place.token.load(Ordering::Acquire) == token;
    (is_open || MIDWAY.load(Ordering::Relaxed) != 0).then(|| place.read(token))
}

fn place(user: usize, token: u64) -> &'static Place {
    let number = token & ((1 << SERIAL_BITS) - 1);
    must(book(user).places.get(number as usize % OPEN_MAX))
}

/// Balance of the calls of a user.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Balance {
    /// On threads' own stacks, and away from them.
    pub(crate) accepted: [u64; 2],
    /// The same.
    pub(crate) returned: [u64; 2],
    /// As fgraph says.
    pub(crate) lost: u64,
}

impl Balance {
    /// Returns the balance of `user`, which had lost `lost` calls at an earlier moment.
    pub(crate) fn of(user: usize, lost: u64) -> Self {
        let book = book(user);
        // Returns first: those of calls that begin meanwhile are not counted.
        let returned = book.returned.read();
        Self {
            accepted: book.accepted.read(),
            returned,
            lost,
        }
    }

    /// Calls without a return.
    pub(crate) fn unreturned(&self) -> [u64; 2] {
        // Wrong books must not stop us.
        [0, 1].map(|kind| self.accepted[kind].wrapping_sub(self.returned[kind]))
    }

    /// Returns true if no more are lost than did not return.
    fn is_possible(&self) -> bool {
        let slack = MIDWAY.load(Ordering::SeqCst);
        let [home, away] = self.unreturned();
        self.lost <= home.saturating_add(away).saturating_add(slack)
    }

    /// Returns true if the books are balanced, when no thread is calling any more.
    pub(crate) fn is_exact(&self) -> bool {
        let slack = MIDWAY.load(Ordering::SeqCst);
        self.is_possible() && self.lost.saturating_add(slack) >= self.unreturned()[0]
    }

    /// Notes that it is wrong, unless it is right.
    pub(crate) fn check(&self, user: usize, is_right: impl Fn(&Self) -> bool) {
        if !is_right(self) {
            let [home, away] = self.unreturned();
            eprintln!("user {user}: unreturned {home} at home, {away} away; {self:?}");
            note(Failure::Lost, user as u64, self.lost << 32 | home);
        }
    }
}
