//! `fgraph top --user`: a line for each process of the user.

use fgraph_needs::{GCC, needs, skip};

use crate::support::compiled::{FGRAPH, Place};
use crate::support::views::done;

/// In a PID namespace, so that no other process is there: two programs with sessions of their own,
/// one of this session, and one that another command of this user has started.
const SCRIPT: &str = r#"
setsid ./works & first=$!
setsid ./works & second=$!
./works & ours=$!
sleep 0.5
"$0" top --user --processes 5 --time 1s -n 5
echo "ends with $?"
"$0" top --user --processes 1 > one.txt 2>&1 & top=$!
sleep 3
kill -INT $top
wait $top
echo "interrupted with $?"
for program in $first $second $ours; do
    kill $program
    wait $program
    echo "program $?"
done
echo "one:"
cat one.txt
"#;

#[test]
fn processes_of_the_user_have_a_line_each_and_run_on() {
    let place = Place::new(&needs!(GCC.find()), &["works"]);
    let mut command = place.command(&["unshare", "--user", "--map-root-user", "--pid", "--fork"]);
    command.args(["--mount", "--mount-proc", "sh", "-c", SCRIPT, FGRAPH]);
    let done = done(&mut command);
    if done.err.starts_with("unshare: ") {
        return skip!(
            "no PID namespace (unprivileged user namespaces): {}",
            done.err
        );
    }
    let (all, one) = done.out.split_once("one:\n").unwrap();
    let lines: Vec<&str> = all.lines().filter(|line| line.contains("works ")).collect();
    assert_eq!(lines.len(), 2, "{done:?}");
    assert!(
        lines.iter().all(|line| line.ends_with("[works]")),
        "{lines:?}"
    );
    let ends = [
        "ends with 0",
        "interrupted with 0",
        "program 0",
        "program 0",
        "program 0",
    ];
    let said: Vec<&str> = all
        .lines()
        .filter(|line| line.contains("with") || line.starts_with("program"))
        .collect();
    assert_eq!(said, ends, "{done:?}");
    // The program of our session, and the shell's `sleep` if it was there, are left out.
    assert!(
        done.err
            .contains("of this terminal or session are left out: "),
        "{done:?}"
    );
    assert!(
        one.contains("processes that compute less are left out: 1; "),
        "{one}"
    );
    assert_eq!(
        one.lines().filter(|line| line.contains("works ")).count(),
        1,
        "{one}"
    );
}

#[test]
fn a_user_needs_a_number_of_processes_and_no_other_target() {
    let place = |words: &[&str]| {
        let mut command = std::process::Command::new(FGRAPH);
        done(command.arg("top").args(words))
    };
    for words in [
        &["--user"][..],
        &["--processes", "3"],
        &["--user", "--processes", "0"],
        &["--user", "--processes", "101"],
        &["--user", "--processes", "3", "-p", "1"],
        &["--user", "--processes", "3", "--", "true"],
        &[],
    ] {
        assert_eq!(place(words).code, Some(2), "{words:?}");
    }
}
