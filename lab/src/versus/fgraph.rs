//! fgraph itself, and nobody.

use std::cell::Cell;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use fgraph_chores::cargo;
use fgraph_needs::{CLANG, Missing};

use super::programs::{Build, PLAIN, Programs, builder};
use super::row::{BUFFER, Figures, Kind, ROUNDS, Row, failed, measure, output};

/// With the NOP that fgraph looks for.
const NOP: Build = Build {
    name: "nop",
    compiler: CLANG,
    function: &["-fpatchable-function-entry=5"],
    program: &[],
};

/// The watchers, with the names of their rows.
#[rustfmt::skip]
const WATCHERS: [(&str, Kind, [&str; 2]); 6] = [
    ("off", Kind::Off, ["fgraph, relocated, off", "fgraph, NOP, off"]),
    ("empty", Kind::Empty, ["fgraph, relocated, empty user", "fgraph, NOP, empty user"]),
    ("count", Kind::Empty, ["fgraph, relocated, counting", "fgraph, NOP, counting"]),
    ("ring", Kind::Recorded, ["fgraph, relocated, to a ring", "fgraph, NOP, to a ring"]),
    ("file", Kind::Recorded, ["fgraph, relocated, to a file", "fgraph, NOP, to a file"]),
    ("profiler", Kind::Summed, ["fgraph, relocated, profiler", "fgraph, NOP, profiler"]),
];

/// The row of the plain program, and all rows of fgraph.
///
/// # Errors
///
/// When the library that watches does not build.
pub(super) fn rows(programs: &Programs) -> io::Result<Vec<Row>> {
    let libraries: Rc<[PathBuf]> = (0..ROUNDS)
        .map(|round| library(programs, 64 * round))
        .collect::<io::Result<_>>()?;
    let plain =
        |program: &PathBuf, calls: u64| measure(Command::new(program).arg(calls.to_string()));
    let relocated = programs.build(PLAIN);
    let nop = programs.build(NOP);
    let mut rows = vec![Row::new("plain", Kind::Plain, relocated.clone(), plain)];
    for (watcher, kind, [on_relocated, on_nop]) in WATCHERS {
        for (name, how, program) in [
            (on_relocated, "relocated", &relocated),
            (on_nop, "NOP", &nop),
        ] {
            let run = watched(&libraries, how, watcher, programs.path("recording"));
            let events = if watcher == "count" { 1 } else { 2 };
            let row = Row::new(name, kind, program.clone(), run);
            rows.push(Row { events, ..row });
        }
    }
    let hijacked = cargo::build_bin("fgraph-bench", "hijacked")?;
    for (name, handler) in [
        ("hijacked, balanced", "balanced"),
        ("hijacked, plain", "plain"),
    ] {
        let run = move |hijacked: &PathBuf, calls: u64| {
            measure(Command::new(hijacked).args([handler, &calls.to_string()]))
        };
        rows.push(Row::new(name, Kind::Empty, Ok(hijacked.clone()), run));
    }
    let command = cargo::fgraph(None)?;
    for (name, program) in [
        ("fgraph record, relocated", relocated),
        ("fgraph record, NOP", nop),
    ] {
        let (command, file) = (command.clone(), programs.path("command"));
        let run = move |program: &PathBuf, calls| recorded(&command, program, &file, calls);
        rows.push(Row::new(name, Kind::Recorded, program, run));
    }
    Ok(rows)
}

/// Runs `program` under `command`, which records.
fn recorded(command: &Path, program: &Path, file: &Path, calls: u64) -> Result<Figures, Missing> {
    let mut record = Command::new(command);
    record.args(["--no-config", "record", "--function", "leaf", "--output"]);
    record.arg(file).arg("--").arg(program);
    let mut figures = measure(record.arg(calls.to_string()))?;
    figures.bytes = Some(file.metadata().map_err(failed)?.len());
    let info = output(Command::new(command).arg("info").arg(file))?;
    figures.events = Some(number(&info, "calls") + number(&info, "ends"));
    Ok(figures)
}

/// The number behind a word at the beginning of a line.
fn number(text: &str, word: &str) -> u64 {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(word));
    let number = lines.next().and_then(|rest| rest.split_whitespace().next());
    let digits = number.map(|number| number.replace(',', ""));
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// The library that watches, with its code shifted by so many bytes.
fn library(programs: &Programs, pad: usize) -> io::Result<PathBuf> {
    let mut build = builder();
    build.env("FGRAPH_PAD", pad.to_string());
    let built = cargo::build_with(&mut build, "fgraph-versus")?;
    let library = programs.path(&format!("library-{pad}.so"));
    fs::copy(built, &library)?;
    Ok(library)
}

/// Runs a program while `watcher` watches by one of the libraries after the other.
fn watched(
    libraries: &Rc<[PathBuf]>,
    how: &'static str,
    watcher: &'static str,
    file: PathBuf,
) -> impl Fn(&PathBuf, u64) -> Result<Figures, Missing> + use<> {
    let libraries = Rc::clone(libraries);
    let round = Cell::new(0);
    move |program, calls| {
        let library = &libraries[round.replace(round.get() + 1) % libraries.len()];
        let mut command = Command::new(program);
        command
            .arg(calls.to_string())
            .env("LD_PRELOAD", library)
            .env("FGRAPH_HOW", how)
            .env("FGRAPH_WATCH", watcher)
            .env("FGRAPH_BUFFER", BUFFER.to_string())
            .env("FGRAPH_OUT", &file);
        let mut figures = measure(&mut command)?;
        if watcher == "file" {
            figures.bytes = Some(file.metadata().map_err(failed)?.len());
        }
        Ok(figures)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_behind_their_words() {
        let text = "calls      2,000, 1.3 bytes each\nends       7\n";
        assert_eq!(number(text, "calls"), 2000);
        assert_eq!(number(text, "ends"), 7);
        assert_eq!(number(text, "marks"), 0);
    }
}
