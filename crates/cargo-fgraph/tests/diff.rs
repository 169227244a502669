//! `cargo fgraph diff`, with the real `fgraph`, on a repository that has a package in a directory
//! below its root.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Workspace, run, stderr};
use fgraph_needs::{GIT, needs};

/// The directory of the package.
const PACKAGE: &str = "tools/app";

const MANIFEST: &str = "[package]\nname = \"app\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\
                        [workspace]\n";

const LIBRARY: &str = r#"
use std::hint::black_box;
#[inline(never)]
pub fn fetch(n: u64) -> u64 {
    (0..200).fold(black_box(n), |sum, at| black_box(sum ^ at))
}
#[inline(never)]
pub fn handle(n: u64) -> u64 {
    fetch(n)
}
#[test]
fn it_is_handled() {
    handle(1);
}
"#;

const PROGRAM: &str = r#"
fn main() {
    let text = std::fs::read_to_string("input").expect("the input is there");
    let count: u64 = text.trim().parse().unwrap();
    println!("{}", (0..count).map(app::handle).sum::<u64>());
}
"#;

const TEST: &str = r#"
#[test]
fn it_is_fetched() {
    app::fetch(1);
}
"#;

/// The command `fgraph` of this repository, built as the tests are.
static FGRAPH: LazyLock<PathBuf> = LazyLock::new(|| {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    // With the features that everything has in `cargo test --workspace`, whose command it then is:
    // of these, a test has those of dev-dependencies.
    build.args(["build", "--quiet", "--workspace"]);
    build.args(["--bin", "fgraph", "--test", "loom"]);
    build.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    assert!(build.status().unwrap().success());
    let here = PathBuf::from(env!("CARGO_BIN_EXE_cargo-fgraph"));
    let fgraph = here.with_file_name("fgraph");
    assert!(fgraph.is_file(), "{}", fgraph.display());
    fgraph
});

/// Runs git, as a user without a configuration, and returns its output.
fn git(directory: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("git");
    command.current_dir(directory).args(arguments);
    command.env("GIT_CONFIG_GLOBAL", "/dev/null");
    for (name, value) in [
        ("NAME", "tester"),
        ("EMAIL", "tester@example.org"),
        ("DATE", "2026-01-01T00:00:00Z"),
    ] {
        for role in ["AUTHOR", "COMMITTER"] {
            command.env(format!("GIT_{role}_{name}"), value);
        }
    }
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        stderr(&output)
    );
    String::from_utf8(output.stdout).unwrap()
}

fn commit(directory: &Path, subject: &str) {
    git(directory, &["add", "--all"]);
    git(directory, &["commit", "--quiet", "--message", subject]);
}

/// A repository with one commit, and a file for the program that git does not know.
fn repository(name: &str) -> Workspace {
    let file = |name: &str| format!("{PACKAGE}/{name}");
    let workspace = Workspace::new(name, &[(".gitignore", "target\ninput\nCargo.lock\n")]);
    for (path, text) in [
        ("Cargo.toml", MANIFEST),
        ("src/lib.rs", LIBRARY),
        ("src/main.rs", PROGRAM),
        ("tests/whole.rs", TEST),
        ("input", "50"),
    ] {
        workspace.write(&file(path), text);
    }
    git(&workspace.0, &["init", "--quiet", "--initial-branch=main"]);
    commit(&workspace.0, "first");
    workspace
}

/// `cargo fgraph diff` in the package.
fn diff(workspace: &Workspace, arguments: &[&str]) -> Command {
    let mut command = workspace.fgraph(&[&["diff"], arguments].concat());
    command.current_dir(workspace.0.join(PACKAGE));
    command.env("FGRAPH", &*FGRAPH);
    command
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into()
}

/// The directory of comparisons.
fn place(workspace: &Workspace) -> PathBuf {
    workspace.0.join(PACKAGE).join("target/fgraph/diff")
}

/// Returns true if no worktree is left.
fn is_removed(workspace: &Workspace) -> bool {
    let worktrees = git(&workspace.0, &["worktree", "list"]);
    !place(workspace).join("base").exists() && worktrees.lines().count() == 1
}

