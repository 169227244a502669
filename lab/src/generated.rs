//! `cargo xtask generated`: random C programs, recorded, against plain runs of themselves.
//!
//! Output and exit status must be the same. Each program also counts the calls of its functions,
//! and the recorded calls must be as many:
//!
//! ```text
//!   program N of seed S  ->  compiler, level, options  ->  plain:    checksum, f0 10, f1 35, ...
//!                                                      ->  recorded: the same
//!                                                          report:   f0 10, f1 35, ...
//! ```
//!
//! Refused functions are counted apart. The compiler may inline some functions at some calls: they
//! may have fewer recorded calls than their own count. Programs of Csmith have no counts.

mod program;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use fgraph_chores::cargo;
use fgraph_chores::figures::grouped;
use fgraph_chores::process::{Done, TIMED_OUT, bounded, compile, succeed};
use fgraph_needs::{CLANG, CSMITH, GCC};
use serde_json::Value;
use tempfile::TempDir;

use program::{Function, OPTIONS, Program, Random};

/// Options of the command line.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Number of programs
    #[arg(long, default_value_t = 300, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..))]
    programs: u32,
    /// Seed from which the programs are generated
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Number of the first program, to repeat one
    #[arg(long, default_value_t = 0, value_name = "N")]
    first: u32,
    /// Number of programs of Csmith
    #[arg(long, default_value_t = 0, value_name = "N")]
    csmith: u32,
    /// The command, in place of the one of this workspace
    #[arg(long, value_name = "FILE")]
    fgraph: Option<PathBuf>,
}

/// Longest time of a plain run, in seconds.
const LIMIT: u32 = 5;
/// Longest time of a recorded run, of a compiler and of Csmith, in seconds.
const LONG_LIMIT: u32 = 60;

/// Program that tells which options a compiler accepts. clang has no split stack with `...`.
const PROBE: &str = "void f(int n, ...) {} int main(void) { f(1, 2); return 0; }\n";

/// Options that silence the compiler and the linker.
const QUIET: [&str; 3] = ["-w", "-Wno-psabi", "-Wl,--no-warn-execstack"];

/// Directories of Csmith's headers, and the beginning of the option for them.
const HEADERS: [&str; 2] = ["-I/usr/include/csmith", "-I/usr/local/include/csmith"];

/// A compiler with the options that it accepts here.
#[derive(Debug)]
struct Compiler {
    path: PathBuf,
    is_gcc: bool,
    quiet: Vec<&'static str>,
    accepted: Vec<&'static str>,
}

/// Result of some programs.
#[derive(Debug, Default, PartialEq, Eq)]
struct Findings {
    programs: u32,
    /// Functions whose recorded calls are as many as they counted.
    compared: u64,
    /// Functions that the compiler may inline, and that have no more recorded calls than counted.
    inlinable: u64,
    refused: u64,
    /// Functions without a symbol, all of whose calls are inlined or left out.
    absent: u64,
    differences: Vec<String>,
}

pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let fgraph = cargo::fgraph(options.fgraph.as_deref())?;
    let directory = TempDir::with_prefix("fgraph-generated-")?;
    let tester = Tester {
        fgraph: &fgraph,
        directory: directory.path(),
        kept: cargo::target().join("generated"),
    };
    let compilers = tester.compilers()?;
    let mut findings = Findings::default();
    for number in options.first..options.first.saturating_add(options.programs) {
        let compiler = &compilers[number as usize % compilers.len()];
        tester.try_generated(compiler, (options.seed, number), &mut findings)?;
    }
    println!(
        "{} programs: {} functions compared, {} more that may be inlined, {} refused, {} absent; \
         {} programs differ",
        findings.programs,
        grouped(findings.compared),
        grouped(findings.inlinable),
        grouped(findings.refused),
        grouped(findings.absent),
        findings.differences.len(),
    );
    if findings.compared == 0 {
        println!("FAILED: no function was compared");
    }
    let differ = match options.csmith {
        0 => 0,
        count => tester.csmith(&compilers, options.seed, count)?,
    };
    Ok(findings.compared != 0 && findings.differences.is_empty() && differ == 0)
}

