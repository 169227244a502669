//! Memory of a process.

use std::cell::Cell;
use std::error;
use std::fmt;

/// The most reads of memory: lists in damaged memory may have no end.
const MOST_READS: u32 = if cfg!(test) { 100_000 } else { 10_000_000 };

/// Reads memory of the process: fills the bytes from an address on. Returns `None` if they cannot
/// be read.
pub type Read<'r> = dyn Fn(u64, &mut [u8]) -> Option<()> + 'r;

/// Reason why an interpreter cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PythonError {
    /// The fields of this minor version of Python 3 are not known.
    Unknown(u8),
    /// The memory at this address cannot be read.
    Unreadable(u64),
    /// The memory at this address is not that of an interpreter's state.
    NoInterpreter(u64),
}

impl fmt::Display for PythonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(minor) => write!(f, "the stacks of Python 3.{minor} cannot be read"),
            Self::Unreadable(at) => write!(f, "the memory at {at:#x} cannot be read"),
            Self::NoInterpreter(at) => write!(f, "there is no state of an interpreter at {at:#x}"),
        }
    }
}

impl error::Error for PythonError {}

/// Memory of the process.
#[derive(Clone, Copy)]
pub(super) struct Memory<'r> {
    read: &'r Read<'r>,
    /// Number of reads until there were too many.
    left: &'r Cell<u32>,
}

/// Returns the number of reads that are left at first.
pub(super) fn reads() -> Cell<u32> {
    Cell::new(MOST_READS)
}

impl<'r> Memory<'r> {
    pub(super) fn new(read: &'r Read<'r>, left: &'r Cell<u32>) -> Self {
        Self { read, left }
    }

    pub(super) fn array<const N: usize>(self, address: u64) -> Result<[u8; N], PythonError> {
        let mut bytes = [0; N];
        self.fill(address, &mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn fill(self, address: u64, into: &mut [u8]) -> Result<(), PythonError> {
        let unreadable = PythonError::Unreadable(address);
        self.left
            .set(self.left.get().checked_sub(1).ok_or(unreadable)?);
        (self.read)(address, into).ok_or(unreadable)
    }

    pub(super) fn word(self, address: u64) -> Result<u64, PythonError> {
        self.array(address).map(u64::from_le_bytes)
    }

    pub(super) fn half(self, address: u64) -> Result<u32, PythonError> {
        self.array(address).map(u32::from_le_bytes)
    }
}
