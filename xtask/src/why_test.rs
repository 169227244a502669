//! `cargo xtask why-test`: the reasons that `fgraph why` gives for slow calls, against the truth.
//!
//! Each program is generated: a tree of functions, in which one function makes some calls slow for
//! one reason. The program measures by itself how much time that takes. The reason counts as named
//! first if it is that of the first line, at the function where it was planted.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use fgraph_chores::cargo;
use fgraph_chores::figures::chosen;
use fgraph_chores::process::{bounded, compile, succeed};
use fgraph_needs::CC;
use serde_json::Value;
use tempfile::TempDir;

/// Options of the command line.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Number of programs; each is recorded with exact states and with sampled ones
    #[arg(long, default_value_t = 1000, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..))]
    programs: u32,
    /// Seed from which the programs are generated
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// The command, in place of the one of this workspace
    #[arg(long, value_name = "PATH")]
    fgraph: Option<PathBuf>,
}

/// Planted reasons, by the names that `why --json` gives them too.
const REASONS: [&str; 5] = ["lock", "input", "sleep", "computes", "processor"];

/// Longest time of a program, in seconds.
const LIMIT: u32 = 60;

/// A generated program.
#[derive(Clone, Copy, Debug)]
struct Program {
    reason: &'static str,
    /// Number of functions.
    functions: u64,
    /// The function with the reason.
    planted: u64,
    /// Microseconds.
    delay: u64,
    seed: u64,
}

/// Result of some recordings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Findings {
    programs: u32,
    /// Programs whose reason is named first.
    first: u32,
    /// Programs whose reason has the time that was planted, within a tenth.
    near: u32,
}

pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let cc = CC.find().map_err(io::Error::other)?;
    let fgraph = cargo::fgraph(options.fgraph.as_deref())?;
    let directory = TempDir::with_prefix("fgraph-why-")?;
    let refuse = source("refuse_perf.c")?;
    let refuse = compile(&cc, directory.path(), ("refuse_perf.c", &refuse), &[])?;
    let tester = Tester {
        fgraph: &fgraph,
        directory: directory.path(),
        text: source("slow.c")?,
    };
    let mut findings = [[Findings::default(); 2]; REASONS.len()];
    for number in 0..options.programs {
        let program = Program::generate(options.seed, number);
        let of_reason = &mut findings[number as usize % REASONS.len()];
        let built = tester.build(&cc, &program)?;
        for (before, findings) in [None, Some(&refuse)].into_iter().zip(of_reason) {
            let (planted, why) = tester.explain(before, &built, program.reason)?;
            let (is_first, is_near) = program.judge(planted, &why);
            findings.programs += 1;
            findings.first += u32::from(is_first);
            findings.near += u32::from(is_near);
            if !is_first && before.is_none() {
                eprintln!(
                    "program {number} of seed {}: {program:?}: {why}",
                    options.seed
                );
            }
        }
    }
    println!("                      exact states          samples");
    println!("             programs  first  within 10 %    first  within 10 %");
    let mut sums = [Findings::default(); 2];
    for (reason, findings) in REASONS.iter().zip(&findings) {
        print(reason, findings);
        for (sum, findings) in sums.iter_mut().zip(findings) {
            sum.add(findings);
        }
    }
    print("all", &sums);
    let [exact, sampled] = sums;
    // 990 and 900 of 1,000.
    let are_named = 100 * exact.first >= 99 * exact.programs;
    Ok(are_named && 10 * sampled.first >= 9 * sampled.programs)
}

fn print(name: &str, [exact, sampled]: &[Findings; 2]) {
    println!(
        "{name:<12} {:>8}  {:>5}  {:>11}    {:>5}  {:>11}",
        exact.programs, exact.first, exact.near, sampled.first, sampled.near
    );
}

/// Reads a program of the command's tests.
fn source(name: &str) -> io::Result<String> {
    let place = cargo::workspace().join("crates/fgraph-cli/tests/record");
    fs::read_to_string(place.join(name))
}

impl Findings {
    fn add(&mut self, other: &Self) {
        self.programs += other.programs;
        self.first += other.first;
        self.near += other.near;
    }
}

impl Program {
    fn generate(seed: u64, number: u32) -> Self {
        let seed = chosen(seed, number.into(), u64::MAX);
        let functions = 3 + chosen(seed, 0, 10);
        Self {
            reason: REASONS[number as usize % REASONS.len()],
            functions,
            planted: chosen(seed, 1, functions),
            delay: 15_000 + chosen(seed, 2, 20_000),
            seed,
        }
    }

