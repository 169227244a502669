//! The actors, and the numbers of their acts.

use super::signals::Signals;

/// An act of an actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Threads = 1,
    Unwind,
    Jump,
    Coroutine,
    Storm,
    Leave,
    Fork,
    Spawn,
    Library,
    Descend,
    Context,
    Vfork,
    Execute,
    Exchange,
}

/// A thread that performs acts.
#[derive(Debug)]
pub(super) struct Actor {
    pub(super) number: usize,
    /// Number of the victim's functions that take part.
    pub(super) sites: usize,
    pub(super) signals: Signals,
}
