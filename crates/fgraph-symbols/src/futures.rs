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

mod index;
mod shapes;
#[cfg(test)]
mod tests;
mod tree;

use std::sync::Arc;

use gimli::Dwarf;

use index::Index;
use shapes::Shapes;

use crate::lines::Content;

/// The memory of a program.
pub trait Memory {
    /// Fills `into` with the bytes from an address on; `None` if they cannot be read.
    fn read(&self, address: u64, into: &mut [u8]) -> Option<()>;

    /// Returns the name of the function at an address, if it has a symbol.
    fn function(&self, address: u64) -> Option<String>;
}

/// The condition of a future.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FutureState {
    /// It was never polled.
    New,
    /// It is suspended.
    Waits,
    /// It has returned, or it has panicked.
    Ended,
    /// Debug information does not tell: it is not the future of async code.
    Unknown,
}

/// A future in memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Future {
    /// Its async function, otherwise its type.
    pub name: String,
    /// The condition.
    pub state: FutureState,
    /// The source file and the line of the await at which it waits.
    pub place: Option<(String, u32)>,
    /// Address of the task for whose end it waits.
    pub task: Option<u64>,
    /// The futures for which it waits.
    pub children: Vec<Self>,
    /// True if it has children that are not here, because there are too many.
    pub is_cut: bool,
}

/// The runtime of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskRuntime {
    /// Crate `tokio`.
    Tokio,
    /// Crate `async-task`.
    AsyncTask,
}

/// A function that polls the tasks with one type of future.
#[derive(Clone, Debug)]
pub struct PollFunction {
    /// Address in the file.
    pub address: u64,
    /// The runtime.
    pub runtime: TaskRuntime,
    /// The type of the future as programmers know it.
    pub name: String,
    /// The parts of a task; `None` if debug information does not describe them.
    pub header: Option<TaskHeader>,
    future: Place,
}

/// The offsets of a task's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskHeader {
    /// Of the word with the address of its table of functions.
    pub table: u64,
    /// Of the word with its state.
    pub state: u64,
    /// Of the word with the number of the runtime that owns it, if there is one.
    pub owner: Option<u64>,
    /// Of the address of the function that polls it, in the table of functions.
    pub poll: u64,
}

/// The place of the future in a task.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// In a value of this type at this offset.
    At { ty: usize, offset: u64 },
    /// A value of this type at an offset, which is in memory: the table of functions has at
    /// `table` the address of a structure with the offset at `member`.
    Told { ty: usize, table: u64, member: u64 },
    /// Unknown.
    Nowhere,
}

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
