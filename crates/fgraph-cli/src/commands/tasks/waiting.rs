//! The awaits at which tasks wait: those of a process now, and those of a recording at its end.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::env;
use std::path::{Path, PathBuf};

use fgraph_analysis::runtimes::{self, Runtime};
use fgraph_analysis::tasks::{FutureView, Tasks};
use fgraph_symbols::futures::{Future, FutureState};
use fgraph_trace::names::Names;
use serde::Serialize;

use crate::awaits::{self, Awaits, Condition, Task, Unknown};
use crate::error::Error;
use crate::json;
use crate::output::Out;
use crate::text::{escaped, grouped};

/// The view of `tasks --await` in JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct AwaitsView {
    process: u32,
    /// The tasks by the awaits at which they wait, most tasks first.
    groups: Vec<GroupView>,
    unknown: Vec<UnknownView>,
}

/// Tasks that wait at the same awaits.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct GroupView {
    /// The type of their future.
    name: String,
    runtime: Runtime,
    condition: Condition,
    tasks: u64,
    /// The addresses of at most 100 of them.
    addresses: Vec<u64>,
    /// Their future; null while they are polled.
    future: Option<FutureView>,
}

/// A file with a runtime whose tasks are unknown.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct UnknownView {
    file: PathBuf,
    reason: Unknown,
}

/// The most addresses of a group that are listed in JSON.
const LISTED: usize = 100;
/// The longest name of a future that is shown with its type parameters.
const LONG: usize = 64;

/// Shows the awaits of a process.
pub(super) fn show(process: u32, lines: usize, is_json: bool) -> Result<(), Error> {
    let cannot = |why| Error::Nothing(format!("process {process} cannot be read: {why}"));
    let found = awaits::of_process(process).map_err(cannot)?;
    let of_python = |why: &String| format!("coroutines of Python are not shown: {why}");
    let of_python = found.of_python.as_ref().map(of_python);
    if found.tasks.is_empty() && found.unknown.is_empty() {
        let none = || "no task of tokio or async-task lives, nor a coroutine of Python".to_owned();
        let why = of_python.unwrap_or_else(none);
        return Err(Error::Nothing(format!("process {process}: {why}")));
    }
    if let Some(why) = of_python {
        say!("fgraph: {why}");
    }
    let view = AwaitsView {
        process,
        groups: groups(&found, |_| true),
        unknown: unknown(&found),
    };
    if is_json {
        return json::write(&view);
    }
    let mut unknown: Vec<String> = view.unknown.iter().map(UnknownView::text).collect();
    if view.groups.is_empty() {
        return Err(Error::Nothing(unknown.swap_remove(0)));
    }
    for text in unknown {
        say!("fgraph: {text}");
    }
    let mut out = Out::new();
    write(&mut out, &view.groups, lines)?;
    out.finish()
}

/// Writes the first groups.
pub(super) fn write(out: &mut Out, groups: &[GroupView], most: usize) -> Result<(), Error> {
    let folder = env::current_dir().ok();
    for group in groups.iter().take(most) {
        out.line(group.header())?;
        match &group.future {
            Some(future) => {
                for line in future_text(future, folder.as_deref()) {
                    out.line(format!("  {line}"))?;
                }
            }
            None => out.line(format!("  {}", shown(&group.name)))?,
        }
    }
    if let Some(more @ 1..) = groups.len().checked_sub(most) {
        out.line(format!("and {more} more groups of tasks, see -n"))?;
    }
    Ok(())
}

/// The tasks that were found in the memory of processes at the end of a recording.
pub(super) struct Waiting {
    processes: Vec<(u32, Awaits)>,
    /// The tasks that were polled, by process and address, and their futures.
    polled: HashMap<(u32, u64), Option<FutureView>>,
}

impl Waiting {
    pub(super) fn new(names: &Names, tasks: &Tasks) -> Self {
        let processes = awaits::of_recording(names);
        let mut polled: HashMap<_, _> = tasks.polled().map(|it| (it, None)).collect();
        for (process, found) in &processes {
            let names = names_of(found);
            for task in &found.tasks {
                if let Some(known) = polled.get_mut(&(*process, task.address)) {
                    *known = task.future.as_ref().map(|it| view_of(it, &names));
                }
            }
        }
        Self { processes, polled }
    }

    /// Returns true if there are no such tasks.
    pub(super) fn is_empty(&self) -> bool {
        self.processes.iter().all(|(_, it)| it.tasks.is_empty())
    }

    /// Returns the future of a task.
    pub(super) fn future(&self, process: u32, address: u64) -> Option<FutureView> {
        self.polled.get(&(process, address))?.clone()
    }

    /// Returns the tasks that were not polled.
    pub(super) fn unpolled(&self) -> Vec<GroupView> {
        let of = |(process, found): &(u32, Awaits)| {
            let is_unpolled = |it: &Task| !self.polled.contains_key(&(*process, it.address));
            groups(found, is_unpolled)
        };
        self.processes.iter().flat_map(of).collect()
    }

    pub(super) fn unknown(&self) -> Vec<UnknownView> {
        let all = self.processes.iter();
        all.flat_map(|(_, found)| unknown(found)).collect()
    }
}

/// Returns the names of tasks by their addresses.
fn names_of(found: &Awaits) -> HashMap<u64, &str> {
    let tasks = found.tasks.iter();
    tasks.map(|it| (it.address, it.name.as_str())).collect()
}

fn unknown(found: &Awaits) -> Vec<UnknownView> {
    let all = found.unknown.iter();
    all.map(|(file, reason)| UnknownView {
        file: file.clone(),
        reason: *reason,
    })
    .collect()
}

