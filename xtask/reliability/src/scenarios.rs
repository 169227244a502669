//! All scenarios, by group.

/// Makes a [`Group`] of its name, its subject, and its scenarios. Each of these has a name and a
/// promise, and is shown by a program, with the fields in which it differs from another one, or by
/// tests of other packages, by their files.
macro_rules! group {
    ($group:literal, $about:literal;
     $($name:literal, $promise:expr, $shown:ident { $($by:tt)* };)*) => {
        $crate::scenario::Group {
            name: $group,
            about: $about,
            scenarios: &[$($crate::scenario::Scenario {
                name: $name,
                promise: $promise,
                shown: shown!($shown { $($by)* }),
            }),*],
        }
    };
}

/// Makes the [`Shown`](crate::scenario::Shown) of a scenario in a [`group!`].
macro_rules! shown {
    (tests { $($file:tt: [$($test:literal),* $(,)?]),* $(,)? }) => {
        $crate::scenario::Shown::Elsewhere(&[
            $($($crate::scenario::Elsewhere { file: $file, test: $test }),*),*
        ])
    };
    ($base:ident { $($field:ident: $value:expr),* $(,)? }) => {
        $crate::scenario::Shown::By($crate::scenario::Hostile { $($field: $value,)* ..$base })
    };
}

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
