//! `cargo xtask same-trees`: programs that are there twice, as they are and built with `-pg`.
//!
//! fgraph records the one and uftrace the other, and what each thread calls must be the same.
//!
//! Compared are the functions that both have seen, by their names without arguments and template
//! parameters. Functions that only one has seen are listed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use clap::Args;
use fgraph_chores::cargo;
use fgraph_needs::UFTRACE;

/// Options of the command line.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// A directory with programs, each of them as NAME and, built with -pg, as NAME.pg
    #[arg(value_name = "DIRECTORY")]
    programs: PathBuf,
    /// The command `fgraph`; without it, it is built
    #[arg(long, value_name = "PATH")]
    fgraph: Option<PathBuf>,
}

/// Seconds that a program may run.
const PATIENCE: &str = "20";

/// An entry, or the end of a call, of a function by a thread.
type Event = (String, bool, String);

/// Records each program twice, and prints which trees are the same.
pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let uftrace = UFTRACE.find().map_err(io::Error::other)?;
    let fgraph = cargo::fgraph(options.fgraph.as_deref())?;
    let place = fs::canonicalize(&options.programs)?;
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(&place)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        names.extend(name.strip_suffix(".pg").map(str::to_owned));
    }
    if names.is_empty() {
        let why = format!("no program NAME.pg is in {}", place.display());
        return Err(io::Error::other(why));
    }
    let mut counts = BTreeMap::new();
    for name in names {
        let ours = by_fgraph(&fgraph, &place, &name)?;
        let theirs = by_uftrace(&uftrace, &place, &format!("{name}.pg"))?;
        let (verdict, more) = compare(&ours, &theirs);
        println!("{name:<20} {verdict:<8} {more}");
        *counts.entry(verdict).or_insert(0) += 1;
    }
    let shown = counts
        .iter()
        .map(|(verdict, count)| format!("{count} {verdict}"));
    println!("{}", shown.collect::<Vec<_>>().join(", "));
    Ok(!counts.contains_key("differs"))
}

/// Runs a command in the directory of the programs, for a bounded time.
fn output(place: &Path, command: &Path, arguments: &[&str]) -> io::Result<Output> {
    Command::new("timeout")
        .args(["-k", "1", PATIENCE])
        .arg(command)
        .args(arguments)
        .current_dir(place)
        .stdin(Stdio::null())
        .output()
}

fn by_fgraph(fgraph: &Path, place: &Path, name: &str) -> io::Result<Vec<Event>> {
    let folder = tempfile::tempdir()?;
    let recording = folder.path().join("fgraph.data").display().to_string();
    let module = format!(":mod:{name}");
    let program = format!("./{name}");
    let words = ["record", "-q", "-F", &module, "-o", &recording, &program];
    output(place, fgraph, &words)?;
    let dumped = output(place, fgraph, &["dump", &recording])?;
    let text = String::from_utf8_lossy(&dumped.stdout).into_owned();
    let mut events = Vec::new();
    for line in text.lines() {
        let Some(event) = of_fgraph(line) else {
            continue;
        };
        let (thread, _, name) = event.clone();
        events.push(event);
        if line.ends_with(ENTRY_ONLY) {
            events.push((thread, false, name));
        }
    }
    Ok(events)
}

fn by_uftrace(uftrace: &Path, place: &Path, name: &str) -> io::Result<Vec<Event>> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data").display().to_string();
    let program = format!("./{name}");
    let words = ["record", "--no-event", "--no-pager", "-d", &data, &program];
    output(place, uftrace, &words)?;
    let dumped = output(place, uftrace, &["dump", "--no-pager", "-d", &data])?;
    let text = String::from_utf8_lossy(&dumped.stdout).into_owned();
    Ok(text.lines().filter_map(of_uftrace).collect())
}

/// Mark behind a call without a recorded end.
const ENTRY_ONLY: &str = " (entry only)";

/// ` 5.000 7/8 [1] entry   main [main.c:3]`
fn of_fgraph(line: &str) -> Option<Event> {
    let (head, rest) = line.split_once("] ")?;
    let thread = head.split_whitespace().nth(1)?;
    let (kind, name) = rest.split_once(' ')?;
    let name = name.trim_start().split(" [").next()?;
    let name = name.trim_end_matches(ENTRY_ONLY);
    let is_entry = match kind {
        "entry" => true,
        "return" | "unwound" => false,
        _ => return None,
    };
    Some((thread.to_owned(), is_entry, short(name)))
}

/// `5.000   8: [entry] main(4011d6) depth: 0`
fn of_uftrace(line: &str) -> Option<Event> {
    let (head, rest) = line.split_once(": [")?;
    let thread = head.split_whitespace().nth(1)?;
    let (kind, call) = rest.split_once("] ")?;
    let (name, _) = call.rsplit_once(") depth: ")?.0.rsplit_once('(')?;
    let is_entry = match kind {
        "entry" => true,
        "exit " => false,
        _ => return None,
    };
    Some((thread.to_owned(), is_entry, short(name)))
}

/// A name without what it gives back, its arguments and all template parameters.
fn short(name: &str) -> String {
    let name = name.replace("(anonymous namespace)::", "");
    let (mut shown, mut parameters) = (String::new(), 0_usize);
    for character in name.chars() {
        let is_operator = shown.ends_with("operator") || shown.ends_with("operator<");
        match character {
            '<' if !is_operator => parameters += 1,
            '>' if parameters > 0 => parameters -= 1,
            _ if parameters > 0 => {}
            '(' if !is_operator => break,
            _ => shown.push(character),
        }
    }
    let end = shown.find("operator").unwrap_or(shown.len());
    let start = shown[..end].rfind(' ').map_or(0, |space| space + 1);
    shown.split_off(start)
}

