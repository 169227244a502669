//! Advice to record functions of Python.

use fgraph_analysis::python::{has_functions, has_interpreter};
use fgraph_trace::names::Names;

/// Returns the advice to give --python, with what that gains, if the program has an interpreter; or
/// if --python was given, says that there was nothing to record, unless the reason is known.
pub(crate) fn advice(names: &Names, is_recorded: bool, gain: &str) -> Option<String> {
    if !is_recorded {
        return has_interpreter(names).then(|| format!("--python {gain}"));
    }
    if !names.refused().is_empty() || has_functions(names) {
        return None;
    }
    let why = match has_interpreter(names) {
        true => "none of Python's functions was called",
        false => "--python: no Python interpreter ran, or it has no exported functions",
    };
    Some(why.to_owned())
}

/// Returns the advice to make a recording with --python, for a view of one that `command` makes.
pub(crate) fn advice_to_record(names: &Names, command: &str, gain: &str) -> Option<String> {
    if has_functions(names) || !names.refused().is_empty() {
        return None;
    }
    advice(names, false, gain).map(|advice| format!("`{command}` with {advice}"))
}
