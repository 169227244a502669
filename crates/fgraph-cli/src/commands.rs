//! The subcommands, each in a file of its own.

#[cfg(not(all(
    feature = "completions",
    feature = "man",
    feature = "mount",
    feature = "tui"
)))]
mod absent;
pub(crate) mod attach;
pub(crate) mod cache;
#[cfg(feature = "completions")]
pub(crate) mod completions;
pub(crate) mod coverage;
pub(crate) mod diff;
pub(crate) mod dump;
pub(crate) mod export;
pub(crate) mod functions;
pub(crate) mod graph;
pub(crate) mod heap;
pub(crate) mod info;
pub(crate) mod inject;
pub(crate) mod live;
pub(crate) mod locks;
#[cfg(feature = "man")]
pub(crate) mod man;
pub(crate) mod mcp;
#[cfg(feature = "mount")]
pub(crate) mod mount;
pub(crate) mod open;
pub(crate) mod outliers;
pub(crate) mod probe;
pub(crate) mod record;
pub(crate) mod recover;
pub(crate) mod replay;
pub(crate) mod report;
pub(crate) mod stack;
pub(crate) mod syscalls;
pub(crate) mod tasks;
pub(crate) mod threads;
pub(crate) mod top;
#[cfg(feature = "tui")]
pub(crate) mod tui;
pub(crate) mod watch;
pub(crate) mod why;

use std::process::ExitCode;

#[cfg(not(feature = "completions"))]
use absent::completions;
#[cfg(not(feature = "man"))]
use absent::man;
#[cfg(not(feature = "mount"))]
use absent::mount;
#[cfg(not(feature = "tui"))]
use absent::tui;
use clap::{Parser, Subcommand};

use crate::error::{self, Error};
use crate::output::Color;

/// Record the calls of any program's functions, and analyze recordings
#[derive(Debug, Parser)]
#[command(name = "fgraph", version, after_help = error::EXIT_CODES)]
pub(crate) struct Cli {
    /// When to use colours; `auto` uses them on terminals, unless NO_COLOR is set or TERM is `dumb`
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub(crate) color: Color,
    /// Do not read the file of defaults: the file that FGRAPH_CONFIG names, otherwise
    /// `fgraph/config` in XDG_CONFIG_HOME or `~/.config`
    #[arg(long, global = true)]
    no_config: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The subcommand.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Info(info::Args),
    Record(record::Args),
    Recover(recover::Args),
    Live(live::Args),
    Top(top::Args),
    Syscalls(syscalls::Args),
    Watch(watch::Args),
    Threads(threads::Args),
    Stack(stack::Args),
    Locks(locks::Args),
    Heap(heap::Args),
    Inject(inject::Args),
    Report(report::Args),
    Why(why::Args),
    Tasks(tasks::Args),
    Diff(diff::Args),
    Replay(replay::Args),
    Graph(graph::Args),
    Outliers(outliers::Args),
    Tui(tui::Args),
    Dump(dump::Args),
    Export(export::Args),
    Open(open::Args),
    Functions(functions::Args),
    Probe(probe::Args),
    Coverage(coverage::Args),
    Attach(attach::Attach),
    Detach(attach::Detach),
    Ctl(attach::Ctl),
    Mcp(mcp::Args),
    Mount(mount::Args),
    Cache(cache::Args),
    Completions(completions::Args),
    Man(man::Args),
}

