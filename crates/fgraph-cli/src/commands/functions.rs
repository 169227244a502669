//! `fgraph functions`: the traceable functions of a program, a library or a process.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use fgraph::{RefusalReason, SiteInfo};
use fgraph_symbols::demangle;
use fgraph_symbols::filter::{Filter, FunctionFacts};
use fgraph_symbols::inlined::InlinedAt;
use fgraph_symbols::lines::Lines;
use serde::Serialize;

use crate::error::Error;
use crate::inlined;
use crate::json;
use crate::output::{Out, Style};
use crate::sources;
use crate::target::parse_pid;
use crate::text::{counted, cut, escaped, grouped};

/// List the functions of a program or library: how each is traced, or why it cannot be
///
/// With debug information, functions are shown with their arguments and results. The end of the
/// list has the number of traceable functions, and the reasons for the others. With debug
/// information and a filter, the places follow at which matching functions are inlined.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fgraph functions /lib/x86_64-linux-gnu/libc.so.6 --refused
  fgraph functions python3 'PyObject_*'
  fgraph functions -p 1234 'malloc' 'free'")]
pub(crate) struct Args {
    /// The program or library, as a path or the name of a program in PATH; then globs over names of
    /// functions, or other words of a filter. With -p, all of these are globs
    #[arg(value_name = "FILE|GLOB", required_unless_present = "pid")]
    words: Vec<String>,
    /// List the functions of all modules of a process
    #[arg(short, long, value_name = "PID", value_parser = parse_pid)]
    pid: Option<u32>,
    /// List only functions that cannot be traced
    #[arg(long)]
    refused: bool,
    /// List as if functions could get breakpoints, at which each call traps
    #[arg(long)]
    breakpoints: bool,
    /// The most functions to list
    #[arg(short = 'n', long, value_name = "N")]
    lines: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The view of `functions` in JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct FunctionsView {
    functions: Vec<FunctionInfo>,
    /// Functions that can be traced, including those that `--refused` leaves out.
    traced: u64,
    /// Traced functions whose returns are not reported.
    entry_only: u64,
    refused: u64,
    /// Resolvers of IFUNCs, which the program does not call.
    resolvers: u64,
    /// Places at which matching functions are inlined, where no call can be seen; empty without a
    /// filter or debug information.
    inlined: Vec<InlinedPlace>,
}

/// A place at which a function is inlined.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct InlinedPlace {
    name: String,
    /// The path of the file that contains it.
    module: String,
    /// The address in the file.
    address: u64,
    /// The function that contains the code; null if it is unknown.
    caller: Option<String>,
    /// The source file of the call; null if it is unknown.
    file: Option<String>,
    line: Option<u32>,
}

/// A function of a module.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct FunctionInfo {
    name: String,
    /// The path of the file that contains it.
    module: String,
    /// The address in the file.
    address: u64,
    /// The size in bytes; 0 if it is unknown.
    size: u64,
    /// The method of tracing; null if it cannot be traced.
    how: Option<String>,
    /// True if its returns are traced.
    returns: bool,
    /// The reason that it cannot be traced; null if it can.
    refusal: Option<String>,
    /// Parameters and result; null without debug information.
    signature: Option<String>,
}

/// Returns the file for a path or a name.
fn find(file: &str) -> PathBuf {
    let path = PathBuf::from(file);
    if file.contains('/') || path.is_file() {
        return path;
    }
    let paths = env::var_os("PATH").unwrap_or_default();
    let mut all = env::split_paths(&paths).map(|directory| directory.join(file));
    all.find(|path| path.is_file()).unwrap_or(path)
}

/// Returns the files with code that a process has loaded, as it sees them.
fn modules(process: u32) -> Result<Vec<PathBuf>, Error> {
    let place = PathBuf::from(format!("/proc/{process}"));
    let path = place.join("maps");
    let maps = fs::read(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Error::Nothing(format!(
            "process {process} cannot be read: there is no such process"
        )),
        io::ErrorKind::PermissionDenied => Error::Nothing(format!(
            "process {process} cannot be read: that takes the rights of a debugger"
        )),
        _ => Error::Input { path, error },
    })?;
    let maps = String::from_utf8_lossy(&maps);
    let mut paths = BTreeSet::new();
    for line in maps.lines() {
        let access = line.split_ascii_whitespace().nth(1).unwrap_or_default();
        if let (true, Some(at)) = (access.contains('x'), line.find(" /")) {
            paths.insert(&line[at + 2..]);
        }
    }
    let root = place.join("root");
    let paths = paths.into_iter().map(|path| root.join(path));
    Ok(paths.filter(|path| path.is_file()).collect())
}

