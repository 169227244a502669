//! Options with a value.

use std::ffi::{OsStr, OsString};

use crate::error::Error;

/// Returns the value of `option`, if `arg` is that option: behind a `=`, or the next argument.
pub(super) fn value_of(
    option: &'static str,
    arg: &OsStr,
    rest: &mut impl Iterator<Item = OsString>,
) -> Result<Option<OsString>, Error> {
    if arg == option {
        return rest.next().map(Some).ok_or(Error::NoValue(option));
    }
    // An option with a value that is not UTF-8 is passed to cargo, which refuses it.
    let value = arg
        .to_str()
        .and_then(|arg| arg.strip_prefix(option)?.strip_prefix('='));
    Ok(value.map(OsString::from))
}

/// Returns the value of an option such as `-n`, if `arg` is that option: the rest of the argument,
/// or the next one.
pub(super) fn short_value(
    option: &'static str,
    arg: &OsStr,
    rest: &mut impl Iterator<Item = OsString>,
) -> Result<Option<OsString>, Error> {
    match arg.to_str().and_then(|arg| arg.strip_prefix(option)) {
        Some("") => rest.next().map(Some).ok_or(Error::NoValue(option)),
        Some(value) => Ok(Some(value.into())),
        None => Ok(None),
    }
}