/// Compares the calls of the threads of two runs. Returns a verdict, and more about it.
fn compare(ours: &[Event], theirs: &[Event]) -> (&'static str, String) {
    let [our_names, their_names] = [ours, theirs].map(|events| {
        let names = events.iter().map(|(_, _, name)| name.as_str());
        names.collect::<BTreeSet<_>>()
    });
    let both: BTreeSet<&str> = our_names.intersection(&their_names).copied().collect();
    if both.is_empty() {
        let who = if ours.is_empty() { "fgraph" } else { "uftrace" };
        return ("cannot", format!("nothing is recorded by {who}"));
    }
    let trees = [ours, theirs].map(|events| trees(events, &both));
    let calls = |trees: &[Vec<(usize, &str)>]| trees.iter().map(Vec::len).sum::<usize>();
    let [ours_only, theirs_only] = [&our_names, &their_names].map(|names| {
        let only: Vec<&str> = names.difference(&both).copied().collect();
        only.join(" ")
    });
    let more = format!(
        "{} calls; seen by fgraph only: {ours_only}; by uftrace only: {theirs_only}",
        calls(&trees[0]),
    );
    match trees[0] == trees[1] {
        true => ("same", more),
        false => (
            "differs",
            format!("{} by uftrace, {more}", calls(&trees[1])),
        ),
    }
}

/// The calls of each thread with their depths, in the order of what they are.
fn trees<'a>(events: &'a [Event], of: &BTreeSet<&str>) -> Vec<Vec<(usize, &'a str)>> {
    /// Calls of a thread: those that go on, and all with their depths.
    type Thread<'a> = (Vec<&'a str>, Vec<(usize, &'a str)>);
    let mut threads: BTreeMap<&str, Thread<'_>> = BTreeMap::new();
    for (thread, is_entry, name) in events {
        if !of.contains(name.as_str()) {
            continue;
        }
        let (open, calls) = threads.entry(thread).or_default();
        if *is_entry {
            calls.push((open.len(), name));
            open.push(name);
        } else if let Some(at) = open.iter().rposition(|it| it == name) {
            open.truncate(at);
        }
    }
    let trees = threads.into_values().map(|(_, calls)| calls);
    // A child has the ends of its parent's calls.
    let mut trees: Vec<_> = trees.filter(|calls| !calls.is_empty()).collect();
    trees.sort_unstable();
    trees
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: [&str; 5] = [
        " 1.000 7/7 [1] entry   main [main.c:3]",
        " 1.001 7/7 [1] entry   ns::f<int>(int)",
        " 1.002 7/8 [-] entry   _init",
        " 1.003 7/7 [1] unwound ns::f<int>(int)",
        " 1.004 7/7 [1] entry   ns::f<int>(int)",
    ];
    const THEIRS: [&str; 5] = [
        "reading 9.dat",
        "1.000   9: [entry] main(4011d6) depth: 0",
        "1.001   9: [entry] ns::f(4011e0) depth: 1",
        "1.002   9: [exit ] ns::f(4011e0) depth: 1",
        "1.003   9: [entry] ns::f(4011e0) depth: 1",
    ];

    #[test]
    fn trees_are_the_same_whatever_their_threads_are_called() {
        let ours: Vec<_> = OURS.iter().filter_map(|line| of_fgraph(line)).collect();
        let mut theirs: Vec<_> = THEIRS.iter().filter_map(|line| of_uftrace(line)).collect();
        let expected = "3 calls; seen by fgraph only: _init; by uftrace only: ".to_owned();
        assert_eq!(compare(&ours, &theirs), ("same", expected));
        theirs.remove(2);
        assert_eq!(compare(&ours, &theirs).0, "differs");
        assert_eq!(compare(&ours, &[]).0, "cannot");
    }

    #[test]
    fn a_call_that_is_entry_only_goes_by_its_name() {
        let found = of_fgraph(" 1.000 7/7 [1] entry   setjmp (entry only)");
        assert_eq!(found, Some(("7/7".to_owned(), true, "setjmp".to_owned())));
    }

    #[test]
    fn a_child_that_only_comes_back_is_no_tree() {
        let mut ours: Vec<_> = OURS.iter().filter_map(|line| of_fgraph(line)).collect();
        let theirs = ours.clone();
        ours.extend(of_fgraph(" 1.005 9/9 [1] return  main [main.c:3]"));
        assert_eq!(compare(&ours, &theirs).0, "same");
    }

    #[test]
    fn members_of_templates_are_told_apart() {
        for (name, expected) in [
            ("ns::f<int>(int)", "ns::f"),
            (
                "std::vector<int, std::allocator<int> >::size() const",
                "std::vector::size",
            ),
            ("int* std::copy<int*>(int*, int*)", "std::copy"),
            ("(anonymous namespace)::f()", "f"),
            ("operator new(unsigned long)", "operator new"),
            ("bool std::operator< <char>(char)", "std::operator<"),
            (
                "std::ostream& std::operator<< <char>(char)",
                "std::operator<<",
            ),
            ("f::operator()(int)", "f::operator()"),
            ("f::operator->()", "f::operator->"),
        ] {
            assert_eq!(short(name).trim_end(), expected);
        }
    }
}
