//! perf, which records what the kernel's uprobes and uretprobes see.

use std::path::Path;
use std::process::Command;

use fgraph_needs::{Missing, PERF};

use super::programs::{PLAIN, Programs};
use super::row::{Figures, Kind, Row, failed, measure, output};
use super::uprobe::CALLS;

/// The group of the kernel that our probes are in.
const GROUP: &str = "fgraph_versus";

pub(super) fn rows(programs: &Programs) -> Vec<Row> {
    let found = PERF.find();
    let found = found.and_then(|perf| Ok((perf, programs.build(PLAIN)?)));
    let data = programs.path("perf.data");
    let (name, kind) = ("perf record, uprobes", Kind::Recorded);
    let row = Row::new(name, kind, found, move |(perf, program), calls| {
        let probe = |arguments: &[&str]| output(Command::new(perf).arg("probe").args(arguments));
        let remove = || probe(&["--quiet", "--del", &format!("{GROUP}:*")]);
        // An earlier run that was interrupted has left its probes.
        let _ = remove();
        let path = program.display().to_string();
        let entry = format!("{GROUP}:entry=leaf");
        let end = format!("{GROUP}:end=leaf%return");
        probe(&["--quiet", "-x", &path, "--add", &entry, "--add", &end])?;
        let figures = record(perf, program, &data, calls);
        remove()?;
        figures
    });
    vec![row.calls(CALLS)]
}

fn record(perf: &Path, program: &Path, data: &Path, calls: u64) -> Result<Figures, Missing> {
    let mut command = Command::new(perf);
    let events = format!("{GROUP}:*");
    command.args(["record", "--quiet", "--event", &events, "--output"]);
    command.arg(data).arg("--").arg(program);
    let mut figures = measure(command.arg(calls.to_string()))?;
    figures.bytes = Some(data.metadata().map_err(failed)?.len());
    let mut script = Command::new(perf);
    let script = script.args(["script", "--fields", "event", "--input"]);
    let text = output(script.arg(data))?;
    figures.events = Some(text.lines().filter(|line| line.contains(GROUP)).count() as u64);
    Ok(figures)
}
