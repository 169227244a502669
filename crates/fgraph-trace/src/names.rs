//! What the numbers in events stand for.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::values::Layout;

/// Bits of a process's number that are the kernel's id; those above count programs.
const ID_BITS: u32 = 22;

/// The number that a process has in events and descriptions: the kernel's id, at most 2^22 on
/// Linux, and how many programs it had executed before, modulo 1,024.
///
/// A function's index means the same for as long as a process runs one program, so what it executes
/// next is another process to readers. One that was forked takes the count of its parent over.
///
/// ```
/// use fgraph_trace::names::{process_id, process_number};
///
/// assert_eq!(process_number(4711, 0), 4711);
/// assert_eq!(process_id(process_number(4711, 3)), 4711);
/// ```
#[must_use]
pub const fn process_number(id: u32, executed: u32) -> u32 {
    id | executed << ID_BITS
}

/// The kernel's id in the [number](process_number) of a process.
#[must_use]
pub const fn process_id(number: u32) -> u32 {
    number & ((1 << ID_BITS) - 1)
}

/// How many programs the process of a [number](process_number) had executed before, modulo 1,024.
///
/// ```
/// use fgraph_trace::names::{executed_before, process_number};
///
/// assert_eq!(executed_before(process_number(4711, 3)), 3);
/// ```
#[must_use]
pub const fn executed_before(number: u32) -> u32 {
    number >> ID_BITS
}

/// What a description is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DescriptionKind {
    /// A function: process, index, address, size; its name, and the path of its module.
    Function = 1,
    /// A module that is loaded: process, start, end, time; its path.
    Module = 2,
    /// A module that is unloaded: process, start, end, time; its path.
    UnloadedModule = 3,
    /// A thread: process, thread, time; its name.
    Thread = 4,
    /// A process: process, parent, time; its name.
    Process = 5,
    /// What a function takes and gives back: process, index; its [layout](Layout) as text, and its
    /// parameters and result as programmers write them.
    Types = 6,
    /// Which build of its file a loaded module is: process, start; its path, and the build id in
    /// hexadecimal.
    BuildId = 7,
    /// Where a function is in its source: process, index, line; the path of the source file.
    Source = 8,
    /// A function that is not recorded from some time on, because that costs too much: process,
    /// index, time.
    SwitchedOff = 9,
    /// A program of which nothing is recorded: process; the reason, and its path.
    Refused = 10,
    /// A function that was switched off and is recorded again: process, index, time.
    SwitchedOn = 11,
    /// A value that cannot be read of a function: process, index; the value as it was asked for;
    /// the reason, and in lines of their own the names that there are in place of a wrong one.
    NoValue = 12,
}

impl DescriptionKind {
    pub(crate) fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            1 => Self::Function,
            2 => Self::Module,
            3 => Self::UnloadedModule,
            4 => Self::Thread,
            5 => Self::Process,
            6 => Self::Types,
            7 => Self::BuildId,
            8 => Self::Source,
            9 => Self::SwitchedOff,
            10 => Self::Refused,
            11 => Self::SwitchedOn,
            12 => Self::NoValue,
            _ => return None,
        })
    }
}

/// What something is that events speak of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Description {
    /// What it is of.
    pub kind: DescriptionKind,
    /// What the kind says.
    pub fields: [u64; 4],
    /// What the kind says; what is not UTF-8 is replaced.
    pub texts: [String; 2],
}

/// A function that events speak of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FunctionName {
    /// Its name; empty if it has none.
    pub name: String,
    /// The path of its module.
    pub module: String,
    /// The address at which it starts.
    pub address: u64,
    /// The number of its bytes; 0 if that is not known.
    pub size: u64,
}

/// What a function takes and gives back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FunctionTypes {
    /// What the words say that were recorded of its values.
    pub layout: Layout,
    /// Its parameters and result as programmers write them: `(path: const char *) -> int`.
    pub signature: String,
}

/// A time in which a function of a process was not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OffTime {
    /// The process; what it has forked meanwhile did not record the function either.
    pub process: u32,
    /// The index of the function.
    pub function: u32,
    /// The tick of the clock from which on its calls may be missing.
    pub from: u64,
    /// The tick from which on all its calls are recorded again; `None` if that was never so.
    pub until: Option<u64>,
}