/// Counts of functions.
#[derive(Debug, Default)]
struct Counts {
    traced: u64,
    /// Traced functions whose returns are not reported.
    entry_only: u64,
    /// Functions that cannot be traced, by the reason.
    refused: BTreeMap<String, u64>,
    /// IFUNC resolvers, which a program never calls.
    resolvers: u64,
}

impl Counts {
    fn add(&mut self, site: &SiteInfo) {
        let reason = match &site.how {
            Ok(_) => {
                self.traced += 1;
                self.entry_only += u64::from(!site.returns);
                return;
            }
            Err(RefusalReason::Resolver) => {
                self.resolvers += 1;
                return;
            }
            Err(other) => other.category(),
        };
        *self.refused.entry(reason).or_default() += 1;
    }

    fn functions(&self) -> u64 {
        self.traced + self.refused.values().sum::<u64>()
    }
}

/// Prints them.
pub(crate) fn run(args: Args) -> Result<(), Error> {
    let (files, globs) = match (args.pid, args.words.split_first()) {
        (Some(process), _) => (modules(process)?, &args.words[..]),
        (None, Some((file, globs))) => (vec![find(file)], globs),
        (None, None) => (Vec::new(), &[][..]),
    };
    let filter: Option<Filter> =
        match globs {
            [] => None,
            globs => {
                let filter = globs.join(" ").parse();
                Some(filter.map_err(|error: fgraph_symbols::FilterError| {
                    Error::Usage(error.to_string())
                })?)
            }
        };
    let mut out = Out::new();
    let (mut counts, mut shown) = (Counts::default(), 0_usize);
    let most = args.lines.unwrap_or(usize::MAX);
    let (mut functions, mut places) = (Vec::new(), Vec::new());
    for path in &files {
        let sites = match fgraph::sites_of_file(path, args.breakpoints) {
            Ok(sites) => sites,
            // A process may have mapped any file.
            Err(_) if args.pid.is_some() => continue,
            Err(why) => {
                let (path, error) = (path.clone(), io::Error::other(why));
                return Err(Error::Input { path, error });
            }
        };
        let module = in_process(path, args.pid);
        let mut lines = None;
        for site in &sites {
            let names = [site.name.as_str()];
            let facts = FunctionFacts::new(&names, &module);
            if filter
                .as_ref()
                .is_some_and(|filter| !filter.matches(&facts))
            {
                continue;
            }
            counts.add(&site);
            if args.refused && site.how.is_ok() || shown >= most {
                continue;
            }
            if lines.is_none() && files.len() > 1 && !args.json {
                out.line(Style::Bold.paint(escaped(&module)))?;
            }
            shown += 1;
            let lines = lines.get_or_insert_with(|| sources::lines_of(path));
            if args.json {
                functions.push(to_json(site, &module, lines.as_ref()));
                continue;
            }
            let line = line(&site, lines.as_ref());
            out.line(cut(&line, out.width.unwrap_or(usize::MAX)))?;
        }
        let Some(filter) = &filter else { continue };
        let Some(lines) = lines.unwrap_or_else(|| sources::lines_of(path)) else {
            continue;
        };
        let is_wanted = |name: &str, symbol: &str| {
            filter.matches(&FunctionFacts::new(&[name], &module).with_symbols(&[symbol]))
        };
        let is_shown = !args.json && !args.refused;
        for (name, all) in inlined::of_file(&lines, is_wanted) {
            for place in all {
                if is_shown && shown < most {
                    let text = format!("{name}  inlined in {}", inlined::describe(&place));
                    let line = format!("{:>10x}  {}", place.address, escaped(&text));
                    out.line(cut(&line, out.width.unwrap_or(usize::MAX)))?;
                    shown += 1;
                }
                places.push(InlinedPlace::new(&name, &module, place));
            }
        }
    }
    if counts.functions() + counts.resolvers == 0 && places.is_empty() && filter.is_some() {
        let why = format!("no function matches {}", globs.join(" "));
        return Err(Error::Nothing(why));
    }
    if args.json {
        return json::write(&FunctionsView {
            functions,
            traced: counts.traced,
            entry_only: counts.entry_only,
            refused: counts.refused.values().sum(),
            resolvers: counts.resolvers,
            inlined: places,
        });
    }
    if shown > 0 {
        out.line("")?;
    }
    summarize(&counts, places.len() as u64, &mut out)?;
    out.finish()
}

