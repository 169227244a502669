//! The toolchain in use.

use std::env;
use std::io;
use std::path::PathBuf;
use std::process::Command;

/// The directory where the toolchain is installed.
pub(crate) fn sysroot() -> io::Result<PathBuf> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).args(["--print", "sysroot"]).output()?;
    if !output.status.success() {
        return Err(io::Error::other("rustc does not say where it is"));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(PathBuf::from(text.trim_end()))
}
