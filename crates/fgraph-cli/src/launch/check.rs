//! Checks if a program can be recorded.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use fgraph_symbols::program::{HEAD, Start};
use rustix::fs::{Access, access, getxattr};
use rustix::process::{getegid, geteuid};

use crate::error::Error;

/// The number of nested scripts that are followed, like in the kernel.
const SCRIPTS: usize = 5;

/// Finds a program like a shell does, and checks if it can be recorded.
pub(super) fn find(program: &OsStr) -> Result<PathBuf, Error> {
    let missing = |why: &str| Error::Program {
        path: program.into(),
        why: why.to_owned(),
        is_missing: true,
    };
    let path = if program.as_bytes().contains(&b'/') {
        PathBuf::from(program)
    } else {
        let directories = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
        let mut paths = std::env::split_paths(&directories).map(|it| it.join(program));
        let found = paths.find(|path| is_executable(path));
        found.ok_or_else(|| missing("there is no such program in PATH"))?
    };
    match check(&path) {
        Ok(()) => Ok(path),
        Err(Refused::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
            Err(missing("there is no such program"))
        }
        Err(refused) => Err(Error::Program {
            path,
            why: refused.to_string(),
            is_missing: false,
        }),
    }
}

fn is_executable(path: &Path) -> bool {
    access(path, Access::EXEC_OK).is_ok() && path.is_file()
}

/// The reason that a program cannot be recorded.
#[derive(Debug)]
enum Refused {
    Io(io::Error),
    Directory,
    NotExecutable,
    SetId,
    Unknown,
    Static,
    OtherLinker(String),
    OtherArchitecture { is_64_bit: bool, machine: u16 },
    Script { path: PathBuf, why: Box<Refused> },
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(error) => write!(f, "{error}"),
            Self::Directory => f.write_str("it is a directory"),
            Self::NotExecutable => f.write_str("it is not executable"),
            Self::SetId => f.write_str(
                "it runs with the rights of its file's owner or with capabilities, \
                 and loads no library of ours",
            ),
            Self::Unknown => f.write_str("it is neither a program nor a script"),
            Self::Static => {
                f.write_str("it is linked statically, and loads no libraries that could record it")
            }
            Self::OtherLinker(linker) => {
                write!(f, "its dynamic linker {linker} is not glibc's")
            }
            Self::OtherArchitecture { is_64_bit, machine } => {
                let bits = if *is_64_bit { 64 } else { 32 };
                write!(
                    f,
                    "it is a {bits}-bit program for machine {machine}, not for x86-64"
                )
            }
            Self::Script { path, why } => {
                write!(
                    f,
                    "it is a script for {}, and of that: {why}",
                    path.display()
                )
            }
        }
    }
}

fn check(path: &Path) -> Result<(), Refused> {
    check_nested(path, SCRIPTS)
}

fn check_nested(path: &Path, scripts: usize) -> Result<(), Refused> {
    let metadata = fs::metadata(path).map_err(Refused::Io)?;
    if metadata.is_dir() {
        return Err(Refused::Directory);
    }
    if !metadata.is_file() || !is_executable(path) {
        return Err(Refused::NotExecutable);
    }
    let file = File::open(path).map_err(Refused::Io)?;
    let mut buffer = [0; HEAD];
    let start = Start::of(&mut buffer, |offset, into| file.read_at(into, offset));
    match start.map_err(Refused::Io)? {
        // The kernel ignores the set-user-ID bits of a script's own file.
        Start::Script(program) => {
            let path = PathBuf::from(OsStr::from_bytes(program));
            let nested = scripts.checked_sub(1).ok_or(Refused::Unknown);
            let checked = nested.and_then(|scripts| check_nested(&path, scripts));
            return checked.map_err(|why| Refused::Script {
                path,
                why: Box::new(why),
            });
        }
        Start::Dynamic => {}
        Start::Static => return Err(Refused::Static),
        Start::OtherLinker(linker) => {
            return Err(Refused::OtherLinker(String::from_utf8_lossy(linker).into()));
        }
        Start::OtherArchitecture { is_64_bit, machine } => {
            return Err(Refused::OtherArchitecture { is_64_bit, machine });
        }
        _ => return Err(Refused::Unknown),
    }
    if changes_rights(path, &metadata) {
        return Err(Refused::SetId);
    }
    Ok(())
}

/// Returns true if a program gets rights that this process does not have: the dynamic linker
/// preloads nothing then.
fn changes_rights(path: &Path, metadata: &fs::Metadata) -> bool {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    let is_set = |bit| metadata.mode() & bit != 0;
    let is_other_user = is_set(libc::S_ISUID) && metadata.uid() != user;
    let is_other_group = is_set(libc::S_ISGID) && metadata.gid() != group;
    is_other_user || is_other_group || user != 0 && has_capabilities(path)
}

fn has_capabilities(path: &Path) -> bool {
    // Without room for the value, its length is the result.
    getxattr(path, "security.capability", &mut [0_u8; 0][..]).is_ok_and(|len| len > 0)
}