#[test]
fn a_call_that_was_added_since_a_commit_is_found() {
    needs!(GIT.find());
    let workspace = repository("diff-calls");
    let twice = LIBRARY.replace("    fetch(n)", "    fetch(fetch(n))");
    workspace.write(&format!("{PACKAGE}/src/lib.rs"), &twice);
    let condition = "--fail-on=calls(app::fetch) > +0%";
    let page = workspace.0.join("page.html");
    let html = format!("--html={}", page.display());
    let first = run(diff(
        &workspace,
        &["main", "--runs=3", "--json", &html, condition],
    ));
    assert_eq!(first.status.code(), Some(3), "{}", stderr(&first));
    assert!(
        stderr(&first).contains("Compiling app"),
        "{}",
        stderr(&first)
    );
    let view: serde_json::Value = serde_json::from_str(&stdout(&first)).unwrap();
    assert_eq!(view["program"], "app");
    assert_eq!(view["old_recordings"], 3);
    let functions = view["functions"].as_array().unwrap();
    let fetch = functions.iter().find(|it| it["name"] == "app::fetch");
    let fetch = fetch.unwrap();
    assert_eq!(
        (fetch["old_calls"].as_f64(), fetch["new_calls"].as_f64()),
        (Some(50.0), Some(100.0))
    );
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("app::fetch"), "{page}");
    assert!(is_removed(&workspace));
    let kept = place(&workspace).join("recordings/new.3/app.data");
    assert!(kept.is_file(), "{}", kept.display());

    // Nothing is built again.
    let second = run(diff(&workspace, &["main", "--runs", "1", "--markdown"]));
    assert_eq!(second.status.code(), Some(0), "{}", stderr(&second));
    assert!(
        !stderr(&second).contains("Compiling"),
        "{}",
        stderr(&second)
    );
    let row = "| 100 | +50 | `app::fetch [app]`";
    assert!(stdout(&second).contains(row), "{}", stdout(&second));

    // Another commit is, and it is the same as the working tree.
    commit(&workspace.0, "second");
    let same = run(diff(&workspace, &["HEAD", "--runs=1", condition]));
    assert_eq!(same.status.code(), Some(0), "{}", stderr(&same));
    assert!(stderr(&same).contains("Compiling app"), "{}", stderr(&same));
    let shown = stdout(&same);
    assert!(shown.contains("no function has changed"), "{shown}");
    // And back.
    let back = run(diff(&workspace, &["HEAD~1", "--runs=1", condition]));
    assert_eq!(back.status.code(), Some(3), "{}", stderr(&back));
}

#[test]
fn each_test_program_is_compared() {
    needs!(GIT.find());
    let workspace = repository("diff-tests");
    let manifest = format!("--manifest-path={PACKAGE}/Cargo.toml");
    let arguments = [
        "main", "--runs=1", "--all", "-F", "app::*", "test", &manifest,
    ];
    let mut command = diff(
        &workspace,
        &[&arguments[..], &["--lib", "--tests"]].concat(),
    );
    // The workspace is named, and the repository is found there.
    command.current_dir(&workspace.0);
    let compared = run(command);
    assert_eq!(compared.status.code(), Some(0), "{}", stderr(&compared));
    let shown = stdout(&compared);
    let lines: Vec<&str> = shown.lines().collect();
    for program in ["app:", "app.whole:"] {
        assert!(lines.contains(&program), "{program} {shown}");
    }
    assert!(shown.contains("app::handle"), "{shown}");
    assert!(is_removed(&workspace));
}

#[test]
fn what_cannot_be_compared_says_why() {
    needs!(GIT.find());
    let workspace = repository("diff-bad");
    let fails = |arguments: &[&str], reasons: &[&str]| {
        let output = run(diff(&workspace, arguments));
        assert_eq!(output.status.code(), Some(1), "{arguments:?} {output:?}");
        for reason in reasons {
            let said = stderr(&output);
            assert!(said.contains(reason), "{arguments:?} {reason}: {said}");
        }
        assert!(is_removed(&workspace), "{arguments:?}");
    };
    fails(&["nowhere"], &["`nowhere` is no commit here"]);
    fails(
        &["main", "--fail-on=speed > 1"],
        &["--fail-on", "a condition is"],
    );
    fails(
        &["main", "--runs=1", "--fail-on=self > +5%"],
        &["needs at least 3 recordings"],
    );
    fails(&["main", "--markdown", "--json"], &["cannot be used with"]);

    let library = format!("{PACKAGE}/src/lib.rs");
    workspace.write(&library, "pub fn broken() -> u8 { \"text\" }");
    commit(&workspace.0, "broken");
    workspace.write(&library, LIBRARY);
    workspace.write(&format!("{PACKAGE}/src/bin/late.rs"), "fn main() {}");
    fails(
        &["HEAD"],
        &[
            "error[E0308]",
            "HEAD (",
            "cannot be built, see cargo's message above",
        ],
    );
    fails(
        &["main~1", "--bin=late"],
        &["no bin target named `late`", "main~1 (", "cannot be built"],
    );
    // A program that fails: its input is no number.
    workspace.write(&format!("{PACKAGE}/input"), "many");
    fails(
        &["main~1", "--bin=app", "--runs=1"],
        &["a program of main~1 (", "has failed", "panicked at"],
    );

    git(&workspace.0, &["rm", "--quiet", "-r", "--cached", "tools"]);
    git(&workspace.0, &["commit", "--quiet", "--message", "nothing"]);
    fails(&["HEAD"], &["has no directory tools/app/"]);
    fs::remove_dir_all(workspace.0.join(".git")).unwrap();
    let mut command = diff(&workspace, &["main"]);
    let outside = command
        .env("GIT_CEILING_DIRECTORIES", &workspace.0)
        .output();
    let outside = outside.unwrap();
    assert_eq!(outside.status.code(), Some(1), "{outside:?}");
    let said = stderr(&outside);
    assert!(
        said.contains("the package is in no working tree of git"),
        "{said}"
    );
}

