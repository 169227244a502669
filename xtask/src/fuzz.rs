//! `cargo xtask fuzz TARGET`: gives a reader of hostile bytes inputs that libFuzzer makes.
//!
//! cargo-fuzz needs a nightly compiler for the sanitizers. The instrumentation of libFuzzer itself
//! works on stable, and the readers have no unsafe code of their own that a sanitizer would check.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use clap::Args;
use fgraph_chores::cargo;

/// Options of the command line.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// The target: a file in fuzz/fuzz_targets
    #[arg(value_name = "TARGET")]
    target: String,
    /// Seconds of fuzzing
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u32,
}

/// Options of the compiler for the instrumentation that libFuzzer reads.
const INSTRUMENT: &str = "--cfg fuzzing -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Cdebug-assertions -Coverflow-checks -Ccodegen-units=1";
/// The triple for which targets are built, so that no build script is instrumented.
const TRIPLE: &str = "x86_64-unknown-linux-gnu";
/// Seconds and MiB that one input may take.
const LIMITS: [&str; 2] = ["-timeout=20", "-rss_limit_mb=2048"];
/// The most bytes of an input.
const LEN: &str = "-max_len=65536";

/// Builds the target and runs it. Inputs that it likes are kept under `target/fuzz`, beside those
/// that make it fail. Returns false if an input makes it fail.
pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let (root, target) = (cargo::workspace(), &options.target);
    let fuzz = root.join("fuzz");
    let mut build = Command::new(cargo::program());
    build.args(["build", "--release", "--target", TRIPLE, "--bin", target]);
    let build = build.env("RUSTFLAGS", INSTRUMENT).current_dir(&fuzz);
    if !build.status()?.success() {
        return Ok(false);
    }
    let kept = root.join("target/fuzz").join(target);
    let inputs = kept.join("inputs");
    fs::create_dir_all(&inputs)?;
    let program = fuzz
        .join("target")
        .join(TRIPLE)
        .join("release")
        .join(target);
    let mut fuzzer = Command::new(program);
    fuzzer.args(LIMITS).arg(LEN).arg("-print_final_stats=1");
    fuzzer.arg(format!("-max_total_time={}", options.seconds));
    fuzzer.arg(format!("-artifact_prefix={}/", kept.display()));
    fuzzer.arg(inputs).args(corpus(&fuzz, target));
    Ok(fuzzer.status()?.success())
}

/// Returns the directory of the committed inputs, if the target has any.
fn corpus(fuzz: &Path, target: &str) -> Option<std::path::PathBuf> {
    Some(fuzz.join("corpus").join(target)).filter(|path| path.is_dir())
}
