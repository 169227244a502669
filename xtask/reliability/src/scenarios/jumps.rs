//! Control that leaves functions without a return, and stacks that are not the thread's own.

use crate::scenario::Group;

pub(super) const GROUP: Group = Group {
    name: "jumps",
    about: "longjmp, contexts, coroutines, alternate signal stacks",
    scenarios: &[],
};