impl UnknownView {
    pub(super) fn text(&self) -> String {
        let file = self.file.display().to_string();
        let file = escaped(&file);
        match self.reason {
            Unknown::NoDebugInformation => format!(
                "no debug information of {file} describes its futures, so their awaits are \
                 unknown: build it with `debug = true`"
            ),
            Unknown::NoTypes => format!(
                "the debug information of {file} has no types of futures, so their awaits are \
                 unknown: build it with `debug = true`"
            ),
            Unknown::Replaced => format!(
                "{file} was replaced since the process loaded it, so its awaits are unknown"
            ),
        }
    }
}

/// Returns the tasks for which `is_it` returns true, by their awaits.
fn groups(found: &Awaits, is_it: impl Fn(&Task) -> bool) -> Vec<GroupView> {
    let names = names_of(found);
    type Key<'t> = (&'t str, Condition, Option<FutureView>);
    let mut by_future: HashMap<Key<'_>, Vec<&Task>> = HashMap::new();
    for task in found.tasks.iter().filter(|it| is_it(it)) {
        let future = task.future.as_ref().map(|it| view_of(it, &names));
        let key = (task.name.as_str(), task.condition, future);
        by_future.entry(key).or_default().push(task);
    }
    let group = |((name, condition, future), tasks): (Key<'_>, Vec<&Task>)| GroupView {
        name: name.to_owned(),
        runtime: tasks[0].runtime,
        condition,
        tasks: tasks.len() as u64,
        addresses: tasks.iter().take(LISTED).map(|it| it.address).collect(),
        future,
    };
    let mut groups: Vec<_> = by_future.into_iter().map(group).collect();
    groups.sort_by_cached_key(|it| (Reverse(it.tasks), it.name.clone(), it.addresses[0]));
    groups
}

impl GroupView {
    /// Returns the line above the future: `3 tasks of tokio wait`.
    fn header(&self) -> String {
        let (count, is_one) = (grouped(self.tasks), self.tasks == 1);
        let of = match is_one {
            true => "task of",
            false => "tasks of",
        };
        let does = match (self.condition, is_one) {
            (Condition::Waits, true) => "waits",
            (Condition::Waits, false) => "wait",
            (Condition::Woken, true) => "is woken",
            (Condition::Woken, false) => "are woken",
            (Condition::Polled, true) => "is polled",
            (Condition::Polled, false) => "are polled",
        };
        format!("{count} {of} {} {does}", self.runtime.name())
    }
}

/// Returns the view of a future; tasks have names by their addresses.
fn view_of(future: &Future, tasks: &HashMap<u64, &str>) -> FutureView {
    let (file, line) = future.place.clone().unzip();
    let children = future.children.iter();
    FutureView {
        name: future.name.clone(),
        file,
        line,
        is_new: future.state == FutureState::New,
        task: future.task.and_then(|task| {
            let name = tasks.get(&task)?;
            Some((*name).to_owned())
        }),
        children: children.map(|it| view_of(it, tasks)).collect(),
        is_cut: future.is_cut,
    }
}

/// Returns a line for each future, with the places in a column.
pub(super) fn future_text(future: &FutureView, folder: Option<&Path>) -> Vec<String> {
    let mut lines = Vec::new();
    add_lines(future, ["", ""], folder, &mut lines);
    let width = lines.iter().map(|(left, _)| left.chars().count()).max();
    let width = width.unwrap_or(0);
    let line = |(left, right): (String, String)| match right.is_empty() {
        true => left,
        false => format!("{left:width$}  {right}"),
    };
    lines.into_iter().map(line).collect()
}

/// Adds the lines of a future, as left and right part. The first one begins with the first text,
/// the others with the second.
fn add_lines(
    future: &FutureView,
    [first, others]: [&str; 2],
    folder: Option<&Path>,
    into: &mut Vec<(String, String)>,
) {
    let mut left = format!("{first}{}", short_name(&future.name));
    if let Some(task) = &future.task {
        left += &format!(" of {}", shown(task));
    }
    let right = match (&future.file, future.line) {
        _ if future.is_new => "not polled yet".to_owned(),
        (Some(file), Some(line)) => format!("{}:{line}", escaped(&awaits::short(file, folder))),
        _ => String::new(),
    };
    into.push((left, right));
    let cut = future.is_cut.then(|| format!("{others}└ and more"));
    let last = future.children.len().wrapping_sub(1);
    for (nth, child) in future.children.iter().enumerate() {
        let (branch, line) = match nth == last && cut.is_none() {
            true => ("└ ", "  "),
            false => ("├ ", "│ "),
        };
        let (first, others) = (format!("{others}{branch}"), format!("{others}{line}"));
        add_lines(child, [&first, &others], folder, into);
    }
    into.extend(cut.map(|cut| (cut, String::new())));
}

/// Returns the name of a task or a function for a terminal, without type parameters.
pub(super) fn shown(name: &str) -> String {
    match name.starts_with('<') {
        // The parameters are the name.
        true => escaped(name).into_owned(),
        false => escaped(&runtimes::plain(name)).into_owned(),
    }
}

/// Returns the name of a future for a terminal: with its type parameters, if that is short.
fn short_name(name: &str) -> String {
    match name.len() <= LONG {
        true => escaped(name).into_owned(),
        false => escaped(&runtimes::plain(name)).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_is_the_one_in_the_docs() {
        json::check_schema::<AwaitsView>("tasks-await");
    }
}
