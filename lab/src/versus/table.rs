//! The rows side by side, for people and for programs.

use std::fmt;

use fgraph_chores::figures::median;
use serde_json::{Value, json};

use super::row::{Figures, Kind, ROUNDS, Row};

/// Rows of fgraph that the others of their kind are compared with. They need no NOPs in the
/// program.
const REFERENCES: [(Kind, &str); 4] = [
    (Kind::Off, "fgraph, relocated, off"),
    (Kind::Empty, "fgraph, relocated, empty user"),
    (Kind::Recorded, "fgraph, relocated, to a file"),
    (Kind::Summed, "fgraph, relocated, profiler"),
];

#[derive(Debug)]
pub(super) struct Table {
    processor: String,
    lines: Vec<Line>,
}

#[derive(Debug)]
struct Line {
    name: &'static str,
    kind: Kind,
    figures: Result<Summary, String>,
}

/// Summary of the runs of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Summary {
    /// Nanoseconds per call.
    min: f64,
    median: f64,
    bytes_per_call: Option<f64>,
    /// Number of entries and returns that all runs have lost.
    lost: Option<u64>,
}

impl Table {
    /// Makes the table of `rows` and the figures of their runs.
    pub(super) fn new(processor: &str, rows: &[Row], runs: &[Vec<Figures>]) -> Self {
        let line = |(row, runs): (&Row, &Vec<Figures>)| Line {
            name: row.name,
            kind: row.kind,
            figures: match &row.run {
                Ok(_) => Ok(Summary::of(runs, row.calls, row.events)),
                Err(missing) => Err(missing.to_string()),
            },
        };
        Self {
            processor: processor.to_owned(),
            lines: rows.iter().zip(runs).map(line).collect(),
        }
    }

    /// Returns true if it has all rows that others are compared with.
    pub(super) fn has_reference(&self) -> bool {
        let names = REFERENCES.map(|(_, name)| name);
        self.plain().is_some() && names.iter().all(|name| self.median(name).is_some())
    }

    fn median(&self, name: &str) -> Option<f64> {
        let line = self.lines.iter().find(|line| line.name == name)?;
        Some(line.figures.as_ref().ok()?.median)
    }

    fn plain(&self) -> Option<f64> {
        let line = self.lines.iter().find(|line| line.kind == Kind::Plain)?;
        Some(line.figures.as_ref().ok()?.median)
    }

    /// Returns the time over that of a plain call, and the ratio to the time with fgraph.
    fn compared(&self, line: &Line, median: f64) -> (Option<f64>, Option<f64>) {
        let over = self.plain().map(|plain| median - plain);
        let mut references = REFERENCES.iter().filter(|(kind, _)| *kind == line.kind);
        let reference = references.next().and_then(|(_, name)| self.median(name));
        (over, reference.map(|reference| median / reference))
    }

    /// Returns the table as one JSON object. Unknown values are `null`.
    pub(super) fn json(&self) -> Value {
        let row = |line: &Line| match &line.figures {
            Err(why) => json!({ "row": line.name, "missing": why }),
            Ok(summary) => {
                let (over, ratio) = self.compared(line, summary.median);
                json!({
                    "row": line.name,
                    "kind": line.kind.to_string(),
                    "min_ns": summary.min,
                    "median_ns": summary.median,
                    "over_plain_ns": over,
                    "ratio": ratio,
                    "bytes_per_call": summary.bytes_per_call,
                    "lost": summary.lost,
                })
            }
        };
        let rows: Value = self.lines.iter().map(row).collect();
        json!({ "processor": self.processor, "rows": rows })
    }
}

