#!/bin/sh
# Runs under Miri what needs no system call and no assembly: random programs against the model of shadow stack and
# dispatch, and what filters and demangles names. Needs a nightly compiler with Miri; without one it says so and does
# nothing.
set -eu
cd "$(dirname "$0")/.."

if ! cargo +nightly miri --version >/dev/null 2>&1; then
    echo "skipped: no nightly compiler with Miri (rustup component add --toolchain nightly miri rust-src)"
    exit 0
fi
unset CARGO_ENCODED_RUSTFLAGS
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/miri"
# Frames hold addresses as numbers, as the machine does, and states are never freed.
export MIRIFLAGS="-Zmiri-permissive-provenance -Zmiri-ignore-leaks"

cargo +nightly miri test --package fgraph-core --lib --test model
# The other tests read whole files, which takes too long there, or run a compiler.
cargo +nightly miri test --package fgraph-symbols --lib -- filter:: demangle:: notrace::
