//! An index of SQLite that the new version of a program has not.

use fgraph_needs::{SQLITE, SQLITE3};

use super::page::Recipe;

pub(super) const RECIPE: Recipe = Recipe {
    name: "sqlite-index",
    needs: &[SQLITE3, SQLITE],
    names_cause,
};

/// Returns true if indices are not searched any more, and rows are read one after another.
fn names_cause(output: &str) -> bool {
    let lines: Vec<&str> = output.lines().collect();
    let is_gone = lines.windows(2).any(|pair| {
        pair[0].contains("gone")
            && pair[0].contains("sqlite3BtreeIndexMoveto")
            && pair[1].contains("not called any more")
    });
    // Nearly all of 2,000 orders for each of 100 customers.
    let steps = |line: &&&str| line.contains("sqlite3BtreeNext") && line.contains("+198,");
    is_gone && lines.iter().any(|line| steps(&line))
}
