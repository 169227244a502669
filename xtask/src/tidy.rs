//! `cargo xtask tidy`: rules of the repository that no compiler checks.

mod circles;
mod crates;
mod fragments;
mod layers;
mod lines;
mod links;
mod openings;
mod prose;
mod sample;
mod table;
mod tokens;
mod tree;
mod uses;
mod words;

use std::io;
use std::process::Command;

use clap::Args;
use fgraph_chores::cargo;
use fgraph_chores::process::succeed;

use tree::{Finding, Tree};

/// Arguments of `cargo xtask tidy`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Print this many lines of comments and pages, taken at random, and check nothing
    #[arg(long, value_name = "LINES")]
    sample: Option<usize>,

    /// The number that selects a sample: the same number, the same lines
    #[arg(long, default_value_t = 1, requires = "sample")]
    seed: u64,
}

/// Checks all files that git knows. Prints each line that breaks a rule, or else the layers.
pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let tree = Tree::read(&cargo::workspace())?;
    if let Some(count) = options.sample {
        for line in sample::lines(&tree, count, options.seed) {
            println!("{line}");
        }
        return Ok(true);
    }
    let mut cargo = Command::new(cargo::program());
    cargo.args(["metadata", "--no-deps", "--format-version=1"]);
    let metadata = succeed(cargo.current_dir(cargo::workspace()))?;
    let mut findings = crates::check(&serde_json::from_str(&metadata)?, crates::CRATES);
    findings.extend(check(&tree));
    findings.sort();
    for finding in &findings {
        println!("{finding}");
    }
    if !findings.is_empty() {
        eprintln!("{} findings", findings.len());
        return Ok(false);
    }
    println!("each layer, and those below that it uses:\n");
    for table in table::LAYERS {
        println!("{}", layers::drawing(&tree, table));
    }
    Ok(true)
}

/// All findings about the files.
fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for table in table::LAYERS {
        findings.extend(layers::check(tree, table));
    }
    findings.extend(circles::check(tree, table::CIRCLES));
    findings.extend(fragments::check(tree));
    findings.extend(lines::check(tree));
    findings.extend(links::check(tree));
    findings.extend(openings::check(tree));
    findings.extend(words::check(tree, words::AVOIDED));
    findings.extend(words::check_glossary(tree, words::TERMS));
    findings
}