/// Returns the name in the source of a symbol, or none of a part of a function. gcc appends words
/// to the names of clones, and clang prepends the convention.
fn name_of(symbol: &str) -> Option<&str> {
    let is_part = symbol.contains(".cold") || symbol.contains(".part");
    let name = symbol.strip_prefix("__regcall3__").unwrap_or(symbol);
    name.split('.').next().filter(|_| !is_part)
}

/// Returns the sum of a figure of the objects of each name.
fn sums(list: &Value, figure: impl Fn(&Value) -> u64) -> BTreeMap<&str, u64> {
    let mut sums = BTreeMap::new();
    for object in list.as_array().into_iter().flatten() {
        if let Some(name) = object["name"].as_str().and_then(name_of) {
            *sums.entry(name).or_default() += figure(object);
        }
    }
    sums
}

impl Findings {
    /// Compares the calls that a program counted with the recorded ones. Returns the differences.
    fn compare(
        &mut self,
        functions: &[Function],
        printed: &str,
        listed: &Value,
        report: &Value,
    ) -> Vec<String> {
        let refused = sums(&listed["functions"], |it| u64::from(it["how"].is_null()));
        let recorded = sums(&report["lines"], |it| it["calls"].as_u64().unwrap_or(0));
        let counts = printed.lines().filter_map(|line| line.split_once(' '));
        let counts: BTreeMap<&str, u64> = counts
            .filter_map(|(name, count)| Some((name, count.parse().ok()?)))
            .collect();
        let mut differences = Vec::new();
        for Function { name, is_inlinable } in functions {
            let calls = recorded.get(name.as_str()).copied().unwrap_or(0);
            let Some(&counted) = counts.get(name.as_str()) else {
                differences.push(format!("{name} has no count"));
                continue;
            };
            match refused.get(name.as_str()) {
                None if *is_inlinable && calls == 0 => self.absent += 1,
                Some(1..) => self.refused += 1,
                _ if calls == counted => self.compared += 1,
                _ if *is_inlinable && calls < counted => self.inlinable += 1,
                _ => differences.push(format!("{name}: {counted} calls, {calls} recorded")),
            }
        }
        if report["lost"]["events"] != 0 {
            differences.push(format!("lost: {}", report["lost"]));
        }
        differences
    }
}

struct Tester<'a> {
    fgraph: &'a Path,
    directory: &'a Path,
    /// Directory for the sources of programs that differ.
    kept: PathBuf,
}

