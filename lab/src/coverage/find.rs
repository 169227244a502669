//! Finds programs and libraries by name.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::{env, iter};

use fgraph_chores::toolchain;

/// Directories of the system's libraries.
const LIBRARIES: [&str; 2] = ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu"];

/// Returns the binary that `name` means: the file, or else the first of that name among the
/// system's libraries, in the toolchain, and on the `PATH`. The names of the toolchain's libraries
/// may end before the first `-` or `.`.
pub(crate) fn binary(name: &str) -> io::Result<PathBuf> {
    let path = Path::new(name);
    if name.contains('/') {
        return Ok(path.to_owned());
    }
    let toolchain = toolchain::sysroot()?;
    let paths = env::var_os("PATH").unwrap_or_default();
    LIBRARIES
        .iter()
        .map(PathBuf::from)
        // Before the PATH, in which rustup has programs that only start those of the toolchain.
        .chain(iter::once(toolchain.join("bin")))
        .chain(env::split_paths(&paths))
        .map(|directory| directory.join(path))
        .find(|path| is_binary(path))
        .or_else(|| library(&toolchain.join("lib"), name))
        .ok_or_else(|| io::Error::other(format!("there is no binary {name}")))
}

/// Returns the library in `directory` whose name starts with `name`.
fn library(directory: &Path, name: &str) -> Option<PathBuf> {
    let means = |found: &OsStr| {
        let rest = found.to_str()?.strip_prefix(name)?;
        Some(rest.starts_with(['-', '.']))
    };
    fs::read_dir(directory)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.file_name().and_then(means) == Some(true) && is_binary(path))
}

/// True if it is an ELF file: not a script, nor a text for the linker.
fn is_binary(path: &Path) -> bool {
    let mut magic = [0; 4];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && magic == *b"\x7fELF"
}
