//! The recording with the default name, which `fgraph record` keeps when it makes another.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Output};

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Records a program into the default file.
fn record(directory: &Path, options: &[&str]) -> Output {
    let words = [&["record", "-F", "malloc:mod:libc.so*"], options].concat();
    let words = [&words[..], &["--", "sh", "-c", "exit 3"]].concat();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    command.args(words).current_dir(directory).output().unwrap()
}

#[test]
fn an_earlier_recording_of_the_default_name_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let [data, old] = ["fgraph.data", "fgraph.data.old"].map(path);
    let done = |options: &[&str]| {
        let output = record(directory.path(), options);
        assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    };
    done(&[]);
    assert!(!old.exists());
    let first = fs::read(&data).unwrap();
    fs::set_permissions(&data, Permissions::from_mode(0o640)).unwrap();
    done(&[]);
    assert_eq!(fs::read(&old).unwrap(), first);
    assert_ne!(fs::read(&data).unwrap(), first);
    let mode = fs::metadata(&data).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    // The snapshot of a flight recorder replaces it, too.
    let second = fs::read(&data).unwrap();
    done(&["--ring", "overwrite"]);
    assert_eq!(fs::read(&old).unwrap(), second);
    // A name that is given is that of the file to replace.
    done(&["-o", "fgraph.data"]);
    assert_eq!(fs::read(&old).unwrap(), second);
    // A link stays one, and so does the file that it leads to.
    fs::rename(&data, path("elsewhere")).unwrap();
    symlink("elsewhere", &data).unwrap();
    done(&[]);
    assert!(data.is_symlink() && !path("elsewhere").is_symlink());
    assert_eq!(fs::read(&old).unwrap(), second);
}

#[test]
fn a_recording_that_cannot_be_kept_is_not_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("fgraph.data"), "earlier").unwrap();
    fs::create_dir(path("fgraph.data.old")).unwrap();
    let output = record(directory.path(), &[]);
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    assert_eq!(said(&output), "fgraph: fgraph.data.old is a directory\n");
    assert_eq!(fs::read(path("fgraph.data")).unwrap(), b"earlier");
    // A link is replaced, and not followed.
    fs::remove_dir(path("fgraph.data.old")).unwrap();
    fs::write(path("other"), "other").unwrap();
    symlink("other", path("fgraph.data.old")).unwrap();
    let output = record(directory.path(), &[]);
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert_eq!(fs::read(path("other")).unwrap(), b"other");
    assert_eq!(fs::read(path("fgraph.data.old")).unwrap(), b"earlier");
}
