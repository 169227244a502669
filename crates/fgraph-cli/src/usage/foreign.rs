//! Options of `perf`, `strace` and `uftrace` that have another name here, or are not needed.

/// An option that a subcommand does not have.
#[derive(Clone, Copy, Debug)]
struct Foreign {
    subcommand: &'static str,
    /// The option as clap names it in its error.
    option: &'static str,
    /// The tool that has it.
    tool: &'static str,
    /// The end of the sentence "perf's -g …". Words in backticks are options of the subcommand, or
    /// another command line.
    tip: &'static str,
}

macro_rules! foreign {
    ($($subcommand:literal { $($tool:literal $($option:literal)|+ => $tip:literal;)* })*) => {
        &[$($($(Foreign {
            subcommand: $subcommand,
            option: $option,
            tool: $tool,
            tip: $tip,
        },)+)*)*]
    };
}

/// All known ones.
const FOREIGN: &[Foreign] = foreign! {
    "record" {
        "perf" "-g" | "--call-graph" =>
            "is not needed: all recordings have callers, and `fgraph graph FUNCTION` shows them";
        "perf" "-a" | "--all-cpus" => "has no counterpart: `-p PID` records one process";
        "perf" "-e" | "--event" => "is about events: here `-F GLOB` selects functions";
        "perf" "-c" | "--count" | "--freq" =>
            "is about samples: all calls are recorded, and `--budget` limits what that costs";
        "uftrace" "--no-libcall" =>
            "is the default for the system's libraries: `--libs` and `-F GLOB` record them";
        "uftrace" "-l" | "--nest-libcall" => "is `--libs` here";
        "uftrace" "-P" | "--patch" => "is not needed: `-F GLOB` selects functions of any program";
        "uftrace" "-A" | "--argument" => "is `--args` here, or `--args-of GLOB`";
        "uftrace" "-R" => "is `--retval` here";
        "uftrace" "-D" | "--max-stack" => "is `--depth N` here";
        "uftrace" "-d" | "--data" => "is `-o FILE` here";
        "uftrace" "-b" => "is `--buffer SIZE` here";
        "strace" "-f" => "is the default: `--no-follow` leaves children out";
    }
    "live" {
        "uftrace" "--no-libcall" =>
            "is the default for the system's libraries: `--libs` and `-F GLOB` show them";
        "uftrace" "-A" | "--argument" => "is `--args` here, or `--args-of GLOB`";
        "uftrace" "-R" => "is `--retval` here";
        "uftrace" "-D" => "is `--depth N` here";
        "strace" "-f" => "is the default: `--no-follow` leaves children out";
    }
    "report" {
        "perf" "-i" | "--input" => "is not needed: `fgraph report FILE` reads a recording";
        "perf" "-g" | "--call-graph" => "is another command: `fgraph graph FUNCTION`";
        "perf" "--stdio" => "is the default: `fgraph tui` is the other view";
        "perf" "--children" => "is `--sort total` here";
        "perf" "--no-children" => "is `--sort self` here, the default";
        "perf" "--percent-limit" => "has no counterpart: `-n N` limits the lines";
        "uftrace" "-d" | "--data" => "is not needed: `fgraph report FILE` reads a recording";
        "uftrace" "-f" | "--output-fields" => "has no counterpart: `--json` has all fields";
        "uftrace" "--avg-total" | "--avg-self" => "is `--sort avg` here";
    }
    "graph" {
        "perf" "-i" | "--input" => "is not needed: `fgraph graph FUNCTION FILE` reads a recording";
        "uftrace" "-d" | "--data" =>
            "is not needed: `fgraph graph FUNCTION FILE` reads a recording";
    }
    "replay" {
        "perf" "-i" | "--input" => "is not needed: `fgraph replay FILE` reads a recording";
        "uftrace" "-d" | "--data" => "is not needed: `fgraph replay FILE` reads a recording";
        "uftrace" "-f" | "--output-fields" => "has no counterpart: see `--abstime` and `--proc`";
    }
    "syscalls" {
        "strace" "-t" | "-r" => "has no counterpart: `--raw` and `--json` have the times of calls";
        "strace" "-T" => "is the default: lines end with the time that the call took";
        "strace" "-C" | "--summary-only" | "--summary-wall-clock" =>
            "is `-c` here, which prints only the table";
        "strace" "-w" => "is the default: the times of `-c` include waiting";
        "strace" "-S" | "--summary-sort-by" => "is not needed: `-c` sorts by time";
        "strace" "-v" => "has no counterpart: `-s BYTES` shows more data";
        "strace" "-z" | "-Z" => "has no counterpart: in `--json` calls have their error";
        "strace" "-P" | "--trace-path" => "has no counterpart: `-y` shows the paths";
        "strace" "-k" | "--stack-traces" =>
            "is about callers: `fgraph record --also 'libc:open*'` and `fgraph graph 'open*'`";
        "strace" "--decode-fds" => "is `-y` here";
        "strace" "--follow-forks" => "is `-f` here, the default";
        "strace" "--attach" => "is `-p PID` here";
    }
};

/// Returns a sentence about an option that a subcommand does not have, if another tool has it.
pub(super) fn tip(subcommand: &str, option: &str) -> Option<String> {
    let is_it = |it: &&Foreign| it.subcommand == subcommand && it.option == option;
    let Foreign { tool, tip, .. } = FOREIGN.iter().find(is_it)?;
    Some(format!("{tool}'s {option} {tip}"))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use clap::{Command, CommandFactory as _};

    use super::*;
    use crate::commands::Cli;

    fn has(command: &Command, option: &str) -> bool {
        command.get_arguments().any(|arg| {
            let short = arg.get_short().map(|it| format!("-{it}"));
            let long = arg.get_long().map(|it| format!("--{it}"));
            [short, long].iter().flatten().any(|it| it == option)
        })
    }

    #[test]
    fn foreign_options_are_unknown_and_tips_name_known_ones() {
        let mut all = Cli::command();
        all.build();
        let subcommand = |name: &str| {
            let found = all.find_subcommand(name);
            found.unwrap_or_else(|| panic!("no subcommand {name}"))
        };
        let mut seen = HashSet::new();
        for row in FOREIGN {
            let own = subcommand(row.subcommand);
            assert!(!has(own, row.option), "{row:?} is known");
            assert!(seen.insert((row.subcommand, row.option)), "{row:?} twice");
            for quoted in row.tip.split('`').skip(1).step_by(2) {
                let mut words = quoted.split(' ').peekable();
                let of = match words.next_if_eq(&"fgraph") {
                    Some(_) => subcommand(words.next().unwrap()),
                    None => own,
                };
                for option in words.filter(|word| word.starts_with('-')) {
                    assert!(has(of, option), "{row:?} names {option}");
                }
            }
        }
    }

    #[test]
    fn tip_names_the_tool_and_the_option() {
        assert_eq!(
            tip("record", "-D").unwrap(),
            "uftrace's -D is `--depth N` here"
        );
        assert_eq!(tip("record", "--depth"), None);
        assert_eq!(tip("info", "-D"), None);
    }
}
