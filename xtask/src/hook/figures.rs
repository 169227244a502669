//! Results of the jobs.

// Long strings: rows of tables.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

use crate::process::Counted;
use crate::report::grouped;

/// Result of a job.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) name: &'static str,
    /// Hooking should take no longer.
    pub(crate) limit: Duration,
    /// Time that it takes untraced.
    pub(crate) untraced: Duration,
    /// Time that it takes traced.
    pub(crate) traced: Duration,
    /// Difference to the untraced run, if any.
    pub(crate) wrong: Option<String>,
    /// Counts of the library, one object; none if it did not come to that.
    pub(crate) counted: Counted,
}

/// Counters that must be zero.
const ZERO: [&str; 6] = [
    "overrun",
    "unreserved",
    "lost",
    "unattached",
    "patched",
    "stopped",
];

impl Figures {
    fn number(&self, name: &str) -> Option<u64> {
        self.counted.sum(name)
    }

    /// Returns the fault, if there is one.
    fn fault(&self) -> Option<String> {
        if let Some(wrong) = &self.wrong {
            return Some(wrong.clone());
        }
        if self.counted.0.is_empty() {
            return Some("nothing was counted".to_owned());
        }
        let (entries, returns) = (self.number("entries"), self.number("returns"));
        if self.number("traced").unwrap_or(0) == 0 || entries.unwrap_or(0) == 0 {
            return Some("nothing was traced".to_owned());
        }
        if returns > entries {
            return Some("more returns than entries".to_owned());
        }
        let stray = ZERO.iter().find(|name| self.number(name) != Some(0));
        stray.map(|name| format!("{name} is not 0"))
    }

    /// Returns true if there is no fault.
    pub(crate) fn is_good(&self) -> bool {
        self.fault().is_none()
    }

    /// One JSON object.
    pub(crate) fn json(&self) -> Value {
        json!({
            "name": self.name,
            "limit_ms": self.limit.as_millis() as u64,
            "untraced_ms": self.untraced.as_millis() as u64,
            "traced_ms": self.traced.as_millis() as u64,
            "counted": self.counted.0.first(),
            "fault": self.fault(),
        })
    }
}

/// All figures for people.
pub(crate) fn table(all: &[Figures]) -> String {
    let mut text = String::from(
        "program           traced  refused   hook ms   cpu ms  limit     entries     returns  missed  lost no stack  run ms  untraced\n",
    );
    for figures in all {
        let number = |name| figures.number(name).unwrap_or(0);
        let ms = |name| number(name) as f64 / 1e3;
        let took = Duration::from_micros(number("register_us"));
        writeln!(
            text,
            "{:<16}{:>8}{:>9}{:>10.1}{:>9.1}  {:<5}{:>12}{:>12}{:>8}{:>6}{:>9}{:>8}{:>10}",
            figures.name,
            grouped(number("traced")),
            grouped(number("refused")),
            ms("register_us"),
            ms("register_cpu_us"),
            if took <= figures.limit { "ok" } else { "OVER" },
            grouped(number("entries")),
            grouped(number("returns")),
            grouped(number("missed")),
            grouped(number("lost")),
            grouped(number("no_shadow_stack")),
            figures.traced.as_millis(),
            figures.untraced.as_millis(),
        )
        .expect("a string takes all");
        if let Some(fault) = figures.fault() {
            writeln!(text, "FAILED: {}: {fault}", figures.name).expect("a string takes all");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNTED: &str = r#"{"traced":5,"entries":9,"returns":8,"overrun":0,"unreserved":0,"lost":0,"unattached":0,"patched":0,"stopped":0}"#;

    fn figures(counted: &str, wrong: Option<&str>) -> Figures {
        Figures {
            name: "p",
            limit: Duration::ZERO,
            untraced: Duration::ZERO,
            traced: Duration::ZERO,
            wrong: wrong.map(str::to_owned),
            counted: Counted(counted.lines().map(|it| it.parse().unwrap()).collect()),
        }
    }

    #[test]
    fn whatever_is_not_as_it_should_be_is_a_fault() {
        assert!(figures(COUNTED, None).is_good());
        assert!(!figures(COUNTED, Some("prints something else")).is_good());
        assert!(!figures("", None).is_good());
        for (was, is) in [
            (r#""traced":5"#, r#""traced":0"#),
            (r#""returns":8"#, r#""returns":10"#),
            (r#""lost":0"#, r#""lost":1"#),
            (r#","stopped":0"#, ""),
        ] {
            assert!(!figures(&COUNTED.replace(was, is), None).is_good(), "{is}");
        }
    }
}
