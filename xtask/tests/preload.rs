//! The library that traces programs of others reports once for each program.

use std::path::PathBuf;
use std::process::{self, Command};
use std::{env, fs};

use fgraph_chores::cargo;

/// Forks three children, executes itself twice, or clears its environment.
const PROGRAM: &str = r#"
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
__attribute__((noinline)) int does(const char *what) {
    for (int child = 0; child < 3 && !strcmp(what, "forks"); child++)
        if (fork() == 0)
            exit(0);
    for (int child = 0; child < 2 && !strcmp(what, "executes"); child++)
        if (fork() == 0)
            _exit(execl("/proc/self/exe", "itself", "nothing", NULL));
    while (wait(NULL) > 0)
        ;
    return !strcmp(what, "clears") && clearenv();
}
int main(int argc, char **argv) { return argc != 2 || does(argv[1]); }
"#;

/// Traces the program; returns what is reported.
fn reports(what: &str, children: bool) -> Vec<String> {
    let library = cargo::build("fgraph-preload-test").unwrap();
    let name = format!("fgraph-preload-{what}-{children}-{}", process::id());
    let directory = env::temp_dir().join(name);
    fs::create_dir_all(&directory).unwrap();
    let at = |name: &str| -> PathBuf { directory.join(name) };
    fs::write(at("it.c"), PROGRAM).unwrap();
    let mut compiler = Command::new("cc");
    compiler.arg(at("it.c")).arg("-o").arg(at("it"));
    assert!(compiler.status().unwrap().success());
    let output = Command::new(at("it"))
        .arg(what)
        .env("LD_PRELOAD", library)
        .env("FGRAPH_FILTER", "does")
        .env("FGRAPH_OUT", at("out"))
        .envs(children.then_some(("FGRAPH_CHILDREN", "1")))
        .output();
    let reports = fs::read_to_string(at("out")).unwrap_or_default();
    fs::remove_dir_all(directory).unwrap();
    let output = output.unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    reports.lines().map(str::to_owned).collect()
}

#[test]
fn forked_children_do_not_report() {
    let reports = reports("forks", false);
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert!(reports[0].contains("\"entries\":1,"), "{reports:?}");
}

#[test]
fn programs_that_are_executed_report_if_that_is_asked_for() {
    assert_eq!(reports("executes", false).len(), 1);
    assert_eq!(reports("executes", true).len(), 3);
}

#[test]
fn a_program_that_clears_its_environment_reports() {
    assert_eq!(reports("clears", false).len(), 1);
}
