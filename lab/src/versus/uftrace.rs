//! uftrace, which records what programs call `mcount` for, or what it patches when they start.

use std::path::{Path, PathBuf};
use std::process::Command;

use fgraph_needs::{GCC, Missing, UFTRACE};

use super::programs::{Build, PLAIN, Programs};
use super::row::{Figures, Kind, Row, failed, measure, output, size};

const PG: Build = Build {
    name: "pg",
    compiler: GCC,
    function: &["-pg"],
    program: &["-pg"],
};

const PATCHABLE: Build = Build {
    name: "patchable",
    compiler: GCC,
    function: &["-fpatchable-function-entry=5"],
    program: &[],
};

/// Patches the function as well.
const PATCH: &[&str] = &["-P", "leaf"];

pub(super) fn rows(programs: &Programs) -> Vec<Row> {
    let row = |name, build, arguments: &'static [&'static str], kind| {
        let found = UFTRACE.find();
        let found = found.and_then(|uftrace| Ok((uftrace, programs.build(build)?)));
        let directory = programs.path("uftrace.data");
        Row::new(name, kind, found, move |(uftrace, program), calls| {
            let mut figures = record(uftrace, arguments, &directory, program, calls)?;
            if kind == Kind::Recorded {
                let is_data = |name: &str| name.ends_with(".dat");
                figures.bytes = Some(size(&directory, &is_data).map_err(failed)?);
                figures.events = Some(recorded(uftrace, &directory)?);
            }
            Ok(figures)
        })
    };
    vec![
        // It preloads functions that do nothing, and patches nothing.
        row("uftrace --nop, -pg", PG, &["--nop"], Kind::Off),
        row("uftrace, -pg", PG, &[], Kind::Recorded),
        row("uftrace, patchable", PATCHABLE, PATCH, Kind::Recorded),
        row("uftrace, unmodified", PLAIN, PATCH, Kind::Recorded),
    ]
}

fn record(
    uftrace: &Path,
    arguments: &[&str],
    directory: &Path,
    program: &PathBuf,
    calls: u64,
) -> Result<Figures, Missing> {
    Programs::empty(directory)?;
    let mut command = Command::new(uftrace);
    command
        .args(["record", "--no-event", "--no-libcall", "--no-pager"])
        .args(arguments)
        .arg("-d")
        .arg(directory)
        .arg(program)
        .arg(calls.to_string());
    measure(&mut command)
}

/// Returns the number of entries and returns in its data.
fn recorded(uftrace: &Path, directory: &Path) -> Result<u64, Missing> {
    let mut command = Command::new(uftrace);
    command
        .args(["report", "--no-pager", "-f", "call", "-d"])
        .arg(directory);
    Ok(2 * calls(&output(&mut command)?))
}

/// The calls of the function in a table of calls and names.
fn calls(report: &str) -> u64 {
    let rows = report.lines().map(|line| line.split_whitespace());
    let mut calls = rows.filter_map(|mut row| {
        let calls = row.next()?.parse().ok()?;
        (row.next() == Some("leaf")).then_some(calls)
    });
    calls.next().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read_from_a_report() {
        let report =
            "       Calls  Function\n  ==========  =====\n           1  main\n     1000  leaf\n";
        assert_eq!(calls(report), 1000);
        assert_eq!(calls(""), 0);
    }
}
