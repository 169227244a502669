//! Pairs the entries and the ends of a thread's calls, also where events are lost.
//!
//! All views and exports take their calls from here, so that they agree. The source of truth is the
//! order of a thread's [events](crate::event::What): a call ends with the end of its function that
//! comes next in its thread, and all calls inside it have ended by then.
//!
//! Where events are lost, a [`What::Lost`] event says how many of them ended calls. These calls
//! were the innermost ones: they are [lost](Ending::Lost), and the calls around them go on. If
//! their number is not known, all calls of the thread are lost, for any of them may have ended.
//!
//! [`What::Lost`]: crate::event::What::Lost

use std::mem;

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    /// It returned.
    Returned,
    /// A panic, an exception or the end of its thread ended it.
    Unwound,
    /// Its end is not among the events, and it does not go on any more, as far as is known.
    Lost,
    /// It went on at the last event of its thread.
    Open,
    /// Its end was [not to be recorded](crate::event::What::Entry::is_entry_only).
    EntryOnly,
}

/// A call that goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenCall<T> {
    /// The index of its function.
    pub function: u32,
    /// When it began, in ticks.
    pub begin: u64,
    /// The data that the caller of [`Pairing::enter`] keeps of it.
    pub data: T,
    /// Ticks since then that belong to calls in it, or to no call for sure.
    inner: u64,
}

/// A call that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedCall<T> {
    /// The index of its function.
    pub function: u32,
    /// When it began, in ticks.
    pub begin: u64,
    /// Ticks that it ran for sure, with the calls in it: all of them if its
    /// [duration](Self::duration) is known.
    pub ran: u64,
    /// Ticks of these that it ran for sure without the calls in it. Over all calls of a
    /// thread they add up to at most the time between its first event and its last one.
    pub own: u64,
    /// How it ended.
    pub ending: Ending,
    /// The data that the caller of [`Pairing::enter`] has kept of it.
    pub data: T,
}

impl<T> EndedCall<T> {
    /// Ticks from its entry to its end; `None` if its end is not among the events.
    #[inline]
    #[must_use]
    pub fn duration(&self) -> Option<u64> {
        matches!(self.ending, Ending::Returned | Ending::Unwound).then_some(self.ran)
    }
}

/// The effect of an event on the calls of its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<T> {
    /// A call has begun: the last one of [`Pairing::calls`].
    Began,
    /// A call has ended. It is not in [`Pairing::calls`] any more; those around it are.
    Ended(EndedCall<T>),
}

/// Calls of a thread that go on, at most. Where more pile up, their ends are missing: all are lost.
pub const MAX_DEPTH: usize = 1 << 16;

/// The calls of one thread.
///
/// Each event of the thread goes to the method for it. Then [`change`](Self::change) is called
/// until it gives nothing more. Times are in ticks, or in another unit that all events have; one
/// that is before another one given earlier counts as that one. An event takes constant time for
/// each call that it begins or ends; an end without an entry looks through the calls that go on, of
/// which there are at most [`MAX_DEPTH`]. Nothing fails, whatever the events are.
///
/// ```
/// use fgraph_trace::pairing::{Change, Ending, Pairing};
///
/// let mut pairing = Pairing::new();
/// let mut ended = Vec::new();
/// let mut drain = |pairing: &mut Pairing<&'static str>| {
///     while let Some(change) = pairing.change() {
///         if let Change::Ended(call) = change {
///             ended.push((call.data, call.duration(), call.ending));
///         }
///     }
/// };
/// pairing.enter(1, 10, "main");
/// drain(&mut pairing);
/// pairing.enter(2, 20, "parse");
/// drain(&mut pairing);
/// // The return of `parse` is lost.
/// pairing.lose(Some(1));
/// drain(&mut pairing);
/// pairing.exit(1, 90, Ending::Returned);
/// drain(&mut pairing);
/// assert_eq!(
///     ended,
///     [("parse", None, Ending::Lost), ("main", Some(80), Ending::Returned)]
/// );
/// ```
#[derive(Clone, Debug)]
pub struct Pairing<T> {
    calls: Vec<OpenCall<T>>,
    /// The call that begins, once those that end before are given.
    entering: Option<OpenCall<T>>,
    is_entry_only: bool,
    /// How many calls end now, the innermost ones, and how the last one of them does; the others
    /// are lost.
    ending: usize,
    how: Ending,
    /// The time up to which calls that are lost now ran for sure.
    lost_at: u64,
    /// The time of the last event.
    last: u64,
    /// True if events are lost behind the last one.
    is_gap: bool,
}

