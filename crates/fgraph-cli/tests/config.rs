//! The file of defaults.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output};

use fgraph_needs::skip;

use crate::support::recording;

fn fgraph(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    command
        .env_remove("FGRAPH_CONFIG")
        .env_remove("XDG_CONFIG_HOME")
        .env("HOME", directory)
        .current_dir(directory);
    command
}

fn lines(output: &Output) -> usize {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).lines().count()
}

#[test]
fn a_file_has_the_defaults_and_the_command_line_wins() {
    let (directory, _recording) = recording();
    let directory = directory.path();
    let report = |add: &dyn Fn(&mut Command)| {
        let mut command = fgraph(directory);
        command.arg("report");
        add(&mut command);
        command.output().unwrap()
    };
    let all = lines(&report(&|_| ()));
    assert!(all > 3);
    for place in [".config/fgraph", "xdg/fgraph"] {
        fs::create_dir_all(directory.join(place)).unwrap();
    }
    let text = "# of people\ncolor = \"never\"\n\n[report]\nlines = 1\n";
    fs::write(directory.join(".config/fgraph/config"), text).unwrap();
    assert_eq!(lines(&report(&|_| ())), 2);
    assert_eq!(lines(&report(&|it| _ = it.args(["-n", "2"]))), 3);
    assert_eq!(lines(&report(&|it| _ = it.arg("--no-config"))), all);

    let xdg = directory.join("xdg");
    assert_eq!(
        lines(&report(&|it| _ = it.env("XDG_CONFIG_HOME", &xdg))),
        all
    );
    fs::write(xdg.join("fgraph/config"), "report.lines = 2").unwrap();
    assert_eq!(lines(&report(&|it| _ = it.env("XDG_CONFIG_HOME", &xdg))), 3);

    let other = directory.join("other");
    fs::write(&other, "").unwrap();
    for named in [other.as_path(), Path::new("")] {
        assert_eq!(
            lines(&report(&|it| _ = it.env("FGRAPH_CONFIG", named))),
            all
        );
    }
}

#[test]
fn a_program_is_recorded_as_the_file_says() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    fs::write(
        directory.join("config"),
        "[record]\noutput = 'it'\nquiet = true\n",
    )
    .unwrap();
    let mut command = fgraph(directory);
    command.env("FGRAPH_CONFIG", "config");
    let output = command.args(["record", "--", "true"]).output().unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    assert!(directory.join("it").exists());
    assert!(!directory.join("fgraph.data").exists());
}

#[test]
fn errors_in_the_file_are_reported_in_one_line() {
    let (directory, _recording) = recording();
    let directory = directory.path();
    let said = |name: &str, options: &[&str]| {
        let mut command = fgraph(directory);
        command.env("FGRAPH_CONFIG", name).arg("info").args(options);
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        (output.status.code().unwrap(), said)
    };
    let config = |text: &[u8]| {
        fs::write(directory.join("c"), text).unwrap();
        said("c", &[])
    };
    for (text, expected) in [
        (
            &b"# one\n[recrod]\n"[..],
            "fgraph: c:2: there is no subcommand recrod\n",
        ),
        (
            b"[record]\n\nmax-rate = \"\\u202e\"",
            "fgraph: c:3: invalid value '\\u{202e}' for '--max-rate <N>': \
             invalid digit found in string\n",
        ),
    ] {
        assert_eq!(config(text), (2, expected.to_owned()));
    }
    let (code, text) = config(b"color = 'never'\ncolor = 'auto'");
    assert!(code == 2 && text.starts_with("fgraph: c:2: "), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    for (text, code) in [(&b"\xff"[..], 3), (&vec![b'#'; 2 << 20], 3)] {
        let (found, said) = config(text);
        assert_eq!((found, said.lines().count()), (code, 1), "{said}");
    }
    for name in ["missing", "."] {
        let (code, text) = said(name, &[]);
        assert_eq!((code, text.lines().count()), (3, 1), "{text}");
        assert_eq!(said(name, &["--no-config"]).0, 0);
    }
}

#[test]
fn a_file_that_may_not_be_read_is_passed_over_unless_it_is_named() {
    const NOBODY: u32 = 65534;
    let (directory, recording) = recording();
    let directory = directory.path();
    let config = directory.join(".config/fgraph/config");
    fs::create_dir_all(config.parent().unwrap()).unwrap();
    fs::write(&config, "color = 'loud'").unwrap();
    fs::set_permissions(&config, Permissions::from_mode(0o000)).unwrap();
    // SAFETY: a system call without arguments.
    let is_root = unsafe { libc::geteuid() } == 0;
    if is_root {
        for path in [directory, &recording] {
            chown(path, Some(NOBODY), None).unwrap();
        }
    }
    let info = |name: Option<&Path>| {
        let mut command = fgraph(directory);
        command
            .arg("info")
            .envs(name.map(|it| ("FGRAPH_CONFIG", it)));
        if is_root {
            // Root reads all files.
            command.uid(NOBODY).gid(NOBODY);
        }
        command.output()
    };
    let output = match info(None) {
        Err(error) if is_root => {
            skip!("another user cannot run the command: {error}");
            return;
        }
        output => output.unwrap(),
    };
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    let path = config.display();
    let expected = format!("fgraph: {path}: Permission denied; it is ignored\n");
    assert_eq!(said, expected);
    assert_eq!(info(Some(&config)).unwrap().status.code(), Some(3));
}
