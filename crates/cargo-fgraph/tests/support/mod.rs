//! A workspace that is built with `cargo fgraph`.
//!
//! It lies outside of this repository, whose own configuration would make NOPs too.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

/// The workspace, gone with this value.
pub(crate) struct Workspace(pub(crate) PathBuf);

impl Workspace {
    pub(crate) fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let dir = format!("cargo-fgraph-{name}-{}", std::process::id());
        let workspace = Self(std::env::temp_dir().join(dir));
        for (path, text) in files {
            workspace.write(path, text);
        }
        workspace
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(crate) fn script(&self, name: &str, text: &str) -> PathBuf {
        let written = format!("{name}.written");
        self.write(&written, &format!("#!/bin/sh\n{text}\n"));
        let [written, path] = [&written, name].map(|name| self.0.join(name));
        fs::set_permissions(&written, fs::Permissions::from_mode(0o755)).unwrap();
        // In a process of its own: the processes that other tests start have for a moment what this
        // one has open, and a file that is written to cannot be executed.
        let mut copier = Command::new("cp");
        assert!(copier.args([&written, &path]).status().unwrap().success());
        fs::remove_file(written).unwrap();
        path
    }

    /// `cargo fgraph` with these arguments, in an environment as a user has it.
    pub(crate) fn fgraph(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cargo-fgraph"));
        command.arg("fgraph").args(args).current_dir(&self.0);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            let ours = text.starts_with("CARGO_") && text != "CARGO_HOME";
            if ours || text.starts_with("RUSTC") || text.starts_with("RUSTFLAGS") {
                command.env_remove(name);
            }
        }
        command
            .env("CARGO_TERM_COLOR", "never")
            .env("CARGO_NET_OFFLINE", "true");
        command
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn run(mut command: Command) -> Output {
    command.output().unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into()
}
