//! Tools that look at the same program.

use crate::scenario::Group;

pub(super) const GROUP: Group = Group {
    name: "tools",
    about: "debuggers, profilers, sanitizers, seccomp",
    scenarios: &[],
};
