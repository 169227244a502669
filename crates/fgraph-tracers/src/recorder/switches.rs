//! Functions that a recorder stops recording, and functions that it records again.

use serde::{Deserialize, Serialize};

/// Function of a process: its index among the recorded functions, and its start address.
///
/// It is exhaustive, since callers write it as a literal: a new field breaks them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionPlace {
    /// Index of the function in events.
    pub index: u32,
    /// Start address of the function.
    pub address: u64,
}

/// Functions that are switched off, and functions that are switched on.
///
/// It is exhaustive, since callers write it as a literal: a new field breaks them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Switches {
    /// Functions that are no longer recorded.
    pub off: Vec<FunctionPlace>,
    /// Functions that are recorded again.
    pub on: Vec<FunctionPlace>,
}
