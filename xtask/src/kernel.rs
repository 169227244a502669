//! `cargo xtask kernel`: runs `examples/kernel` in QEMU, and compares what it prints.
//!
//! ```text
//!   cargo fgraph build   -> the kernel, with a NOP at each function
//!   qemu-system-x86_64   -> the serial port: scenes, compared with examples/kernel/expected.txt,
//!                           and the figures of the load, of which some must not be 0
//! ```
//!
//! It runs twice: QEMU translates blocks of instructions, and lets interrupts come between blocks.
//! In the second run each instruction is a block, so interrupts and NMIs come between any two.

mod machine;
mod page;

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use fgraph_chores::cargo;
use fgraph_chores::process::Done;
use fgraph_needs::QEMU;

use machine::{Machine, TARGET, build, compare, end, has_target, scenes};

/// Options of the command line.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Seconds of load
    #[arg(long, default_value_t = 60, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// Seed of the load
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Follow docs/kernel.md in an empty crate, and compare its first trace
    #[arg(long)]
    page: bool,
    /// The program `cargo-fgraph`, in place of the one of this workspace
    #[arg(long, value_name = "PATH")]
    cargo_fgraph: Option<PathBuf>,
}

/// Figures of the load that must not be 0.
const NEEDED: [&str; 9] = [
    "registrations",
    "calls accepted",
    "breakpoints hit",
    "timer interrupts in trampolines",
    "timer interrupts in callbacks",
    "timer interrupts in patching",
    "NMIs in trampolines",
    "NMIs in callbacks",
    "NMIs in patching",
];
/// Variable that makes the command write the expected lines in place of comparing.
const UPDATE: &str = "FGRAPH_UPDATE";

pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let qemu = match QEMU.find() {
        Ok(qemu) => qemu,
        Err(missing) => {
            println!("skipped: kernel: {missing}");
            return Ok(true);
        }
    };
    if !has_target() {
        println!("skipped: kernel: no target {TARGET} (rustup target add {TARGET})");
        return Ok(true);
    }
    let builder = match &options.cargo_fgraph {
        Some(path) => path.canonicalize()?,
        None => cargo::build("cargo-fgraph")?,
    };
    let machine = Machine {
        qemu: &qemu,
        seed: options.seed,
    };
    if options.page {
        return page::run(&builder, &machine);
    }
    let directory = cargo::workspace().join("examples/kernel");
    let kernel = build(&directory, &builder, "kernel")?;
    let expected = directory.join("expected.txt");
    let mut is_well = true;
    for (name, seconds, steps) in [
        ("blocks", options.seconds, false),
        // Single instructions take ten times as long, and a load needs some seconds.
        ("single instructions", (options.seconds / 4).max(3), true),
    ] {
        println!("\nkernel: {name}, {seconds} s");
        is_well &= check(&machine.start(&kernel, seconds, steps)?, &expected)?;
    }
    Ok(is_well)
}

/// Compares what a kernel has printed, and prints the figures of the load.
fn check(done: &Done, expected: &Path) -> io::Result<bool> {
    let mut is_well = end(done);
    let scenes: Vec<String> = scenes(&done.stdout).collect();
    if env::var_os(UPDATE).is_some() {
        fs::write(expected, scenes.join("\n") + "\n")?;
    }
    let wanted = fs::read_to_string(expected)?;
    let wanted: Vec<&str> = wanted.lines().collect();
    is_well &= compare(&wanted, &scenes);
    let figures = done
        .stdout
        .lines()
        .filter_map(|line| line.strip_prefix("load: "));
    let mut found = Vec::new();
    for figure in figures {
        println!("{figure}");
        found.push(figure);
    }
    for name in NEEDED {
        let figure = found.iter().find_map(|line| line.strip_prefix(name));
        let number = figure.and_then(|rest| rest.trim().split([' ', ',']).next()?.parse().ok());
        if number.unwrap_or(0_u64) == 0 {
            println!("FAIL: no {name}");
            is_well = false;
        }
    }
    Ok(is_well)
}
