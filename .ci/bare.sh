#!/bin/sh
# Runs a command as on a machine with only Rust and a C compiler: for this command alone, what else the
# tests look for is gone from /usr. For root, or where users may make namespaces. For example:
#     .ci/bare.sh cargo test --workspace
set -eu
if [ "${1-}" != --inside ]; then
    root=
    [ "$(id -u)" = 0 ] || root=--map-root-user
    exec unshare --mount $root "$0" --inside "$@"
fi
shift

# Files that are removed from an overlay stay in the layer below it.
mount -t tmpfs none /mnt
mkdir /mnt/removed /mnt/work
mount -t overlay none -o lowerdir=/usr,upperdir=/mnt/removed,workdir=/mnt/work /usr
for name in '*g++*' 'c++*' '*clang*' 'gdb*' objcopy objdump xz 'perf*' strace 'valgrind*' 'callgrind*' \
    sqlite3 'python3*' 'node*' npm go 'uftrace*' 'babeltrace2*'; do
    find /usr/bin /usr/local/bin -name "$name" -exec rm {} +
done
# Other tools are in folders that this PATH leaves out.
PATH=$(dirname "$(command -v cargo)"):/usr/bin:/bin
for name in 'libsqlite3.so*' 'libunwind.so*' 'libasan*' 'libclang_rt*'; do
    find /usr/lib -name "$name" -exec rm {} +
done
rm -rf /usr/lib/debug
exec "$@"
