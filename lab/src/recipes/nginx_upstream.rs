//! An upstream server for which nginx waits.

use fgraph_needs::{CURL, NGINX, PYTHON};

use super::page::Recipe;

pub(super) const RECIPE: Recipe = Recipe {
    name: "nginx-upstream",
    needs: &[NGINX, CURL, PYTHON],
    names_cause,
};

/// Returns true if slow requests wait for the slow server.
fn names_cause(output: &str) -> bool {
    let is_it = |line: &str| {
        let words = [
            "waits for input",
            "epoll_wait",
            "the connection to 127.0.0.1:7482",
        ];
        words.iter().all(|word| line.contains(word))
    };
    output.lines().any(is_it)
}
