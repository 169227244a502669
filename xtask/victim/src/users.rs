//! The users: they accept calls, carry data of different sizes, and check all that they are told.

use std::fmt::{self, Write as _};
use std::marker::PhantomData;

use fgraph::{Entry, FgraphOps, Function, Return};

use crate::failures::{Failure, note};
use crate::formula::{foretold, mix};
use crate::functions;
use crate::ledger::{self, Call};
use crate::threads;

/// What a user carries from entry to return, made of a token.
pub(crate) trait Payload: Copy + Send + Sync + 'static {
    fn made_of(token: u64) -> Self;

    /// What it was made of, if that can be told.
    fn token(&self) -> Option<u64>;

    #[inline(always)]
    fn is_made_of(&self, token: u64) -> bool
    where
        Self: PartialEq,
    {
        *self == Self::made_of(token)
    }
}

impl Payload for () {
    #[inline(always)]
    fn made_of(_token: u64) -> Self {}

    #[inline(always)]
    fn token(&self) -> Option<u64> {
        None
    }
}

impl Payload for u64 {
    #[inline(always)]
    fn made_of(token: u64) -> Self {
        token
    }

    #[inline(always)]
    fn token(&self) -> Option<u64> {
        Some(*self)
    }
}

/// Aligned as strictly as data may be.
#[repr(align(16))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Aligned([u64; 2]);

impl Payload for Aligned {
    #[inline(always)]
    fn made_of(token: u64) -> Self {
        Self([token, !token])
    }

    #[inline(always)]
    fn token(&self) -> Option<u64> {
        Some(self.0[0])
    }

    #[inline(always)]
    fn is_made_of(&self, token: u64) -> bool {
        // Through a volatile read, or the compiler takes the alignment for granted.
        let address = std::hint::black_box(std::ptr::from_ref(self)).addr();
        address.is_multiple_of(align_of::<Self>()) && *self == Self::made_of(token)
    }
}

/// Any number of bytes, without alignment.
impl<const N: usize> Payload for [u8; N] {
    #[inline(always)]
    fn made_of(token: u64) -> Self {
        let mut bytes = [0; N];
        for (position, chunk) in bytes.chunks_mut(8).enumerate() {
            let word = token.wrapping_add(position as u64).to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
        bytes
    }

    #[inline(always)]
    fn token(&self) -> Option<u64> {
        self.first_chunk().copied().map(u64::from_le_bytes)
    }
}

/// Which calls a user accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taste {
    Everything,
    Half,
    Nothing,
}

/// One user, registered once. With `ALL` it checks all there is to be checked; without, what it can
/// in code that is eligible when it is optimised, so that its calls take the fast path.
#[derive(Debug)]
pub(crate) struct Watcher<D, const ALL: bool> {
    user: usize,
    registration: u64,
    taste: Taste,
    _data: PhantomData<fn(D)>,
}

impl<D: Payload, const ALL: bool> Watcher<D, ALL> {
    /// `user`, to be registered as number `registration`.
    pub(crate) fn new(user: usize, registration: u64, taste: Taste) -> Self {
        Self {
            user,
            registration,
            taste,
            _data: PhantomData,
        }
    }

    /// One that is told nothing.
    pub(crate) fn probe() -> Self {
        Self::new(0, 0, Taste::Nothing)
    }

    /// Whether this is the value that `new` has made.
    pub(crate) fn is(&self, user: usize, registration: u64) -> bool {
        (self.user, self.registration) == (user, registration)
    }

    fn fail(&self, failure: Failure, function: usize) {
        note(failure, self.user as u64, function as u64);
    }

    /// Checks what is the same at entry and return: that the callback may run at all, that it runs
    /// in the thread it says, and that this user's word is its own.
    #[inline(always)]
    fn check(&self, thread: &threads::Id, id: u32, word: &std::cell::Cell<u64>) {
        if !ledger::is_open(self.user, self.registration) {
            note(Failure::Late, self.user as u64, self.registration);
        }
        if id != thread.kernel {
            note(Failure::Thread, id.into(), thread.kernel.into());
        }
        let own = mix(self.registration << 32 | u64::from(thread.kernel));
        match word.get() {
            0 => word.set(own),
            found if found == own => {}
            found => {
                note(Failure::Word, self.user as u64, found);
                word.set(own);
            }
        }
    }

