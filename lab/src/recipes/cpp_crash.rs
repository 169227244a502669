//! A session of a C++ program that was closed long before it crashes.

use fgraph_needs::GXX;

use super::page::Recipe;

pub(super) const RECIPE: Recipe = Recipe {
    name: "cpp-crash",
    needs: &[GXX],
    names_cause,
};

/// Returns true if the crash is at the victim, and the cause has its callers.
fn names_cause(output: &str) -> bool {
    let lines: Vec<&str> = output.lines().collect();
    let callers = ["called by", "close_idle", "reload", "tick"];
    lines.windows(callers.len()).any(|lines| {
        let mut pairs = lines.iter().zip(callers);
        pairs.all(|(line, caller)| line.trim_end().ends_with(caller))
    }) && output.contains("Registry::close*: 1 call,")
        && output.contains("Registry::find(")
        && output.contains("id=3);")
}