/// A module, while it was loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModuleName {
    /// The process.
    pub process: u32,
    /// The path of its file.
    pub path: String,
    /// Its first address.
    pub start: u64,
    /// The address behind its last one.
    pub end: u64,
    /// When it was loaded, in ticks of the clock; 0 if it was there from the beginning.
    pub loaded: u64,
    /// When it was unloaded.
    pub unloaded: Option<u64>,
    /// The build id of its file, in hexadecimal; empty if it has none, or it is not known.
    pub build_id: String,
}

/// Functions, modules, threads and processes of a recording, as far as they were described.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// The process of events that do not say.
    process: u32,
    functions: HashMap<(u32, u32), FunctionName>,
    types: HashMap<(u32, u32), FunctionTypes>,
    /// Files and lines.
    sources: HashMap<(u32, u32), (String, u32)>,
    threads: HashMap<(u32, u32), String>,
    /// Parent and name.
    processes: HashMap<u32, (u32, String)>,
    modules: Vec<ModuleName>,
    /// Indices of the modules of a process that start at an address, the oldest first.
    modules_at: HashMap<(u32, u64), Vec<usize>>,
    off_times: Vec<OffTime>,
    /// Indices of the off times that have no end.
    open_off_times: HashMap<(u32, u32), usize>,
    /// Paths and reasons.
    refused: Vec<(String, String)>,
    /// All descriptions, in the order in which they came.
    descriptions: Vec<Description>,
}

/// Number of the newest modules at one address that are looked at.
const MODULES_AT: usize = 64;

/// No process has more ancestors that are asked for its functions.
const ANCESTORS: usize = 64;

impl Names {
    /// Nothing is known but which process was recorded first.
    #[must_use]
    pub fn new(process: u32) -> Self {
        Self {
            process,
            ..Self::default()
        }
    }

    /// Takes note of a description.
    pub fn add(&mut self, description: Description) {
        let [process, second, third, fourth] = description.fields;
        let process = process as u32;
        let [name, module] = description.texts.clone();
        match description.kind {
            DescriptionKind::Function => {
                let function = FunctionName {
                    name,
                    module,
                    address: third,
                    size: fourth,
                };
                match self.functions.entry((process, second as u32)) {
                    Entry::Occupied(known) if *known.get() == function => return,
                    Entry::Occupied(mut known) => _ = known.insert(function),
                    Entry::Vacant(free) => _ = free.insert(function),
                }
            }
            DescriptionKind::Module => {
                let here = self.modules_at.entry((process, second)).or_default();
                here.push(self.modules.len());
                self.modules.push(ModuleName {
                    process,
                    path: name,
                    start: second,
                    end: third,
                    loaded: fourth,
                    unloaded: None,
                    build_id: String::new(),
                });
            }
            DescriptionKind::UnloadedModule => {
                let found = self.newest_module(process, second, |it| it.unloaded.is_none());
                if let Some(found) = found {
                    found.unloaded = Some(fourth);
                }
            }
            DescriptionKind::BuildId => {
                if let Some(found) = self.newest_module(process, second, |it| it.path == name) {
                    found.build_id = module;
                }
            }
            DescriptionKind::Source => {
                let source = (name, u32::try_from(third).unwrap_or(0));
                _ = self.sources.insert((process, second as u32), source);
            }
            DescriptionKind::SwitchedOff => {
                let function = second as u32;
                // A function that is off twice is off since the first time.
                if let Entry::Vacant(free) = self.open_off_times.entry((process, function)) {
                    free.insert(self.off_times.len());
                    self.off_times.push(OffTime {
                        process,
                        function,
                        from: third,
                        until: None,
                    });
                }
            }
            DescriptionKind::SwitchedOn => {
                let open = self.open_off_times.remove(&(process, second as u32));
                if let Some(off) = open.and_then(|index| self.off_times.get_mut(index)) {
                    off.until = Some(third);
                }
            }
            // It is found among the descriptions.
            DescriptionKind::NoValue => {}
            DescriptionKind::Refused => self.refused.push((module, name)),
            DescriptionKind::Thread => _ = self.threads.insert((process, second as u32), name),
            DescriptionKind::Types => {
                if let Some(layout) = Layout::parse(&name) {
                    let signature = module;
                    let types = FunctionTypes { layout, signature };
                    _ = self.types.insert((process, second as u32), types);
                }
            }
            DescriptionKind::Process => {
                _ = self.processes.insert(process, (second as u32, name));
            }
        }
        self.descriptions.push(description);
    }

