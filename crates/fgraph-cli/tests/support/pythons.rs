//! Interpreters of Python that are installed beside the usual one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns an interpreter of this version, from `PATH` or of pyenv's.
pub(crate) fn python_of(version: &str) -> Option<PathBuf> {
    let asks = "import sys; print(sys.executable)";
    let usual = PathBuf::from(format!("python{version}"));
    let home = std::env::var_os("HOME").unwrap_or_default();
    let pyenv = Path::new(&home).join(".pyenv/versions");
    let installed = fs::read_dir(pyenv).into_iter().flatten().flatten();
    let installed = installed.map(|it| it.path());
    let installed = installed.filter(|it| {
        let name = it.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(&format!("{version}."))
    });
    let mut all = std::iter::once(usual).chain(installed.map(|it| it.join("bin/python")));
    all.find_map(|python| {
        let output = Command::new(python).args(["-c", asks]).output().ok()?;
        let path = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| PathBuf::from(path.trim()))
    })
}
