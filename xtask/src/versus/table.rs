//! The rows side by side, for people and for programs.

use std::fmt;

use super::{Figures, Kind, ROUNDS, Row};
use crate::json;

/// The row of ours that the others of its kind are compared with: it asks nothing of the program.
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

/// What the runs of a row have come to.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Summary {
    /// Nanoseconds per call.
    min: f64,
    median: f64,
    bytes_per_call: Option<f64>,
    /// Of all runs, how many entries and returns nobody knows of.
    lost: Option<u64>,
}

impl Table {
    /// Of `rows` and what their runs have come to.
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

    /// Whether there is what others are compared with.
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

    /// How much longer a call takes than a plain one, and how many times as long as with fgraph.
    fn compared(&self, line: &Line, median: f64) -> (Option<f64>, Option<f64>) {
        let over = self.plain().map(|plain| median - plain);
        let mut references = REFERENCES.iter().filter(|(kind, _)| *kind == line.kind);
        let reference = references.next().and_then(|(_, name)| self.median(name));
        (over, reference.map(|reference| median / reference))
    }

    /// The table as one JSON object. What is not known is `null`.
    pub(super) fn json(&self) -> String {
        let rows = self.lines.iter().map(|line| {
            let name = json::string(line.name);
            let summary = match &line.figures {
                Ok(summary) => *summary,
                Err(why) => {
                    return format!(r#"{{"row":{name},"missing":{}}}"#, json::string(why));
                }
            };
            let (over, ratio) = self.compared(line, summary.median);
            let or_null =
                |value: Option<f64>| value.map_or("null".to_owned(), |value| format!("{value:.3}"));
            let lost = summary.lost.map(|lost| lost.to_string());
            format!(
                concat!(
                    r#"{{"row":{},"kind":"{}","min_ns":{:.3},"median_ns":{:.3},"#,
                    r#""over_plain_ns":{},"ratio":{},"bytes_per_call":{},"lost":{}}}"#
                ),
                name,
                line.kind,
                summary.min,
                summary.median,
                or_null(over),
                or_null(ratio),
                or_null(summary.bytes_per_call),
                lost.unwrap_or("null".to_owned()),
            )
        });
        let processor = json::string(&self.processor);
        format!(
            r#"{{"processor":{processor},"rows":{}}}"#,
            json::array(rows)
        )
    }
}

impl Summary {
    /// Of runs with so many calls, of each of which so many events are seen.
    fn of(runs: &[Figures], calls: u64, events: u64) -> Self {
        let mut ns: Vec<f64> = runs.iter().map(|run| run.ns).collect();
        ns.sort_by(f64::total_cmp);
        let median_of = |of: fn(&Figures) -> Option<u64>| {
            let mut all: Vec<u64> = runs.iter().filter_map(of).collect();
            all.sort_unstable();
            all.get(all.len() / 2).copied()
        };
        let bytes = median_of(|run| run.bytes);
        let known: Option<Vec<u64>> = runs.iter().map(|run| run.events).collect();
        let lost = |known: &u64| (calls * events).saturating_sub(*known);
        Self {
            min: ns.first().copied().unwrap_or(f64::NAN),
            median: ns.get(ns.len() / 2).copied().unwrap_or(f64::NAN),
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
        let run = run.map(|()| -> super::super::Run { Box::new(|_| Ok(Figures::default())) });
        Row {
            calls: 100,
            ..Row::new(name, kind, run.map_err(Missing::new))
        }
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
        let peer = concat!(
            r#"{"row":"peer","kind":"recorded","min_ns":50.000,"median_ns":60.000,"#,
            r#""over_plain_ns":58.000,"ratio":3.000,"bytes_per_call":32.000,"lost":10}"#
        );
        assert!(json.contains(peer), "{json}");
        let empty =
            r#""median_ns":10.000,"over_plain_ns":8.000,"ratio":1.000,"bytes_per_call":null"#;
        assert!(json.contains(empty), "{json}");
    }

    #[test]
    fn missing_peers_are_reported() {
        let table = table();
        let why = "other: no other (apt-get install other)";
        assert!(table.to_string().ends_with(&format!("\nmissing\n{why}\n")));
        let json = r#"{"row":"other","missing":"no other (apt-get install other)"}"#;
        assert!(table.json().contains(json));
    }

    #[test]
    fn a_table_without_ours_has_no_reference() {
        let rows = [row("plain", Kind::Plain, Ok(()))];
        let table = Table::new("a processor", &rows, &[vec![ran(2.0, None, None)]]);
        assert!(!table.has_reference());
    }
}
