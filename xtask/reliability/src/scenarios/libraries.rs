//! Libraries that come and go.

use crate::scenario::Group;

pub(super) const GROUP: Group = Group {
    name: "libraries",
    about: "libraries that come and go, lazy binding",
    scenarios: &[],
};
