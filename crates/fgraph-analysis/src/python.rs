//! Python in a program: if there is an interpreter, and if its functions are recorded.

use fgraph_trace::event::FIRST_INTERPRETED;
use fgraph_trace::names::Names;
pub use fgraph_trace::names::PYTHON;

use crate::text::file_name;

/// Returns true if a function is one of Python's.
#[must_use]
pub fn is_python(function: u32) -> bool {
    function >= FIRST_INTERPRETED
}

/// Returns true if the file at a path has a Python interpreter.
#[must_use]
pub fn is_interpreter(path: &str) -> bool {
    let file = file_name(path);
    ["python3.", "libpython3."]
        .iter()
        .any(|it| file.starts_with(it))
}

/// Returns true if a recorded program has a Python interpreter.
#[must_use]
pub fn has_interpreter(names: &Names) -> bool {
    let mut modules = names.modules().iter();
    modules.any(|module| is_interpreter(&module.path))
}

/// Returns true if functions of Python are recorded.
#[must_use]
pub fn has_functions(names: &Names) -> bool {
    names.functions().any(|(_, _, it)| it.module == PYTHON)
}
