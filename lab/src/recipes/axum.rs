//! Services with tokio and axum: a handler that blocks, a lock that is held over an await, and a
//! runtime whose threads are busy.

use std::fs;
use std::io;
use std::process::Command;

use fgraph_chores::cargo;
use fgraph_chores::process::Done;
use fgraph_needs::{CURL, RUSTC};
use tempfile::TempDir;

use super::page::Recipe;

pub(super) const BLOCKING: Recipe = Recipe {
    name: "axum-blocking",
    needs: &[CURL, RUSTC],
    names_cause: blocks,
};

/// Returns true if the handler's function is named as the one that blocks.
fn blocks(output: &str) -> bool {
    let is_it =
        |line: &str| line.contains("longest poll:") && line.contains(" in service::render_report");
    output.lines().any(is_it)
}

pub(super) const LOCK: Recipe = Recipe {
    name: "axum-lock",
    needs: &[CURL, RUSTC],
    names_cause: holds,
};

/// Returns true if the wait for the lock ended after the holder's own wait.
fn holds(output: &str) -> bool {
    let parts = [
        "waits for a lock",
        "service::store_row, which had waited",
        "for a timer",
    ];
    let is_it = |line: &str| parts.iter().all(|part| line.contains(part));
    output.lines().any(is_it)
}

pub(super) const STARVED: Recipe = Recipe {
    name: "axum-starved",
    needs: &[CURL, RUSTC],
    names_cause: starves,
};

/// Returns true if tasks were late while the function ran.
fn starves(output: &str) -> bool {
    let parts = [": meanwhile ", ", in service::hash_password"];
    let is_it = |line: &str| parts.iter().all(|part| line.contains(part));
    output.lines().any(is_it)
}

/// Manifest of a program with the crates of these recipes.
const MANIFEST: &str = r#"
[package]
name = "service"
version = "0.1.0"
edition = "2024"

[dependencies]
axum = { version = "0.8", default-features = false, features = ["http1", "tokio"] }
tokio = { version = "1", features = ["macros", "net", "rt-multi-thread", "sync", "time"] }

[workspace]
"#;

/// Returns the reason for which cargo cannot get the crates of a recipe of this file.
pub(super) fn missing(recipe: &Recipe) -> io::Result<Option<String>> {
    if !recipe.name.starts_with("axum-") {
        return Ok(None);
    }
    let program = TempDir::with_prefix("fgraph-recipe-")?;
    fs::create_dir(program.path().join("src"))?;
    fs::write(program.path().join("src/main.rs"), "fn main() {}\n")?;
    fs::write(program.path().join("Cargo.toml"), MANIFEST)?;
    let fetched = Done::of(
        Command::new(cargo::program())
            .arg("fetch")
            .current_dir(program.path()),
    )?;
    Ok(fetched
        .fault()
        .map(|_| "no crates axum and tokio (cargo needs crates.io)".to_owned()))
}