impl Tester<'_> {
    /// Finds the compilers, and prints which options each lacks.
    fn compilers(&self) -> io::Result<Vec<Compiler>> {
        let mut compilers = Vec::new();
        for (need, is_gcc) in [(GCC, true), (CLANG, false)] {
            match need.find() {
                Ok(path) => {
                    let (accepted, lacking): (Vec<_>, Vec<_>) =
                        OPTIONS.iter().partition(|it| self.accepts(&path, it));
                    if !lacking.is_empty() {
                        println!("{}: without {lacking:?}", need.name());
                    }
                    let mut quiet = QUIET.to_vec();
                    quiet.retain(|it| self.accepts(&path, it));
                    compilers.push(Compiler {
                        quiet,
                        path,
                        is_gcc,
                        accepted,
                    });
                }
                Err(missing) => println!("skipped: {missing}"),
            }
        }
        match compilers.is_empty() {
            true => Err(io::Error::other("there is no compiler")),
            false => Ok(compilers),
        }
    }

    /// Returns true if the compiler makes a program with the option, and the machine runs it.
    fn accepts(&self, compiler: &Path, option: &str) -> bool {
        let source = self.directory.join("accepts.c");
        let mut command = bounded(LONG_LIMIT, compiler);
        // clang leaves reports of its crashes there.
        command.env("TMPDIR", self.directory);
        command.args(["-Werror", option, "-o"]);
        command.arg(source.with_extension("out")).arg(&source);
        let is_runnable = option != "-mavx2" || is_x86_feature_detected!("avx2");
        let done = fs::write(&source, PROBE).and_then(|()| Done::of(&mut command));
        is_runnable && done.is_ok_and(|done| done.fault().is_none())
    }

    fn try_generated(
        &self,
        compiler: &Compiler,
        (seed, number): (u64, u32),
        findings: &mut Findings,
    ) -> io::Result<()> {
        let mut random = Random::new(seed, number);
        let options = random.options(&compiler.accepted);
        let program = Program::generate(&mut random, compiler.is_gcc);
        let name = format!("{seed}-{number}.c");
        let words = [&compiler.quiet[..], &options].concat();
        let built = compile(
            &compiler.path,
            self.directory,
            (&name, &program.text),
            &words,
        )?;
        let plain = Done::of(&mut bounded(LIMIT, &built))?;
        let again = Done::of(&mut bounded(LIMIT, &built))?;
        let mut differences = match plain.stdout == again.stdout {
            true => self.record(&built, &plain, &[])?,
            false => vec!["plain runs differ".to_owned()],
        };
        if differences.is_empty() {
            let mut list = Command::new(self.fgraph);
            list.args(["--no-config", "functions", "--json"])
                .arg(&built);
            let mut report = Command::new(self.fgraph);
            report.args(["--no-config", "report", "--json"]);
            report.arg(self.recording());
            let listed = serde_json::from_str(&succeed(&mut list)?)?;
            let report = serde_json::from_str(&succeed(&mut report)?)?;
            let functions = &program.functions;
            differences = findings.compare(functions, &plain.stdout, &listed, &report);
        }
        findings.programs += 1;
        if !differences.is_empty() {
            let title = format!("program {number} of seed {seed}");
            self.keep(&title, (compiler, &words), &name, &differences)?;
            findings.differences.push(title);
        }
        fs::remove_file(built)
    }

    fn recording(&self) -> PathBuf {
        self.directory.join("fgraph.data")
    }

    /// Records a program. Returns how its output and exit status differ from those of a plain run.
    fn record(&self, program: &Path, plain: &Done, options: &[&str]) -> io::Result<Vec<String>> {
        let mut record = bounded(LONG_LIMIT, self.fgraph);
        record.args(["--no-config", "record", "-q", "--no-source"]);
        record.args(options).arg("-o").arg(self.recording());
        let recorded = Done::of(record.arg("--").arg(program))?;
        let mut differences = Vec::new();
        if plain.code != recorded.code {
            let codes = format!("exit code {:?}, {:?} recorded", plain.code, recorded.code);
            differences.push(format!("{codes}: {}", recorded.stderr.trim()));
        }
        if plain.stdout != recorded.stdout {
            let lines = plain.stdout.lines().zip(recorded.stdout.lines());
            let first = lines
                .into_iter()
                .find(|(plain, recorded)| plain != recorded);
            differences.push(format!("output: {first:?}"));
        }
        Ok(differences)
    }

    /// Prints how a program differs, and keeps its source.
    fn keep(
        &self,
        title: &str,
        (compiler, options): (&Compiler, &[&str]),
        name: &str,
        differences: &[String],
    ) -> io::Result<()> {
        fs::create_dir_all(&self.kept)?;
        let kept = self.kept.join(name);
        fs::copy(self.directory.join(name), &kept)?;
        println!("{title} differs: {}", differences.join("; "));
        let path = compiler.path.display();
        println!("    {path} {} {}", options.join(" "), kept.display());
        Ok(())
    }

    /// Tries programs of Csmith. Returns the number of those that differ.
    fn csmith(&self, compilers: &[Compiler], seed: u64, count: u32) -> io::Result<u32> {
        let headers = HEADERS.iter().find(|it| Path::new(&it[2..]).is_dir());
        let (csmith, headers) = match (CSMITH.find(), headers) {
            (Ok(csmith), Some(headers)) => (csmith, headers),
            (found, _) => {
                let missing = found.err().map(|missing| missing.to_string());
                let headers = "no headers of csmith (apt-get install libcsmith-dev)";
                println!("skipped: {}", missing.unwrap_or(headers.to_owned()));
                return Ok(0);
            }
        };
        let (mut tried, mut slow, mut differ) = (0, 0, 0);
        for number in 0..count {
            let mut random = Random::new(seed, number);
            let compiler = &compilers[number as usize % compilers.len()];
            let options = random.options(&compiler.accepted);
            let own = random.below(u32::MAX.into()).to_string();
            let mut make = bounded(LONG_LIMIT, &csmith);
            // Csmith writes a file into the current directory.
            make.args(["--seed", &own]).current_dir(self.directory);
            let text = succeed(&mut make)?;
            let name = format!("csmith-{own}.c");
            let words = [&compiler.quiet[..], &[*headers], &options].concat();
            let built = compile(&compiler.path, self.directory, (&name, &text), &words)?;
            let plain = Done::of(&mut bounded(LIMIT, &built))?;
            if plain.code == Some(TIMED_OUT) {
                slow += 1;
            } else {
                tried += 1;
                let differences = self.record(&built, &plain, &["--max-size", "100M"])?;
                if !differences.is_empty() {
                    differ += 1;
                    let title = format!("Csmith's program of seed {own}");
                    self.keep(&title, (compiler, &words), &name, &differences)?;
                }
            }
            fs::remove_file(built)?;
        }
        println!("{tried} programs of Csmith, {slow} more took too long plain; {differ} differ");
        Ok(differ)
    }
}

