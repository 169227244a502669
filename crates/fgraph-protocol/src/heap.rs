//! Recording of allocators.

use fgraph::{Filter, FilterError};
use fgraph_tracers::heap::Role;
use serde::{Deserialize, Serialize};

/// Allocators' functions besides the known ones.
///
/// It is exhaustive, since callers write it as a literal: a new field breaks them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeapFunctions {
    /// Words of a filter, and the argument with the size, of each further function that allocates.
    pub allocating: Vec<(String, u8)>,
    /// Words of a filter, and the argument with the address, of each further function that frees.
    pub freeing: Vec<(String, u8)>,
}

impl HeapFunctions {
    /// Returns the functions, each with its role.
    ///
    /// # Errors
    ///
    /// Says what is wrong with one of the words.
    pub fn allocators(&self) -> Result<Vec<(Filter, Role)>, FilterError> {
        let allocating = self
            .allocating
            .iter()
            .map(|it| (it, Role::allocating as fn(u8) -> Role));
        let freeing = self
            .freeing
            .iter()
            .map(|it| (it, Role::freeing as fn(u8) -> Role));
        let all = allocating.chain(freeing);
        all.map(|((words, argument), role)| Ok((words.parse()?, role(*argument))))
            .collect()
    }
}
