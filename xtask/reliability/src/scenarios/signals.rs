//! Signals at any time.

use crate::scenario::Group;

pub(super) const GROUP: Group = Group {
    name: "signals",
    about: "signals at every instruction",
    scenarios: &[],
};