    /// Checks the data of the enclosing call.
    #[inline(always)]
    fn check_parent(&self, parent: Option<&D>, innermost: Option<Call>, function: usize)
    where
        D: PartialEq,
    {
        let right = match (parent, innermost) {
            (None, None) => true,
            (Some(data), Some(call)) => data.is_made_of(call.token),
            _ => false,
        };
        if !right {
            self.fail(Failure::Parent, function);
        }
    }
}

impl<D: Payload + PartialEq, const ALL: bool> FgraphOps for Watcher<D, ALL> {
    type Data = D;

    fn entry(&self, call: &mut Entry<'_, D>) -> Option<D> {
        let thread = threads::current()?;
        self.check(&thread, call.thread_id(), call.thread_word());
        // Whatever else the filter selects is none of the functions that workers call, and may be
        // going on while they are idle.
        let function = functions::index_of(call.function().address())?;
        let lane = ledger::lane(self.user, thread.number);
        if ALL {
            self.check_parent(call.parent_data(), lane.innermost(), function);
        }
        let number = lane.calls();
        let token =
            mix(self.registration << 40 ^ (thread.number as u64) << 28 ^ (function as u64) << 16)
                ^ mix(number);
        if ALL && token.is_multiple_of(4096) && !has_name(call.function(), function) {
            self.fail(Failure::Name, function);
        }
        let wanted = match self.taste {
            Taste::Everything => true,
            Taste::Half => token & 1 == 0,
            Taste::Nothing => false,
        };
        let accepted = wanted
            && lane.enter(Call {
                token,
                function,
                argument: call.arg(0)?,
                depth: call.depth(),
                stack_pointer: call.stack_pointer(),
                return_address: call.return_address(),
            });
        if !accepted {
            lane.decline();
            return None;
        }
        Some(D::made_of(token))
    }

    fn ret(&self, call: &mut Return<'_, D>, data: D) {
        let function = functions::index_of(call.function().address());
        let (Some(thread), Some(function)) = (threads::current(), function) else {
            note(Failure::Unpaired, self.user as u64, u64::MAX);
            return;
        };
        self.check(&thread, call.thread_id(), call.thread_word());
        let lane = ledger::lane(self.user, thread.number);
        let Some(entered) = lane.leave() else {
            self.fail(Failure::Unpaired, function);
            return;
        };
        if entered.function != function {
            note(Failure::Function, entered.function as u64, function as u64);
        }
        if !data.is_made_of(entered.token) {
            self.fail(Failure::Data, function);
        }
        let place = (call.depth(), call.stack_pointer(), call.return_address());
        if place != (entered.depth, entered.stack_pointer, entered.return_address) {
            self.fail(Failure::Place, function);
        }
        if !ALL {
            return;
        }
        self.check_parent(call.parent_data(), lane.innermost(), function);
        if let Some(right) = foretold(function, entered.argument) {
            let seen = call.result();
            if seen != right.ok() || call.unwinding() != right.is_err() {
                self.fail(Failure::Seen, function);
            }
        }
    }
}

/// Whether `function` has the name of the function with that number.
fn has_name(function: Function, number: usize) -> bool {
    /// The last seven bytes of what is written.
    struct Tail([u8; 7]);
    impl fmt::Write for Tail {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            for &byte in text.as_bytes() {
                self.0.rotate_left(1);
                self.0[6] = byte;
            }
            Ok(())
        }
    }
    let (mut is, mut right) = (Tail([0; 7]), Tail([0; 7]));
    write!(is, "{}", function.name()).is_ok()
        && write!(right, "fn_{number:04}").is_ok()
        && is.0 == right.0
}
