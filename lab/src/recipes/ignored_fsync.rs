//! A failure of `fsync` that a program ignores.

use fgraph_needs::CC;

use super::page::Recipe;

pub(super) const RECIPE: Recipe = Recipe {
    name: "ignored-fsync",
    needs: &[CC],
    names_cause,
};

/// Returns true if the failure of `fsync` is ignored, and no other one is.
fn names_cause(output: &str) -> bool {
    let is_ignored = |line: &&str| line.starts_with("ignored ");
    let mut ignored = output.lines().filter(is_ignored).peekable();
    let is_found = ignored.peek().is_some() && output.contains("1 ignored, 4 reported");
    is_found && ignored.all(|line| line.contains("sync ["))
}
