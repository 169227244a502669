//! A slow Lua script among the requests of redis.

use fgraph_needs::{REDIS_BENCHMARK, REDIS_CLI, REDIS_SERVER};

use super::page::Recipe;

pub(super) const RECIPE: Recipe = Recipe {
    name: "redis-script",
    needs: &[REDIS_SERVER, REDIS_CLI, REDIS_BENCHMARK],
    names_cause,
};

/// Returns true if the slowest command computes in a script.
fn names_cause(output: &str) -> bool {
    let is_it = |line: &str| line.contains("computes more") && line.contains("lua_pcall <");
    output.lines().any(is_it)
}
