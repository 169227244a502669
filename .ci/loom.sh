#!/bin/sh
# Checks the slot, epoch, grace-period and spare-stack protocols and that of the rings of events with
# loom. Takes arguments for the test binaries, for example a part of a test's name.
set -eu
cd "$(dirname "$0")/.."

# CARGO_ENCODED_RUSTFLAGS would be taken in place of it.
unset CARGO_ENCODED_RUSTFLAGS
export RUSTFLAGS="--cfg loom"
# A folder of its own: with other flags everything would be built anew, there and back.
CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/loom"
export CARGO_TARGET_DIR
# Each one more takes four to seven times as long: 9 s with 4, over 2 min with 6.
export LOOM_MAX_PREEMPTIONS="${LOOM_MAX_PREEMPTIONS:-4}"

cargo test --release --package fgraph-core --test loom -- "$@"
# The steps that twins leave out are left out for the whole process.
exec cargo test --release --package fgraph-trace --test loom -- --test-threads=1 "$@"
