//! Result of a run of the victim, for people and for programs.

use std::fmt;

use fgraph_chores::end::End;
use fgraph_chores::figures::grouped;
use serde_json::{Map, Value};

/// The figures that are also given per second, and under which name.
const RATES: [(&str, &str); 2] = [
    ("site_patches", "site_patches_per_second"),
    ("calls", "calls_per_second"),
];

/// The name under which the victim counts its failures.
const FAILURES: &str = "failures";

/// Result of a run.
#[derive(Debug)]
pub(crate) struct Report {
    settings: Vec<(String, u64)>,
    figures: Vec<(String, u64)>,
    failures: u64,
    /// Fault in the way in which the victim ended, if any.
    crash: Option<String>,
}

impl Report {
    /// Puts together what was asked for, what the victim has printed, and how it ended.
    pub(crate) fn new(settings: &[(&str, u64)], output: &str, end: End) -> Self {
        let mut figures: Vec<(String, u64)> = output
            .lines()
            .filter_map(|line| {
                let (name, value) = line.split_once(' ')?;
                Some((name.to_owned(), value.parse().ok()?))
            })
            .collect();
        let find = |figures: &[(String, u64)], wanted: &str| {
            let found = figures.iter().find(|(name, _)| name == wanted);
            found.map(|&(_, value)| value)
        };
        let counted = find(&figures, FAILURES);
        // With an exit code of its own it has told its failures, if it has told anything.
        let crash = match (end, counted) {
            (End::Exited(0), Some(0)) => None,
            (End::Exited(1), Some(1..)) => None,
            (end, _) => Some(end.to_string()),
        };
        figures.retain(|(name, _)| name != FAILURES);
        if let Some(elapsed @ 1..) = find(&figures, "elapsed_ms") {
            for (name, rate) in RATES {
                if let Some(at) = figures.iter().position(|(figure, _)| figure == name) {
                    let value = figures[at].1.saturating_mul(1000) / elapsed;
                    figures.insert(at + 1, (rate.to_owned(), value));
                }
            }
        }
        Self {
            settings: settings
                .iter()
                .map(|&(name, value)| (name.to_owned(), value))
                .collect(),
            figures,
            failures: counted.unwrap_or(0) + u64::from(crash.is_some()),
            crash,
        }
    }

    /// Returns true if nothing has failed.
    pub(crate) fn is_good(&self) -> bool {
        self.failures == 0
    }

    /// Returns the report as one JSON object. A crash is `null`, or a sentence about it.
    pub(crate) fn json(&self) -> Value {
        let figures = self.settings.iter().chain(&self.figures);
        let mut object: Map<_, _> = figures
            .map(|(name, value)| (name.clone(), Value::from(*value)))
            .collect();
        object.insert(FAILURES.to_owned(), self.failures.into());
        object.insert("crash".to_owned(), self.crash.clone().into());
        object.into()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in self.settings.iter().chain(&self.figures) {
            writeln!(f, "{:<24} {:>14}", name.replace('_', " "), grouped(*value))?;
        }
        writeln!(f, "{FAILURES:<24} {:>14}", grouped(self.failures))?;
        if let Some(crash) = &self.crash {
            writeln!(f, "FAILED: the victim {crash}")?;
        } else if !self.is_good() {
            writeln!(f, "FAILED: see above for the first failures")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SETTINGS: [(&str, u64); 1] = [("seed", 7)];

    #[test]
    fn a_good_run_has_its_rates() {
        let output = "elapsed_ms 2000\ncalls 4000\nfailures 0\n";
        let report = Report::new(&SETTINGS, output, End::Exited(0));
        assert!(report.is_good());
        assert_eq!(
            report.json(),
            serde_json::json!({
                "seed": 7, "elapsed_ms": 2000, "calls": 4000, "calls_per_second": 2000,
                "failures": 0, "crash": null,
            })
        );
    }

    #[test]
    fn whatever_goes_wrong_is_a_failure() {
        for (output, end) in [
            ("failures 3\n", End::Exited(1)),
            ("failures 0\n", End::Exited(1)),
            ("", End::Exited(0)),
            ("", End::Exited(2)),
            ("failures 0\n", End::Killed(11)),
            ("", End::Hung(Duration::from_secs(1))),
        ] {
            assert!(!Report::new(&SETTINGS, output, end).is_good(), "{end:?}");
        }
        let report = Report::new(&SETTINGS, "", End::Killed(11));
        assert_eq!(report.json()["crash"], "is killed by signal 11 (SIGSEGV)");
    }
}
