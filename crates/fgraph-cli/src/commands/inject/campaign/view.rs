//! The results of a campaign as text, JSON and JUnit's XML.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::compare::Verdict;
use super::files::{Change, FileChange};
use crate::error::Error;
use crate::output::{Out, Style};
use crate::text::{counted, cut, escaped, file_name, grouped, in_markup, named};

/// The most callers that are shown of a call.
const CALLERS: usize = 6;
/// The most files that are named in a line.
const FILES: usize = 3;

/// The view of a campaign in JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Campaign {
    pub(super) command: Vec<String>,
    /// The time after which a program is hung.
    pub(super) limit_ns: u64,
    /// The time of the longer plain run.
    pub(super) plain_ns: u64,
    /// Comparisons that are not made, because two plain runs differ there.
    pub(super) not_compared: Vec<String>,
    /// Called functions without a known error, which do not fail.
    pub(super) without_error: Vec<String>,
    /// Calls beyond --limit, which do not fail.
    pub(super) beyond_limit: u64,
    /// Calls that were not made to fail yet, because of an interrupt.
    pub(super) left: u64,
    /// The number of runs with each verdict.
    pub(super) verdicts: BTreeMap<Verdict, u64>,
    /// The runs, in the order in which the program makes the calls.
    pub(super) runs: Vec<Run>,
}

/// A run in which a call was made to fail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Run {
    pub(super) function: String,
    /// The path of the function's module.
    pub(super) module: String,
    /// The functions around the call, innermost first, each with its module.
    pub(super) callers: Vec<String>,
    /// The number of the call among those with the same callers, from 1.
    pub(super) nth: u64,
    /// A name of the call path that stays the same while the program does.
    pub(super) path: String,
    /// The result, and the error in `errno`.
    pub(super) error: String,
    pub(super) verdict: Verdict,
    /// Null if a signal ended the program.
    pub(super) exit_code: Option<i32>,
    pub(super) signal: Option<i32>,
    /// The number of calls that failed: one, and 0 if it was not reached.
    pub(super) changed: u64,
    /// The first new line on standard error.
    pub(super) message: Option<String>,
    pub(super) output_differs: bool,
    /// Files that differ from those of the plain run.
    pub(super) files: Vec<FileChange>,
    pub(super) duration_ns: u64,
}

impl Run {
    /// Returns the call: `fsync [libc.so.6] = -1/EIO`. Text from the program is in it unescaped.
    fn call(&self) -> String {
        let name = named(&self.function, file_name(&self.module));
        let nth = match self.nth {
            1 => String::new(),
            nth => format!(" call {nth}"),
        };
        format!("{name}{nth} = {}", self.error)
    }

    /// Returns the functions around the call, up to `main`. A module is named where it differs from
    /// the one before.
    fn around(&self) -> String {
        // Most programs have no names, but the C library has.
        let is_main = |caller: &String| caller.starts_with("main [");
        let is_outside = |caller: &String| caller.starts_with("__libc_start_");
        let mut callers = self.callers.iter();
        let last = callers.position(|caller| is_main(caller) || is_outside(caller));
        let last = last.map_or(self.callers.len(), |last| {
            last + usize::from(is_main(&self.callers[last]))
        });
        let mut text = String::new();
        let mut module = file_name(&self.module);
        for caller in self.callers[..last].iter().take(CALLERS) {
            let split = caller.strip_suffix(']').and_then(|it| it.rsplit_once(" ["));
            let shown = match split {
                Some((name, its)) if its == module => name,
                _ => caller,
            };
            module = split.map_or("", |(_, its)| its);
            // Writing to a string does not fail.
            _ = write!(text, " < {shown}");
        }
        if last > CALLERS {
            text += " < ...";
        }
        text.trim_start().to_owned()
    }

    /// Returns the facts behind the verdict.
    fn facts(&self) -> String {
        let mut facts: Vec<String> = Vec::new();
        match (self.verdict, self.exit_code, self.signal) {
            (Verdict::Crashed, _, Some(signal)) => facts.push(format!("signal {signal}")),
            (Verdict::Hung, ..) => facts.push("killed".to_owned()),
            (Verdict::Reported, Some(code), _) => facts.push(format!("exit code {code}")),
            _ => {}
        }
        facts.extend(self.message.clone());
        if !self.files.is_empty() {
            let names = self.files.iter().take(FILES).map(|file| {
                let change = match file.change {
                    Change::Added => "added",
                    Change::Missing => "missing",
                    Change::Changed => "changed",
                };
                format!("{} {change}", file.path)
            });
            facts.push(names.collect::<Vec<_>>().join(", "));
            if let Some(more) = self.files.len().checked_sub(FILES).filter(|&it| it > 0) {
                facts.push(format!("and {more} more files"));
            }
        }
        facts.join(", ")
    }
}

