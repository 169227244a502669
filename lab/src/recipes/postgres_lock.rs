//! A session of PostgreSQL that waits for another one's lock.

use fgraph_needs::{POSTGRES, PSQL};

use super::page::Recipe;

pub(super) const RECIPE: Recipe = Recipe {
    name: "postgres-lock",
    needs: &[POSTGRES, PSQL],
    names_cause,
};

/// Returns true if the slowest call of the session waits where backends wait for locks.
fn names_cause(output: &str) -> bool {
    let is_it = |line: &str| {
        let words = ["waits for", "ProcSleep", "LockAcquireExtended"];
        words.iter().all(|word| line.contains(word))
    };
    output.lines().any(is_it)
}
