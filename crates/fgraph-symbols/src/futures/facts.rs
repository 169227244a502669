//! Futures, and the parts of tasks.

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
    pub(super) future: Place,
}

/// The offsets of a task's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskHeader {
    /// Offset of the word with the address of its table of functions.
    pub table: u64,
    /// Offset of the word with its state.
    pub state: u64,
    /// Offset of the word with the number of the runtime that owns it, if there is one.
    pub owner: Option<u64>,
    /// Offset of the address of the function that polls it, in the table of functions.
    pub poll: u64,
}

/// The place of the future in a task.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    /// In a value of this type at this offset.
    At { ty: usize, offset: u64 },
    /// A value of this type at an offset, which is in memory: the table of functions has at
    /// `table` the address of a structure with the offset at `member`.
    Told { ty: usize, table: u64, member: u64 },
    /// Unknown.
    Nowhere,
}
