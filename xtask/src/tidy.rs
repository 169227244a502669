//! `cargo xtask tidy`: rules of the repository that no compiler checks.

mod circles;
mod crates;
mod layers;
mod lexer;
mod lines;
mod links;
mod paths;
mod table;
mod tree;
mod words;

use std::io;
use std::process::ExitCode;

use clap::Args;

use crate::cargo;
use tree::{Finding, Tree};

/// What the command line asks for.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {}

/// Looks at all files that git knows, and prints where they break a rule, or else the layers.
pub(crate) fn run(_: &Options) -> io::Result<ExitCode> {
    let tree = Tree::read(&cargo::workspace())?;
    let findings = check(&tree);
    for finding in &findings {
        println!("{finding}");
    }
    if !findings.is_empty() {
        eprintln!("{} findings", findings.len());
        return Ok(ExitCode::FAILURE);
    }
    println!("each layer, and those below that it uses:\n");
    for table in table::LAYERS {
        println!("{}", layers::drawing(&tree, table));
    }
    Ok(ExitCode::SUCCESS)
}

/// All findings, by file and line.
fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = crates::check(tree, crates::CRATES);
    for table in table::LAYERS {
        findings.extend(layers::check(tree, table));
    }
    findings.extend(circles::check(tree, table::CIRCLES));
    findings.extend(lines::check(tree));
    findings.extend(links::check(tree));
    findings.extend(words::check(tree, words::AVOIDED));
    findings.extend(words::check_glossary(tree, words::TERMS));
    findings.sort();
    findings
}
