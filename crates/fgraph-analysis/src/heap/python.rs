//! Python's functions in the call paths of blocks.
//!
//! The stack of an allocation has the native calls only. The events have the calls of Python's
//! functions around it. Both make the call path: the native calls up to the interpreter's loop,
//! which runs the innermost function of Python, and then the functions of Python.

use std::collections::HashMap;

use fgraph_trace::names::Names;

use crate::numbers::ThreadKey;
use crate::python::{PYTHON, is_interpreter};

/// Number of a sequence of calls of Python's functions; 0 is the empty one.
pub(super) type Node = u32;

/// Function of the interpreter that runs functions of Python.
const LOOP: &str = "_PyEval_EvalFrameDefault";

/// Returns name and module of a call; one without a name is at an offset of its module.
fn parts(call: &str) -> (&str, &str) {
    match call.rsplit_once(" [") {
        Some((name, module)) => (name, module.trim_end_matches(']')),
        None => ("", call.rsplit_once("+0x").map_or("", |(module, _)| module)),
    }
}

/// Returns true if a call is of the interpreter, not of Python or of an extension.
pub(super) fn is_interpreters(call: &str) -> bool {
    is_interpreter(parts(call).1)
}

/// Returns true if a call of a path is of a function of Python.
pub(super) fn is_of_python(call: &str) -> bool {
    parts(call).1 == PYTHON
}

/// The calls of Python's functions in progress, in all threads.
#[derive(Debug, Default)]
pub(super) struct PythonCalls {
    /// The innermost function of each sequence, and the calls around it. The first is for 1.
    nodes: Vec<(u32, Node)>,
    numbers: HashMap<(u32, Node), Node>,
    threads: HashMap<ThreadKey, Node>,
}

impl PythonCalls {
    /// Adds a call.
    pub(super) fn enter(&mut self, thread: ThreadKey, function: u32) {
        let around = self.threads.entry(thread).or_default();
        let key = (function, *around);
        let nodes = &mut self.nodes;
        *around = *self.numbers.entry(key).or_insert_with(|| {
            nodes.push(key);
            nodes.len() as Node
        });
    }

    /// Ends the innermost call of a function, and the calls inside it.
    pub(super) fn leave(&mut self, thread: ThreadKey, function: u32) {
        let mut node = self.around(thread);
        while let Some((inner, around)) = self.get(node) {
            node = around;
            if inner == function {
                self.threads.insert(thread, node);
                return;
            }
        }
    }

    /// Handles missing events of a thread: its calls in progress are unknown.
    pub(super) fn lose(&mut self, thread: ThreadKey) {
        self.threads.remove(&thread);
    }

    /// Returns the calls in progress of a thread.
    pub(super) fn around(&self, thread: ThreadKey) -> Node {
        self.threads.get(&thread).copied().unwrap_or_default()
    }

    fn get(&self, node: Node) -> Option<(u32, Node)> {
        self.nodes.get((node as usize).checked_sub(1)?).copied()
    }

    /// Puts Python's functions in place of the interpreter's among the native calls of a path, both
    /// with the innermost first. Returns the number of native calls that are left.
    pub(super) fn add_to(
        &self,
        calls: &mut Vec<String>,
        names: &Names,
        process: u32,
        node: Node,
    ) -> usize {
        if node == 0 {
            return calls.len();
        }
        let found = calls.iter().position(|call| parts(call).0 == LOOP);
        if let Some(at) = found {
            let interpreter = parts(&calls[at]).1.to_owned();
            let is_inside = |call: &String| parts(call).1 != interpreter;
            // Between a function of an extension and its caller in Python, calls of the interpreter
            // say nothing.
            let kept = calls[..at].iter().rposition(is_inside);
            calls.truncate(kept.map_or(at, |last| last + 1));
        }
        let native = calls.len();
        let mut node = node;
        while let Some((function, around)) = self.get(node) {
            let name = names.function(process, function);
            calls.push(match name {
                Some(name) => format!("{} [{}]", name.name, name.module),
                None => names.function_name(process, function),
            });
            node = around;
        }
        native
    }
}

#[cfg(test)]
mod tests {
    use fgraph_trace::event::FIRST_INTERPRETED;
    use fgraph_trace::names::{Description, DescriptionKind};

    use super::*;

    const F: u32 = FIRST_INTERPRETED;
    const G: u32 = FIRST_INTERPRETED + 1;

    fn names() -> Names {
        let mut names = Names::default();
        for (function, name) in [(F, "app.f"), (G, "app.g")] {
            names.add(Description {
                kind: DescriptionKind::Function,
                fields: [1, function.into(), 0, 0],
                texts: [name.to_owned(), "py".to_owned()],
            });
        }
        names
    }

    fn path(calls: &PythonCalls, native: &[&str]) -> Vec<String> {
        let mut path: Vec<String> = native.iter().map(|&call| call.to_owned()).collect();
        calls.add_to(&mut path, &names(), 1, calls.around((1, 1)));
        path
    }

    #[test]
    fn python_functions_are_in_place_of_the_loop_and_the_calls_around_it() {
        let mut calls = PythonCalls::default();
        calls.enter((1, 1), F);
        calls.enter((1, 1), G);
        calls.enter((1, 2), F);
        let native = [
            "PyBytes_New [python3]",
            "pack [pack.so]",
            "python3+0x12",
            "_PyEval_EvalFrameDefault [python3]",
            "main [python3]",
        ];
        let expected = [
            "PyBytes_New [python3]",
            "pack [pack.so]",
            "app.g [py]",
            "app.f [py]",
        ];
        assert_eq!(path(&calls, &native), expected);
        // Calls of the interpreter itself stay.
        let expected = ["python3+0x12", "app.g [py]", "app.f [py]"];
        assert_eq!(path(&calls, &native[2..]), expected);
        calls.leave((1, 1), F);
        assert_eq!(path(&calls, &native), native);
        assert_eq!(calls.around((1, 2)), 1);
    }

    #[test]
    fn the_end_of_an_unknown_call_ends_none() {
        let mut calls = PythonCalls::default();
        calls.enter((1, 1), F);
        calls.leave((1, 1), G);
        assert_eq!(path(&calls, &[]), ["app.f [py]"]);
        calls.lose((1, 1));
        calls.leave((1, 1), F);
        assert_eq!(calls.around((1, 1)), 0);
    }
}