/// Runs a subcommand, and returns the exit code of the process.
pub(crate) fn run(command: Command) -> Result<ExitCode, Error> {
    match command {
        Command::Info(args) => info::run(args),
        Command::Record(args) => return record::run(&args),
        Command::Recover(args) => recover::run(&args),
        Command::Live(args) => return live::run(&args),
        Command::Top(args) => return top::run(&args),
        Command::Syscalls(args) => return syscalls::run(&args),
        Command::Watch(args) => return watch::run(&args),
        Command::Threads(args) => return threads::run(&args),
        Command::Stack(args) => return stack::run(&args),
        Command::Locks(args) => return locks::run(&args),
        Command::Heap(args) => return heap::run(&args),
        Command::Inject(args) => return inject::run(&args),
        Command::Report(args) => report::run(args),
        Command::Why(args) => return why::run(args),
        Command::Tasks(args) => return tasks::run(args),
        Command::Diff(args) => return diff::run(args),
        Command::Replay(args) => replay::run(args),
        Command::Graph(args) => graph::run(args),
        Command::Outliers(args) => outliers::run(args),
        Command::Tui(args) => return tui::run(args),
        Command::Dump(args) => dump::run(args),
        Command::Export(args) => export::run(args),
        Command::Open(args) => open::run(&args),
        Command::Coverage(args) => return coverage::run(&args),
        Command::Probe(args) => return probe::run(&args),
        Command::Functions(args) => functions::run(args),
        Command::Attach(args) => attach::attach(&args),
        Command::Detach(args) => attach::detach(&args),
        Command::Ctl(args) => attach::ctl(&args),
        Command::Mcp(args) => mcp::run(&args),
        Command::Mount(args) => mount::run(args),
        Command::Cache(args) => cache::run(&args),
        Command::Completions(args) => completions::run(args),
        Command::Man(args) => man::run(args),
    }
    .map(|()| ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser as _};

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }

    #[test]
    fn commands_have_the_same_options_for_the_same_thing() {
        for command in super::Cli::command().get_subcommands() {
            let name = command.get_name();
            let short = |letter| {
                let mut all = command.get_arguments();
                all.find(|it| it.get_short() == Some(letter))
                    .map(|it| it.get_id().as_str())
            };
            let has = |id: &str| command.get_arguments().any(|it| it.get_id() == id);
            // Others read a process at once, or until they are told to end.
            let attaches = short('p') == Some("pid") && !["functions", "mount"].contains(&name);
            assert!(!attaches || has("time"), "{name} has no --time");
            let mut all = command.get_arguments();
            let delimiter = all.find(|it| it.get_id() == "pid");
            let delimiter = delimiter.and_then(|it| it.get_value_delimiter());
            assert!(!attaches || delimiter == Some(','), "{name} takes one -p");
            let lists = has("lines") || has("number");
            let is_named = matches!(short('n'), Some("lines" | "number"));
            assert!(!lists || is_named, "{name} has no -n");
        }
        for name in [
            "coverage",
            "diff",
            "dump",
            "functions",
            "graph",
            "heap",
            "inject",
            "locks",
            "outliers",
            "probe",
            "report",
            "stack",
            "tasks",
            "top",
            "why",
        ] {
            let all = super::Cli::command();
            let command = all.find_subcommand(name).unwrap();
            let mut arguments = command.get_arguments();
            assert!(
                arguments.any(|it| it.get_short() == Some('n')),
                "{name} has no -n"
            );
        }
    }

    /// Splits a line of an example as a shell does, up to a comment or to another command.
    fn words(line: &str) -> Vec<String> {
        let mut words = vec![String::new()];
        let (mut quote, mut spaces) = (None, 0);
        for character in line.chars() {
            spaces = if character == ' ' { spaces + 1 } else { 0 };
            match (quote, character) {
                (Some(end), _) if end == character => quote = None,
                (None, '\'' | '"') => quote = Some(character),
                (None, '|' | '>' | '&' | ';') => break,
                (None, ' ') if spaces == 3 => break,
                (None, ' ') => words.push(String::new()),
                _ => words.last_mut().unwrap().push(character),
            }
        }
        words.retain(|word| !word.is_empty());
        words
    }

    #[test]
    fn the_help_of_each_subcommand_has_two_examples_that_the_command_line_allows() {
        let all = super::Cli::command();
        for command in all.get_subcommands() {
            let name = command.get_name();
            let help = command
                .get_after_help()
                .map_or_else(String::new, ToString::to_string);
            let (_, examples) = help
                .split_once("Examples:\n")
                .unwrap_or_else(|| panic!("{name} has no examples"));
            // An example may begin with variables, and with the command whose output it reads.
            let own = examples.lines().filter_map(|line| {
                let at = line.find(&format!("fgraph {name}"))?;
                line.starts_with("  ").then(|| &line[at..])
            });
            let own: Vec<&str> = own.collect();
            assert!(own.len() >= 2, "{name}: {own:?}");
            for line in own {
                let line = line.replace("$(pidof server)", "1234");
                let parsed = super::Cli::try_parse_from(words(&line));
                assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
            }
        }
    }
}
