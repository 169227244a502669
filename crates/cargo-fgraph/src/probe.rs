//! Checks that the compiler makes patchable function entries.
//!
//! rustc merely passes the option on to LLVM, and neither promises it. So a tiny function is
//! compiled before anything else, in both ways that the wrapper uses, and its object is checked.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;
use std::process::{self, Command};

use fgraph_x86_64::nop;
use object::{Object, ObjectSection, ObjectSymbol};

use crate::error::{Error, Missing, SECTION};
use crate::wrapper;

/// The function that is compiled. It needs no library.
const SOURCE: &str = "\
#![no_std]
#[no_mangle]
pub extern \"C\" fn fgraph_probe(x: u32) -> u32 { x }
";
const FUNCTION: &str = "fgraph_probe";
const LIST: &[u8] = b"fgraph_probe,patchable-function-entry=5\n";

/// Optimization levels that are checked: without and with `forceattrs` among LLVM's passes.
const OPT_LEVELS: [u8; 2] = [0, 3];

/// Checks that `rustc` makes patchable function entries, with temporary files in `dir`.
///
/// # Errors
///
/// [`Error::Compiler`] if it does not, other errors if that cannot be determined.
pub(crate) fn check(rustc: &OsStr, dir: &Path) -> Result<(), Error> {
    // Another build may do the same at this moment.
    let dir = dir.join(format!("probe-{}", process::id()));
    fs::create_dir_all(&dir).map_err(|error| Error::File(dir.clone(), error))?;
    let found = try_levels(rustc, &dir);
    // A directory that cannot be removed now is removed with the target directory.
    let _ = fs::remove_dir_all(&dir);
    found
}

fn try_levels(rustc: &OsStr, dir: &Path) -> Result<(), Error> {
    let write = |name: &str, content: &[u8]| {
        let path = dir.join(name);
        match fs::write(&path, content) {
            Ok(()) => Ok(path),
            Err(error) => Err(Error::File(path, error)),
        }
    };
    let source = write("probe.rs", SOURCE.as_bytes())?;
    let list = write("probe.csv", LIST)?;
    let object = dir.join("probe.o");
    for opt_level in OPT_LEVELS {
        let mut emit = OsString::from("--emit=obj=");
        emit.push(&object);
        let output = Command::new(rustc)
            .args(["--crate-type=lib", "-C"])
            .arg(format!("opt-level={opt_level}"))
            .arg(&source)
            // The compiler puts its own files there too, which other builds would give the same
            // names.
            .arg("--out-dir")
            .arg(dir)
            .arg(emit)
            .args(wrapper::list_options(&list, opt_level > 0))
            .output()
            .map_err(|error| Error::Start(rustc.into(), error))?;
        let found = if output.status.success() {
            let bytes = fs::read(&object).map_err(|error| Error::File(object.clone(), error))?;
            look(&bytes)
        } else {
            Err(Missing::Object(first_line(&output.stderr)))
        };
        found.map_err(|missing| Error::Compiler {
            version: version(rustc),
            opt_level,
            missing,
        })?;
    }
    Ok(())
}

/// Searches for the section and the NOP.
fn look(object: &[u8]) -> Result<(), Missing> {
    let file = object::File::parse(object).map_err(Missing::Readable)?;
    if file
        .section_by_name(SECTION)
        .is_none_or(|section| section.size() == 0)
    {
        return Err(Missing::Section);
    }
    let function = file
        .symbols()
        .find(|symbol| symbol.name() == Ok(FUNCTION))
        .ok_or(Missing::Function)?;
    let section = function.section_index().ok_or(Missing::Function)?;
    let section = file.section_by_index(section).map_err(Missing::Readable)?;
    let code = section.data().map_err(Missing::Readable)?;
    // In an object, addresses count from the start of the section.
    let entry = usize::try_from(function.address())
        .ok()
        .and_then(|offset| code.get(offset..))
        .ok_or(Missing::Function)?;
    nop::find(entry).map_err(Missing::Nop)?;
    Ok(())
}

fn version(rustc: &OsStr) -> String {
    match Command::new(rustc).arg("--version").output() {
        Ok(output) => first_line(&output.stdout),
        Err(error) => error.to_string(),
    }
}

fn first_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.lines().next().unwrap_or_default().into()
}
