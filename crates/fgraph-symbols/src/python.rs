//! The stacks of Python's functions, from the memory of a process that runs CPython.
//!
//! CPython keeps a list of its threads, and for each thread the frames of the functions that run.
//! Nothing is stopped while they are read, so a frame may end meanwhile. Each stack is read until
//! two readings agree. If they never do, the frames that both readings have are returned.
//!
//! From 3.13 on the interpreter itself tells where its fields are; for 3.9 to 3.12 they are known.

mod coroutines;
mod frame;
mod layout;
mod lines;
mod memory;
mod threads;

pub use coroutines::{Awaited, Coroutine, CoroutineTypes, coroutine_type_offset, coroutines};
pub use frame::PythonFrame;
pub use memory::{PythonError, Read};
pub use threads::{PythonThread, threads};

#[cfg(test)]
mod tests;
