#!/bin/sh
# Cargo runs this as rustdoc (.cargo/config.toml). The examples in the docs are what `cargo test` runs
# last, a crate after the other; so that the last line counts the tests that were skipped, it is printed
# after each. xtask/needs lists them.
rustdoc "$@"
status=$?

is_test=
directory=
for argument; do
    case $argument in
    --test) is_test=1 ;;
    dependency=*/deps) directory=${argument#dependency=} ;;
    esac
done
if [ -n "$is_test" ] && [ $status = 0 ]; then
    # The start of our parent, the cargo that has run all tests, is field 22: its own name has no spaces.
    read -r stat <"/proc/$PPID/stat"
    start=$(echo "$stat" | cut -d ' ' -f 22)
    list=$directory/skipped/$PPID-$start
    count=0
    packages=
    if [ -e "$list" ]; then
        count=$(sed 's/^skipped: //; s/: .*//' "$list" | sort -u | wc -l)
        packages=$(sed -n 's/.*(apt-get install \(.*\))$/\1/p' "$list" | sort -u | tr '\n' ' ')
    fi
    echo "skipped tests: $count${packages:+; to run them: apt-get install ${packages% }}"
fi
exit $status
