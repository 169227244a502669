//! All scenarios, by group.

mod jumps;
mod libraries;
mod limits;
mod processes;
mod signals;
mod soak;
mod threads;
mod tools;
mod unwinding;
mod values;

use crate::scenario::Group;

/// All groups, in the order of the documentation.
pub const GROUPS: [&Group; 10] = [
    &unwinding::GROUP,
    &jumps::GROUP,
    &signals::GROUP,
    &processes::GROUP,
    &threads::GROUP,
    &values::GROUP,
    &libraries::GROUP,
    &limits::GROUP,
    &tools::GROUP,
    &soak::GROUP,
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn tests_can_be_told_apart() {
        for group in GROUPS {
            let mut names = HashSet::new();
            for scenario in group.scenarios {
                assert!(names.insert(scenario.test()), "{}", scenario.name);
            }
        }
    }

    #[test]
    fn promises_are_sentences() {
        for scenario in GROUPS.iter().flat_map(|group| group.scenarios) {
            assert!(scenario.promise.ends_with('.'), "{}", scenario.promise);
            assert!(!scenario.name.ends_with('.'), "{}", scenario.name);
        }
    }
}
