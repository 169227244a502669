//! `fgraph open` and `fgraph record --open`.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::recording;

fn fgraph(directory: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    command.args(words).current_dir(directory);
    for variable in ["BROWSER", "DISPLAY", "WAYLAND_DISPLAY"] {
        command.env_remove(variable);
    }
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Makes a browser that writes the path of the page to `opened`.
fn browser(directory: &Path) -> String {
    let path = directory.join("browser");
    fs::write(&path, "#!/bin/sh\nprintf %s \"$1\" > opened\n").unwrap();
    // A file that another test's child has open for writing cannot be executed.
    format!("sh {}", path.display())
}

#[test]
fn a_page_is_written_beside_the_recording_and_opened() {
    let (directory, _recording) = recording();
    let directory = directory.path().canonicalize().unwrap();
    let mut command = fgraph(&directory, &["open"]);
    let output = command.env("BROWSER", browser(&directory)).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let page = directory.join("fgraph.html");
    assert!(fs::read_to_string(&page).unwrap().contains("<html"));
    let opened = fs::read_to_string(directory.join("opened")).unwrap();
    assert_eq!(Path::new(&opened), page);
    let mut command = fgraph(&directory, &["open", "-o", "other.html"]);
    let output = command.env("BROWSER", browser(&directory)).output();
    assert!(output.unwrap().status.success());
    let opened = fs::read_to_string(directory.join("opened")).unwrap();
    assert_eq!(Path::new(&opened), directory.join("other.html"));
}

#[test]
fn the_page_is_named_where_no_browser_shows_it() {
    let (directory, _recording) = recording();
    let directory = directory.path().canonicalize().unwrap();
    let page = directory.join("fgraph.html");
    for (browser, why) in [
        (None, "no browser is known here (BROWSER, or a desktop)"),
        (
            Some("false"),
            "false does not show the page (exit status: 1)",
        ),
        (
            Some("/no/browser"),
            "/no/browser does not show the page (there is no such program)",
        ),
    ] {
        let mut command = fgraph(&directory, &["open"]);
        let output = command.envs(browser.map(|it| ("BROWSER", it))).output();
        let output = output.unwrap();
        let expected = format!("fgraph: {why}: open {}\n", page.display());
        assert!(output.status.success(), "{}", said(&output));
        assert!(said(&output).ends_with(&expected), "{}", said(&output));
    }
    let output = fgraph(&directory, &["open", "none.data"]).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    let same = ["open", "-o", "fgraph.data"];
    let output = fgraph(&directory, &same).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
}

#[test]
fn a_recording_is_opened_and_the_exit_code_is_the_programs() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().canonicalize().unwrap();
    let browser = browser(&directory);
    let words = [
        "record",
        "--open",
        "-F",
        "malloc:mod:libc.so*",
        "-o",
        "a.data",
    ];
    let mut command = fgraph(&directory, &words);
    command.args(["--", "sh", "-c", "exit 3"]);
    let output = command.env("BROWSER", browser).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    let opened = fs::read_to_string(directory.join("opened")).unwrap();
    assert_eq!(Path::new(&opened), directory.join("a.html"));
}
