//! Values that are recorded of calls.

use fgraph::{Filter, FilterError};
use serde::{Deserialize, Serialize};

use crate::which::filter_of;

/// Selects the values that are recorded of each call.
///
/// It is exhaustive, since callers write it as a literal: a new field breaks them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallValues {
    /// Number of arguments that are recorded: 0 to 6.
    pub arguments: usize,
    /// Words of filters: only the arguments of these functions are recorded in words. Without any,
    /// those of all functions are.
    pub arguments_of: Vec<String>,
    /// True if results are recorded.
    pub result: bool,
    /// True if arguments and results are recorded by their types, where debug information has
    /// these.
    pub types: bool,
    /// With `types`, the arguments and results whose texts are recorded: see
    /// [`Options::texts`](fgraph_tracers::recorder::Options::texts).
    pub texts: Vec<String>,
    /// With `types`, values behind arguments that are recorded: see
    /// [`Options::paths`](fgraph_tracers::recorder::Options::paths).
    pub paths: Vec<String>,
    /// True if the return address of each call is recorded.
    pub callers: bool,
    /// True if the return addresses of the calls around each call are recorded: see
    /// [`Options::stack`](fgraph_tracers::recorder::Options::stack).
    pub stacks: bool,
}

impl CallValues {
    /// Returns the filter of `arguments_of`; `None` if it is empty.
    ///
    /// # Errors
    ///
    /// Says what is wrong with one of the words.
    pub fn arguments_of(&self) -> Result<Option<Filter>, FilterError> {
        filter_of(&self.arguments_of)
    }
}
