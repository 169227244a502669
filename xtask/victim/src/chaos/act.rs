//! The numbers of acts.

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
