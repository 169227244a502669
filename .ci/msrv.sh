#!/bin/sh
# Checks all crates that users build with the oldest Rust that the workspace promises.
set -eu
cd "$(dirname "$0")/.."

version=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
rustup toolchain list | grep -q "^$version" ||
    rustup toolchain install --profile minimal "$version"

# The command's build script runs the cargo that runs it.
set --
for manifest in crates/*/Cargo.toml; do
    set -- "$@" --package "$(basename "$(dirname "$manifest")")"
done
exec cargo "+$version" check --locked --all-features "$@"