impl InlinedPlace {
    fn new(name: &str, module: &str, place: InlinedAt) -> Self {
        let (file, line) = place.place.unzip();
        Self {
            name: name.to_owned(),
            module: module.to_owned(),
            address: place.address,
            caller: place.caller.map(|caller| demangle::to_string(&caller)),
            file,
            line,
        }
    }
}

/// Returns the path of a module as its process names it.
fn in_process(path: &Path, process: Option<u32>) -> String {
    let root = process.map(|process| format!("/proc/{process}/root"));
    let inside = root.and_then(|root| path.strip_prefix(root).ok());
    match inside {
        Some(inside) => format!("/{}", inside.display()),
        None => path.display().to_string(),
    }
}

fn to_json(site: SiteInfo, module: &str, lines: Option<&Lines>) -> FunctionInfo {
    let signature = lines.and_then(|lines| lines.signature(site.address as u64));
    FunctionInfo {
        name: site.name,
        module: module.to_owned(),
        address: site.address as u64,
        size: site.size as u64,
        how: site.how.as_ref().ok().map(ToString::to_string),
        returns: site.returns,
        refusal: site.how.err().map(|refusal| refusal.to_string()),
        signature: signature.map(|signature| signature.to_string()),
    }
}

fn line(site: &SiteInfo, lines: Option<&Lines>) -> String {
    let how = match &site.how {
        Ok(how) if site.returns => how.to_string(),
        Ok(how) => format!("{how}, entries only"),
        Err(refusal) => format!("refused: {refusal}"),
    };
    let signature = lines.and_then(|lines| lines.signature(site.address as u64));
    let signature = match signature {
        // Names of C++ functions include their parameters.
        Some(signature) if site.name.contains('(') => format!(" {signature}"),
        Some(signature) => signature.to_string(),
        None => String::new(),
    };
    let name = format!("{}{signature}", site.name);
    format!("{:>10x}  {}  {how}", site.address, escaped(&name))
}

fn summarize(counts: &Counts, inlined: u64, out: &mut Out) -> Result<(), Error> {
    let (traced, all) = (counts.traced, counts.functions());
    // Rounded down: 100 % means all.
    let hundredths = (traced * 10_000).checked_div(all).unwrap_or(10_000);
    let summary = format!(
        "{} of {} functions can be traced: {}.{:02} %",
        grouped(traced),
        grouped(all),
        hundredths / 100,
        hundredths % 100
    );
    // No line for functions that are only inlined: there is none to trace.
    if all > 0 || inlined == 0 {
        out.line(Style::Bold.paint(summary))?;
    }
    if counts.entry_only > 0 {
        let only = grouped(counts.entry_only);
        out.line(format_args!("{only:>8}  of these without their returns"))?;
    }
    let mut reasons: Vec<_> = counts.refused.iter().collect();
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    for (reason, count) in reasons {
        let count = grouped(*count);
        out.line(format_args!("{count:>8}  refused: {}", escaped(reason)))?;
    }
    if counts.resolvers > 0 {
        let resolvers = grouped(counts.resolvers);
        out.line(format_args!(
            "{resolvers:>8}  not counted: resolvers of IFUNCs"
        ))?;
    }
    if inlined > 0 {
        let inlined = counted(inlined, "place");
        out.line(format_args!(
            "inlined at {inlined}, where no call can be seen"
        ))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_docs_have_the_schema() {
        json::check_schema::<FunctionsView>("functions");
    }
}
