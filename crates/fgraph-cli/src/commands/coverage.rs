//! `fgraph coverage`: the functions that a program has called, and those that it never called.
//!
//! The program reports only the first call of each function, so later calls cost no event.

mod files;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use fgraph_symbols::filter::{Filter, FunctionFacts};
use fgraph_trace::Source;
use fgraph_trace::names::Names;
use fgraph_trace::place;
use serde::Serialize;

use crate::error::Error;
use crate::json;
use crate::launch::events::Events;
use crate::launch::{self, Launched, interrupt::Interrupts};
use crate::output::Out;
use crate::sources;
use crate::table::Table;
use crate::text::{escaped, grouped, percent};
use files::Function;

/// Run a program and show which functions it called, and which never
///
/// Counts the traceable functions of the program's own file and of libraries outside of the
/// system's directories; -F selects others.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fgraph coverage -- ./tests
  fgraph coverage --by source --uncalled -F 'parser::*' -- ./tests
  fgraph coverage --lcov coverage.info -- ./tests

The files are of functions: a line counts as run where a function begins that was called, and no
line within a function is mentioned.")]
pub(crate) struct Args {
    #[command(flatten)]
    what: launch::What,
    /// Group the counts by this
    #[arg(long, value_name = "WHAT", default_value = "module")]
    by: By,
    /// List the functions that were never called
    #[arg(long)]
    uncalled: bool,
    /// The most modules or source files to show, and functions that were never called: the first
    /// ones by name
    #[arg(short = 'n', long, value_name = "N")]
    lines: Option<usize>,
    /// Write functions with a known source to this file, in lcov's format
    #[arg(long, value_name = "FILE")]
    lcov: Option<PathBuf>,
    /// Write functions with a known source to this file, in Cobertura's XML
    #[arg(long, value_name = "FILE")]
    cobertura: Option<PathBuf>,
    /// Write the starts of called functions to this file, in DynamoRIO's drcov format
    #[arg(long, value_name = "FILE")]
    drcov: Option<PathBuf>,
    /// Print one JSON object, as the last line
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum By {
    Module,
    /// Source files, where there is debug information
    Source,
}

/// The view of `coverage` in JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct CoverageView {
    /// Functions that can be traced.
    functions: u64,
    called: u64,
    lines: Vec<CoverageLine>,
    /// The functions that were never called.
    uncalled: Vec<Uncalled>,
}

/// The functions of a module or of a source file.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct CoverageLine {
    name: String,
    functions: u64,
    called: u64,
}

/// A function that was never called.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Uncalled {
    name: String,
    module: String,
    /// Its source file and line; null without debug information.
    file: Option<String>,
    line: Option<u32>,
}

/// Runs the program, and ends as it does.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Error> {
    let program = args.what.find(Vec::new())?.once();
    let filter = program.filter()?;
    program.run_whole(|launched: &mut Launched, interrupts: &Interrupts| {
        let mut events = Events::new(launched, interrupts)?;
        let failed = |error| Error::source("the rings", error);
        while events.next().map_err(failed)?.is_some() {}
        let functions = functions(events.names(), &filter);
        let write = |path: &Option<PathBuf>, content: &dyn Fn() -> Vec<u8>| {
            let Some(path) = path else {
                return Ok(());
            };
            place::write(path, content()).map_err(|error| Error::Write {
                path: path.clone(),
                error,
            })
        };
        write(&args.lcov, &|| files::lcov(&functions).into_bytes())?;
        write(&args.cobertura, &|| {
            files::cobertura(&functions, SystemTime::now()).into_bytes()
        })?;
        write(&args.drcov, &|| files::drcov(&functions))?;
        show(args, &functions)
    })
}

/// Returns the functions of all modules that the filter selects, each once, even if several
/// processes have loaded them.
fn functions(names: &Names, filter: &Filter) -> Vec<Function> {
    let mut called: HashMap<&str, HashSet<u64>> = HashMap::new();
    for (process, _, function) in names.functions() {
        let place = sources::in_module(names, process, &function.module, function.address);
        let of_module = called.entry(&function.module).or_default();
        of_module.extend(place.map(|(_, place)| place));
    }
    let mut modules: Vec<&str> = names.modules().iter().map(|it| it.path.as_str()).collect();
    modules.sort_unstable();
    modules.dedup();
    let mut found = Vec::new();
    for path in modules {
        let Ok(sites) = fgraph::sites_of_file(Path::new(path), false) else {
            continue;
        };
        let first = sources::first_address_of(Path::new(path)).unwrap_or(0);
        let mut lines = None;
        for site in sites.iter().filter(|site| site.how.is_ok()) {
            let all = [site.name.as_str()];
            if !filter.matches(&FunctionFacts::new(&all, path)) {
                continue;
            }
            let lines = lines.get_or_insert_with(|| sources::lines_of(Path::new(path)));
            let address = site.address as u64;
            let place = address.wrapping_sub(first);
            let calls = called.get(path);
            found.push(Function {
                source: lines.as_ref().and_then(|lines| lines.in_function(address)),
                place,
                size: site.size,
                is_called: calls.is_some_and(|calls| calls.contains(&place)),
                name: site.name,
                module: path.to_owned(),
            });
        }
    }
    found
}

fn show(args: &Args, functions: &[Function]) -> Result<(), Error> {
    let mut lines: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    let mut whole = (0, 0);
    for function in functions {
        let source = function.source.as_ref().map(|(file, _)| file.as_str());
        let name = match args.by {
            By::Module => &function.module,
            By::Source => source.unwrap_or("?"),
        };
        let line = lines.entry(name).or_default();
        for count in [line, &mut whole] {
            count.0 += u64::from(function.is_called);
            count.1 += 1;
        }
    }
    let most = args.lines.unwrap_or(usize::MAX);
    let lines = lines.into_iter().take(most);
    let uncalled = functions.iter().filter(|function| !function.is_called);
    let uncalled = uncalled.take(most);
    if args.json {
        let line = |(name, (called, functions)): (&str, (u64, u64))| CoverageLine {
            name: name.to_owned(),
            functions,
            called,
        };
        let uncalled = uncalled.map(|function| Uncalled {
            name: function.name.clone(),
            module: function.module.clone(),
            file: function.source.as_ref().map(|(file, _)| file.clone()),
            line: function.source.as_ref().map(|(_, line)| *line),
        });
        return json::write(&CoverageView {
            functions: whole.1,
            called: whole.0,
            lines: lines.map(line).collect(),
            uncalled: uncalled.collect(),
        });
    }
    let of = match args.by {
        By::Module => "module",
        By::Source => "source",
    };
    let mut table = Table::new(&[("called", 1), ("functions", 2), ("%", 0), (of, 0)]);
    let mut row = |(called, all): (u64, u64), name: &str| {
        let name = escaped(name).into_owned();
        table.row(vec![
            grouped(called),
            grouped(all),
            percent(called, all),
            name,
        ]);
    };
    for (name, counts) in lines {
        row(counts, name);
    }
    row(whole, "all");
    let mut out = Out::new();
    table.write(&mut out)?;
    if args.uncalled {
        out.line("")?;
        for function in uncalled {
            let place = match &function.source {
                Some((file, line)) => format!("{file}:{line}"),
                None => function.module.clone(),
            };
            let line = format!("{}  {place}", function.name);
            out.line(escaped(&line))?;
        }
    }
    out.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_docs_have_the_schema() {
        json::check_schema::<CoverageView>("coverage");
    }
}
