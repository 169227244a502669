//! The polls of each task as a thread of its own.

use std::collections::{HashMap, HashSet};

use fgraph_trace::Source;
use fgraph_trace::graph::Matcher;
use fgraph_trace::names::{Description, DescriptionKind};
use fgraph_trace::source::SourceError;

use super::follow::{Step, Tasks};

/// The first number of a task as a thread: threads of Linux have smaller ones.
const FIRST: u32 = 1 << 22;

/// Events of a thread that follow each other and belong to one task, or to none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    events: u64,
    task: Option<u32>,
}

/// The runs of a thread, and the part of them that was taken.
#[derive(Debug, Default)]
struct Runs {
    all: Vec<Run>,
    at: usize,
    taken: u64,
}

/// The lanes of a source: those of its tasks, and those of its threads for other events.
///
/// A source is read twice: the first time for its lanes, the second time its events are taken one
/// by one.
#[derive(Debug)]
pub struct Lanes {
    threads: HashMap<(u32, u32), Runs>,
    /// Process, number and name of each task.
    tasks: Vec<(u32, u32, String)>,
    /// The tasks that are shown; all events are if there are none.
    only: Option<HashSet<u32>>,
}

impl Lanes {
    /// Finds the lanes of a source. With a matcher, only tasks with such names are shown.
    ///
    /// # Errors
    ///
    /// Errors of the source.
    pub fn read(source: &mut impl Source, wanted: Option<Matcher>) -> Result<Self, SourceError> {
        let mut tasks = Tasks::new(u64::MAX);
        let mut threads: HashMap<(u32, u32), Runs> = HashMap::new();
        while let Some(event) = source.next()? {
            let step = Step::of(&event);
            let key = (step.process, step.thread);
            let task = tasks.step(&step, source.names());
            let task = task.and_then(|task| u32::try_from(task).ok());
            let runs = &mut threads.entry(key).or_default().all;
            match runs.last_mut().filter(|run| run.task == task) {
                Some(run) => run.events += 1,
                None => runs.push(Run { events: 1, task }),
            }
        }
        tasks.finish(source.names());
        // Threads of a runtime are tasks, too, but none of the program's.
        for run in threads.values_mut().flat_map(|runs| &mut runs.all) {
            let task = run.task.map(|task| task as usize);
            run.task = run
                .task
                .filter(|_| task.is_some_and(|it| tasks.kind_of(it).is_some()));
        }
        let numbers = 0..u32::try_from(tasks.tasks.len()).unwrap_or(u32::MAX - FIRST);
        let is_wanted = |task: &u32| match (&wanted, tasks.kind_of(*task as usize)) {
            (Some(wanted), Some(kind)) => wanted(&kind.name(), ""),
            (_, kind) => kind.is_some(),
        };
        let shown: Vec<u32> = numbers.filter(is_wanted).collect();
        let named = shown.iter().filter_map(|&task| {
            let process = tasks.tasks[task as usize].process;
            Some((process, task, tasks.name_of(task as usize)?))
        });
        Ok(Self {
            tasks: named.collect(),
            only: wanted.map(|_| shown.into_iter().collect()),
            threads,
        })
    }

    /// Returns true if no task is shown.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Returns the names of the lanes of tasks.
    pub fn descriptions(&self) -> impl Iterator<Item = Description> {
        self.tasks.iter().map(|(process, task, name)| Description {
            kind: DescriptionKind::Thread,
            fields: [u64::from(*process), u64::from(FIRST + task), 0, 0],
            texts: [name.clone(), String::new()],
        })
    }

    /// Returns the task of the next event of a thread; `None` if it is not shown.
    #[must_use]
    pub fn next(&self, thread: (u32, u32)) -> Option<Option<u32>> {
        let runs = self.threads.get(&thread);
        let task = runs.and_then(|runs| runs.all.get(runs.at)?.task);
        match (&self.only, task) {
            (Some(only), Some(task)) => only.contains(&task).then_some(Some(task)),
            (Some(_), None) => None,
            (None, task) => Some(task),
        }
    }

    /// Takes the next event of a thread, and returns the number of its lane.
    pub fn take(&mut self, thread: (u32, u32)) -> u32 {
        let Some(runs) = self.threads.get_mut(&thread) else {
            return thread.1;
        };
        let Some(run) = runs.all.get(runs.at) else {
            return thread.1;
        };
        runs.taken += 1;
        if runs.taken == run.events {
            (runs.at, runs.taken) = (runs.at + 1, 0);
        }
        run.task.map_or(thread.1, |task| FIRST + task)
    }

    /// Returns true if the next event of a thread is in this lane.
    #[must_use]
    pub fn is_next(&self, thread: (u32, u32), lane: u32) -> bool {
        let next = self.next(thread);
        next.is_some_and(|task| task.map_or(thread.1, |task| FIRST + task) == lane)
    }
}
