//! Expectations about the record of a run.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use crate::compiler::Sites;
use crate::record::Count;
use crate::scenario::{Expect, Hostile};

/// Counts that must be zero.
const NEVER: [Count; 6] = [
    Count::Mismatched,
    Count::Disordered,
    Count::Late,
    Count::Stopped,
    Count::Inactive,
    Count::Unrestored,
];

/// Counts that grow only if a program is short of memory.
const SHORT: [Count; 2] = [Count::Unreserved, Count::Unattached];

/// Counts of a run.
#[derive(Debug)]
pub(crate) struct Counts(Vec<u64>);

impl Counts {
    /// Bytes of the file.
    pub(crate) const BYTES: usize = size_of::<u64>() * Count::ALL.len();

    /// Reads the file of a finished run.
    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        let bytes = fs::read(path)?;
        let words = bytes.chunks_exact(size_of::<u64>());
        let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
        Ok(Self(words.map(word).collect()))
    }

    fn get(&self, count: Count) -> u64 {
        self.0.get(count as usize).copied().unwrap_or(0)
    }

    /// Lists all counts that are not zero.
    fn all(&self) -> String {
        let mut text = String::new();
        for &count in Count::ALL {
            if self.get(count) != 0 {
                let _ = write!(text, "\n    {}: {}", count.label(), self.get(count));
            }
        }
        text
    }

    /// Returns the deviation from `program`'s expectations, when its functions were traced for
    /// `users` users, and by `sites` if that is given.
    pub(crate) fn fault(
        &self,
        program: &Hostile,
        sites: Option<Sites>,
        users: u64,
    ) -> Option<String> {
        let get = |count| self.get(count);
        let mut wrong = self.any_of(&NEVER);
        match sites {
            // The code that the compiler links to the program has no NOPs.
            Some(Sites::Nops) if get(Count::Nops) == 0 => {
                wrong.push("no function has a NOP".to_owned())
            }
            Some(Sites::Relocated) if get(Count::Nops) != 0 || get(Count::Relocated) == 0 => {
                wrong.push("not all functions are relocated".to_owned());
            }
            _ => (),
        }
        if program.toggled.is_some() && get(Count::Toggles) == 0 {
            wrong.push("no filter has changed".to_owned());
        }
        // Processes that end without unregistering are counted only at their end.
        let mut less = |a: u64, b: u64, expected: Expect, what: &str| {
            if a < b && expected != Expect::Any {
                wrong.push(format!("there are more {what}"));
            }
            a.saturating_sub(b)
        };
        let unfinished = less(
            get(Count::Processes),
            get(Count::Finished),
            program.unfinished,
            "processes that end than begin",
        );
        let (entered, skipped) = (
            get(Count::Entries) + get(Count::Inherited),
            get(Count::Skipped),
        );
        let ended = get(Count::Returns) + skipped + get(Count::Live);
        let unreturned = less(entered, ended, program.unreturned, "returns than entries");
        // The second of many users keeps no data, and is counted apart.
        let each = users.saturating_sub(1).max(1);
        for (what, expected, count, of) in [
            ("unfinished", program.unfinished, unfinished, 1),
            ("entries", program.entries, get(Count::Entries), each),
            ("skipped", program.skipped, skipped, each),
            ("unreturned", program.unreturned, unreturned, each),
            ("unwound", program.unwound, get(Count::Unwound), each),
            (
                "no_shadow_stack",
                program.no_shadow_stack,
                get(Count::NoShadowStack),
                1,
            ),
            ("overrun", program.overrun, get(Count::Overrun), 1),
            ("unreserved", program.unreserved, get(Count::Unreserved), 1),
            ("unattached", program.unattached, get(Count::Unattached), 1),
        ] {
            if !expected.is_met(count, of) {
                wrong.push(format!("{what}: {count}, expected {expected:?} times {of}"));
            }
        }
        let open = unfinished + unreturned + get(Count::Live) + get(Count::Inherited);
        if open == 0 && program.unreturned != Expect::Any {
            let lost = get(Count::Lost) + program.entry_only * each;
            if program.in_order && skipped != lost {
                wrong.push("not all that is skipped is lost, or the other way around".to_owned());
            }
            let empty = get(Count::EmptyEntries) - get(Count::EmptyReturns);
            // A user without room for its data does not accept the call.
            if users > 1 && get(Count::Unreserved) == 0 && empty != skipped / each {
                wrong.push("the user without data misses returns".to_owned());
            }
        }
        self.report(wrong)
    }

    /// Same for a run with everything traced, in which the C library's own jumps also leave calls.
    pub(crate) fn fault_of_everything(&self) -> Option<String> {
        let mut wrong = self.any_of(&NEVER);
        wrong.extend(self.any_of(&SHORT));
        if self.get(Count::Entries) == 0 {
            wrong.push("nothing is traced".to_owned());
        }
        self.report(wrong)
    }

    /// Lists the given `counts` that are not zero.
    fn any_of(&self, counts: &[Count]) -> Vec<String> {
        let is_wrong = |count: &&Count| self.get(**count) != 0;
        let name = |count: &Count| format!("{}: {}", count.label(), self.get(*count));
        counts.iter().filter(is_wrong).map(name).collect()
    }

    fn report(&self, wrong: Vec<String>) -> Option<String> {
        (!wrong.is_empty()).then(|| format!("{}\n  counted:{}", wrong.join("\n  "), self.all()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Expect::{Any, Exactly};

    /// Returns the counts of a good run of 16 users, changed.
    fn counts(changes: &[(Count, u64)]) -> Counts {
        let mut words = vec![0; Count::ALL.len()];
        let good = [
            (Count::Processes, 1),
            (Count::Finished, 1),
            (Count::Relocated, 7),
            (Count::Entries, 150),
            (Count::Returns, 150),
            (Count::Unwound, 30),
            (Count::EmptyEntries, 10),
            (Count::EmptyReturns, 10),
        ];
        for (count, value) in good.iter().chain(changes) {
            words[*count as usize] = *value;
        }
        Counts(words)
    }

    const PROGRAM: Hostile = Hostile {
        unwound: Exactly(2),
        ..Hostile::DEFAULT
    };

    fn fault(program: &Hostile, changes: &[(Count, u64)]) -> Option<String> {
        counts(changes).fault(program, Some(Sites::Relocated), 16)
    }

    #[test]
    fn whatever_is_not_as_it_should_be_is_a_fault() {
        assert_eq!(fault(&PROGRAM, &[]), None);
        for change in [
            (Count::Entries, 151),
            (Count::Entries, 0),
            (Count::Returns, 151),
            (Count::Returns, 149),
            (Count::Unwound, 29),
            (Count::EmptyReturns, 9),
            (Count::Finished, 0),
            (Count::Relocated, 0),
            (Count::Nops, 1),
            (Count::Lost, 1),
            (Count::NoShadowStack, 1),
            (Count::Overrun, 1),
        ] {
            assert!(fault(&PROGRAM, &[change]).is_some(), "{change:?}");
        }
        for count in NEVER.into_iter().chain(SHORT) {
            assert!(fault(&PROGRAM, &[(count, 1)]).is_some(), "{count:?}");
            assert!(counts(&[(count, 1)]).fault_of_everything().is_some());
        }
    }

    #[test]
    fn calls_left_by_jumps_are_accounted_for() {
        let jumps = Hostile {
            skipped: Exactly(3),
            unwound: Any,
            ..Hostile::DEFAULT
        };
        let left = [
            (Count::Returns, 105),
            (Count::Skipped, 45),
            (Count::Lost, 45),
            (Count::EmptyReturns, 7),
        ];
        assert_eq!(fault(&jumps, &left), None);
        assert!(fault(&PROGRAM, &left).is_some());
        for (index, (count, value)) in left.into_iter().enumerate() {
            let mut wrong = left;
            wrong[index] = (count, value - 1);
            assert!(fault(&jumps, &wrong).is_some(), "{count:?}");
        }
    }

    #[test]
    fn calls_that_a_child_inherits_return_in_both_processes() {
        let forks = Hostile {
            unwound: Any,
            ..Hostile::DEFAULT
        };
        let forked = [
            (Count::Processes, 2),
            (Count::Finished, 2),
            (Count::Inherited, 30),
            (Count::Returns, 180),
        ];
        assert_eq!(fault(&forks, &forked), None);
        assert!(fault(&forks, &[(Count::Inherited, 30)]).is_some());
    }
}
