//! Options of `cargo fgraph diff`.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use super::option::{short_value, value_of};
use crate::error::Error;

/// Output of `cargo fgraph diff --help`.
pub(crate) const HELP: &str = "\
Show which calls and times have changed since a commit

Usage: cargo fgraph diff [OPTIONS] BASE [run|test|bench] [ARGS OF CARGO]

Builds two versions of what cargo would run: that of the commit BASE, in a git worktree that is
removed at the end, and that of the files as they are now. Records both in turns, and shows
`fgraph diff` of the recordings for each program. `run` runs both versions in this directory, with
an empty input. A program must end by itself, with exit code 0.

Options:
      --runs N              Record each version N times; times are compared from 3 on. Default: 5
  -F, --filter GLOB         Show only functions with these names. May be given several times
  -n, --lines N             The most lines to show for each program. Default: 40
      --all                 Show functions without a certain change, too
      --fail-on CONDITION   Exit with 3 if this holds for a function: `calls(malloc) > +0%`,
                            `self > +5%`, `total(handle) > +1ms`. May be given several times
      --markdown            Print tables for a pull request
      --json                Print one JSON object for each program
      --html FILE           Write a flame graph; with several programs, a file for each, named
                            after it
      --deps                Watch all functions of the program
      --with OPTION         An option of `fgraph record`, such as --with=--libs
      --select GLOB         Prepare only these functions, as for `build`
      --target-dir DIR      Build in a subdirectory of DIR, and put the worktree there
  -h, --help                Print this

For cargo's own -F and --all write --features and --workspace. The second comparison with the same
commit is quick: its build is kept in target/fgraph/diff, beside the recordings of the last
comparison.

Examples:
  cargo fgraph diff main --release -- input.txt
  cargo fgraph diff origin/main --fail-on 'self > +5%' --markdown bench --bench parse
";

/// Options for `fgraph diff` without a value.
const FLAGS: [&str; 3] = ["--markdown", "--json", "--all"];

/// Options for `fgraph diff` with a value, and their short forms.
const WITH_VALUE: [(&str, &str); 3] = [("--filter", "-F"), ("--lines", "-n"), ("--fail-on", "")];

/// A comparison with a commit.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Comparison {
    /// The commit, in any of git's notations.
    pub(crate) base: OsString,
    /// The number of recordings of each version.
    pub(crate) runs: u32,
    /// Options for `fgraph diff`, without the page.
    pub(crate) options: Vec<OsString>,
    /// Place of the page.
    pub(crate) html: Option<PathBuf>,
    /// The output is an object for each program.
    pub(crate) is_json: bool,
    /// The output is a table for each program.
    pub(crate) is_markdown: bool,
}

impl Default for Comparison {
    fn default() -> Self {
        Self {
            base: OsString::new(),
            runs: 5,
            options: Vec::new(),
            html: None,
            is_json: false,
            is_markdown: false,
        }
    }
}

impl Comparison {
    /// Takes an argument and its value, and returns true if it is one of these options.
    pub(super) fn takes(
        &mut self,
        arg: &OsStr,
        rest: &mut impl Iterator<Item = OsString>,
    ) -> Result<bool, Error> {
        if let Some(flag) = FLAGS.into_iter().find(|flag| arg == *flag) {
            self.is_json |= flag == "--json";
            self.is_markdown |= flag == "--markdown";
            self.options.push(flag.into());
            return Ok(true);
        }
        if let Some(text) = value_of("--runs", arg, rest)? {
            let number = text.to_str().and_then(|text| text.parse().ok());
            let runs = number.filter(|&runs| runs > 0);
            self.runs = runs.ok_or_else(|| Error::Runs(text.to_string_lossy().into()))?;
            return Ok(true);
        }
        if let Some(path) = value_of("--html", arg, rest)? {
            self.html = Some(path.into());
            return Ok(true);
        }
        for (long, short) in WITH_VALUE {
            let value = match value_of(long, arg, rest)? {
                None if !short.is_empty() => short_value(short, arg, rest)?,
                value => value,
            };
            if let Some(value) = value {
                let name = if short.is_empty() { long } else { short };
                self.options.extend([name.into(), value]);
                return Ok(true);
            }
        }
        Ok(false)
    }
}
