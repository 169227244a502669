//! Python in a program: if there is an interpreter, and if its functions are recorded.

use fgraph_trace::names::Names;
use fgraph_tracers::agent::PYTHON;

use crate::text::file_name;

/// Returns true if the file at a path has a Python interpreter.
pub(crate) fn is_interpreter(path: &str) -> bool {
    let file = file_name(path);
    ["python3.", "libpython3."]
        .iter()
        .any(|it| file.starts_with(it))
}

/// Returns true if a recorded program has a Python interpreter.
pub(crate) fn has_interpreter(names: &Names) -> bool {
    let mut modules = names.modules().iter();
    modules.any(|module| is_interpreter(&module.path))
}

/// Returns true if functions of Python are recorded.
pub(crate) fn has_functions(names: &Names) -> bool {
    names.functions().any(|(_, _, it)| it.module == PYTHON)
}

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
