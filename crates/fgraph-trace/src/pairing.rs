//! Pairs the entries and the ends of a thread's calls, even where events are lost.
//!
//! All views and exports take their calls from this module, so that they agree. The order of a
//! thread's [events](crate::event::What) decides: a call ends with the next end of its function in
//! its thread, and all calls inside it have ended by then.
//!
//! Where events are lost, a [`What::Lost`] event has the number of them that ended calls. These
//! were the innermost calls: they are [lost](Ending::Lost), and the calls around them continue. If
//! the number is unknown, all calls of the thread are lost, for any of them may have ended.
//!
//! A call that `longjmp` leaves is [dropped][`What::Dropped`]: it and the calls inside it are lost,
//! too. They ran for certain until the thread's event before.
//!
//! [`What::Lost`]: crate::event::What::Lost
//! [`What::Dropped`]: crate::event::What::Dropped

use std::mem;

/// The end of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    /// It returned.
    Returned,
    /// A panic, an exception or the end of its thread ended it.
    Unwound,
    /// Its end is not among the events, and the call is not known to be in progress.
    Lost,
    /// It was in progress at the last event of its thread.
    Open,
    /// Its end was [not to be recorded](crate::event::What::Entry::is_entry_only).
    EntryOnly,
}

/// A call in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenCall<T> {
    /// The index of its function.
    pub function: u32,
    /// The time of its entry, in ticks.
    pub begin: u64,
    /// The data that the caller passed to [`Pairing::enter`].
    pub data: T,
    /// Ticks since its entry that belong to calls in it, or to no call for certain.
    inner: u64,
}

/// A call that has ended.
///
/// It is exhaustive, since callers write it as a literal: a new field breaks them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedCall<T> {
    /// The index of its function.
    pub function: u32,
    /// The time of its entry, in ticks.
    pub begin: u64,
    /// Ticks that it ran for certain, including the calls in it: all of them if its
    /// [duration](Self::duration) is known.
    pub ran: u64,
    /// The part of `ran` that it ran for certain outside of the calls in it. Over all calls of a
    /// thread these add up to at most the time between its first event and its last one.
    pub own: u64,
    /// The way in which it ended.
    pub ending: Ending,
    /// The data that the caller passed to [`Pairing::enter`].
    pub data: T,
}

impl<T> EndedCall<T> {
    /// Returns the ticks from its entry to its end; `None` if its end is not among the events.
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
    /// A call has ended. It is no longer in [`Pairing::calls`]; the calls around it are.
    Ended(EndedCall<T>),
}

/// The most calls in progress of one thread. If there are more, their ends must be missing, and all
/// are lost.
pub const MAX_DEPTH: usize = 1 << 16;

/// The calls of one thread.
///
/// Pass each event of the thread to its method, then call [`change`](Self::change) until it returns
/// `None`. Times are in ticks, or in another unit that all events share; a time before an earlier
/// event's counts as that event's.
///
/// An event takes constant time for each call that it begins or ends. An end without an entry
/// searches the calls in progress, which are at most [`MAX_DEPTH`]. No sequence of events is an
/// error.
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
    /// The call that begins, after the calls that end before it have been returned.
    entering: Option<OpenCall<T>>,
    is_entry_only: bool,
    /// The number of innermost calls that end now, and how the outermost of these ends; the others
    /// are lost.
    ending: usize,
    how: Ending,
    /// The time until which the calls that are lost now ran for certain.
    lost_at: u64,
    /// The time of the last event.
    last: u64,
    /// True if events are lost after the last one.
    is_gap: bool,
}

impl<T> Default for Pairing<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Pairing<T> {
    /// Starts with a thread that is in no call.
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

    /// Returns the calls in progress, the outermost first.
    ///
    /// The first one may be inside calls whose entries were not given.
    #[inline]
    #[must_use]
    pub fn calls(&self) -> &[OpenCall<T>] {
        &self.calls
    }

    /// Returns the calls in progress like [`calls`](Self::calls), to change their data.
    #[must_use]
    pub fn calls_mut(&mut self) -> &mut [OpenCall<T>] {
        &mut self.calls
    }

    /// Returns the time of the thread's last event; 0 if there was none.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Returns the calls in progress, the outermost first, each with the ticks that it ran until
    /// the thread's last event: including the calls in it, and excluding them.
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

