//! Compares a run with a failing call with the plain runs, in which no call fails.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::files::{Change, Contents, FileChange, differences};
use super::job::{Exit, Outcome};

/// The longest message of a program that is kept.
const MESSAGE: usize = 200;

/// The program's answer to a failing call.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum, Serialize, Deserialize,
)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(super) enum Verdict {
    /// A signal ended it.
    Crashed,
    /// It did not end in time, or wrote without end.
    Hung,
    /// It left different files, and reported nothing.
    Files,
    /// It wrote different output, and reported nothing.
    Output,
    /// It did the same as without the failure.
    Ignored,
    /// It exited with another code, or wrote a message to standard error.
    Reported,
    /// It did not make the call.
    NotReached,
}

impl Verdict {
    /// All verdicts, in the order in which they are shown.
    pub(super) const ALL: [Self; 7] = [
        Self::Crashed,
        Self::Hung,
        Self::Files,
        Self::Output,
        Self::Ignored,
        Self::Reported,
        Self::NotReached,
    ];

    /// Returns the words for it.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Crashed => "crashed",
            Self::Hung => "hung",
            Self::Files => "left different files",
            Self::Output => "wrote different output",
            Self::Ignored => "ignored",
            Self::Reported => "reported",
            Self::NotReached => "not reached",
        }
    }
}

/// A run of the program.
#[derive(Clone, Debug)]
pub(super) struct Ran {
    pub(super) outcome: Outcome,
    pub(super) out: Vec<u8>,
    pub(super) err: Vec<u8>,
    /// The files that it left, if it ran in a copy of a directory.
    pub(super) files: Option<Contents>,
}

/// The behaviour of the program when no call fails.
#[derive(Debug)]
pub(super) struct Plain {
    first: Ran,
    exit_varies: bool,
    output_varies: bool,
    /// Lines of messages, with all numbers alike.
    messages: HashSet<String>,
    messages_vary: bool,
    /// Files whose contents differ between the plain runs.
    varying: BTreeSet<PathBuf>,
    /// Files that only one of the plain runs has.
    unsteady: BTreeSet<PathBuf>,
    /// Directories in which the plain runs have files with different names.
    varying_names: BTreeSet<PathBuf>,
}

/// The comparison of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Compared {
    pub(super) verdict: Verdict,
    /// The first line on standard error that plain runs do not have.
    pub(super) message: Option<String>,
    pub(super) output_differs: bool,
    pub(super) files: Vec<FileChange>,
}

impl Plain {
    /// Compares two runs, to find what is different each time.
    pub(super) fn new(first: Ran, second: &Ran) -> Self {
        let [old, new] = [&first, second].map(|ran| messages(&ran.err));
        let none = Contents::new();
        let [files, others] = [&first, second].map(|ran| ran.files.as_ref().unwrap_or(&none));
        let differences = differences(files, others).into_iter();
        let (changed, others): (Vec<_>, Vec<_>) =
            differences.partition(|file| file.change == Change::Changed);
        let paths = |files: Vec<FileChange>| files.into_iter().map(|file| PathBuf::from(file.path));
        let unsteady: BTreeSet<PathBuf> = paths(others).collect();
        let parents = unsteady.iter().filter_map(|path| path.parent());
        let parents = parents.filter(|parent| !unsteady.contains(*parent));
        let varying_names: BTreeSet<PathBuf> = parents.map(Path::to_owned).collect();
        Self {
            exit_varies: first.outcome.exit != second.outcome.exit,
            output_varies: first.out != second.out,
            messages_vary: old != new,
            messages: old.union(&new).cloned().collect(),
            varying: paths(changed).collect(),
            unsteady,
            varying_names,
            first,
        }
    }

    pub(super) fn exit(&self) -> Exit {
        self.first.outcome.exit
    }

