//! The users: they accept calls, carry data of different sizes, and check all that they are told.
//! The books that they keep of their calls are of two kinds.

use std::cell::Cell;
use std::fmt::{self, Write as _};
use std::marker::PhantomData;

use fgraph::{Counters, Entry, FgraphOps, Function, Return};

use crate::failures::{Failure, note};
use crate::figures::Figures;
use crate::formula::{foretold, mix};
use crate::functions;
use crate::threads;

/// Data that a user carries from entry to return, made of a token.
pub(crate) trait Payload: Copy + Send + Sync + 'static {
    fn made_of(token: u64) -> Self;

    /// Returns the token that it was made of, if that can be told.
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

/// Taste of a user: the calls that it accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taste {
    Everything,
    Half,
    Nothing,
}

/// A call that a user has accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Call {
    /// Number of the call, from which its data is made. A user has no other call with it.
    pub(crate) token: u64,
    /// Address of the function.
    pub(crate) function: usize,
    /// First integer argument.
    pub(crate) argument: u64,
    /// Depth on the shadow stack.
    pub(crate) depth: usize,
    /// Stack pointer of the caller.
    pub(crate) stack_pointer: usize,
    /// Return address to the caller.
    pub(crate) return_address: usize,
}

/// A call that has returned, as the books know it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Left {
    /// It was open.
    Open(Call),
    /// No such call was open.
    Unpaired,
    /// The books cannot tell which call it is.
    Unknown,
}

/// The books of all users: [`crate::ledger`], or those of [`crate::chaos`], where calls need not
/// return in order, or at all.
pub(crate) trait Books: 'static {
    /// True if callbacks may ask for names wherever they run.
    const HAS_NAMES: bool;

    /// Opens the book of `user`, which is about to be registered.
    fn open(user: usize, registration: u64);

    /// Returns true if callbacks of `user` may run as `registration`.
    fn is_open(user: usize, registration: u64) -> bool;

    /// Expects no more returns: `user` is about to be unregistered.
    fn ending(_user: usize) {}

    /// Closes the book of `user`, which has been unregistered, with its last counters.
    fn close(user: usize, counters: Counters) -> Figures;

    /// Returns true if calls of the function at this address are checked.
    fn is_ours(function: usize) -> bool;

    /// Enters a call, and returns its token, unless it is declined.
    fn enter(watcher: Identity, taste: Taste, thread: usize, call: Call) -> Option<u64>;

    /// Takes a call out that returns, with the token of its data, if that has one.
    fn leave(user: usize, thread: usize, token: Option<u64>, stack_pointer: usize) -> Left;

    /// Returns true if `parent` may be the data of the call around one in `thread`.
    fn is_parent<D: Payload + PartialEq>(
        user: usize,
        thread: usize,
        parent: Option<&D>,
        stack_pointer: usize,
    ) -> bool;
}

/// Number of a user, and of its registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) user: usize,
    pub(crate) registration: u64,
}

/// One user, registered once. With `ALL` it checks all there is to be checked; without, what it can
/// in code that is eligible when it is optimised, so that its calls take the fast path.
#[derive(Debug)]
pub(crate) struct Watcher<D, B, const ALL: bool> {
    identity: Identity,
    taste: Taste,
    _data: PhantomData<fn(D, B)>,
}

impl<D: Payload + PartialEq, B: Books, const ALL: bool> Watcher<D, B, ALL> {
    /// Makes the value to be registered as `identity`.
    pub(crate) fn new(identity: Identity, taste: Taste) -> Self {
        Self {
            identity,
            taste,
            _data: PhantomData,
        }
    }

    /// Returns true if it was made for `identity`.
    pub(crate) fn is(&self, identity: Identity) -> bool {
        self.identity == identity
    }

    fn fail(&self, failure: Failure, function: usize) {
        note(failure, self.identity.user as u64, function as u64);
    }

    /// Checks that the callback may run at all, that it runs in the thread it says, and that this
    /// user's word is its own.
    #[inline(always)]
    fn check(&self, thread: &threads::Id, id: u32, word: &Cell<u64>) {
        let Identity { user, registration } = self.identity;
        if !B::is_open(user, registration) {
            note(Failure::Late, user as u64, registration);
        }
        if thread.kernel != 0 && id != thread.kernel {
            note(Failure::Thread, id.into(), thread.kernel.into());
        }
        let own = mix(registration << 32 | u64::from(thread.original));
        match word.get() {
            0 => word.set(own),
            found if found == own => {}
            found => {
                note(Failure::Word, user as u64, found);
                word.set(own);
            }
        }
    }
}

impl<D: Payload + PartialEq, B: Books, const ALL: bool> FgraphOps for Watcher<D, B, ALL> {
    type Data = D;

    fn entry(&self, call: &mut Entry<'_, D>) -> Option<D> {
        let thread = threads::current()?;
        self.check(&thread, call.thread_id(), call.thread_word());
        // Other functions that the filter selects are not called for the check, and may be going on
        // while threads are idle.
        let function = call.function().address();
        if !B::is_ours(function) {
            return None;
        }
        let (user, sp) = (self.identity.user, call.stack_pointer());
        if ALL && !B::is_parent(user, thread.number, call.parent_data(), sp) {
            self.fail(Failure::Parent, function);
        }
        let entered = Call {
            token: 0,
            function,
            argument: call.arg(0)?,
            depth: call.depth(),
            stack_pointer: sp,
            return_address: call.return_address(),
        };
        let token = B::enter(self.identity, self.taste, thread.number, entered)?;
        if ALL && B::HAS_NAMES && token.is_multiple_of(4096) && !has_name(call.function()) {
            self.fail(Failure::Name, function);
        }
        Some(D::made_of(token))
    }

    fn ret(&self, call: &mut Return<'_, D>, data: D) {
        let function = call.function().address();
        let Some(thread) = threads::current() else {
            self.fail(Failure::Unpaired, function);
            return;
        };
        self.check(&thread, call.thread_id(), call.thread_word());
        let (user, sp) = (self.identity.user, call.stack_pointer());
        let entered = match B::leave(user, thread.number, data.token(), sp) {
            Left::Open(entered) => entered,
            Left::Unknown => return,
            Left::Unpaired => {
                let is_whole = data.token().is_none_or(|token| data.is_made_of(token));
                let failure = if is_whole {
                    Failure::Unpaired
                } else {
                    Failure::Data
                };
                self.fail(failure, function);
                return;
            }
        };
        if entered.function != function {
            note(Failure::Function, entered.function as u64, function as u64);
        }
        if !data.is_made_of(entered.token) {
            self.fail(Failure::Data, function);
        }
        let place = (call.depth(), sp, call.return_address());
        if place != (entered.depth, entered.stack_pointer, entered.return_address) {
            self.fail(Failure::Place, function);
        }
        if !ALL {
            return;
        }
        if !B::is_parent(user, thread.number, call.parent_data(), sp) {
            self.fail(Failure::Parent, function);
        }
        let right =
            functions::index_of(function).and_then(|index| foretold(index, entered.argument));
        if let Some(right) = right
            && (call.result() != right.ok() || call.unwinding() != right.is_err())
        {
            self.fail(Failure::Seen, function);
        }
    }
}

/// Returns true if `function` is none of the numbered ones, or has the name of its number.
fn has_name(function: Function) -> bool {
    let Some(number) = functions::index_of(function.address()) else {
        return true;
    };
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