#[test]
fn the_worktree_is_removed_after_ctrl_c() {
    needs!(GIT.find());
    let workspace = repository("diff-interrupt");
    let waits = "fn main() { loop { std::thread::park(); } }";
    workspace.write(&format!("{PACKAGE}/src/main.rs"), waits);
    commit(&workspace.0, "waits");
    // A shell that runs the tests in the background has made them ignore it.
    // SAFETY: this test needs no handler of the signal.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
    // In a process group of its own, as a shell starts it.
    let mut child = diff(&workspace, &["main"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("recording both, 1 of 5")));
    assert!(place(&workspace).join("base").exists());
    let group = format!("-{}", child.id());
    let killed = Command::new("kill").args(["-INT", "--", &group]).status();
    assert!(killed.unwrap().success());
    let start = Instant::now();
    let wait_until = |what: &str, is_so: &mut dyn FnMut() -> bool| {
        while !is_so() {
            if start.elapsed() > Duration::from_secs(60) {
                let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
                panic!("{what}");
            }
            thread::sleep(Duration::from_millis(50));
        }
    };
    let mut status = None;
    wait_until("the command goes on", &mut || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().signal(), Some(2));
    wait_until("the worktree is still there", &mut || {
        is_removed(&workspace)
    });
}

#[test]
fn submodules_are_those_of_the_commit() {
    needs!(GIT.find());
    let workspace = repository("diff-submodule");
    let library = Workspace::new(
        "diff-library",
        &[
            (
                "Cargo.toml",
                "[package]\nname = \"part\"\nversion = \"0.1.0\"\nedition = \"2024\"\n",
            ),
            (
                "src/lib.rs",
                "#[inline(never)]\npub fn part(n: u64) -> u64 { std::hint::black_box(n) }",
            ),
        ],
    );
    git(&library.0, &["init", "--quiet", "--initial-branch=main"]);
    commit(&library.0, "part");
    let from = library.0.to_str().unwrap();
    let package = workspace.0.join(PACKAGE);
    let add = [
        "-c",
        "protocol.file.allow=always",
        "submodule",
        "--quiet",
        "add",
        from,
        "part",
    ];
    git(&package, &add);
    let manifest = MANIFEST.replace(
        "[workspace]\n",
        "[workspace]\n[dependencies]\npart.path = \"part\"\n",
    );
    workspace.write(&format!("{PACKAGE}/Cargo.toml"), &manifest);
    let uses = LIBRARY.replace("    fetch(n)", "    fetch(part::part(n))");
    workspace.write(&format!("{PACKAGE}/src/lib.rs"), &uses);
    commit(&workspace.0, "part");
    // The submodule calls one more function, which no commit has.
    workspace.write(
        &format!("{PACKAGE}/part/src/lib.rs"),
        "#[inline(never)]\npub fn part(n: u64) -> u64 { more(n) }\n\
         #[inline(never)]\nfn more(n: u64) -> u64 { std::hint::black_box(n) }",
    );
    let compared = run(diff(&workspace, &["main", "--runs=1"]));
    assert_eq!(compared.status.code(), Some(0), "{}", stderr(&compared));
    let said = stderr(&compared);
    let reason = "submodule tools/app/part has changes that are not committed";
    assert!(said.contains(reason), "{said}");
    let shown = stdout(&compared);
    assert!(shown.contains("part::more"), "{shown}");
    assert!(is_removed(&workspace));
    let worktrees = git(&package.join("part"), &["worktree", "list"]);
    assert_eq!(worktrees.lines().count(), 1, "{worktrees}");
}
