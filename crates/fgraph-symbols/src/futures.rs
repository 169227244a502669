//! Futures in the memory of a program: the `.await` at which each task waits, from rustc's debug
//! information.
//!
//! rustc compiles an `async fn` to a structure with a variant for each of its awaits. Debug
//! information describes that structure:
//!
//! ```text
//! {async_fn_env#0}               the future of an async fn
//! ├ __state: u8                  the number of the variant
//! ├ Unresumed   line 7           not yet polled
//! ├ Returned    line 10
//! ├ Panicked    line 10
//! └ Suspend0    line 8           it waits in line 8
//!   └ __awaitee: {async_fn_env#0}    for this future
//! ```
//!
//! So the memory of a future tells the chain of awaits in it. The types around such futures, as
//! `Pin<Box<_>>`, `Timeout<_>` or those of `join!`, are searched for futures.
//!
//! Memory is not trusted: [`Futures::tree`] reads a bounded number of bytes, and its result has a
//! bounded size and depth.

mod facts;
mod index;
mod shapes;
#[cfg(test)]
mod tests;
mod tree;

use std::sync::Arc;

use gimli::{Dwarf, EndianArcSlice, LittleEndian};

pub use facts::{Future, FutureState, Memory, PollFunction, TaskHeader, TaskRuntime};
use index::Index;
use shapes::Shapes;

/// The content of a section.
type Content = EndianArcSlice<LittleEndian>;

/// The futures that debug information describes.
#[derive(Debug)]
pub struct Futures {
    shapes: Shapes<Content>,
    index: Index,
}

impl Futures {
    /// Reads all units.
    pub(crate) fn read(dwarf: Arc<Dwarf<Content>>) -> Self {
        let shapes = Shapes::new(dwarf);
        let index = Index::read(&shapes);
        Self { shapes, index }
    }

    /// Returns the functions that poll tasks, by address.
    #[must_use]
    pub fn polls(&self) -> &[PollFunction] {
        &self.index.polls
    }

    /// Returns the function that begins at an address of the file, if it polls tasks.
    #[must_use]
    pub fn poll(&self, address: u64) -> Option<&PollFunction> {
        let polls = self.polls();
        let at = polls.binary_search_by_key(&address, |poll| poll.address);
        polls.get(at.ok()?)
    }

    /// Returns the future of the task at an address of a program, which this function polls.
    /// `bias` is the distance from an address of the file to that in the program. Returns `None` if
    /// debug information does not describe it, if its memory cannot be read, or if the task has no
    /// future any more.
    #[must_use]
    pub fn tree(
        &self,
        poll: &PollFunction,
        task: u64,
        bias: u64,
        memory: &impl Memory,
    ) -> Option<Future> {
        tree::Walk::new(&self.shapes, &self.index, bias, memory).task(poll, task)
    }
}
