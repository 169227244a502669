//! The users: as [`crate::users`], but in a program whose calls need not return in order, or at
//! all.

use std::cell::Cell;
use std::marker::PhantomData;

use fgraph::{Entry, FgraphOps, Return};

use super::ledger::{self, Call};
use super::{libraries, memory, towers};
use crate::failures::{Failure, note};
use crate::formula::{foretold, mix};
use crate::functions;
use crate::threads;
use crate::users::{Payload, Taste};

/// One user, registered once; `ALL` as in [`crate::users::Watcher`].
#[derive(Debug)]
pub(crate) struct Witness<D, const ALL: bool> {
    user: usize,
    registration: u64,
    taste: Taste,
    _data: PhantomData<fn(D)>,
}

/// Whether the function at `address` is one whose calls are checked.
#[inline(always)]
fn is_ours(address: usize) -> bool {
    functions::index_of(address).is_some()
        || towers::contains(address)
        || libraries::contains(address)
}

impl<D: Payload, const ALL: bool> Witness<D, ALL> {
    /// `user`, to be registered as number `registration`.
    pub(crate) fn new(user: usize, registration: u64, taste: Taste) -> Self {
        Self {
            user,
            registration,
            taste,
            _data: PhantomData,
        }
    }

    fn fail(&self, failure: Failure, function: usize) {
        note(failure, self.user as u64, function as u64);
    }

    /// Checks what is the same at entry and return: that the callback may run at all, that it runs
    /// in the thread it says, and that this user's word is its own.
    #[inline(always)]
    fn check(&self, thread: &threads::Id, id: u32, word: &Cell<u64>) {
        if !ledger::is_open(self.user, self.registration) {
            note(Failure::Late, self.user as u64, self.registration);
        }
        if thread.kernel != 0 && id != thread.kernel {
            note(Failure::Thread, id.into(), thread.kernel.into());
        }
        let own = mix(self.registration << 32 | u64::from(thread.original));
        match word.get() {
            0 => word.set(own),
            found if found == own => {}
            found => {
                note(Failure::Word, self.user as u64, found);
                word.set(own);
            }
        }
    }

    /// Checks the data of the enclosing call: on a thread's own stack it is of a call that has not
    /// returned and was made there as well, not deeper. Elsewhere several coroutines may share a
    /// shadow stack, and one of them may return, in another thread, at this moment.
    #[inline(always)]
    fn check_parent(&self, parent: Option<&D>, function: usize, stack_pointer: usize) {
        let Some(token) = parent.and_then(Payload::token) else {
            return;
        };
        if memory::contains(stack_pointer) {
            return;
        }
        let is_right = ledger::find(self.user, token).is_some_and(|call| {
            call.stack_pointer >= stack_pointer && !memory::contains(call.stack_pointer)
        });
        if !is_right {
            self.fail(Failure::Parent, function);
        }
    }
}

impl<D: Payload + PartialEq, const ALL: bool> FgraphOps for Witness<D, ALL> {
    type Data = D;

    fn entry(&self, call: &mut Entry<'_, D>) -> Option<D> {
        let thread = threads::current()?;
        self.check(&thread, call.thread_id(), call.thread_word());
        let function = call.function().address();
        if !is_ours(function) {
            return None;
        }
        if ALL {
            self.check_parent(call.parent_data(), function, call.stack_pointer());
        }
        let is_wanted = match self.taste {
            Taste::Everything => true,
            Taste::Half => mix(call.stack_pointer() as u64 ^ function as u64) & 1 == 0,
            Taste::Nothing => false,
        };
        if !is_wanted {
            return None;
        }
        let call = Call {
            function,
            argument: call.arg(0)?,
            depth: call.depth(),
            stack_pointer: call.stack_pointer(),
            return_address: call.return_address(),
        };
        ledger::enter(self.user, self.registration, call).map(D::made_of)
    }

    fn ret(&self, call: &mut Return<'_, D>, data: D) {
        let function = call.function().address();
        let Some(thread) = threads::current() else {
            self.fail(Failure::Unpaired, function);
            return;
        };
        self.check(&thread, call.thread_id(), call.thread_word());
        ledger::count_return(self.user, call.stack_pointer());
        let Some(token) = data.token() else {
            return;
        };
        if data != D::made_of(token) {
            self.fail(Failure::Data, function);
            return;
        }
        let Some(entered) = ledger::leave(self.user, token) else {
            self.fail(Failure::Unpaired, function);
            return;
        };
        if entered.function != function {
            note(Failure::Function, entered.function as u64, function as u64);
        }
        let place = (call.depth(), call.stack_pointer(), call.return_address());
        if place != (entered.depth, entered.stack_pointer, entered.return_address) {
            self.fail(Failure::Place, function);
        }
        if !ALL {
            return;
        }
        self.check_parent(call.parent_data(), function, call.stack_pointer());
        let right =
            functions::index_of(function).and_then(|function| foretold(function, entered.argument));
        if let Some(right) = right
            && (call.result() != right.ok() || call.unwinding() != right.is_err())
        {
            self.fail(Failure::Seen, function);
        }
    }
}
