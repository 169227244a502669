//! `cargo xtask diff-test`: the changes that `fgraph diff` finds in recordings of real runs.
//!
//! A pair is two groups of recordings, made in turns. In the first pairs both groups are of the
//! same program, so that each change that is shown is a false alarm. In the others the new program
//! is built from the same generated source, but for one function that computes a twentieth more.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use fgraph_chores::cargo;
use fgraph_chores::figures::grouped;
use fgraph_chores::process::{Done, succeed};
use fgraph_needs::{GCC, SQLITE3};
use serde_json::Value;
use tempfile::TempDir;

/// Options of the command line.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Number of pairs of each kind
    #[arg(long, default_value_t = 20, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..))]
    pairs: u32,
    /// Recordings of each side of a pair
    #[arg(long, default_value_t = 10, value_name = "N",
        value_parser = clap::value_parser!(u32).range(3..))]
    runs: u32,
    /// Functions of the generated program
    #[arg(long, default_value_t = 2000, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..))]
    functions: u32,
    /// The command, in place of the one of this workspace
    #[arg(long, value_name = "PATH")]
    fgraph: Option<PathBuf>,
}

/// Queries for SQLite in the first pairs.
const QUERIES: &str = "\
create table t(a, b);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 1000)
    insert into t select i, i * 7919 % 10007 from n;
create index t_b on t(b);
select count(*), sum(a) from t where b between 100 and 5000 and a % 7 = 1;
select a % 13, max(b) from t group by 1 order by 2;
";

/// Functions that are recorded: SQLite's, and those of the generated program.
const FILTER: &str = ":mod:libsqlite3* :mod:program";

/// Condition for which a change of the same program is a false alarm.
const CONDITION: &str = "self > +5%";

/// Calls of each function of the generated program.
const CALLS: u32 = 40;

/// Rounds of a loop in the slowest function; the fastest has half as many.
const ROUNDS: u32 = 2000;

/// Result of a kind of pairs.
#[derive(Debug, Default)]
struct Findings {
    /// Functions for which the condition holds, but which have not changed.
    alarms: u32,
    /// Pairs in which functions are shown that have not changed.
    shown: u32,
    /// Pairs in which the change was found.
    found: u32,
}

pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let needs = |need: fgraph_needs::Need| need.find().map_err(io::Error::other);
    let (sqlite, gcc) = (needs(SQLITE3)?, needs(GCC)?);
    let fgraph = cargo::fgraph(options.fgraph.as_deref())?;
    let directory = TempDir::with_prefix("fgraph-diff-")?;
    let tester = Tester {
        options,
        fgraph: &fgraph,
        directory: directory.path(),
    };

    let same = [
        sqlite.display().to_string(),
        ":memory:".to_owned(),
        QUERIES.to_owned(),
    ];
    let mut of_same = Findings::default();
    for pair in 0..options.pairs {
        let view = tester.pair([&same, &same])?;
        of_same.add(&view, None);
        eprintln!("same build {}: {}", pair + 1, changes(&view));
    }
    println!(
        "{} pairs of the same build, {} recordings a side",
        options.pairs, options.runs
    );
    println!("  false alarms at {CONDITION}: {}", of_same.alarms);
    println!("  with any function shown: {}", of_same.shown);

    let mut of_planted = Findings::default();
    let old = tester.compile(&gcc, "old", None)?;
    for pair in 0..options.pairs {
        // Spread over all.
        let slower = (options.functions * (2 * pair + 1) / (2 * options.pairs)).max(1) - 1;
        let new = tester.compile(&gcc, "new", Some(slower))?;
        let view = tester.pair([std::slice::from_ref(&old), &[new]])?;
        let name = format!("f{slower}");
        of_planted.add(&view, Some(&name));
        eprintln!("{name} slower, {}: {}", pair + 1, changes(&view));
    }
    let functions = grouped(options.functions.into());
    println!(
        "{} pairs with one slower function of {functions}",
        options.pairs
    );
    println!("  found: {}", of_planted.found);
    println!("  false alarms at {CONDITION}: {}", of_planted.alarms);
    println!("  with any other function shown: {}", of_planted.shown);
    // 19 of 20.
    let are_found = 20 * of_planted.found >= 19 * options.pairs;
    Ok(are_found && of_same.alarms == 0 && of_planted.alarms == 0)
}

impl Findings {
    /// Adds the view of a pair in which `planted` is slower, or none.
    fn add(&mut self, view: &Value, planted: Option<&str>) {
        let array = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let failed = array(&view["failed"]);
        let failed = failed
            .iter()
            .flat_map(|failure| array(&failure["functions"]));
        // With its module in brackets.
        let alarms = failed.filter(|name| {
            let name = name.as_str().unwrap_or_default().split(' ').next();
            name != planted
        });
        self.alarms += alarms.count() as u32;
        let functions = array(&view["functions"]);
        let is_planted = |function: &&Value| function["name"].as_str() == planted;
        let (planted, others): (Vec<&Value>, Vec<&Value>) = functions.iter().partition(is_planted);
        self.shown += u32::from(others.iter().any(|function| !calls_planted(function)));
        let is_slower = |function: &&Value| {
            let own = &function["self"];
            own["is_certain"] == true && own["from_ns"].as_f64().is_some_and(|from| from > 0.0)
        };
        self.found += u32::from(planted.iter().any(is_slower));
    }
}

