//! What is more than there is room for.

use crate::scenario::Group;

pub(super) const GROUP: Group = Group {
    name: "limits",
    about: "deep recursion, callbacks that do anything, no memory",
    scenarios: &[],
};
