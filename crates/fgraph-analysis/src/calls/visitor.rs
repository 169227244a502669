//! The consumer of calls, and what it gets.

use fgraph_trace::clock::Clock;
use fgraph_trace::names::{FunctionTypes, Names, executed_before, process_id};
use fgraph_trace::pairing::{EndedCall, Ending, OpenCall};
use fgraph_trace::schedule::Schedule;
use fgraph_trace::text::is_visible;

use super::functions::{Function, Functions, Slot};

/// A call in progress; its data is the slot of its function.
pub type Open = OpenCall<Slot>;

/// A consumer of calls.
///
/// In each thread, every call that begins also ends, after the calls that have begun in it. Times
/// are in the unit of the [mode](super::Mode).
pub trait Visitor {
    /// The reason for which it stops; [`Infallible`](std::convert::Infallible) if nothing can fail.
    type Error;

    /// Called when a function is first met; its slot is the number of earlier ones.
    fn function(&mut self, function: &Function) {
        let _ = function;
    }

    /// Called when a thread is first met; its number is the number of earlier ones.
    ///
    /// # Errors
    ///
    /// Stops the reading.
    fn thread(&mut self, at: &At<'_>) -> Result<(), Self::Error> {
        let _ = at;
        Ok(())
    }

    /// Called when a call begins. The values are its arguments.
    ///
    /// # Errors
    ///
    /// Stops the reading.
    fn enter(&mut self, at: &At<'_>, call: &Open) -> Result<(), Self::Error> {
        let _ = (at, call);
        Ok(())
    }

    /// Called when a call has ended. The values are its result.
    ///
    /// # Errors
    ///
    /// Stops the reading.
    fn exit(&mut self, at: &At<'_>, call: &Call) -> Result<(), Self::Error>;

    /// Called for a text of the program.
    ///
    /// # Errors
    ///
    /// Stops the reading.
    fn mark(&mut self, at: &At<'_>, text: &str) -> Result<(), Self::Error> {
        let _ = (at, text);
        Ok(())
    }

    /// Called where events of a thread are missing.
    ///
    /// # Errors
    ///
    /// Stops the reading.
    fn lost(&mut self, at: &At<'_>, events: u64) -> Result<(), Self::Error> {
        let _ = (at, events);
        Ok(())
    }
}

/// A thread as events name it, with its number.
#[derive(Clone, Copy, Debug)]
pub struct ThreadId {
    /// Its number, from 0 in the order in which threads are met.
    pub index: usize,
    /// [Number](fgraph_trace::names::process_number) of its process.
    pub process: u32,
    /// Its id.
    pub id: u32,
}

impl ThreadId {
    /// Returns the kernel id of its process.
    #[must_use]
    pub fn process_id(&self) -> u32 {
        process_id(self.process)
    }

    /// Returns the number of programs that its process had executed before.
    #[must_use]
    pub fn executed_before(&self) -> u32 {
        executed_before(self.process)
    }
}

/// Place and time of an event.
#[derive(Clone, Copy, Debug)]
pub struct At<'a> {
    /// Its thread.
    pub thread: ThreadId,
    /// Its time. It never goes back within a thread.
    pub time: u64,
    /// The time that its thread has spent up to now in the state whose time counts; `time` if all
    /// counts.
    pub measured: u64,
    /// The functions met so far.
    pub functions: &'a Functions,
    /// The names known so far.
    pub names: &'a Names,
    /// The clock of the events.
    pub clock: &'a Clock,
    /// The states of threads, if they are known.
    pub schedule: Option<&'a Schedule>,
    /// The calls around the call, the outermost first; for other events, those in progress.
    pub around: &'a [Open],
    /// The recorded values of the call.
    pub values: &'a Values<'a>,
}

/// A call that has ended, at the time of the accompanying [`At`]. A call whose end is lost has
/// ended at some time from then on.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// The slot of its function.
    pub slot: Slot,
    /// The time of its entry.
    pub begin: u64,
    /// The time that it certainly ran, with the calls in it.
    pub ran: u64,
    /// The time that it certainly ran, without the calls in it.
    pub own: u64,
    /// The parts of `ran` and `own` in which the thread had the state whose time counts.
    pub measured: Measured,
    /// The way in which it ended.
    pub ending: Ending,
}

/// Time of a call in the state that counts; all of it if all counts.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// With the calls in it.
    pub ran: u64,
    /// Without the calls in it.
    pub own: u64,
}

impl Call {
    /// Returns a call that has ended, with its times in the state that counts, if not all counts.
    #[inline]
    pub(super) fn of(call: &EndedCall<Slot>, measured: Option<Measured>) -> Self {
        let EndedCall { ran, own, .. } = *call;
        Self {
            slot: call.data,
            begin: call.begin,
            ran,
            own,
            measured: measured.unwrap_or(Measured { ran, own }),
            ending: call.ending,
        }
    }

    /// Returns the time from its entry to its end; `None` if its end is not among the events.
    #[inline]
    #[must_use]
    pub fn duration(&self) -> Option<u64> {
        matches!(self.ending, Ending::Returned | Ending::Unwound).then_some(self.ran)
    }

    /// Returns the time for which it is drawn; `None` if its end is lost.
    #[must_use]
    pub fn length(&self) -> Option<u64> {
        (self.ending != Ending::Lost).then_some(self.ran)
    }
}

/// Recorded arguments or result of a call.
#[derive(Clone, Debug, Default)]
pub struct Values<'a> {
    /// Words as recorded.
    pub words: &'a [u64],
    /// Values by their types, as text without control characters, each with its name.
    pub typed: Vec<(String, String)>,
}

impl Values<'static> {
    /// No values.
    pub(super) const NONE: &'static Self = &Self {
        words: &[],
        typed: Vec::new(),
    };
}

impl<'a> Values<'a> {
    pub(super) fn arguments(
        words: &'a [u64],
        values: &[u64],
        types: Option<&FunctionTypes>,
    ) -> Self {
        let mut typed = Vec::new();
        if let Some(types) = types.filter(|_| !values.is_empty()) {
            let each = types.layout.each_argument(values);
            for (place, (name, value)) in each.into_iter().enumerate() {
                let name = match name {
                    "" => format!("argument{place}"),
                    name => one_line(name),
                };
                typed.push((name, value));
            }
        }
        Self { words, typed }
    }

    pub(super) fn result(words: &'a [u64], values: &[u64], types: Option<&FunctionTypes>) -> Self {
        let result = types.and_then(|types| types.layout.result(values));
        let typed = result.map(|result| ("result".to_owned(), result.to_string()));
        Self {
            words,
            typed: typed.into_iter().collect(),
        }
    }

    /// Returns true if nothing was recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty() && self.typed.is_empty()
    }
}

/// Returns a text in one line: characters that a terminal may interpret become spaces.
#[must_use]
pub fn one_line(text: &str) -> String {
    let visible = |c: char| if is_visible(c) { c } else { ' ' };
    text.chars().map(visible).collect()
}