    /// The newest module of a process that starts at an address, of those that `is_it` says.
    fn newest_module(
        &mut self,
        process: u32,
        start: u64,
        is_it: impl Fn(&ModuleName) -> bool,
    ) -> Option<&mut ModuleName> {
        let here = self.modules_at.get(&(process, start))?;
        let mut newest = here.iter().rev().take(MODULES_AT);
        let index = newest.find(|index| is_it(&self.modules[**index]))?;
        self.modules.get_mut(*index)
    }

    /// A function of a process; what it does not know itself its parents do.
    #[must_use]
    pub fn function(&self, process: u32, index: u32) -> Option<&FunctionName> {
        self.find(&self.functions, process, index)
    }

    /// What a function of a process takes and gives back, if that was recorded; what the process
    /// does not know itself its parents do.
    #[must_use]
    pub fn types(&self, process: u32, index: u32) -> Option<&FunctionTypes> {
        self.find(&self.types, process, index)
    }

    /// The source file of a function of a process, and the line where it begins, if that was
    /// recorded; what the process does not know itself its parents do.
    #[must_use]
    pub fn source(&self, process: u32, index: u32) -> Option<(&str, u32)> {
        let (file, line) = self.find(&self.sources, process, index)?;
        Some((file, *line))
    }

    fn find<'n, T>(
        &self,
        all: &'n HashMap<(u32, u32), T>,
        process: u32,
        index: u32,
    ) -> Option<&'n T> {
        let mut process = process;
        for _ in 0..ANCESTORS {
            if let Some(found) = all.get(&(process, index)) {
                return Some(found);
            }
            match self.processes.get(&process) {
                Some(&(parent, _)) if parent != process => process = parent,
                _ => break,
            }
        }
        all.get(&(self.process, index))
    }

    /// The name of a thread, if it is known.
    #[must_use]
    pub fn thread(&self, process: u32, thread: u32) -> Option<&str> {
        self.threads.get(&(process, thread)).map(String::as_str)
    }

    /// Parent and name of a process, if they are known.
    #[must_use]
    pub fn process(&self, process: u32) -> Option<(u32, &str)> {
        let (parent, name) = self.processes.get(&process)?;
        Some((*parent, name))
    }

    /// The modules, in the order in which they came.
    #[must_use]
    pub fn modules(&self) -> &[ModuleName] {
        &self.modules
    }

    /// The times in which functions were not recorded, because that cost too much, in the order in
    /// which they were switched off.
    #[must_use]
    pub fn off_times(&self) -> &[OffTime] {
        &self.off_times
    }

    /// The programs of which nothing is recorded: the path of each, and the reason.
    #[must_use]
    pub fn refused(&self) -> &[(String, String)] {
        &self.refused
    }

    /// The functions that are known, each with its process and its index.
    pub fn functions(&self) -> impl Iterator<Item = (u32, u32, &FunctionName)> {
        let all = self.functions.iter();
        all.map(|(&(process, index), function)| (process, index, function))
    }

    /// All that was described, in the order in which it was.
    #[must_use]
    pub fn descriptions(&self) -> &[Description] {
        &self.descriptions
    }

    /// The function whose code an address of a process is in, with the distance from its start.
    #[must_use]
    pub fn symbol(&self, process: u32, address: u64) -> Option<(&FunctionName, u64)> {
        let here = |(of, _, function): (u32, u32, &'_ FunctionName)| {
            let distance = address.checked_sub(function.address)?;
            (of == process || of == self.process).then_some(())?;
            (distance < function.size).then_some(distance)
        };
        let mut found = self.functions();
        found.find_map(|each| here(each).map(|distance| (each.2, distance)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn off_times_end_when_functions_are_switched_on() {
        use DescriptionKind::{SwitchedOff, SwitchedOn};
        let mut names = Names::new(1);
        for (kind, function, time) in [
            (SwitchedOn, 7, 5),
            (SwitchedOff, 7, 10),
            (SwitchedOff, 8, 11),
            (SwitchedOff, 7, 12),
            (SwitchedOn, 7, 20),
            (SwitchedOff, 7, 30),
        ] {
            names.add(Description {
                kind,
                fields: [1, function, time, 0],
                texts: Default::default(),
            });
        }
        let times = names.off_times().iter();
        let times: Vec<_> = times.map(|it| (it.function, it.from, it.until)).collect();
        assert_eq!(times, [(7, 10, Some(20)), (8, 11, None), (7, 30, None)]);
    }
}