#[cfg(test)]
mod tests {
    use fgraph_needs::needs;
    use serde_json::json;

    use super::*;

    #[test]
    fn recorded_calls_of_traced_functions_must_be_the_counted_ones() {
        let function = |name: &str, is_inlinable| Function {
            name: name.to_owned(),
            is_inlinable,
        };
        let list = |name, how| json!({"name": name, "how": how});
        let listed = json!({"functions": [
            list("f0", Some("relocated")), list("f0.constprop.0", Some("relocated")),
            list("__regcall3__f1", Some("relocated")), list("f2", None), list("f4", Some("nops")),
        ]});
        let line = |name, calls| json!({"name": name, "calls": calls});
        let compare = |functions: &[Function], lines: &[Value]| {
            let report = json!({"lines": lines, "lost": {"events": 0}});
            let printed = "checksum 1\nf0 7\nf1 5\nf2 4\nf3 9\nf4 6\n";
            let mut findings = Findings::default();
            let differences = findings.compare(functions, printed, &listed, &report);
            (findings, differences)
        };
        let functions = [
            ("f0", false),
            ("f1", false),
            ("f2", false),
            ("f3", true),
            ("f4", true),
        ];
        let functions = functions.map(|(name, is_inlinable)| function(name, is_inlinable));
        let mut lines = vec![
            line("f0", 3),
            line("f0.constprop.0", 4),
            line("f0.cold", 1),
            line("f1", 5),
            line("f4", 2),
        ];
        let (findings, differences) = compare(&functions, &lines);
        assert_eq!(differences, [""; 0]);
        let expected = Findings {
            compared: 2,
            inlinable: 1,
            refused: 1,
            absent: 1,
            ..Findings::default()
        };
        assert_eq!(findings, expected);
        lines[0] = line("f0", 4);
        lines[4] = line("f4", 7);
        let (_, differences) = compare(&functions, &lines);
        let expected = ["f0: 7 calls, 8 recorded", "f4: 6 calls, 7 recorded"];
        assert_eq!(differences, expected);
    }

    #[test]
    fn generated_programs_compile_and_count_their_calls() {
        let directory = TempDir::with_prefix("fgraph-generated-").unwrap();
        for (is_gcc, compiler) in [(true, GCC), (false, CLANG)] {
            let compiler = needs!(compiler.find());
            for (number, level) in ["-O0", "-O2"].into_iter().enumerate() {
                let program = Program::generate(&mut Random::new(5, number as u32), is_gcc);
                let source = ("program.c", program.text.as_str());
                let built = compile(&compiler, directory.path(), source, &["-w", level]).unwrap();
                let [first, second] =
                    [0; 2].map(|_| Done::of(&mut bounded(LIMIT, &built)).unwrap());
                assert_eq!(first.stdout, second.stdout);
                assert_eq!(first.code, second.code);
                for Function { name, .. } in program
                    .functions
                    .iter()
                    .filter(|it| it.name.starts_with('f'))
                {
                    let count = first.stdout.lines().find_map(|line| {
                        line.strip_prefix(&format!("{name} "))?.parse::<u64>().ok()
                    });
                    assert!(
                        count.is_some_and(|count| count >= 10),
                        "{name}: {}",
                        first.stdout
                    );
                }
            }
        }
    }
}