    /// The source of the functions: each is called by one with a lower number, or by `tree`.
    fn tree(&self) -> String {
        let mut text = String::new();
        for function in (0..self.functions).rev() {
            let rounds = 100 + chosen(self.seed, 100 + function, 3000);
            let mut calls = String::new();
            for callee in function + 1..self.functions {
                if chosen(self.seed, 1000 + callee, callee) == function {
                    _ = write!(calls, " f{callee}(is_slow);");
                }
            }
            if function == self.planted {
                calls += " if (is_slow) plant();";
            }
            _ = writeln!(
                text,
                "__attribute__((noinline)) void f{function}(int is_slow) {{ \
                 for (int i = 0; i < {rounds}; i++) sum += i;{calls} sum++; }}"
            );
        }
        text + "static void tree(int is_slow) { f0(is_slow); }\n"
    }

    /// Returns true if the reason is named first, and true if it has the planted time, in
    /// nanoseconds.
    fn judge(&self, planted: u64, why: &Value) -> (bool, bool) {
        let lines = why["lines"].as_array().cloned().unwrap_or_default();
        let function = format!("f{}", self.planted);
        let is_it = |line: &&Value| {
            let path = line["path"].as_array();
            line["cause"] == self.reason
                && path.is_some_and(|path| path.iter().any(|name| *name == *function))
        };
        let ns: u64 = lines
            .iter()
            .filter(is_it)
            .filter_map(|line| line["ns"].as_u64())
            .sum();
        let is_first = lines.first().is_some_and(|line| is_it(&line));
        (is_first, ns.abs_diff(planted) <= planted / 10)
    }
}

struct Tester<'a> {
    fgraph: &'a Path,
    directory: &'a Path,
    /// The source of all programs, without their functions.
    text: String,
}

impl Tester<'_> {
    fn build(&self, cc: &Path, program: &Program) -> io::Result<PathBuf> {
        fs::write(self.directory.join("tree.h"), program.tree())?;
        let delay = format!("-DDELAY={}", program.delay);
        // Calls that follow one another show where samples miss that a thread waits.
        let now = "-DNOW=__attribute__((noinline))";
        let options = ["-g", "-pthread", "-DTREE=\"tree.h\"", &delay, now];
        compile(cc, self.directory, ("slow.c", &self.text), &options)
    }

    /// Records a program; returns the mean time that it planted, and the reasons.
    fn explain(
        &self,
        before: Option<&PathBuf>,
        program: &Path,
        reason: &str,
    ) -> io::Result<(u64, Value)> {
        let recording = self.directory.join("fgraph.data");
        let mut words: Vec<&Path> = before.map(PathBuf::as_path).into_iter().collect();
        words.push(self.fgraph);
        let mut record = bounded(LIMIT, words[0]);
        record.args(&words[1..]);
        record.args([
            "--no-config",
            "record",
            "-q",
            "--no-source",
            "--waits",
            "-o",
        ]);
        record.arg(&recording).arg("--").arg(program).arg(reason);
        let planted = succeed(&mut record)?;
        let planted = planted.trim().parse().map_err(io::Error::other)?;
        let mut why = Command::new(self.fgraph);
        why.args([
            "--no-config",
            "why",
            "--json",
            "-F",
            "handle",
            "--slowest",
            "5%",
        ]);
        let why = succeed(why.arg(&recording))?;
        Ok((planted, serde_json::from_str(&why)?))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_function_of_a_program_has_one_caller() {
        for number in 0..50 {
            let program = Program::generate(7, number);
            let tree = program.tree();
            for function in 0..program.functions {
                let call = format!(" f{function}(is_slow);");
                assert_eq!(tree.matches(&call).count(), 1, "{tree}");
            }
            assert_eq!(tree.matches("plant()").count(), 1, "{tree}");
        }
    }

    #[test]
    fn the_reason_has_to_be_at_its_function() {
        let program = Program {
            reason: "sleep",
            planted: 3,
            ..Program::generate(1, 0)
        };
        let line = |cause, function, ns| json!({"cause": cause, "path": [function], "ns": ns});
        let why = |lines: &[Value]| json!({"lines": lines});
        let judge = |lines: &[Value]| program.judge(1000, &why(lines));
        assert_eq!(judge(&[line("sleep", "f3", 950)]), (true, true));
        assert_eq!(judge(&[line("sleep", "f3", 800)]), (true, false));
        assert_eq!(judge(&[line("sleep", "f33", 950)]), (false, false));
        let second = [line("lock", "f3", 2000), line("sleep", "f3", 1000)];
        assert_eq!(judge(&second), (false, true));
        assert_eq!(judge(&[]), (false, false));
    }
}
