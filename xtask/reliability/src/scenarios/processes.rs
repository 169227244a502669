//! New processes.

use crate::scenario::Group;

pub(super) const GROUP: Group = Group {
    name: "processes",
    about: "fork, vfork, exec, posix_spawn, _exit",
    scenarios: &[],
};