impl Campaign {
    /// Shows the runs with findings, or all.
    pub(super) fn show(&self, all: bool, lines: usize) -> Result<(), Error> {
        let mut out = Out::new();
        let is_shown =
            |run: &&Run| all || !matches!(run.verdict, Verdict::Reported | Verdict::NotReached);
        let mut runs: Vec<&Run> = self.runs.iter().filter(is_shown).collect();
        runs.sort_by_key(|run| run.verdict);
        let width = runs.iter().map(|run| run.verdict.words().len()).max();
        let width = width.unwrap_or(0);
        let room = out.width.unwrap_or(usize::MAX);
        for run in runs.iter().take(lines) {
            let words = format!("{:width$}", run.verdict.words());
            let call = escaped(&run.call()).into_owned();
            let call = cut(&call, room.saturating_sub(width + 2));
            out.line(format_args!("{}  {call}", Style::Bold.paint(words)))?;
            for text in [run.around(), run.facts()] {
                if !text.is_empty() {
                    let text = escaped(&text).into_owned();
                    let text = cut(&text, room.saturating_sub(width + 4));
                    out.line(format_args!("{:width$}    {text}", ""))?;
                }
            }
        }
        if let Some(more) = runs.len().checked_sub(lines).filter(|&more| more > 0) {
            out.line(format_args!("and {} more: -n", grouped(more as u64)))?;
        }
        if !runs.is_empty() {
            out.line("")?;
        }
        out.line(self.summary())?;
        out.finish()
    }

    /// Returns the numbers of the verdicts.
    fn summary(&self) -> String {
        let counts = self.verdicts.iter();
        let counts =
            counts.map(|(verdict, count)| format!("{} {}", grouped(*count), verdict.words()));
        let counts: Vec<String> = counts.collect();
        let of = match counts.is_empty() {
            true => String::new(),
            false => format!(": {}", counts.join(", ")),
        };
        format!("{}{of}", counted(self.runs.len() as u64, "run"))
    }

    /// Returns the runs as JUnit's XML. A run whose verdict is in `failures` is a failure.
    pub(super) fn junit(&self, failures: &[Verdict]) -> String {
        let is_failure = |run: &&Run| failures.contains(&run.verdict);
        let failed = self.runs.iter().filter(is_failure).count();
        let is_skipped = |run: &&Run| run.verdict == Verdict::NotReached;
        let skipped = self.runs.iter().filter(is_skipped).count();
        let seconds = |ns: u64| format!("{:.3}", ns as f64 / 1e9);
        let whole = self.runs.iter().map(|run| run.duration_ns).sum();
        let mut text = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"{}\" tests=\"{}\" \
             failures=\"{failed}\" errors=\"0\" skipped=\"{skipped}\" time=\"{}\">\n",
            in_markup(&format!(
                "fgraph inject --campaign -- {}",
                self.command.join(" ")
            )),
            self.runs.len(),
            seconds(whole),
        );
        for run in &self.runs {
            let around = run.around();
            let name = format!("{} {around}", run.call());
            // Writing to a string does not fail.
            _ = write!(
                text,
                "  <testcase classname=\"{}\" name=\"{}\" time=\"{}\"",
                in_markup(&run.function),
                in_markup(name.trim_end()),
                seconds(run.duration_ns)
            );
            let (words, facts) = (run.verdict.words(), in_markup(&run.facts()));
            _ = match run.verdict {
                verdict if failures.contains(&verdict) => writeln!(
                    text,
                    ">\n    <failure type=\"{words}\" message=\"{words}\">{facts}</failure>\n  \
                     </testcase>"
                ),
                Verdict::NotReached => writeln!(text, ">\n    <skipped/>\n  </testcase>"),
                _ => writeln!(text, "/>"),
            };
        }
        text + "</testsuite>\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_docs_have_the_schema() {
        crate::json::check_schema::<Campaign>("inject");
    }
}
