//! The toolchain in use.

use std::env;
use std::io;
use std::path::PathBuf;
use std::process::Command;

use crate::process::succeed;

/// The directory where the toolchain is installed.
pub fn sysroot() -> io::Result<PathBuf> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let text = succeed(Command::new(rustc).args(["--print", "sysroot"]))?;
    Ok(PathBuf::from(text.trim_end()))
}

/// The directory where cargo keeps its configuration and the sources of crates.
pub fn cargo_home() -> io::Result<PathBuf> {
    let named = env::var_os("CARGO_HOME").map(PathBuf::from);
    let path = named.or_else(|| Some(env::home_dir()?.join(".cargo")));
    path.ok_or_else(|| io::Error::other("neither CARGO_HOME nor HOME is set"))
}
