//! Programs of `tests/record`, compiled in a directory where they are recorded.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

pub(crate) const FGRAPH: &str = env!("CARGO_BIN_EXE_fgraph");

/// The compiled programs, and the place of recordings.
pub(crate) struct Place {
    folder: TempDir,
}

impl Place {
    pub(crate) fn new(cc: &Path, programs: &[&str]) -> Self {
        let folder = TempDir::new().unwrap();
        for name in programs {
            let source = format!("tests/record/{name}.c");
            let mut cc = Command::new(cc);
            let cc = cc.args(["-g", "-O1", "-pthread", "-o"]);
            let cc = cc.arg(folder.path().join(name)).arg(source);
            assert!(cc.status().unwrap().success());
        }
        Self { folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).current_dir(self.folder.path());
        command
    }

    pub(crate) fn fgraph(&self, words: &[&str]) -> Output {
        let words = [&[FGRAPH], words].concat();
        self.command(&words).output().unwrap()
    }
}
