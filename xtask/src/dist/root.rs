//! A root directory with nothing in it but the package, and what the dynamic linker needs to start
//! the command and a program to record.

use std::fs;
use std::io;
use std::os::unix::fs as unix;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fgraph_chores::process::succeed;

/// The program that is recorded there.
const PROGRAM: &str = "/bin/ls";

/// Enters the root `$1` and runs the rest there.
const ENTER: &str = r#"
set -e
root=$1
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
shift
exec chroot "$root" "$@"
"#;

/// The commands that are run there, each with a text that it prints.
#[rustfmt::skip]
const COMMANDS: [(&str, &str); 8] = [
    ("fgraph --version", "fgraph "),
    ("fgraph record --libs --output /tmp/calls.data ls /usr", "share"),
    ("fgraph report /tmp/calls.data", "[ls]"),
    ("fgraph export html -o - /tmp/calls.data", "<html"),
    ("fgraph export svg -o - /tmp/calls.data", "<svg"),
    ("fgraph export parquet -o /tmp/p /tmp/calls.data", ""),
    ("fgraph export otlp -o /tmp/o /tmp/calls.data", ""),
    ("fgraph syscalls -- ls /usr", "share"),
];

/// Files that the package must have.
const FILES: [&str; 8] = [
    "usr/share/man/man1/fgraph.1.gz",
    "usr/share/man/man1/fgraph-record.1.gz",
    "usr/share/bash-completion/completions/fgraph",
    "usr/share/fish/vendor_completions.d/fgraph.fish",
    "usr/share/zsh/vendor-completions/_fgraph",
    "usr/share/fgraph/fgraph-gdb.py",
    "usr/share/doc/fgraph/example.html",
    "usr/share/doc/fgraph/THIRD-PARTY.txt",
];

/// Makes the root, unpacks the tarball and the Debian package of `files` in it, runs the command,
/// and removes the root.
pub(super) fn try_in(root: &Path, files: &[PathBuf]) -> io::Result<()> {
    if root.exists() {
        fs::remove_dir_all(root)?;
    }
    for directory in ["dev", "opt", "proc", "tmp", "usr/bin"] {
        fs::create_dir_all(root.join(directory))?;
    }
    unix::symlink("usr/bin", root.join("bin"))?;
    for file in files {
        let is_package = file.extension().is_some_and(|extension| extension == "deb");
        let mut unpack = Command::new(if is_package { "dpkg-deb" } else { "tar" });
        succeed(match is_package {
            true => unpack.arg("-x").arg(file).arg(root),
            false => unpack.arg("xzf").arg(file).arg("-C").arg(root.join("opt")),
        })?;
    }
    for file in FILES {
        if fs::metadata(root.join(file)).map_or(0, |metadata| metadata.len()) == 0 {
            return Err(io::Error::other(format!("the package lacks {file}")));
        }
    }
    fs::copy(PROGRAM, root.join("usr/bin/ls"))?;
    for program in [root.join("usr/bin/fgraph"), PathBuf::from(PROGRAM)] {
        copy_libraries(&program, root)?;
    }
    for (command, expected) in COMMANDS {
        let printed = succeed(inside(root).args(command.split(' ')))?;
        if !printed.contains(expected) {
            let why = format!("{command} prints no {expected:?}: {printed}");
            return Err(io::Error::other(why));
        }
    }
    let unpacked = fs::read_dir(root.join("opt"))?.next();
    let unpacked = unpacked.ok_or_else(|| io::Error::other("the tarball is empty"))??;
    if fs::read(unpacked.path().join("bin/fgraph"))? != fs::read(root.join("usr/bin/fgraph"))? {
        return Err(io::Error::other(
            "tarball and package have different commands",
        ));
    }
    println!(
        "{} commands ran in a root without anything else",
        COMMANDS.len()
    );
    fs::remove_dir_all(root)
}

/// A command that runs in `root`, in namespaces of its own that end with it.
fn inside(root: &Path) -> Command {
    let mut command = Command::new("unshare");
    // SAFETY: it only asks.
    if unsafe { libc::geteuid() } != 0 {
        command.arg("--map-root-user");
    }
    command
        .args(["--mount", "--pid", "--fork", "--kill-child"])
        .args([
            "env",
            "-i",
            "PATH=/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME=/tmp",
        ])
        .args(["sh", "-c", ENTER, "enter"])
        .arg(root)
        .stdin(Stdio::null());
    command
}

/// Copies what the dynamic linker loads for a program to the same paths in `root`.
fn copy_libraries(program: &Path, root: &Path) -> io::Result<()> {
    let listed = succeed(Command::new("ldd").arg(program))?;
    for library in listed.lines().filter_map(library) {
        let place = root.join(library.trim_start_matches('/'));
        fs::create_dir_all(place.parent().unwrap_or(root))?;
        fs::copy(library, place)?;
    }
    Ok(())
}

/// The path in a line of `ldd`; the vDSO has none.
fn library(line: &str) -> Option<&str> {
    let line = line.trim();
    let path = line.split_once(" => ").map_or(line, |(_, path)| path);
    let path = path.split(" (").next()?;
    path.starts_with('/').then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_libraries_are_read() {
        assert_eq!(
            library("\tlibc.so.6 => /lib/libc.so.6 (0x7f)"),
            Some("/lib/libc.so.6")
        );
        assert_eq!(library("\t/lib64/ld.so (0x7f)"), Some("/lib64/ld.so"));
        assert_eq!(library("\tlinux-vdso.so.1 (0x7f)"), None);
        assert_eq!(library("\tstatically linked"), None);
    }
}
