//! Threads that come and go.

use crate::scenario::Group;

pub(super) const GROUP: Group = Group {
    name: "threads",
    about: "threads that come and go, thread-local destructors, exit handlers",
    scenarios: &[],
};
