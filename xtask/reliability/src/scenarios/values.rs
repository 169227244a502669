//! Arguments and results.

use crate::scenario::Group;

pub(super) const GROUP: Group = Group {
    name: "values",
    about: "arguments, results and the state of the processor",
    scenarios: &[],
};
