//! Finds where a program spends its time outside of recorded functions.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use fgraph_protocol::SYSTEM;
use fgraph_trace::names::{ModuleName, Names, process_number};

use crate::launch::samples::Samples;
use crate::text::{escaped, file_name};

/// The fewest samples for which there is advice: 200 ms of processor time.
const FEWEST: u64 = 50;
/// The most libraries that are named.
const NAMED: usize = 3;
/// Programs that a process may execute before its samples are given up.
const PROGRAMS: u32 = 16;

/// Samples of a program, by the file of the code.
#[derive(Debug, Default)]
pub(super) struct Elsewhere {
    samples: Option<Samples>,
    /// By the path of the file.
    by_file: HashMap<String, u64>,
    /// Samples in no file: in code that the program or the agent has made.
    in_none: u64,
}

impl Elsewhere {
    pub(super) fn of(samples: Option<Samples>) -> Self {
        Self {
            samples,
            ..Self::default()
        }
    }

    /// Counts the new samples. Call it while the modules are still at their addresses.
    pub(super) fn look(&mut self, names: &Names) {
        let Some(samples) = &mut self.samples else {
            return;
        };
        samples.read(
            |process, address| match module_at(names, process, address) {
                Some(module) => *self.by_file.entry(module.path.clone()).or_default() += 1,
                None => self.in_none += 1,
            },
        );
    }

    /// Returns the advice to record libraries, if most of the time is in libraries without a
    /// recorded function.
    pub(super) fn advice(&self, names: &Names) -> Option<String> {
        let recorded = names.functions().map(|(_, _, it)| it.module.as_str());
        let recorded: HashSet<&str> = recorded.collect();
        let is_ours = |path: &str| file_name(path).starts_with("fgraph-agent-");
        let files = self.by_file.iter();
        let files = files.map(|(path, count)| (path.as_str(), *count));
        let files: Vec<_> = files.filter(|(path, _)| !is_ours(path)).collect();
        let all = self.in_none + files.iter().map(|(_, count)| count).sum::<u64>();
        let directories = SYSTEM.map(|glob| glob.trim_end_matches('*'));
        let is_system = |path: &str| directories.iter().any(|it| path.starts_with(it));
        let is_other = |path: &str| !recorded.contains(path) && is_system(path);
        let mut others: Vec<_> = files
            .into_iter()
            .filter(|(path, _)| is_other(path))
            .collect();
        others.sort_by_key(|&(path, count)| (Reverse(count), path));
        let mut shown = 0;
        let mut libraries = Vec::new();
        for (path, count) in others.into_iter().take(NAMED) {
            if 2 * shown > all {
                break;
            }
            shown += count;
            libraries.push(file_name(path));
        }
        if all < FEWEST || 2 * shown <= all {
            return None;
        }
        let share = 100.0 * shown as f64 / all as f64;
        let (last, first) = libraries.split_last()?;
        let libraries = match first {
            [] => format!("{last}, which was not recorded"),
            first => format!("{} and {last}, which were not recorded", first.join(", ")),
        };
        let libraries = escaped(&libraries).to_string();
        Some(format!(
            "{share:.0} % of the program's time outside the kernel is in {libraries}: --libs"
        ))
    }
}

/// Returns the module that contains an address now, in a process or in those from which it was
/// forked.
fn module_at(names: &Names, process: u32, address: u64) -> Option<&ModuleName> {
    let mut numbers = (0..PROGRAMS).rev().map(|it| process_number(process, it));
    let mut number = numbers.find(|number| names.process(*number).is_some())?;
    for _ in 0..PROGRAMS {
        let mut modules = names.modules().iter().rev();
        let found = modules.find(|module| {
            let is_there = module.process == number && module.unloaded.is_none();
            is_there && (module.start..module.end).contains(&address)
        });
        let parent = names.process(number).map(|(parent, _)| parent);
        match (found, parent) {
            (None, Some(parent)) if parent != number => number = parent,
            (found, _) => return found,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use fgraph_trace::names::{Description, DescriptionKind};

    use super::*;

    fn names() -> Names {
        use DescriptionKind::{Function, Module, Process, UnloadedModule};
        let mut names = Names::new(9);
        for (kind, fields, texts) in [
            (Process, [9, 1, 0, 0], ["program", ""]),
            (Module, [9, 0x1000, 0x2000, 0], ["/bin/program", ""]),
            (Module, [9, 0x5000, 0x6000, 0], ["/lib/libold.so", ""]),
            (
                UnloadedModule,
                [9, 0x5000, 0x6000, 5],
                ["/lib/libold.so", ""],
            ),
            (Module, [9, 0x5000, 0x6000, 9], ["/lib/libz.so.1", ""]),
            (Process, [10, 9, 0, 0], ["program", ""]),
            (Function, [9, 1, 0x1000, 16], ["main", "/bin/program"]),
        ] {
            let texts = texts.map(str::to_owned);
            names.add(Description {
                kind,
                fields,
                texts,
            });
        }
        names
    }

    #[test]
    fn a_forked_process_has_the_modules_of_its_parent() {
        let names = names();
        let path = |process, address| {
            module_at(&names, process, address).map(|module| module.path.as_str())
        };
        assert_eq!(path(9, 0x1fff), Some("/bin/program"));
        assert_eq!(path(9, 0x5000), Some("/lib/libz.so.1"));
        assert_eq!(path(10, 0x5000), Some("/lib/libz.so.1"));
        assert_eq!(path(10, 0x6000), None);
        assert_eq!(path(11, 0x5000), None);
    }

    #[test]
    fn libraries_are_named_if_most_of_the_time_is_in_them() {
        let names = names();
        let advice = |files: &[(&str, u64)], in_none| {
            let files = files.iter().map(|&(path, count)| (path.to_owned(), count));
            let elsewhere = Elsewhere {
                samples: None,
                by_file: files.collect(),
                in_none,
            };
            elsewhere.advice(&names)
        };
        let (program, agent) = (
            ("/bin/program", 10),
            ("/tmp/fgraph-agent-1/fgraph-agent-1.so", 90),
        );
        assert_eq!(
            advice(&[program, ("/lib/libz.so.1", 88), agent], 2).unwrap(),
            "88 % of the program's time outside the kernel is in libz.so.1, which was not \
             recorded: --libs"
        );
        let two = advice(&[program, ("/lib/a.so", 40), ("/lib/b.so", 50)], 0).unwrap();
        let start = "90 % of the program's time outside the kernel is in b.so and a.so, which were";
        assert!(two.starts_with(start), "{two}");
        assert_eq!(advice(&[program, ("/lib/libz.so.1", 30), agent], 20), None);
        assert_eq!(advice(&[("/lib/libz.so.1", 40)], 0), None);
        assert_eq!(advice(&[("[vdso]", 400), program], 0), None);
        assert_eq!(
            advice(&[("/bin/program", 400), ("/lib/libz.so.1", 90)], 0),
            None
        );
    }
}
