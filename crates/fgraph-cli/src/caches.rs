//! The directory in which this user's programs have their caches.

use std::env;
use std::path::PathBuf;

/// Returns `XDG_CACHE_HOME`, or else the usual place in the home directory; `None` if no variable
/// has it.
pub(crate) fn caches() -> Option<PathBuf> {
    let absolute = |name| {
        let path = PathBuf::from(env::var_os(name)?);
        path.is_absolute().then_some(path)
    };
    absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))
}
