//! `cargo xtask patch-test`: users come and go while threads run the functions that are patched.

// Long strings: command lines.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::Value;

use crate::report::Report;
use crate::victim;

/// Beyond the time that it is told to run, the victim may take so long.
const MARGIN: Duration = Duration::from_secs(60);

/// Options of the command line.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Patch functions without NOPs, whose first instructions are relocated
    #[arg(long)]
    relocated: bool,
    /// Mix everything hostile that a program may do: threads that end anywhere, panics, jumps,
    /// coroutines, signals, forks, libraries that come and go. With and without NOPs, half of the
    /// time each, unless one is chosen
    #[arg(long)]
    chaos: bool,
    /// Patch functions with NOPs only
    #[arg(long, requires = "chaos", conflicts_with = "relocated")]
    nops: bool,
    /// Switch the recorder, the profiler and the tracer of system calls on and off at random, in
    /// the slots of the last three users, and compare what they have seen with what was done
    #[arg(long, requires = "chaos")]
    tracers: bool,
    /// Threads that call the functions all the time; 4, or 8 with --relocated, unless given
    #[arg(long, value_name = "N")]
    threads: Option<u32>,
    /// Run for this time
    #[arg(long, default_value_t = 10, value_name = "S")]
    seconds: u32,
    /// Functions that take part
    #[arg(long, default_value_t = 2000, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=4096))]
    sites: u32,
    /// Users that register and unregister
    #[arg(long, default_value_t = 16, value_name = "N",
        value_parser = clap::value_parser!(u32).range(0..=16))]
    users: u32,
    /// Where the random numbers start; another one each time, unless given
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Mix only some acts
    #[arg(long, hide = true, requires = "chaos", value_name = "NAME,...")]
    acts: Option<String>,
    /// Leave steps of the patching protocol out, to see that it is noticed
    #[arg(long, hide = true, value_enum)]
    leave_out: Option<Steps>,
}

/// Steps of the patching protocol.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Steps {
    Trap,
    Sync,
    /// The traps within what is patched; only where there are several instructions.
    Inner,
    #[value(name = "trap+sync")]
    TrapAndSync,
}

/// Builds and runs the victim, and says how it went.
pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let seed = options
        .seed
        // Every one of these hashes with keys of its own.
        .unwrap_or_else(|| RandomState::new().hash_one(0) >> 32);
    let kinds = if options.chaos && !options.relocated && !options.nops {
        vec![false, true]
    } else {
        vec![options.relocated]
    };
    let seconds = (options.seconds / kinds.len() as u32).max(1);
    let mut reports = Vec::new();
    let mut is_good = true;
    for relocated in kinds {
        let report = run_one(options, relocated, seed, seconds)?;
        is_good &= report.is_good();
        if options.json {
            reports.push(report.json());
        } else {
            print!("{report}");
            if options.chaos && !report.is_good() {
                println!("repeat: {}", repetition(options, relocated, seed, seconds));
            }
        }
    }
    match &reports[..] {
        [] => {}
        [report] => println!("{report}"),
        reports => println!("{}", Value::from(reports)),
    }
    Ok(is_good)
}

/// Runs the victim once.
fn run_one(options: &Options, relocated: bool, seed: u64, seconds: u32) -> io::Result<Report> {
    // Without NOPs threads stand between two instructions: the more of them wait for a processor,
    // the more often. In chaos everybody waits for everybody as it is.
    let usual = if relocated && !options.chaos { 8 } else { 4 };
    // In chaos an actor watches the C library at times.
    let users = match (options.chaos, options.tracers) {
        (_, true) => options.users.min(12),
        (true, false) => options.users.min(15),
        (false, false) => options.users,
    };
    let settings = [
        ("threads", options.threads.unwrap_or(usual).into()),
        ("seconds", u64::from(seconds)),
        ("sites", u64::from(options.sites)),
        ("users", u64::from(users)),
        ("seed", seed),
    ];
    let mut args: Vec<String> = settings
        .iter()
        .flat_map(|(name, value)| [format!("--{name}"), value.to_string()])
        .collect();
    if let Some(steps) = options
        .leave_out
        .and_then(|steps| steps.to_possible_value())
    {
        args.extend(["--leave-out".to_owned(), steps.get_name().to_owned()]);
    }
    if options.chaos {
        let library = victim::build_library(!relocated)?;
        args.extend(["--chaos".to_owned(), library.display().to_string()]);
        if options.tracers {
            args.extend(["--tracers".to_owned(), "1".to_owned()]);
        }
        if let Some(acts) = &options.acts {
            args.extend(["--acts".to_owned(), acts.clone()]);
        }
    }
    let program = if relocated {
        victim::build_without_nops()?
    } else {
        victim::build_with_nops()?
    };
    if !options.json {
        println!("{}", victim::command_line(&program, &args));
    }
    let limit = Duration::from_secs(seconds.into()) + MARGIN;
    let (output, end) = victim::run(&program, &args, limit)?;
    Ok(Report::new(&settings, &output, end))
}

/// The command that does once more what one run of the victim has done.
fn repetition(options: &Options, relocated: bool, seed: u64, seconds: u32) -> String {
    let kind = if relocated { "--relocated" } else { "--nops" };
    let mut command = format!(
        "cargo xtask patch-test --chaos {kind} --seconds {seconds} --sites {} --users {} --seed {seed}",
        options.sites, options.users
    );
    if options.tracers {
        command.push_str(" --tracers");
    }
    if let Some(threads) = options.threads {
        command.push_str(&format!(" --threads {threads}"));
    }
    if let Some(acts) = &options.acts {
        command.push_str(&format!(" --acts {acts}"));
    }
    command
}
