#!/bin/sh
# Runs tests under AddressSanitizer, and under ThreadSanitizer where the standard library can be built for it.
# Both need a nightly compiler; without one it says so and does nothing.
set -eu
cd "$(dirname "$0")/.."

if ! cargo +nightly --version >/dev/null 2>&1; then
    echo "skipped: no nightly compiler"
    exit 0
fi
target=x86_64-unknown-linux-gnu
tests="--package fgraph --test it"
unset CARGO_ENCODED_RUSTFLAGS
base="${CARGO_TARGET_DIR:-target}"

# fgraph keeps for good what a thread may be using, so everything leaks. A stack that is used for another coroutine
# while a call on it goes on is poisoned.
echo "AddressSanitizer"
export CARGO_TARGET_DIR="$base/asan"
RUSTFLAGS="-Zsanitizer=address" ASAN_OPTIONS=detect_leaks=0 \
    cargo +nightly test --target "$target" --package fgraph-core --test model $tests \
    -- users:: unwinding:: stacks:: coroutines:: users_are_told \
    --skip stacks_that_are_given_up_in_the_middle_do_no_harm

if [ ! -d "$(rustc +nightly --print sysroot)/lib/rustlib/src/rust/library" ]; then
    echo "skipped: ThreadSanitizer, which needs the source of the standard library (component rust-src)"
    exit 0
fi
# It wants to be told of every switch of stacks, so there are no coroutines.
echo "ThreadSanitizer"
export CARGO_TARGET_DIR="$base/tsan"
RUSTFLAGS="-Zsanitizer=thread" cargo +nightly test -Zbuild-std --target "$target" $tests \
    -- users:: unwinding::
