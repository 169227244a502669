//! A library with traced functions that is loaded and unloaded all the time, and whose file is
//! replaced by another with the same content meanwhile.
//!
//! # Safety
//!
//! Its functions are called while it is loaded. They are those of `library/src/lib.rs`.

use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, io, process};

use super::act::Act;
use super::signals::Actor;
use super::towers::Tower;

use crate::failures::{Failure, note};
use crate::rng::Rng;

const NAMES: [&CStr; 2] = [c"hostile_library_0", c"hostile_library_1"];

/// Where it was built.
static BUILT: OnceLock<PathBuf> = OnceLock::new();
/// From where it is loaded.
static PATH: OnceLock<CString> = OnceLock::new();
/// Where the functions were last.
static ADDRESSES: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Says where the library is.
pub(crate) fn prepare(path: &Path) -> io::Result<()> {
    BUILT.get_or_init(|| path.to_owned());
    let loaded = path.with_extension(format!("{}.so", process::id()));
    PATH.get_or_init(|| {
        CString::new(loaded.into_os_string().into_encoded_bytes()).unwrap_or_default()
    });
    replace(0)
}

/// Puts a new file in the place of the one that is loaded.
fn replace(actor: usize) -> io::Result<()> {
    let (Some(built), Some(path)) = (BUILT.get(), PATH.get()) else {
        return Err(io::ErrorKind::NotFound.into());
    };
    let loaded = Path::new(OsStr::from_bytes(path.to_bytes()));
    let new = loaded.with_extension(format!("new-{actor}"));
    fs::copy(built, &new)?;
    fs::rename(new, loaded)
}

/// Takes the file away that is loaded.
pub(crate) fn end() {
    if let Some(path) = PATH.get() {
        let _ = fs::remove_file(OsStr::from_bytes(path.to_bytes()));
    }
}

/// Returns true if one of its functions begins, or was last, at `address`.
#[inline(always)]
pub(crate) fn contains(address: usize) -> bool {
    ADDRESSES
        .iter()
        .any(|known| known.load(Ordering::Relaxed) == address)
}

/// Loads it, calls its functions, and unloads it, at the bottom of a tower.
pub(crate) fn load(actor: &Actor, rng: &mut Rng) {
    let (value, seed) = (rng.next(), rng.next());
    if rng.once_in(4) && replace(actor.number).is_err() {
        note(Failure::System, Act::Library as u64, 1);
    }
    let bottom = || {
        if !use_library(&mut Rng::from_state(seed)) {
            note(Failure::System, Act::Library as u64, 0);
        }
        value
    };
    let tower = Tower::of_all(rng, actor.sites, &bottom);
    tower.check(rng.below(6), value, Act::Library);
}

/// Returns true if it could be loaded and unloaded.
fn use_library(rng: &mut Rng) -> bool {
    let Some(path) = PATH.get() else {
        return false;
    };
    // SAFETY: a library of ours, whose constructors do nothing, and the functions that it has.
    unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        if library.is_null() {
            return false;
        }
        for (index, name) in NAMES.into_iter().enumerate() {
            let function = libc::dlsym(library, name.as_ptr());
            if function.is_null() {
                return false;
            }
            ADDRESSES[index].store(function.addr(), Ordering::Relaxed);
            let function: extern "C" fn(u64) -> u64 = std::mem::transmute(function);
            for _ in 0..8 {
                let x = rng.next();
                if function(x) != result(index as u64, x) {
                    note(Failure::Result, Act::Library as u64, x);
                }
            }
        }
        libc::dlclose(library) == 0
    }
}

/// Returns the result of function `index` of the library.
fn result(index: u64, x: u64) -> u64 {
    let step = |inner: u64, level: u64| {
        let mixed = (inner ^ level).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed.rotate_left(9)
    };
    let levels = x % 16;
    let last = (index + levels) % 2;
    (x - levels + 1..x + 1).fold(step(x - levels, last), step)
}
