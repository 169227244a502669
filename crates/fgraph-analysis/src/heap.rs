//! Blocks of memory by call path: live, at the peak, allocated in all.
//!
//! [`Heap`] reads the calls of [allocators](fgraph_symbols::allocators) from a source that has them
//! in place of other calls, with the calls around those that make blocks. Each block is followed
//! from its allocation to its free.

mod blocks;
mod python;
mod timeline;

use std::collections::HashMap;

use fgraph_trace::Source;
use fgraph_trace::event::What;
use fgraph_trace::names::Names;
use fgraph_trace::source::SourceError;

use self::blocks::Call;
pub use self::blocks::{Blocks, PARTS, Sums, Whole, Wholes};
use self::python::{PythonCalls, is_interpreters, is_of_python};
pub use self::timeline::{Snapshot, Timeline};
use crate::addresses::{Addresses, is_of_agent};
use crate::losses::Losses;
use crate::python::is_python;

/// The blocks of all processes of a source.
#[derive(Debug)]
pub struct Heap {
    /// Blocks and their call paths.
    pub blocks: Blocks,
    /// The missing events. With these, no number is exact.
    pub losses: Losses,
    /// The time of the first event, in ticks.
    pub first: u64,
    python: PythonCalls,
}

/// A call path, with the sums of its blocks.
#[derive(Debug)]
pub struct CallPath {
    /// The [number](fgraph_trace::names::process_number) of the process.
    pub process: u32,
    /// The function of the allocator.
    pub allocator: String,
    /// True if its blocks are mappings.
    pub is_mapping: bool,
    /// The calls around it, the innermost first.
    pub calls: Vec<String>,
    /// The addresses to which these calls return; 0 for functions of Python. They are empty where
    /// paths are merged by the names of their calls.
    pub addresses: Vec<u64>,
    /// The sums.
    pub sums: Sums,
}

impl Heap {
    /// Reads all calls of a source. With `growth`, live bytes are noted at the begin of each of
    /// [`PARTS`] parts of this time from now on, in nanoseconds.
    ///
    /// # Errors
    ///
    /// Errors of the source.
    pub fn read(source: &mut impl Source, growth: Option<u64>) -> Result<Self, SourceError> {
        let (mut blocks, mut losses) = (Blocks::default(), Losses::default());
        let (mut python, mut first) = (PythonCalls::default(), None);
        if let Some(growth) = growth {
            let now = source.clock().kind().now();
            blocks.compare(now, source.clock().ticks(growth));
        }
        // The names are those that were described before the event.
        while let Some(event) = source.next()? {
            let (now, thread) = (event.time, (event.process, event.thread));
            first.get_or_insert(now);
            losses.resume(thread, now);
            match event.what {
                What::Entry { function, .. } if is_python(function) => {
                    python.enter(thread, function);
                }
                What::Return { function, .. } | What::Unwound { function }
                    if is_python(function) =>
                {
                    python.leave(thread, function);
                }
                What::Entry {
                    function,
                    arguments,
                    is_entry_only,
                    ..
                } => {
                    let call = Call {
                        function,
                        arguments,
                        stack: event.stack,
                        stack_number: event.stack_number,
                        python: python.around(thread),
                        is_whole: is_entry_only,
                        has_unknown: event.has_unknown,
                    };
                    if !blocks.enter(thread, &call, now) {
                        let (arguments, stack) = (arguments.to_vec(), call.stack.to_vec());
                        let call = Call {
                            function,
                            arguments: &arguments,
                            stack: &stack,
                            stack_number: call.stack_number,
                            python: call.python,
                            is_whole: call.is_whole,
                            has_unknown: call.has_unknown,
                        };
                        blocks.learn(thread.0, &call, source.names());
                        blocks.enter(thread, &call, now);
                    }
                }
                What::Return { function, result } => {
                    blocks.leave(thread, function, Some(result), now)
                }
                What::Unwound { function } | What::Dropped { function } => {
                    blocks.leave(thread, function, None, now);
                }
                What::Lost { events, .. } => {
                    losses.add(thread, events, blocks.last, now);
                    blocks.lose(thread);
                    python.lose(thread);
                }
                What::Mark(_) => {}
            }
        }
        Ok(Self {
            blocks,
            python,
            losses,
            first: first.unwrap_or(0),
        })
    }

