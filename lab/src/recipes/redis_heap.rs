//! A subscriber of redis that does not read.

use fgraph_needs::{REDIS_BENCHMARK, REDIS_CLI, REDIS_SERVER};

use super::page::Recipe;

pub(super) const RECIPE: Recipe = Recipe {
    name: "redis-heap",
    needs: &[REDIS_SERVER, REDIS_CLI, REDIS_BENCHMARK],
    names_cause,
};

/// Returns true if the first line, which has grown most, is of replies to a subscriber.
fn names_cause(output: &str) -> bool {
    let mut lines = output
        .lines()
        .skip_while(|line| !line.contains("growth  steady"));
    let first = lines.nth(1).unwrap_or_default();
    let is_it = |part: &str| first.contains(part);
    first.trim_start().starts_with('+') && is_it("_addReplyProtoToList") && is_it("ubsub")
}