impl<T> Default for Pairing<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Pairing<T> {
    /// Of a thread that is in no call.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            calls: Vec::new(),
            entering: None,
            is_entry_only: false,
            ending: 0,
            how: Ending::Lost,
            lost_at: 0,
            last: 0,
            is_gap: false,
        }
    }

    /// The calls that go on, the outermost first.
    ///
    /// The outermost one may be inside others, of which no entry was given.
    #[inline]
    #[must_use]
    pub fn calls(&self) -> &[OpenCall<T>] {
        &self.calls
    }

    /// As [`calls`](Self::calls).
    #[must_use]
    pub fn calls_mut(&mut self) -> &mut [OpenCall<T>] {
        &mut self.calls
    }

    /// The time of the thread's last event; 0 if there was none.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.last
    }

    /// The calls that go on, the outermost first, each with the ticks that it has run up to the
    /// thread's last event: with the calls in it, and without.
    pub fn so_far(&self) -> impl Iterator<Item = (&OpenCall<T>, u64, u64)> {
        self.calls.iter().enumerate().map(|(depth, call)| {
            let ran = self.last.saturating_sub(call.begin);
            let next = self.calls.get(depth + 1);
            let inner = next.map_or(0, |next| self.last.saturating_sub(next.begin));
            let own = ran.saturating_sub(call.inner.saturating_add(inner));
            (call, ran, own)
        })
    }

    /// Begins a call.
    #[inline]
    pub fn enter(&mut self, function: u32, time: u64, data: T) {
        let before = self.last;
        self.note(time);
        if self.calls.len() >= MAX_DEPTH {
            self.lose_calls(self.calls.len(), before);
        }
        self.entering = Some(OpenCall {
            function,
            begin: self.last,
            data,
            inner: 0,
        });
    }

    /// Begins a call whose end is not recorded: the next events are not in it.
    pub fn enter_only(&mut self, function: u32, time: u64, data: T) {
        self.enter(function, time, data);
        self.is_entry_only = true;
    }

    /// Ends the innermost call of a function: it has [returned](Ending::Returned) or was
    /// [unwound](Ending::Unwound). Calls in it are lost. `false` if no call of the function goes
    /// on: then its entry was not given, and nothing ends.
    #[inline]
    pub fn exit(&mut self, function: u32, time: u64, how: Ending) -> bool {
        let before = self.advance(time);
        let is_gap = mem::take(&mut self.is_gap);
        // Mostly it is the innermost one.
        let mut calls = self.calls.iter_mut().rev();
        let Some(depth) = calls.position(|call| call.function == function) else {
            if is_gap {
                self.skip(before);
            }
            return false;
        };
        if is_gap || depth > 0 {
            self.lost_at = before;
            let at = self.calls.len() - 1 - depth;
            let unknown = self.last - before;
            let call = &mut self.calls[at];
            call.inner = call.inner.saturating_add(unknown);
        }
        (self.ending, self.how) = (depth + 1, how);
        true
    }

    /// Takes note that events are lost, of which so many ended calls; `None` if that is not known.
    /// These numbers are those of [`What::Lost`](crate::event::What::Lost).
    #[cold]
    pub fn lose(&mut self, ends: Option<u64>) {
        let open = self.calls.len();
        let ends = ends.map_or(open, |ends| ends.try_into().unwrap_or(open));
        self.lose_calls(ends.min(open), self.last);
        self.is_gap = true;
    }

    /// Takes note of another event of the thread: the calls that go on have run until then.
    #[inline]
    pub fn note(&mut self, time: u64) {
        let before = self.advance(time);
        if mem::take(&mut self.is_gap) {
            self.skip(before);
        }
    }

    /// Ends the calls that go on as [open](Ending::Open), at a time.
    #[cold]
    pub fn finish(&mut self, time: u64) {
        self.note(time);
        (self.ending, self.how) = (self.calls.len(), Ending::Open);
        self.lost_at = self.last;
    }

    /// The next change that the last event has made; `None` if there is none any more.
    #[inline]
    pub fn change(&mut self) -> Option<Change<T>> {
        if self.ending > 0 {
            return self.pop().map(Change::Ended);
        }
        let call = self.entering.take()?;
        self.calls.push(call);
        if mem::take(&mut self.is_entry_only) {
            (self.ending, self.how) = (1, Ending::EntryOnly);
        }
        Some(Change::Began)
    }

    /// Sets the time of the thread's last event, and gives the one before.
    #[inline]
    fn advance(&mut self, time: u64) -> u64 {
        debug_assert!(
            self.ending == 0 && self.entering.is_none(),
            "changes are left"
        );
        let before = self.last;
        self.last = time.max(before);
        before
    }

    /// Leaves the time since an event out of the own time of the innermost call: calls that are
    /// lost took a part of it.
    #[cold]
    fn skip(&mut self, before: u64) {
        let unknown = self.last - before;
        if let Some(call) = self.calls.last_mut() {
            call.inner = call.inner.saturating_add(unknown);
        }
    }

    /// Ends the innermost calls as lost, each of which ran for sure until then.
    #[cold]
    fn lose_calls(&mut self, number: usize, until: u64) {
        (self.ending, self.how) = (number, Ending::Lost);
        self.lost_at = until;
    }

    /// Ends the innermost call.
    #[inline]
    fn pop(&mut self) -> Option<EndedCall<T>> {
        self.ending -= 1;
        let ending = match self.ending {
            0 => self.how,
            _ if self.how == Ending::Open => Ending::Open,
            _ => Ending::Lost,
        };
        let call = self.calls.pop()?;
        let until = match ending {
            Ending::Returned | Ending::Unwound => self.last,
            Ending::EntryOnly => call.begin,
            Ending::Lost | Ending::Open => self.lost_at,
        };
        let ran = until.saturating_sub(call.begin);
        if let Some(caller) = self.calls.last_mut() {
            caller.inner = caller.inner.saturating_add(ran);
        }
        Some(EndedCall {
            function: call.function,
            begin: call.begin,
            ran,
            own: ran.saturating_sub(call.inner),
            ending,
            data: call.data,
        })
    }
}

#[cfg(test)]
mod tests;
