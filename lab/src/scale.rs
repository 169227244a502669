//! `cargo xtask scale`: costs that grow with the size of the program, and their rates of growth.
//!
//! Each figure is of a process of its own, untraced and traced in turns; the smallest of several
//! counts.

mod libraries;

use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use clap::Args;
use fgraph_chores::cargo;
use fgraph_chores::process::succeed;
use serde_json::{Value, json};

/// Number of measurements of each figure.
const ROUNDS: usize = 3;

/// Options of the command line.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Print one JSON array
    #[arg(long)]
    json: bool,
    /// Measure only the rows whose name contains this
    #[arg(value_name = "ROW")]
    only: Option<String>,
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
struct Row {
    /// Name of the row in the measuring program.
    name: &'static str,
    what: &'static str,
    sizes: [usize; 3],
    unit: &'static str,
    /// Limit for the largest size.
    limit: Limit,
}

const fn row(
    name: &'static str,
    what: &'static str,
    sizes: [usize; 3],
    unit: &'static str,
    limit: Limit,
) -> Row {
    Row {
        name,
        what,
        sizes,
        unit,
        limit,
    }
}

#[derive(Clone, Copy, Debug)]
enum Limit {
    /// Limit in units, traced.
    Value(f64),
    /// Limit in multiples of the untraced figure.
    Ratio(f64),
    /// Limit of the exponent of growth; 0 is that of a constant.
    Growth(f64),
}

/// Numbers of threads that start and end, after a thousand for warming up.
const ENDED: [usize; 3] = [1_000, 10_000, 100_000];

/// Number of libraries that are loaded beside the others when that is timed.
const LOADED: usize = 21;

#[rustfmt::skip]
const ROWS: [Row; 17] = [
    row("reload-functions", "dlopen and dlclose, functions traced",
        [2_000, 20_000, 200_000], "us", Limit::Ratio(2.0)),
    row("reload-libraries", "dlopen and dlclose, libraries traced",
        [4, 40, 400], "us", Limit::Value(400.0)),
    row("load-libraries", "dlopen, libraries traced one by one",
        [25, 100, 400], "us", Limit::Value(500.0)),
    row("reload-memory", "300 of these, libraries traced", [4, 40, 400], "KiB", Limit::Value(64.0)),
    row("unwind", "unwinding 20 frames, libraries traced", [4, 40, 400], "us", Limit::Ratio(1.3)),
    row("threads", "first hit of a thread, threads alive",
        [40, 400, 4_000], "us", Limit::Value(20.0)),
    row("mappings", "first hit of a thread, mappings",
        [600, 6_000, 60_000], "us", Limit::Growth(0.1)),
    row("aliases", "register, names of one function",
        [200, 2_000, 20_000], "us", Limit::Value(100_000.0)),
    row("hook", "register per function, functions",
        [1_370, 13_700, 137_000], "us", Limit::Growth(0.1)),
    row("exchange-twentieth", "longest move, pages (1/20 are private)",
        PAGES, "us", Limit::Value(1500.0)),
    row("exchange-all", "longest move, private pages", PAGES, "us", Limit::Value(2000.0)),
    row("ended-recorder", "threads that have ended, recorder", ENDED, "KiB", Limit::Value(64.0)),
    row("ended-profiler", "threads that have ended, profiler", ENDED, "KiB", Limit::Value(64.0)),
    row("ended-probe", "threads that have ended, shared probe", ENDED, "KiB", Limit::Value(64.0)),
    row("ended-stack", "threads that have ended, stack", ENDED, "KiB", Limit::Value(64.0)),
    row("ended-watchdog", "threads that have ended, watchdog", ENDED, "KiB", Limit::Value(64.0)),
    row("ended-outliers", "threads that have ended, outliers", ENDED, "KiB", Limit::Value(64.0)),
];

/// Pages of text that is exchanged: 4, 20 and 100 MiB.
const PAGES: [usize; 3] = [1_024, 5_120, 25_600];

/// Figures of a row.
#[derive(Debug)]
struct Figures {
    row: Row,
    /// Untraced figure of each size.
    untraced: [f64; 3],
    traced: [f64; 3],
}

/// Makes the libraries, and measures all rows. Fails only if that cannot be done: a slow result is
/// no failure.
pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let program = cargo::build_bin("fgraph-bench", "scale")?;
    let directory = libraries::directory()?;
    let only = options.only.as_deref().unwrap_or_default();
    let mut all = Vec::new();
    for row in ROWS.into_iter().filter(|row| row.name.contains(only)) {
        row.make_libraries(&directory)?;
        let figures = row.measure(&program, &directory)?;
        if !options.json {
            print!("{}", figures.text());
        }
        all.push(figures);
    }
    if options.json {
        println!("{}", all.iter().map(Figures::json).collect::<Value>());
    }
    Ok(true)
}