    /// Returns the call paths, in no order, and the sums of processes. Paths whose calls have the
    /// same names are one. With `only_functions`, a path has only the innermost of its
    /// [shown](shown()) calls.
    pub fn finish(
        self,
        names: &Names,
        addresses: &mut impl Addresses,
        only_functions: bool,
    ) -> (Vec<CallPath>, Wholes) {
        let mut lines: HashMap<(u32, String, Vec<String>), CallPath> = HashMap::new();
        let (paths, wholes) = self.finish_apart(names, addresses);
        for path in paths {
            let mut calls = path.calls;
            if only_functions {
                calls = shown(&calls)
                    .first()
                    .map(|call| vec![(*call).to_owned()])
                    .unwrap_or_default();
            }
            let (process, is_mapping) = (path.process, path.is_mapping);
            let key = (process, path.allocator.clone(), calls.clone());
            let line = lines.entry(key).or_insert_with(|| CallPath {
                process,
                allocator: path.allocator,
                is_mapping,
                calls,
                addresses: Vec::new(),
                sums: Sums::default(),
            });
            line.sums.merge(&path.sums);
        }
        (lines.into_values().collect(), wholes)
    }

    /// Returns the call paths, in no order, and the sums of processes. Paths whose calls have the
    /// same names and other [addresses](CallPath::addresses) are apart.
    pub fn finish_apart(
        self,
        names: &Names,
        addresses: &mut impl Addresses,
    ) -> (Vec<CallPath>, Wholes) {
        let mut all = Vec::new();
        let (paths, wholes) = self.blocks.finish();
        let paths = paths.into_iter().filter(|(_, sums, _)| sums.calls > 0);
        for (path, sums, is_mapping) in paths {
            let process = path.process;
            // The agent's own blocks do not belong to the program.
            let first = path.stack.first();
            let is_ours = first.is_some_and(|at| is_of_agent(names, process, at.saturating_sub(1)));
            if is_ours {
                continue;
            }
            let stack = path.stack.iter();
            let mut calls: Vec<String> = stack
                .map(|&at| addresses.caller(names, process, at))
                .collect();
            let native = self.python.add_to(&mut calls, names, process, path.python);
            let mut addresses = path.stack.to_vec();
            addresses.truncate(native);
            addresses.resize(calls.len(), 0);
            all.push(CallPath {
                process,
                allocator: names.function_name(process, path.function),
                is_mapping,
                calls,
                addresses,
                sums,
            });
        }
        (all, wholes)
    }
}

impl Sums {
    /// Returns the growth of live bytes in each part of the time; empty if it is not compared.
    #[must_use]
    pub fn growth(&self) -> Vec<i64> {
        let marks = self.marks.iter().copied();
        let marks: Vec<u64> = marks.chain([self.live]).collect();
        let differences = marks.windows(2).map(|pair| pair[1] as i64 - pair[0] as i64);
        match self.marks.is_empty() {
            true => Vec::new(),
            false => differences.collect(),
        }
    }
}

/// Beginnings of the names of functions that only pass on requests for memory.
const HELPERS: [&str; 9] = [
    "alloc::",
    "core::",
    "std::",
    "<alloc::",
    "<core::",
    "<std::",
    "hashbrown::",
    "void std::",
    "__gnu_cxx::",
];

/// Returns the calls of a path without the innermost ones that are helpers of libraries, or of the
/// interpreter around which Python's functions are; all if there are no others.
#[must_use]
pub fn shown(calls: &[String]) -> &[String] {
    let has_python = calls.iter().any(|call| is_of_python(call));
    let is_helper = |call: &String| {
        HELPERS.iter().any(|helper| call.starts_with(helper)) || has_python && is_interpreters(call)
    };
    let first = calls.iter().position(|call| !is_helper(call));
    &calls[first.unwrap_or(0)..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_that_pass_on_requests_are_not_shown() {
        let first = |calls: &[&str]| {
            let calls: Vec<String> = calls.iter().map(|&call| call.to_owned()).collect();
            shown(&calls)[0].clone()
        };
        assert_eq!(first(&["alloc::vec::f [a]", "a::main [a]"]), "a::main [a]");
        let interpreter = ["PyList_New [python3.11]", "libpython3.11.so.1.0+0x12"];
        assert_eq!(first(&interpreter), interpreter[0]);
        let python = [&interpreter[..], &["json.dumps [py]"]].concat();
        assert_eq!(first(&python), "json.dumps [py]");
        let extension = [&interpreter[..], &["pack [pack.so]", "json.dumps [py]"]].concat();
        assert_eq!(first(&extension), "pack [pack.so]");
    }
}
