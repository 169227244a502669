//! What the record of a run must say.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use crate::build::Sites;
use crate::record::Count;
use crate::scenario::Hostile;

/// What must never happen.
const NEVER: [Count; 8] = [
    Count::Mismatched,
    Count::Disordered,
    Count::Late,
    Count::Unreserved,
    Count::Unattached,
    Count::Stopped,
    Count::Inactive,
    Count::Unrestored,
];

/// What has been counted in a run.
#[derive(Debug)]
pub(crate) struct Counts(Vec<u64>);

impl Counts {
    /// Bytes of the file.
    pub(crate) const BYTES: usize = size_of::<u64>() * Count::ALL.len();

    /// Reads the file of a run that is done.
    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        let bytes = fs::read(path)?;
        let words = bytes.chunks_exact(size_of::<u64>());
        let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
        Ok(Self(words.map(word).collect()))
    }

    fn get(&self, count: Count) -> u64 {
        self.0.get(count as usize).copied().unwrap_or(0)
    }

    /// All that is not zero.
    fn all(&self) -> String {
        let mut text = String::new();
        for &count in Count::ALL {
            if self.get(count) != 0 {
                let _ = write!(text, "\n    {}: {}", count.label(), self.get(count));
            }
        }
        text
    }

    /// What is not as `program` expects, when its functions were traced for `users` users.
    pub(crate) fn fault(&self, program: &Hostile, sites: Sites, users: u64) -> Option<String> {
        let get = |count| self.get(count);
        let mut wrong = self.never();
        match sites {
            // What the compiler links to the program has none.
            Sites::Nops if get(Count::Nops) == 0 => wrong.push("no function has a NOP".to_owned()),
            Sites::Relocated if get(Count::Nops) != 0 || get(Count::Relocated) == 0 => {
                wrong.push("not all functions are relocated".to_owned());
            }
            _ => (),
        }
        if get(Count::Entries) == 0 {
            wrong.push("nothing is traced".to_owned());
        }
        if program.toggled.is_some() && get(Count::Toggles) == 0 {
            wrong.push("no filter has changed".to_owned());
        }
        let unfinished = get(Count::Processes) - get(Count::Finished);
        let (entered, skipped) = (
            get(Count::Entries) + get(Count::Inherited),
            get(Count::Skipped),
        );
        let ended = get(Count::Returns) + skipped + get(Count::Live);
        let unreturned = entered.checked_sub(ended).unwrap_or_else(|| {
            wrong.push("there are more returns than entries".to_owned());
            0
        });
        // The second of many keeps nothing, and is counted apart.
        let each = users.saturating_sub(1).max(1);
        for (what, expected, count, of) in [
            ("unfinished", program.unfinished, unfinished, 1),
            ("skipped", program.skipped, skipped, each),
            ("unreturned", program.unreturned, unreturned, each),
            ("unwound", program.unwound, get(Count::Unwound), each),
            ("foreign", program.foreign, get(Count::Foreign), 1),
            ("overrun", program.overrun, get(Count::Overrun), 1),
        ] {
            if !expected.is_met(count, of) {
                wrong.push(format!("{what}: {count}, expected {expected:?} times {of}"));
            }
        }
        if unfinished + unreturned + get(Count::Live) + get(Count::Inherited) == 0 {
            if program.in_order && skipped != get(Count::Lost) {
                wrong.push("not all that is skipped is lost, or the other way around".to_owned());
            }
            let empty = get(Count::EmptyEntries) - get(Count::EmptyReturns);
            if users > 1 && empty != skipped / each {
                wrong.push("the user without data misses returns".to_owned());
            }
        }
        self.report(wrong)
    }

    /// The same for a run with everything traced, where the C library's own jumps leave calls, too.
    pub(crate) fn fault_of_everything(&self) -> Option<String> {
        let mut wrong = self.never();
        if self.get(Count::Entries) == 0 {
            wrong.push("nothing is traced".to_owned());
        }
        self.report(wrong)
    }

    fn never(&self) -> Vec<String> {
        let is_wrong = |count: &&Count| self.get(**count) != 0;
        let name = |count: &Count| format!("{}: {}", count.label(), self.get(*count));
        NEVER.iter().filter(is_wrong).map(name).collect()
    }

    fn report(&self, wrong: Vec<String>) -> Option<String> {
        (!wrong.is_empty()).then(|| format!("{}\n  counted:{}", wrong.join("\n  "), self.all()))
    }
}
