//! `cargo xtask cost --outside`: the calls of one program, built with its author's own settings.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fgraph_chores::cargo;
use fgraph_chores::process::succeed;

/// Number of runs of each program; they take turns.
const RUNS: usize = 5;

/// Way to build the program.
struct Build {
    name: &'static str,
    /// Arguments for cargo, behind `build`.
    arguments: &'static [&'static str],
}

const fn build(name: &'static str, arguments: &'static [&'static str]) -> Build {
    Build { name, arguments }
}

/// In the workspace, with its profile.
#[rustfmt::skip]
const INSIDE: Build = build("workspace", &["--release", "--package=fgraph-bench", "--bin=inside"]);

/// Outside of it, with no profile.
const OUTSIDE: Build = build("outside", &["--release"]);

/// Outside of it, with unusual settings.
#[rustfmt::skip]
const SETTINGS: [Build; 6] = [
    build("lto=fat", &["--release", "--config=profile.release.lto='fat'"]),
    build("1 unit", &["--release", "--config=profile.release.codegen-units=1"]),
    build("abort", &["--release", "--config=profile.release.panic='abort'"]),
    build("opt=s", &["--release", "--config=profile.release.opt-level='s'"]),
    build("assertions", &["--release", "--config=profile.release.debug-assertions=true"]),
    build("dev", &[]),
];

/// Line of the program's output: ns per call of a leaf function and of a recursive one.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    case: String,
    ns: [f64; 2],
}

/// Builds the program in the workspace and outside of it, runs both in turns, and prints the
/// shortest times side by side.
pub(super) fn run(settings: bool) -> io::Result<bool> {
    let others = if settings { &SETTINGS[..] } else { &[] };
    let builds: Vec<&Build> = [&INSIDE, &OUTSIDE].into_iter().chain(others).collect();
    let programs = builds.iter().map(|build| program(build));
    let programs: Vec<PathBuf> = programs.collect::<io::Result<_>>()?;
    let mut columns: Vec<Vec<Row>> = vec![Vec::new(); programs.len()];
    for _ in 0..RUNS {
        for (program, best) in programs.iter().zip(&mut columns) {
            shorten(best, measure(program)?);
        }
    }
    for (function, name) in ["leaf", "recursive"].into_iter().enumerate() {
        let heads = builds.iter().map(|build| format!("{:>11}", build.name));
        println!("{:<20}{}", format!("{name} ns"), heads.collect::<String>());
        for (index, row) in columns[0].iter().enumerate() {
            let times = columns.iter().map(|column| column[index].ns[function]);
            let times: String = times.map(|ns| format!("{ns:>11.2}")).collect();
            println!("{:<20}{times}", row.case);
        }
        println!();
    }
    Ok(true)
}

/// Builds the program in the way of `build`. Each build outside has a target directory of its own,
/// so that none is rebuilt because of another.
fn program(build: &Build) -> io::Result<PathBuf> {
    let root = cargo::workspace();
    let (folder, target, program) = if build.name == INSIDE.name {
        (root.clone(), root.join("target"), "inside")
    } else {
        let target = root.join("target/outside").join(build.name);
        (root.join("benches/outside"), target, "fgraph-outside")
    };
    let mut command = Command::new(cargo::program());
    command.args(["build", "--quiet"]).args(build.arguments);
    command.arg("--target-dir").arg(&target);
    succeed(command.current_dir(folder).stderr(Stdio::inherit()))?;
    let is_release = build.arguments.contains(&"--release");
    let profile = if is_release { "release" } else { "debug" };
    Ok(target.join(profile).join(program))
}

/// Returns the output of one run of `program`.
fn measure(program: &Path) -> io::Result<Vec<Row>> {
    let text = succeed(&mut Command::new(program))?;
    text.lines().map(row).collect()
}

fn row(line: &str) -> io::Result<Row> {
    let mut fields = line.split('\t');
    let mut next = || fields.next().unwrap_or_default();
    let case = next().to_owned();
    let number = |text: &str| {
        let wrong = |_| io::Error::other(format!("{line:?} is no case and two times"));
        text.parse().map_err(wrong)
    };
    let ns = [number(next())?, number(next())?];
    Ok(Row { case, ns })
}

/// Keeps the shorter time of each row.
fn shorten(best: &mut Vec<Row>, rows: Vec<Row>) {
    if best.is_empty() {
        *best = rows;
        return;
    }
    for (best, row) in best.iter_mut().zip(rows) {
        for (best, ns) in best.ns.iter_mut().zip(row.ns) {
            *best = best.min(ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_case_and_two_times() {
        let expected = Row {
            case: "1 user".to_owned(),
            ns: [1.5, 20.0],
        };
        assert_eq!(row("1 user\t1.500\t20.000").unwrap(), expected);
        for wrong in ["", "1 user", "1 user\t1.5", "1 user\t1.5\tx"] {
            assert!(row(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_shorter_time_of_each_function_counts() {
        let rows = |ns| {
            vec![Row {
                case: "plain".to_owned(),
                ns,
            }]
        };
        let mut best = Vec::new();
        shorten(&mut best, rows([1.0, 4.0]));
        shorten(&mut best, rows([2.0, 3.0]));
        assert_eq!(best, rows([1.0, 3.0]));
    }
}
