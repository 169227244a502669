//! Functions of one binary, by the way in which they are traced.

// Long strings: rows of tables.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use fgraph::{RefusalReason, SiteInfo, TraceMethod};
use serde_json::{Value, json};

/// Heading of the counts.
pub(crate) const HEAD: &str = "binary                        functions  unnamed      NOP  relocated  entry only  refused  traced %  with breakpoints %  resolvers    ms";

/// Counts of the functions of one binary.
#[derive(Debug, Default)]
pub(crate) struct Count {
    name: String,
    /// Functions without a name, except resolvers.
    unnamed: usize,
    nops: usize,
    relocated: usize,
    /// Traced functions whose returns are not reported.
    entry_only: usize,
    /// Names of the functions that cannot be traced, by reason.
    refused: BTreeMap<String, Vec<String>>,
    /// Number of functions that can be traced if they may get breakpoints.
    with_breakpoints: usize,
    /// IFUNC resolvers. A program never calls them, so they are not counted as functions.
    resolvers: Vec<String>,
    time: Duration,
}

impl Count {
    /// Counts the functions of the binary at `path`.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let start = Instant::now();
        let failed = |error| io::Error::other(format!("{}: {error}", path.display()));
        let sites = fgraph::sites_of_file(path, false).map_err(failed)?;
        let time = start.elapsed();
        let with_breakpoints = fgraph::sites_of_file(path, true).map_err(failed)?;
        let name = path.file_name().unwrap_or(path.as_os_str());
        let mut count = Self {
            name: name.to_string_lossy().into_owned(),
            time,
            with_breakpoints: with_breakpoints
                .iter()
                .filter(|site| site.how.is_ok())
                .count(),
            ..Self::default()
        };
        sites.iter().for_each(|site| count.add(&site));
        Ok(count)
    }

    fn add(&mut self, site: &SiteInfo) {
        let name = || site.name.clone();
        self.unnamed += usize::from(!site.has_name);
        match &site.how {
            Err(RefusalReason::Resolver) => return self.resolvers.push(name()),
            Err(refusal) => {
                let names = self.refused.entry(refusal.category()).or_default();
                return names.push(name());
            }
            Ok(TraceMethod::Nop) => self.nops += 1,
            Ok(_) => self.relocated += 1,
        }
        self.entry_only += usize::from(!site.returns);
    }

    fn traced(&self) -> usize {
        self.nops + self.relocated
    }

    fn refused_count(&self) -> usize {
        self.refused.values().map(Vec::len).sum()
    }

    fn functions(&self) -> usize {
        self.traced() + self.refused_count()
    }

    /// Returns the percentage of the functions. Rounded down: 100 means all.
    fn percent(&self, of: usize) -> f64 {
        let hundredths = (of * 10_000).checked_div(self.functions());
        hundredths.unwrap_or(0) as f64 / 100.0
    }

    /// Returns the reasons, the most frequent first.
    fn reasons(&self) -> Vec<(&str, &[String])> {
        let mut reasons: Vec<_> = self
            .refused
            .iter()
            .map(|(reason, names)| (reason.as_str(), names.as_slice()))
            .collect();
        reasons.sort_by_key(|(_, names)| std::cmp::Reverse(names.len()));
        reasons
    }

    /// Returns the reasons with the refused functions, at most `shown` names for each; empty if
    /// none is refused.
    pub(crate) fn refusals(&self, shown: usize) -> String {
        let mut text = String::new();
        let mut section = |title: &str, reason: &str, names: &[String]| {
            if names.is_empty() {
                return;
            }
            if text.is_empty() {
                writeln!(text, "\n{}", self.name).expect("a string takes all");
            }
            writeln!(text, "{:>7}  {title}{reason}", names.len()).expect("a string takes all");
            for name in names.iter().take(shown) {
                writeln!(text, "         - {name}").expect("a string takes all");
            }
        };
        for (reason, names) in self.reasons() {
            section("refused: ", reason, names);
        }
        section("not counted: ", "resolvers of IFUNCs", &self.resolvers);
        text
    }

    /// Returns one JSON object, with at most `shown` names for each reason.
    pub(crate) fn json(&self, shown: usize) -> Value {
        let reason = |(reason, names): (&str, &[String])| {
            let shown = &names[..names.len().min(shown)];
            json!({ "reason": reason, "count": names.len(), "names": shown })
        };
        json!({
            "name": self.name,
            "functions": self.functions(),
            "unnamed": self.unnamed,
            "nops": self.nops,
            "relocated": self.relocated,
            "entry_only": self.entry_only,
            "refused": self.refused_count(),
            "percent": self.percent(self.traced()),
            "percent_with_breakpoints": self.percent(self.with_breakpoints),
            "resolvers": self.resolvers.len(),
            "ms": self.time.as_millis() as u64,
            "reasons": self.reasons().into_iter().map(reason).collect::<Value>(),
        })
    }
}

impl fmt::Display for Count {
    /// Writes a line of the table.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The names of libraries contain long hashes.
        let name: String = self.name.chars().take(28).collect();
        write!(
            f,
            "{name:<28}  {:>9}  {:>7}  {:>7}  {:>9}  {:>10}  {:>7}  {:>8.2}  {:>18.2}  {:>9}  {:>4}",
            self.functions(),
            self.unnamed,
            self.nops,
            self.relocated,
            self.entry_only,
            self.refused_count(),
            self.percent(self.traced()),
            self.percent(self.with_breakpoints),
            self.resolvers.len(),
            self.time.as_millis()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(refused: &[(&str, &[&str])], traced: usize) -> Count {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Count {
            name: "lib.so".to_owned(),
            relocated: traced,
            refused: refused
                .iter()
                .map(|(reason, of)| ((*reason).to_owned(), names(of)))
                .collect(),
            ..Count::default()
        }
    }

    #[test]
    fn a_hundred_percent_means_all() {
        assert_eq!(count(&[], 7).percent(7), 100.0);
        assert_eq!(count(&[("r", &["f"])], 99_999).percent(99_999), 99.99);
        assert_eq!(count(&[], 0).percent(0), 0.0);
    }

    #[test]
    fn reasons_come_by_frequency_with_so_many_names_as_asked_for() {
        let count = count(&[("rare", &["a"]), ("usual", &["b", "c", "d"])], 10);
        assert_eq!(
            count.refusals(2),
            "\nlib.so\n      3  refused: usual\n         - b\n         - c\n      1  refused: rare\n         - a\n"
        );
        let reasons = json!([
            { "reason": "usual", "count": 3, "names": ["b"] },
            { "reason": "rare", "count": 1, "names": ["a"] },
        ]);
        assert_eq!(count.json(1)["reasons"], reasons);
    }
}