    /// Returns the comparisons that are not made, in words.
    pub(super) fn not_compared(&self) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        let facts = [
            (self.exit_varies, "the exit code"),
            (self.output_varies, "the output"),
            (self.messages_vary, "the messages on standard error"),
        ];
        for (_, what) in facts.iter().filter(|(varies, _)| *varies) {
            all.push((*what).to_owned());
        }
        all.extend(self.varying.iter().map(|file| file.display().to_string()));
        all.extend(self.varying_names.iter().map(|folder| {
            let folder = folder.join("");
            match folder.as_os_str().is_empty() {
                true => "names of files".to_owned(),
                false => format!("names of files in {}", folder.display()),
            }
        }));
        all
    }

    /// Compares a run in which a call was made to fail.
    pub(super) fn compare(&self, ran: &Ran) -> Compared {
        let message = String::from_utf8_lossy(&ran.err).into_owned();
        let is_new = |line: &&str| !self.messages.contains(&without_numbers(line));
        let mut lines = message.lines().filter(|line| !line.trim().is_empty());
        let message = lines.find(is_new).filter(|_| !self.messages_vary);
        let message = message.map(|line| line.chars().take(MESSAGE).collect());
        let output_differs = !self.output_varies && ran.out != self.first.out;
        let files = match (&self.first.files, &ran.files) {
            (Some(old), Some(new)) => {
                let is_same_each_time = |file: &FileChange| {
                    let path = Path::new(&file.path);
                    let is_in = |all: &BTreeSet<PathBuf>| all.iter().any(|it| path.starts_with(it));
                    let is_new_name = file.change == Change::Added && is_in(&self.varying_names);
                    !is_new_name && !is_in(&self.varying) && !is_in(&self.unsteady)
                };
                let all = differences(old, new).into_iter();
                all.filter(is_same_each_time).collect()
            }
            _ => Vec::new(),
        };
        let exit = ran.outcome.exit;
        let exits_otherwise = !self.exit_varies && exit != self.exit();
        let verdict = match exit {
            _ if ran.outcome.changed == 0 => Verdict::NotReached,
            Exit::TimedOut | Exit::TooMuch => Verdict::Hung,
            Exit::Signal(_) if exits_otherwise => Verdict::Crashed,
            _ if exits_otherwise || message.is_some() => Verdict::Reported,
            _ if !files.is_empty() => Verdict::Files,
            _ if output_differs => Verdict::Output,
            _ => Verdict::Ignored,
        };
        Compared {
            verdict,
            message,
            output_differs,
            files,
        }
    }
}

/// Returns the lines of messages, with all numbers alike.
fn messages(err: &[u8]) -> HashSet<String> {
    String::from_utf8_lossy(err)
        .lines()
        .map(without_numbers)
        .collect()
}

/// Replaces numbers, such as the ids of processes.
fn without_numbers(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    for character in line.chars() {
        match character {
            '0'..='9' if text.ends_with('#') => {}
            '0'..='9' => text.push('#'),
            other => text.push(other),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::files::Content;
    use super::*;

    fn ran(exit: Exit, out: &str, err: &str, files: &[(&str, u64)]) -> Ran {
        let content = |&(path, hash): &(&str, u64)| (path.into(), Content::File { len: 1, hash });
        Ran {
            outcome: Outcome {
                exit,
                time: Duration::ZERO,
                calls: Vec::new(),
                changed: 1,
                refused: Vec::new(),
                unmatched: Vec::new(),
            },
            out: out.into(),
            err: err.into(),
            files: Some(files.iter().map(content).collect()),
        }
    }

    #[test]
    fn a_run_is_compared_with_the_plain_ones() {
        let usual = ran(Exit::Code(0), "out", "pid 17\n", &[("a", 1)]);
        let plain = Plain::new(usual.clone(), &usual);
        assert!(plain.not_compared().is_empty());
        for (run, expected) in [
            (usual.clone(), Verdict::Ignored),
            (
                ran(Exit::Code(0), "out", "pid 9\n", &[("a", 1)]),
                Verdict::Ignored,
            ),
            (
                ran(Exit::Code(1), "out", "", &[("a", 2)]),
                Verdict::Reported,
            ),
            (
                ran(Exit::Code(0), "out", "no room\n", &[("a", 1)]),
                Verdict::Reported,
            ),
            (ran(Exit::Signal(11), "", "oh\n", &[]), Verdict::Crashed),
            (ran(Exit::TimedOut, "out", "", &[("a", 1)]), Verdict::Hung),
            (ran(Exit::TooMuch, "out", "", &[("a", 1)]), Verdict::Hung),
            (ran(Exit::Code(0), "", "", &[("a", 2)]), Verdict::Files),
            (ran(Exit::Code(0), "", "", &[("a", 1)]), Verdict::Output),
        ] {
            assert_eq!(plain.compare(&run).verdict, expected, "{run:?}");
        }
        let mut missed = ran(Exit::Code(1), "", "", &[]);
        missed.outcome.changed = 0;
        assert_eq!(plain.compare(&missed).verdict, Verdict::NotReached);
    }

    #[test]
    fn things_that_differ_each_time_are_not_compared() {
        let one = ran(Exit::Code(0), "1", "a\n", &[("a", 1), ("b", 1), ("d/1", 1)]);
        let other = ran(Exit::Code(2), "2", "b\n", &[("a", 2), ("b", 1), ("d/2", 1)]);
        let plain = Plain::new(one, &other);
        let expected = [
            "the exit code",
            "the output",
            "the messages on standard error",
            "a",
            "names of files in d/",
        ];
        assert_eq!(plain.not_compared(), expected);
        let same = ran(Exit::Code(3), "3", "c\n", &[("a", 3), ("b", 1), ("d/3", 1)]);
        assert_eq!(plain.compare(&same).verdict, Verdict::Ignored);
        let different = ran(Exit::Code(0), "1", "a\n", &[("a", 1), ("b", 2)]);
        assert_eq!(plain.compare(&different).verdict, Verdict::Files);
    }
}
