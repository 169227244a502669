//! `fgraph stack --python`: the functions of Python that the threads of a process run now, read
//! from outside: nothing is loaded into the process, and it is not stopped.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;

use fgraph_symbols::mapping::Mapping;
use fgraph_symbols::python::PythonThread;
use serde::Serialize;

use crate::awaits::python::Interpreter;
use crate::awaits::why;
use crate::error::Error;
use crate::json::{self, Thread};
use crate::output::Out;
use crate::text::{counted, escaped, file_name};

/// The view of `stack --python` in JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct PythonStackView {
    processes: Vec<ProcessView>,
}

/// A process with an interpreter.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ProcessView {
    process: u32,
    /// The version of the interpreter: `3.11`.
    version: String,
    /// Its threads, the one that has the interpreter's lock first.
    threads: Vec<ThreadView>,
}

/// A thread with functions of Python.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ThreadView {
    thread: Thread,
    /// True if it runs or waits for a processor; false if it waits for something else.
    runs: bool,
    /// True if it has the interpreter's lock. Always false without such a lock.
    has_lock: bool,
    /// True if other functions began and ended while it was read: inner ones are missing.
    changes: bool,
    /// The functions that run, the innermost first.
    frames: Vec<FrameView>,
}

/// A function that runs.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct FrameView {
    function: String,
    file: String,
    /// The line that runs; null for code without lines.
    line: Option<u32>,
}

/// Shows the stacks of processes.
pub(super) fn run(processes: &[u32], threads: usize, is_json: bool) -> Result<(), Error> {
    let cannot = |process, why| Error::Nothing(format!("process {process} cannot be read: {why}"));
    let views = processes
        .iter()
        .map(|&process| view(process).map_err(|why| cannot(process, why)));
    let view = PythonStackView {
        processes: views.collect::<Result<_, _>>()?,
    };
    if is_json {
        return json::write(&view);
    }
    let mut out = Out::new();
    for (nth, process) in view.processes.iter().enumerate() {
        if nth > 0 {
            out.line("")?;
        }
        process.write(threads, &mut out)?;
    }
    out.finish()
}

impl ProcessView {
    fn write(&self, most: usize, out: &mut Out) -> Result<(), Error> {
        let (process, version) = (self.process, &self.version);
        out.line(format_args!("process {process}, Python {version}"))?;
        for thread in self.threads.iter().take(most) {
            let does = if thread.runs { "runs" } else { "waits" };
            let lock = match thread.has_lock {
                true => ", has the interpreter's lock",
                false => "",
            };
            let name = thread.thread.to_string();
            out.line(format_args!("\n{}: {does}{lock}", escaped(&name)))?;
            if thread.changes {
                out.line("    ... (inner functions begin and end too fast to be read)")?;
            }
            for frame in &thread.frames {
                let file = file_name(&frame.file);
                let place = match frame.line {
                    Some(line) => format!("{file}:{line}"),
                    None => file.to_owned(),
                };
                let function = escaped(&frame.function);
                out.line(format_args!("    {function} ({})", escaped(&place)))?;
            }
        }
        let rest = self.threads.len().saturating_sub(most);
        if rest > 0 {
            out.line(format_args!("\n{} more", counted(rest as u64, "thread")))?;
        }
        Ok(())
    }
}

/// Reads the stacks of a process.
fn view(process: u32) -> Result<ProcessView, String> {
    let maps = fs::read(format!("/proc/{process}/maps")).map_err(why)?;
    let maps: Vec<Mapping<'_>> = Mapping::all(&maps).collect();
    let memory = File::open(format!("/proc/{process}/mem")).map_err(why)?;
    let read = |at: u64, into: &mut [u8]| memory.read_exact_at(into, at).ok();
    let interpreter = Interpreter::find(process, &maps, &read)
        .ok_or("it has no Python interpreter, or one that exports no symbols")?;
    let found = interpreter.threads(&read);
    let found = found.map_err(|error| error.to_string())?;
    if found.is_empty() {
        return Err("its Python interpreter has no threads".to_owned());
    }
    let tasks = tasks(process);
    let threads = found.into_iter();
    let mut threads: Vec<ThreadView> = threads
        .map(|thread| of_thread(process, thread, &tasks))
        .collect();
    threads.sort_by_key(|thread| (!thread.has_lock, !thread.runs, Reverse(thread.frames.len())));
    Ok(ProcessView {
        process,
        version: format!("3.{}", interpreter.minor),
        threads,
    })
}

fn of_thread(process: u32, thread: PythonThread, tasks: &HashMap<u32, Task>) -> ThreadView {
    let task = thread.id.and_then(|id| tasks.get(&id));
    let frames = thread.frames.into_iter();
    ThreadView {
        thread: Thread {
            process,
            thread: task.map_or(0, |task| task.id),
            name: task.map_or_else(String::new, |task| task.name.clone()),
        },
        runs: task.is_some_and(|task| task.runs),
        has_lock: thread.has_lock,
        changes: thread.changes,
        frames: frames
            .map(|frame| FrameView {
                function: frame.name,
                file: frame.file,
                line: frame.line,
            })
            .collect(),
    }
}

/// A thread of the process, as the kernel has it.
struct Task {
    id: u32,
    name: String,
    runs: bool,
}

/// Returns the threads of a process by their ids there.
fn tasks(process: u32) -> HashMap<u32, Task> {
    let entries = fs::read_dir(format!("/proc/{process}/task"));
    let found = entries.into_iter().flatten().filter_map(|entry| {
        let status = fs::read_to_string(entry.ok()?.path().join("status")).ok()?;
        let field = |name: &str| {
            let mut lines = status.lines();
            lines
                .find_map(|line| line.strip_prefix(name))
                .map(str::trim)
        };
        let id = field("Pid:")?.parse().ok()?;
        let own = field("NSpid:").and_then(|ids| ids.split_whitespace().next_back());
        let own = own.and_then(|own| own.parse().ok()).unwrap_or(id);
        let task = Task {
            id,
            name: field("Name:").unwrap_or_default().to_owned(),
            runs: field("State:").is_some_and(|state| state.starts_with('R')),
        };
        Some((own, task))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_docs_have_the_schema() {
        json::check_schema::<PythonStackView>("stack-python");
    }
}
