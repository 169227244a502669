#!/bin/sh
# Checks the interfaces of the crates that keep to semantic versioning: the list of their items, and with
# cargo-semver-checks that nothing of theirs has broken since the revision in `.ci/semver-baseline`. A commit that
# breaks something on purpose renews the list and names a later revision; a release names its own.
set -eu
cd "$(dirname "$0")/.."

# Says on which items the two differ. Without a nightly it says that it is skipped.
cargo test --package xtask --test it public_items

revision=$(cat .ci/semver-baseline)
if ! git cat-file -e "$revision^{commit}" 2>/dev/null; then
    echo "skipped: cargo-semver-checks: this clone does not have revision $revision (git fetch --unshallow)"
    exit 0
fi
if ! command -v cargo-semver-checks >/dev/null; then
    echo "skipped: no cargo-semver-checks (cargo install --locked cargo-semver-checks)"
    exit 0
fi
# It reads one crate at a time: what these re-export of fgraph-core and fgraph-symbols is in the list alone.
exec cargo semver-checks --baseline-rev "$revision" --release-type minor --all-features \
    --package fgraph --package fgraph-trace --package fgraph-tracers --package fgraph-export --package fgraph-attach
