//! Subcommands and formats that a build leaves out. CI builds the command with and without them.

use std::process::Command;

/// Each subcommand that is a feature, and whether this build has it.
const SUBCOMMANDS: [(&str, bool); 4] = [
    ("completions", cfg!(feature = "completions")),
    ("man", cfg!(feature = "man")),
    ("mount", cfg!(feature = "mount")),
    ("tui", cfg!(feature = "tui")),
];

/// Each format that is a feature, with the feature, and whether this build has it.
const FORMATS: [(&str, &str, bool); 3] = [
    ("svg", "svg", cfg!(feature = "svg")),
    ("parquet", "fleet", cfg!(feature = "fleet")),
    ("otlp", "fleet", cfg!(feature = "fleet")),
];

fn fgraph(arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    let output = command.args(arguments).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), message)
}

#[test]
fn an_absent_subcommand_names_its_feature() {
    for (name, is_there) in SUBCOMMANDS {
        let (code, message) = fgraph(&[name, "--no-such-option", "x"]);
        assert_eq!(code, Some(2), "{name}: {message}");
        let expected = match is_there {
            true => "unexpected argument".to_owned(),
            false => format!("without {name}: build fgraph-cli with --features {name}"),
        };
        assert!(message.contains(&expected), "{name}: {message}");
    }
}

#[test]
fn the_help_says_which_subcommands_are_absent() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    let output = command.arg("--help").output().unwrap();
    let help = String::from_utf8_lossy(&output.stdout);
    for (name, is_there) in SUBCOMMANDS {
        let line = help
            .lines()
            .find(|line| line.trim_start().starts_with(name));
        let line = line.unwrap_or_else(|| panic!("no {name} in {help}"));
        assert_eq!(line.contains("Not in this build"), !is_there, "{line}");
    }
}

#[test]
fn an_absent_format_names_its_feature() {
    for (name, feature, is_there) in FORMATS {
        let (code, message) = fgraph(&["export", name, "no-such-recording"]);
        // A build of the whole workspace has formats that the command did not ask for.
        let is_there = is_there || code == Some(3);
        let (expected_code, expected) = match is_there {
            true => (3, "no-such-recording".to_owned()),
            false => (
                2,
                format!("without {name}: build fgraph-cli with --features {feature}"),
            ),
        };
        assert_eq!(code, Some(expected_code), "{name}: {message}");
        assert!(message.contains(&expected), "{name}: {message}");
    }
}

#[test]
fn the_help_has_no_format_that_is_absent() {
    let help = Command::new(env!("CARGO_BIN_EXE_fgraph"))
        .args(["export", "--help"])
        .output()
        .unwrap();
    let help = String::from_utf8_lossy(&help.stdout);
    let (_, values) = help.split_once("possible values: ").unwrap();
    let (values, _) = values.split_once(']').unwrap();
    assert!(values.contains("perfetto"), "{values}");
    for (name, ..) in FORMATS {
        let (code, _) = fgraph(&["export", name, "no-such-recording"]);
        let is_listed = values.split([',', ' ', '\n']).any(|value| value == name);
        assert_eq!(is_listed, code == Some(3), "{name}: {values}");
    }
}