impl Row {
    /// Makes the libraries that it needs.
    fn make_libraries(&self, directory: &Path) -> io::Result<()> {
        libraries::reloaded(directory)?;
        self.sizes.iter().try_for_each(|&size| match self.name {
            "reload-functions" | "hook" => libraries::functions(directory, size),
            "reload-libraries" | "reload-memory" | "unwind" => libraries::alike(directory, size),
            "load-libraries" => libraries::alike(directory, size + LOADED),
            "exchange-twentieth" | "exchange-all" => libraries::pages(directory, size),
            "aliases" => libraries::aliases(directory, size),
            _ => Ok(()),
        })
    }

    fn measure(self, program: &Path, directory: &Path) -> io::Result<Figures> {
        let mut figures = Figures {
            row: self,
            untraced: [f64::INFINITY; 3],
            traced: [f64::INFINITY; 3],
        };
        for _ in 0..ROUNDS {
            for (at, size) in self.sizes.into_iter().enumerate() {
                for (how, smallest) in [
                    ("untraced", &mut figures.untraced[at]),
                    ("traced", &mut figures.traced[at]),
                ] {
                    let value = self.ask(program, directory, size, how)?;
                    *smallest = smallest.min(value / self.scale());
                }
            }
        }
        Ok(figures)
    }

    /// Returns the number of the program's units in one unit of the row.
    fn scale(&self) -> f64 {
        match self.unit {
            "KiB" => 1024.0,
            _ => 1000.0,
        }
    }

    /// Returns the measurement of one process.
    fn ask(&self, program: &Path, directory: &Path, size: usize, how: &str) -> io::Result<f64> {
        let mut command = Command::new(program);
        command.args([self.name, &size.to_string(), how]);
        let text = succeed(command.arg(directory).stderr(Stdio::inherit()))?;
        let what = |_| io::Error::other(format!("{} of {size}, {how}: {text}", self.name));
        text.trim().parse().map_err(what)
    }
}

impl Figures {
    fn growth(&self) -> f64 {
        growth(self.row.sizes, self.traced)
    }

    /// Returns the figure that has a limit, and the limit.
    fn verdict(&self) -> (f64, f64) {
        let [.., untraced] = self.untraced;
        let [.., traced] = self.traced;
        match self.row.limit {
            Limit::Value(limit) => (traced, limit),
            Limit::Ratio(limit) => (traced / untraced, limit),
            Limit::Growth(limit) => (self.growth(), limit),
        }
    }

    fn is_met(&self) -> bool {
        let (value, limit) = self.verdict();
        value <= limit
    }

    fn text(&self) -> String {
        let Row {
            what,
            sizes,
            unit,
            limit,
            ..
        } = self.row;
        let mut text = format!("{what:<42}{:>12}{:>12}\n", "untraced", "traced");
        for (at, size) in sizes.into_iter().enumerate() {
            let (untraced, traced) = (self.untraced[at], self.traced[at]);
            let line = format!("{size:>42}{untraced:>12.2}{traced:>12.2} {unit}");
            writeln!(text, "{line}").expect("a string takes all");
        }
        let (value, most) = self.verdict();
        let named = match limit {
            Limit::Value(_) => unit,
            Limit::Ratio(_) => "times untraced",
            Limit::Growth(_) => "growth",
        };
        let met = if self.is_met() { "ok" } else { "NOT MET" };
        let line = format!(
            "grows by {:.2}; {value:.2} {named}, at most {most}: {met}",
            self.growth()
        );
        writeln!(text, "  {line}\n").expect("a string takes all");
        text
    }

    fn json(&self) -> Value {
        let (value, limit) = self.verdict();
        let size = |at: usize| {
            let (size, untraced, traced) = (self.row.sizes[at], self.untraced[at], self.traced[at]);
            json!({ "size": size, "untraced": untraced, "traced": traced })
        };
        json!({
            "row": self.row.name,
            "unit": self.row.unit,
            "sizes": [size(0), size(1), size(2)],
            "growth": self.growth(),
            "value": value,
            "limit": limit,
            "met": self.is_met(),
        })
    }
}

/// Returns the exponent of growth of `values` at `sizes`: the slope of the nearest line with both
/// axes logarithmic.
fn growth(sizes: [usize; 3], values: [f64; 3]) -> f64 {
    // Values below a thousandth of a unit count as that.
    let points = [0, 1, 2].map(|at| ((sizes[at] as f64).ln(), values[at].max(1e-3).ln()));
    let mean = |of: fn((f64, f64)) -> f64| points.map(of).iter().sum::<f64>() / 3.0;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let products = points.map(|point| (point.0 - x) * (point.1 - y));
    let squares = points.map(|point| (point.0 - x) * (point.0 - x));
    products.iter().sum::<f64>() / squares.iter().sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponent_of_a_power_is_found() {
        let sizes = [4, 40, 400];
        for exponent in [0.0, 0.5, 1.0, 2.0] {
            let values = sizes.map(|size| 7.0 * f64::from(size as u32).powf(exponent));
            assert!((growth(sizes, values) - exponent).abs() < 1e-9);
        }
    }
}
