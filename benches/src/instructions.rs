//! Number of instructions of a call under each user: callgrind counts them, the same on
//! any machine but for what depends on its vector registers.

use std::env;
use std::error::Error;
use std::process::Command;

use fgraph_needs::VALGRIND;

use crate::cases::{Case, Watched};
use crate::functions::{Function, Variant};

/// Argument that makes the program [make calls](make_calls) for counting.
pub const ARGUMENT: &str = "--instructions";

/// Cases that are counted.
pub const CASES: [Case; 9] = [
    Case::Plain,
    Case::Declined,
    Case::Users(1),
    Case::SixteenBytes,
    Case::Vectors,
    Case::Users(2),
    Case::Users(4),
    Case::Relocated(Variant::Rust, Watched::OneUser),
    Case::Relocated(Variant::Kept, Watched::OneUser),
];

/// Number of calls in the two processes: the difference of their counts is due to calls alone.
const CALLS: [u64; 2] = [1_000, 11_000];

/// Counts the instructions for each of [`CASES`], a call of the leaf function and the loop around
/// it.
///
/// # Errors
///
/// Fails if callgrind is missing, or did not run.
pub fn count() -> Result<[f64; CASES.len()], Box<dyn Error>> {
    let valgrind = VALGRIND.find()?;
    let program = env::current_exe()?;
    let mut counts = [0.0; CASES.len()];
    for (index, count) in counts.iter_mut().enumerate() {
        let mut totals = [0; CALLS.len()];
        for (calls, total) in CALLS.into_iter().zip(&mut totals) {
            let output = Command::new(&valgrind)
                // Callgrind must read patched code again.
                .args(["--tool=callgrind", "--smc-check=all"])
                .arg("--callgrind-out-file=/dev/null")
                .arg(&program)
                .args([ARGUMENT, &index.to_string(), &calls.to_string()])
                .output()?;
            let said = String::from_utf8_lossy(&output.stderr);
            let collected = collected(&said).filter(|_| output.status.success());
            *total = collected.ok_or_else(|| format!("callgrind: {}: {said}", output.status))?;
        }
        *count = (totals[1] as f64 - totals[0] as f64) / (CALLS[1] - CALLS[0]) as f64;
    }
    Ok(counts)
}

/// Returns the number of instructions in callgrind's output.
fn collected(said: &str) -> Option<u64> {
    let after = said.split("Collected :").nth(1)?;
    after.split_whitespace().next()?.parse().ok()
}

/// Does the work of a counted process: this number of calls, in the case of that index.
///
/// # Errors
///
/// Fails if the case cannot be set up.
pub fn make_calls(mut arguments: impl Iterator<Item = String>) -> Result<(), Box<dyn Error>> {
    let mut number = || arguments.next()?.parse::<u64>().ok();
    let (Some(index), Some(calls)) = (number(), number()) else {
        return Err("which case, and how many calls?".into());
    };
    let case = CASES.get(index as usize).ok_or("there is no such case")?;
    let active = case.set_up()?;
    active.time(Function::Leaf, calls);
    match active.not_traced() {
        0 => Ok(()),
        calls => Err(format!("{calls} calls were not traced").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_instructions_is_read() {
        let said = "==9== Events    : Ir\n==9== Collected : 25431\n==9== \n";
        assert_eq!(collected(said), Some(25431));
        assert_eq!(collected("==9== no such file"), None);
    }
}