    /// Begins a call like [`enter`](Self::enter). Returns true if the call is in progress already,
    /// and the event has made no other [`change`](Self::change).
    #[inline]
    pub fn enter_at_once(&mut self, function: u32, time: u64, data: T) -> bool {
        if self.is_gap || self.calls.len() >= MAX_DEPTH {
            self.enter(function, time, data);
            return false;
        }
        self.advance(time);
        self.calls.push(OpenCall {
            function,
            begin: self.last,
            data,
            inner: 0,
        });
        true
    }

    /// Ends a call like [`exit`](Self::exit). Returns the call if that is the only change that the
    /// event has made; it is `None` if no call ends, or if changes are left to be taken.
    #[inline]
    pub fn exit_at_once(&mut self, function: u32, time: u64, how: Ending) -> Option<EndedCall<T>> {
        let is_innermost = |call: &OpenCall<T>| call.function == function;
        let is_rare = self.is_gap || how == Ending::Lost;
        if is_rare || !self.calls.last().is_some_and(is_innermost) {
            self.exit(function, time, how);
            return None;
        }
        self.advance(time);
        let call = self.calls.pop()?;
        let ran = self.last.saturating_sub(call.begin);
        if let Some(caller) = self.calls.last_mut() {
            caller.inner = caller.inner.saturating_add(ran);
        }
        Some(EndedCall {
            function,
            begin: call.begin,
            ran,
            own: ran.saturating_sub(call.inner),
            ending: how,
            data: call.data,
        })
    }

    /// Begins a call whose end is not recorded: later events are not inside it.
    pub fn enter_only(&mut self, function: u32, time: u64, data: T) {
        self.enter(function, time, data);
        self.is_entry_only = true;
    }

    /// Ends the innermost call of a function, which has [returned](Ending::Returned), was
    /// [unwound](Ending::Unwound), or was dropped, which is [`Lost`](Ending::Lost): it ended
    /// between the event before and `time`. Calls inside it are lost. If no call of the function is
    /// in progress, because its entry was not given, nothing ends and the result is `false`.
    #[inline]
    pub fn exit(&mut self, function: u32, time: u64, how: Ending) -> bool {
        if how == Ending::Lost {
            return self.drop_call(function);
        }
        let before = self.advance(time);
        let is_gap = mem::take(&mut self.is_gap);
        // It is the innermost call in most cases.
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

    /// Processes a loss of events; `ends` of them ended calls, `None` if that is unknown. The
    /// numbers are those of [`What::Lost`](crate::event::What::Lost).
    #[cold]
    pub fn lose(&mut self, ends: Option<u64>) {
        let open = self.calls.len();
        let ends = ends.map_or(open, |ends| ends.try_into().unwrap_or(open));
        self.lose_calls(ends.min(open), self.last);
        self.is_gap = true;
    }

    /// Ends the innermost call of a function, and those inside it, as lost since the event before.
    /// Several calls may be dropped at once, so the time until the next other event is nobody's.
    #[cold]
    fn drop_call(&mut self, function: u32) -> bool {
        let mut calls = self.calls.iter().rev();
        let Some(depth) = calls.position(|call| call.function == function) else {
            return false;
        };
        self.lose_calls(depth + 1, self.last);
        self.is_gap = true;
        true
    }

    /// Processes another event of the thread: the calls in progress have run until then.
    #[inline]
    pub fn note(&mut self, time: u64) {
        let before = self.advance(time);
        if mem::take(&mut self.is_gap) {
            self.skip(before);
        }
    }

    /// Ends the calls in progress as [open](Ending::Open), at a time.
    #[cold]
    pub fn finish(&mut self, time: u64) {
        self.note(time);
        (self.ending, self.how) = (self.calls.len(), Ending::Open);
        self.lost_at = self.last;
    }

    /// Returns the next change that the last event has made; `None` if there is none left.
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

    /// Sets the time of the thread's last event, and returns the time before.
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

    /// Excludes the time since an event from the own time of the innermost call: a part of it
    /// belongs to lost calls.
    #[cold]
    fn skip(&mut self, before: u64) {
        let unknown = self.last - before;
        if let Some(call) = self.calls.last_mut() {
            call.inner = call.inner.saturating_add(unknown);
        }
    }

    /// Ends the innermost calls as lost; each ran for certain until `until`.
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
