//! `cargo xtask patch-test`: users come and go while threads run the functions that are patched.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::report::Report;
use crate::victim;

/// Beyond the time that it is told to run, the victim may take so long.
const MARGIN: Duration = Duration::from_secs(60);

/// What the command line asks for.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Patch functions without NOPs, whose first instructions are relocated
    #[arg(long)]
    relocated: bool,
    /// Threads that call the functions all the time; 4, or 8 with --relocated, unless given
    #[arg(long, value_name = "N")]
    threads: Option<u32>,
    /// How long
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
pub(crate) fn run(options: &Options) -> io::Result<ExitCode> {
    let seed = options
        .seed
        // Every one of these hashes with keys of its own.
        .unwrap_or_else(|| RandomState::new().hash_one(0) >> 32);
    // Without NOPs threads stand between two instructions: the more of them wait for a processor, the
    // more often.
    let usual = if options.relocated { 8 } else { 4 };
    let settings = [
        ("threads", options.threads.unwrap_or(usual).into()),
        ("seconds", u64::from(options.seconds)),
        ("sites", u64::from(options.sites)),
        ("users", u64::from(options.users)),
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
    let program = if options.relocated {
        victim::build_without_nops()?
    } else {
        victim::build_with_nops()?
    };
    if !options.json {
        println!("{}", victim::command_line(&program, &args));
    }
    let limit = Duration::from_secs(options.seconds.into()) + MARGIN;
    let (output, end) = victim::run(&program, &args, limit)?;
    let report = Report::new(&settings, &output, end);
    if options.json {
        println!("{}", report.json());
    } else {
        print!("{report}");
    }
    Ok(if report.is_good() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
