//! The page of a recipe, and its commands.
//!
//! The blocks of shell commands in a page, which begin with a line of three backticks and `sh`, run
//! one after another in an empty directory, with the command `fgraph` on the `PATH`.

use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use fgraph_chores::cargo;
use fgraph_chores::process::{Done, bounded};
use fgraph_needs::Need;
use tempfile::TempDir;

/// A recipe.
#[derive(Debug)]
pub(super) struct Recipe {
    /// Name of its page, without the extension.
    pub(super) name: &'static str,
    pub(super) needs: &'static [Need],
    /// Returns true if the output names the cause.
    pub(super) names_cause: fn(&str) -> bool,
}

/// Longest time of a recipe, in seconds.
const LIMIT: u32 = 600;

/// Start and end of a block of commands in a page.
const BLOCK: [&str; 2] = ["```sh\n", "```\n"];

impl Recipe {
    /// Runs the recipe, and returns what is wrong with it.
    pub(super) fn fault(&self, fgraph: &Path) -> io::Result<Option<String>> {
        let page = cargo::workspace().join("docs/recipes");
        let page = fs::read_to_string(page.join(format!("{}.md", self.name)))?;
        let directory = TempDir::with_prefix("fgraph-recipe-")?;
        let tools = directory.path().join("tools");
        let place = directory.path().join("place");
        fs::create_dir(&tools)?;
        fs::create_dir(&place)?;
        symlink(fgraph, tools.join("fgraph"))?;
        let rest = env::var_os("PATH").unwrap_or_default();
        let path = [tools].into_iter().chain(env::split_paths(&rest));
        let path = env::join_paths(path).map_err(io::Error::other)?;
        let mut shell = bounded(LIMIT, "sh");
        shell.args(["-e", "-c", &commands(&page)]);
        shell.current_dir(place).env("PATH", path);
        // The user's defaults are not those of the page.
        shell
            .env("XDG_CONFIG_HOME", directory.path())
            .env_remove("FGRAPH_CONFIG");
        let done = Done::of(&mut shell)?;
        Ok(match done.fault() {
            Some(fault) => Some(fault),
            None if (self.names_cause)(&done.stdout) => None,
            None => Some(format!("the cause is not in:\n{}", done.stdout)),
        })
    }
}

/// Returns the commands of a page.
pub(super) fn commands(page: &str) -> String {
    let blocks = page.split(BLOCK[0]).skip(1);
    let blocks = blocks.map(|block| block.split(BLOCK[1]).next().unwrap_or_default());
    blocks.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_of_a_page_are_those_of_its_blocks() {
        let page = "text\n```sh\na\nb\n```\nmore\n```text\n$ c\n```\n```sh\nd\n```\n";
        assert_eq!(commands(page), "a\nb\nd\n");
        assert_eq!(commands("no block"), "");
    }
}