impl Summary {
    /// Sums up runs with `calls` calls, each with `events` events.
    fn of(runs: &[Figures], calls: u64, events: u64) -> Self {
        let ns = || runs.iter().map(|run| run.ns);
        let bytes = median(runs.iter().filter_map(|run| run.bytes));
        let known: Option<Vec<u64>> = runs.iter().map(|run| run.events).collect();
        let lost = |known: &u64| (calls * events).saturating_sub(*known);
        Self {
            min: ns().reduce(f64::min).unwrap_or(f64::NAN),
            median: median(ns()).unwrap_or(f64::NAN),
            bytes_per_call: bytes.map(|bytes| bytes as f64 / calls as f64),
            lost: known.map(|known| known.iter().map(lost).sum()),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain => "plain",
            Self::Off => "off",
            Self::Empty => "empty",
            Self::Recorded => "recorded",
            Self::Summed => "summed",
        })
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "processor: {}; {ROUNDS} runs of each row",
            self.processor
        )?;
        let kinds = [
            (Kind::Plain, "nobody could watch"),
            (Kind::Off, "nobody watches"),
            (Kind::Empty, "nothing is kept"),
            (Kind::Recorded, "each call is recorded"),
            (Kind::Summed, "times are added up"),
        ];
        for (kind, title) in kinds {
            let lines = self.lines.iter().filter(|line| line.kind == kind);
            let measured = lines.filter_map(|line| Some((line, line.figures.as_ref().ok()?)));
            writeln!(
                f,
                "\n{title:<31}{:>9}{:>11}{:>12}{:>9}{:>13}{:>9}",
                "min ns", "median ns", "over plain", "ratio", "bytes/call", "lost"
            )?;
            for (line, summary) in measured {
                let (over, ratio) = self.compared(line, summary.median);
                let lost = summary.lost.map_or("-".to_owned(), |lost| lost.to_string());
                writeln!(
                    f,
                    "{:<31}{:>9.2}{:>11.2}{:>12}{:>9}{:>13}{lost:>9}",
                    line.name,
                    summary.min,
                    summary.median,
                    number(over),
                    number(ratio),
                    number(summary.bytes_per_call),
                )?;
            }
        }
        let missing = |line: &Line| {
            let why = line.figures.as_ref().err()?;
            Some(format!("{}: {why}", line.name))
        };
        let missing: Vec<String> = self.lines.iter().filter_map(missing).collect();
        if !missing.is_empty() {
            writeln!(f, "\nmissing")?;
        }
        missing.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

/// A number, or that there is none.
fn number(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.2}"))
}

#[cfg(test)]
mod tests {
    use fgraph_needs::Missing;

    use super::*;

    fn row(name: &'static str, kind: Kind, run: Result<(), &str>) -> Row {
        let found = run.map_err(Missing::new);
        Row::new(name, kind, found, |(), _| Ok(Figures::default())).calls(100)
    }

    fn ran(ns: f64, bytes: Option<u64>, events: Option<u64>) -> Figures {
        Figures { ns, bytes, events }
    }

    fn table() -> Table {
        let rows = [
            row("plain", Kind::Plain, Ok(())),
            row("fgraph, relocated, off", Kind::Off, Ok(())),
            row("fgraph, relocated, empty user", Kind::Empty, Ok(())),
            row("fgraph, relocated, to a file", Kind::Recorded, Ok(())),
            row("fgraph, relocated, profiler", Kind::Summed, Ok(())),
            row("peer", Kind::Recorded, Ok(())),
            row(
                "other",
                Kind::Empty,
                Err("no other (apt-get install other)"),
            ),
        ];
        let runs = [
            vec![ran(2.0, None, None); 3],
            vec![ran(3.0, None, None); 3],
            vec![ran(10.0, None, None); 3],
            vec![ran(20.0, Some(600), Some(200)); 3],
            vec![ran(30.0, None, Some(200)); 3],
            vec![
                ran(90.0, Some(3200), Some(200)),
                ran(50.0, Some(3200), Some(190)),
                ran(60.0, Some(3000), Some(200)),
            ],
            Vec::new(),
        ];
        Table::new("a processor", &rows, &runs)
    }

    #[test]
    fn rows_are_compared_with_ours_of_their_kind() {
        let table = table();
        assert!(table.has_reference());
        let json = table.json();
        let peer = json!({
            "row": "peer", "kind": "recorded", "min_ns": 50.0, "median_ns": 60.0,
            "over_plain_ns": 58.0, "ratio": 3.0, "bytes_per_call": 32.0, "lost": 10,
        });
        assert_eq!(json["rows"][5], peer);
        assert_eq!(json["rows"][2]["ratio"], 1.0);
        assert_eq!(json["rows"][2]["bytes_per_call"], Value::Null);
    }

    #[test]
    fn missing_peers_are_reported() {
        let table = table();
        let why = "other: no other (apt-get install other)";
        assert!(table.to_string().ends_with(&format!("\nmissing\n{why}\n")));
        let row = json!({ "row": "other", "missing": "no other (apt-get install other)" });
        assert_eq!(table.json()["rows"][6], row);
    }

    #[test]
    fn a_table_without_ours_has_no_reference() {
        let rows = [row("plain", Kind::Plain, Ok(()))];
        let table = Table::new("a processor", &rows, &[vec![ran(2.0, None, None)]]);
        assert!(!table.has_reference());
    }
}