/// Returns true for the function that calls all others, whose total time changes with theirs.
fn calls_planted(function: &Value) -> bool {
    function["name"] == "main" && function["self"]["is_certain"] == false
}

/// Returns the changes in a view, in short.
fn changes(view: &Value) -> String {
    let functions = view["functions"].as_array();
    let functions = functions.map(Vec::as_slice).unwrap_or_default();
    let names: BTreeSet<&str> = (functions.iter())
        .filter_map(|function| function["name"].as_str())
        .collect();
    match names.len() {
        0 => "nothing".to_owned(),
        _ => names.into_iter().take(5).collect::<Vec<_>>().join(", "),
    }
}

struct Tester<'a> {
    options: &'a Options,
    fgraph: &'a Path,
    directory: &'a Path,
}

impl Tester<'_> {
    /// Records both commands in turns, and returns their differences.
    fn pair(&self, commands: [&[String]; 2]) -> io::Result<Value> {
        let names = ["old", "new"];
        let file = |name: &str, run: u32| self.directory.join(format!("{name}.{run}.data"));
        for run in 0..self.options.runs {
            let turn = if run % 2 == 0 { [0, 1] } else { [1, 0] };
            for at in turn {
                let mut record = Command::new(self.fgraph);
                record.args(["--no-config", "record", "-q", "-F", FILTER, "-o"]);
                record
                    .arg(file(names[at], run))
                    .arg("--")
                    .args(commands[at]);
                Done::of(&mut record)?.check()?;
            }
        }
        let files = names.map(|name| (0..self.options.runs).map(move |run| file(name, run)));
        let [old, new] = files;
        let mut diff = Command::new(self.fgraph);
        diff.args(["--no-config", "diff", "--json", "--fail-on", CONDITION]);
        let output = diff.args(old).arg("--").args(new).output()?;
        match output.status.code() {
            Some(0 | 3) => Ok(serde_json::from_slice(&output.stdout)?),
            _ => Err(io::Error::other(
                String::from_utf8_lossy(&output.stderr).into_owned(),
            )),
        }
    }

    /// Compiles the program, with a function that computes a twentieth more.
    fn compile(&self, gcc: &Path, name: &str, slower: Option<u32>) -> io::Result<String> {
        let source = self.directory.join(format!("{name}.c"));
        fs::write(&source, self.source(slower))?;
        let directory = self.directory.join(name);
        fs::create_dir_all(&directory)?;
        // The same name in both, as that of a program that was built again.
        let program = directory.join("program");
        let mut compile = Command::new(gcc);
        compile.args(["-O1", "-o"]).arg(&program).arg(&source);
        succeed(&mut compile)?;
        Ok(program.display().to_string())
    }

    /// Returns the source of the program: functions of different length, each called as often.
    fn source(&self, slower: Option<u32>) -> String {
        let count = self.options.functions;
        let mut source = "static volatile unsigned sink;\n".to_owned();
        for function in 0..count {
            let rounds = ROUNDS / 2 + (ROUNDS / 2) * function / count;
            let more = if slower == Some(function) {
                rounds / 20
            } else {
                0
            };
            _ = writeln!(
                source,
                "__attribute__((noipa)) void f{function}(void) {{ unsigned x = {function}; \
                 for (int i = 0; i < {}; i++) x = x * 1103515245u + 12345u; sink = x; }}",
                rounds + more
            );
        }
        source += "int main(void) {\n";
        _ = writeln!(source, "for (int call = 0; call < {CALLS}; call++) {{");
        for function in 0..count {
            _ = writeln!(source, "f{function}();");
        }
        source + "}\nreturn 0; }\n"
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_was_planted_is_found_and_all_else_is_an_alarm() {
        let slower = |name: &str, from: f64| {
            let own = json!({"is_certain": true, "from_ns": from});
            json!({"name": name, "self": own})
        };
        let view = json!({
            "functions": [slower("f1", 5.0), slower("f2", 5.0)],
            "failed": [{"condition": CONDITION, "functions": ["f1 [program]", "f2 [program]"]}],
        });
        let mut result = Findings::default();
        result.add(&view, Some("f1"));
        assert_eq!((result.found, result.alarms, result.shown), (1, 1, 1));
        let mut result = Findings::default();
        result.add(
            &json!({"functions": [slower("f1", -5.0)], "failed": []}),
            Some("f1"),
        );
        assert_eq!((result.found, result.alarms, result.shown), (0, 0, 0));
        let mut result = Findings::default();
        result.add(&view, None);
        assert_eq!((result.found, result.alarms, result.shown), (0, 2, 1));
    }
}
