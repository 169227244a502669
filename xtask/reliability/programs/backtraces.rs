//! Prints the functions of this program that a backtrace of the standard library shows, innermost
//! first.

use std::backtrace::Backtrace;
use std::hint::black_box;
use std::process::ExitCode;

#[inline(never)]
fn bottom() -> bool {
    let text = Backtrace::force_capture().to_string();
    // "  12: backtraces::odd", and lines that say where that is.
    let names = text.lines().filter_map(|line| line.split_once(": "));
    let names: Vec<&str> = names
        .map(|(_, name)| name)
        .filter(|name| name.starts_with("backtraces::"))
        .collect();
    println!("{}", names.join("\n"));
    names.last() == Some(&"backtraces::main")
}

#[inline(never)]
fn even(frames: u32) -> bool {
    let is_right = if frames == 0 { bottom() } else { odd(frames - 1) };
    black_box(is_right)
}

#[inline(never)]
fn odd(frames: u32) -> bool {
    let is_right = if frames == 0 { bottom() } else { even(frames - 1) };
    black_box(is_right)
}

fn main() -> ExitCode {
    ExitCode::from(u8::from(!even(20)))
}
