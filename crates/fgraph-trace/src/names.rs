//! The names for the numbers in events.

use std::collections::hash_map::{Entry, RandomState};
use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher as _;

use crate::values::Layout;

/// Text in place of a path for the module of Python's functions.
pub const PYTHON: &str = "py";

/// Bits of a process's number that hold the kernel's id; the higher bits count programs.
const ID_BITS: u32 = 22;

/// Returns the number of a process in events and descriptions: the kernel's id, at most 2^22 on
/// Linux, and the number of programs that it has executed before, modulo 1,024.
///
/// A function's index is valid for as long as a process runs one program, so readers see the next
/// program that it executes as another process. A forked process inherits the count of its parent.
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

/// Returns the kernel's id in the [number](process_number) of a process.
#[must_use]
pub const fn process_id(number: u32) -> u32 {
    number & ((1 << ID_BITS) - 1)
}

/// Returns how many programs the process with this [number](process_number) had executed before,
/// modulo 1,024.
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

/// The kind of a description.
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
    /// A process: process, parent, time; its name. The parent of a child of `fork` is the last
    /// process with events whose memory it got.
    Process = 5,
    /// A function's arguments and result: process, index; the [layout](Layout) as text, and the
    /// signature as programmers write it.
    Types = 6,
    /// The build of a loaded module's file: process, start; path, and build id in hexadecimal.
    BuildId = 7,
    /// A function's place in its source: process, index, line; path of the source file.
    Source = 8,
    /// A function that is no longer recorded, because that costs too much: process, index, time.
    SwitchedOff = 9,
    /// A program that is not recorded: process; reason, and path.
    Refused = 10,
    /// A function that was switched off and is recorded again: process, index, time.
    SwitchedOn = 11,
    /// A requested value of a function that cannot be read: process, index; the value as it was
    /// requested; the reason, followed by lines with the known names if the name was wrong.
    NoValue = 12,
    /// An open descriptor: process, number, time at which it was found open; the file, the pipe or
    /// the connection.
    Descriptor = 13,
    /// The type of the future of the tasks that a function polls: process, index; the type.
    FutureType = 14,
    /// A task that had not ended at the end, from the memory of its process: process, address of
    /// the task, runtime (0: tokio, 1: async-task), condition (0: it is polled, 1: woken, 2: it
    /// waits); the type of its future, and its futures, outermost first. These are lines: depth,
    /// condition, address of the task for which it waits or 0, line and file of its await, a tab,
    /// and its name. With the address 0 it says why the tasks of a file are unknown: the reason,
    /// and the file.
    Await = 15,
    /// Return addresses of calls around each other: process, number; the addresses, as
    /// [`packed_address`] writes each.
    Stack = 16,
    /// A program that is recorded in part: process; restriction, and path.
    InPart = 17,
    /// A word of the filter that matches no function when recording of a program begins: process;
    /// the word, and path of the program.
    Unmatched = 18,
    /// A function of code that is in no module, to which recorded calls return: process, address,
    /// size; its name, and the file of names that has it.
    Generated = 19,
    /// A process's state when recording ended: process; state (0: it ran, 1: it had called `exit`,
    /// 2: a signal had ended it, 3: it had ended), signal. The first one of a process counts.
    LastState = 20,
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
            13 => Self::Descriptor,
            14 => Self::FutureType,
            15 => Self::Await,
            16 => Self::Stack,
            17 => Self::InPart,
            18 => Self::Unmatched,
            19 => Self::Generated,
            20 => Self::LastState,
            _ => return None,
        })
    }
}

/// Returns an address as characters of a text, six bits each.
///
/// ```
/// use fgraph_trace::names::packed_address;
///
/// assert_eq!(packed_address(0x41), *b"00000011");
/// ```
#[must_use]
pub const fn packed_address(address: u64) -> [u8; ADDRESS_CHARACTERS] {
    let mut text = [0; ADDRESS_CHARACTERS];
    let mut nth = 0;
    while nth < ADDRESS_CHARACTERS {
        let bits = address >> (6 * (ADDRESS_CHARACTERS - 1 - nth)) & 0x3f;
        text[nth] = b'0' + bits as u8;
        nth += 1;
    }
    text
}

/// Characters of a packed address, which has 48 bits.
const ADDRESS_CHARACTERS: usize = 8;

fn unpacked_address(text: &[u8]) -> u64 {
    let bits = text
        .iter()
        .map(|byte| u64::from(byte.wrapping_sub(b'0') & 0x3f));
    bits.fold(0, |address, bits| address << 6 | bits)
}

/// The description of an item to which events refer.
///
/// It is exhaustive, since callers write it as a literal: a new field breaks them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Description {
    /// The kind of the item.
    pub kind: DescriptionKind,
    /// Numbers, by kind.
    pub fields: [u64; 4],
    /// Texts, by kind. Bytes that are not UTF-8 are replaced.
    pub texts: [String; 2],
}

/// A function to which events refer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FunctionName {
    /// The name; empty if it has none.
    pub name: String,
    /// The path of the function's module.
    pub module: String,
    /// The address of its first instruction.
    pub address: u64,
    /// The size in bytes; 0 if it is unknown.
    pub size: u64,
}

/// The types of a function's arguments and result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FunctionTypes {
    /// The layout of the words in which its values are recorded.
    pub layout: Layout,
    /// The signature as programmers write it: `(path: const char *) -> int`.
    pub signature: String,
}

/// The state of a process when recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LastState {
    /// It ran.
    Running,
    /// It had ended by itself: it had called `exit`, or returned from `main`.
    Exited,
    /// A signal had ended it.
    Killed {
        /// The number of the signal.
        signal: u32,
    },
    /// It had ended in a way that is unknown.
    Ended,
    /// It had executed another program.
    Executed,
}

impl LastState {
    /// Returns the numbers that describe the state; `None` if descriptions of processes tell it.
    #[must_use]
    pub fn to_fields(self, process: u32) -> Option<[u64; 4]> {
        let (state, signal) = match self {
            Self::Running => (0, 0),
            Self::Exited => (1, 0),
            Self::Killed { signal } => (2, signal),
            Self::Ended => (3, 0),
            Self::Executed => return None,
        };
        Some([process.into(), state, signal.into(), 0])
    }

    fn from_fields([_, state, signal, _]: [u64; 4]) -> Option<Self> {
        Some(match state {
            0 => Self::Running,
            1 => Self::Exited,
            2 => Self::Killed {
                signal: u32::try_from(signal).ok()?,
            },
            3 => Self::Ended,
            _ => return None,
        })
    }
}

/// A time during which a function of a process was not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OffTime {
    /// The process. Processes that it forked during this time did not record the function either.
    pub process: u32,
    /// The index of the function.
    pub function: u32,
    /// The tick from which on calls may be missing.
    pub from: u64,
    /// The tick from which on all calls are recorded again; `None` if recording never resumed.
    pub until: Option<u64>,
}

/// A module, for the time that it was loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModuleName {
    /// The process.
    pub process: u32,
    /// The path of its file.
    pub path: String,
    /// Its first address.
    pub start: u64,
    /// The address after its last byte.
    pub end: u64,
    /// The time at which it was loaded, in ticks; 0 if it was loaded from the beginning.
    pub loaded: u64,
    /// The time at which it was unloaded, in ticks.
    pub unloaded: Option<u64>,
    /// The build id of its file, in hexadecimal; empty if it has none, or it is unknown.
    pub build_id: String,
}

/// The functions, modules, threads and processes that were described.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// The process of events that name none.
    process: u32,
    functions: HashMap<(u32, u32), FunctionName>,
    types: HashMap<(u32, u32), FunctionTypes>,
    /// Source file and line, by process and function.
    sources: HashMap<(u32, u32), (String, u32)>,
    threads: HashMap<(u32, u32), String>,
    /// Parent and name, by process.
    processes: HashMap<u32, (u32, String)>,
    last_states: HashMap<u32, LastState>,
    modules: Vec<ModuleName>,
    /// Indices of the modules of a process that start at an address, oldest first.
    modules_at: HashMap<(u32, u64), Vec<usize>>,
    /// Indices of the first modules with a path: by the hash of the path, and by that of process
    /// and path.
    by_path: HashMap<u64, usize>,
    /// The lowest address of the modules of a process with a path, by the hash of both.
    first_addresses: HashMap<u64, u64>,
    /// Hashes keys that a recording cannot choose.
    hasher: RandomState,
    off_times: Vec<OffTime>,
    /// Indices of the off times without an end.
    open_off_times: HashMap<(u32, u32), usize>,
    /// Path and reason of each refused program.
    refused: Vec<(String, String)>,
    /// Path and restriction of each program that is recorded in part.
    in_part: Vec<(String, String)>,
    /// Indices of the descriptions of stacks, by process and number.
    stacks: HashMap<(u32, u64), usize>,
    /// End and index of the description of generated functions, by process and start.
    generated: BTreeMap<(u32, u64), (u64, usize)>,
    /// All descriptions, in order of arrival.
    descriptions: Vec<Description>,
}

/// The number of newest modules at one address that are searched.
const MODULES_AT: usize = 64;

/// The number of ancestors of a process that are searched for a function.
const ANCESTORS: usize = 64;

impl Names {
    /// Makes an empty table; `process` is the one that was recorded first.
    #[must_use]
    pub fn new(process: u32) -> Self {
        Self {
            process,
            ..Self::default()
        }
    }

    /// Adds a description.
    pub fn add(&mut self, description: Description) {
        let [process, second, third, fourth] = description.fields;
        let process = process as u32;
        if description.kind == DescriptionKind::Stack {
            let stack = self.descriptions.len();
            self.stacks.insert((process, second), stack);
            self.descriptions.push(description);
            return;
        }
        if description.kind == DescriptionKind::Generated {
            let end = second.saturating_add(third);
            let generated = (end, self.descriptions.len());
            self.generated.insert((process, second), generated);
            self.descriptions.push(description);
            return;
        }
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
                self.add_module(ModuleName {
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
                self.switch_off(process, second as u32, third);
            }
            DescriptionKind::SwitchedOn => {
                let open = self.open_off_times.remove(&(process, second as u32));
                if let Some(off) = open.and_then(|index| self.off_times.get_mut(index)) {
                    off.until = Some(third);
                }
            }
            // Views find them among the descriptions.
            DescriptionKind::NoValue
            | DescriptionKind::Descriptor
            | DescriptionKind::FutureType
            | DescriptionKind::Await
            | DescriptionKind::Stack
            | DescriptionKind::Generated
            | DescriptionKind::Unmatched => {}
            DescriptionKind::LastState => {
                if let Some(state) = LastState::from_fields(description.fields) {
                    self.last_states.entry(process).or_insert(state);
                }
            }
            DescriptionKind::Refused => self.refused.push((module, name)),
            DescriptionKind::InPart => self.in_part.push((module, name)),
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

    fn add_module(&mut self, module: ModuleName) {
        let index = self.modules.len();
        let (process, start) = (module.process, module.start);
        let here = self.modules_at.entry((process, start)).or_default();
        here.push(index);
        let both = self.hasher.hash_one((process, &module.path));
        for key in [self.hasher.hash_one(&module.path), both] {
            self.by_path.entry(key).or_insert(index);
        }
        let first = self.first_addresses.entry(both).or_insert(start);
        *first = start.min(*first);
        self.modules.push(module);
    }

    /// A function that is switched off twice is off since the first time.
    fn switch_off(&mut self, process: u32, function: u32, from: u64) {
        if let Entry::Vacant(free) = self.open_off_times.entry((process, function)) {
            free.insert(self.off_times.len());
            self.off_times.push(OffTime {
                process,
                function,
                from,
                until: None,
            });
        }
    }

    /// Returns the newest module of a process that starts at an address and for which `is_it`
    /// returns true.
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

    /// Returns the first module with a path.
    #[must_use]
    pub fn module_of_path(&self, path: &str) -> Option<&ModuleName> {
        let found = self.by_path.get(&self.hasher.hash_one(path));
        self.modules.get(*found?).filter(|it| it.path == path)
    }

    /// Returns the first module of a process with a path, or one of another process: a child
    /// inherits the modules of its parent. The address is the lowest one of its parts.
    #[must_use]
    pub fn module_of(&self, process: u32, path: &str) -> Option<(&ModuleName, u64)> {
        let own = self.by_path.get(&self.hasher.hash_one((process, path)));
        let own = own.and_then(|index| self.modules.get(*index));
        let own = own.filter(|it| it.process == process && it.path == path);
        let module = own.or_else(|| self.module_of_path(path))?;
        let key = self.hasher.hash_one((module.process, path));
        let first = self.first_addresses.get(&key);
        Some((module, first.copied().unwrap_or(module.start)))
    }

    /// Returns a function of a process. A process inherits the functions of its parents.
    #[must_use]
    pub fn function(&self, process: u32, index: u32) -> Option<&FunctionName> {
        self.find(&self.functions, process, index)
    }

    /// Returns the name of a function, or its address if it has no name; if its description was
    /// lost, says so.
    #[must_use]
    pub fn function_name(&self, process: u32, index: u32) -> String {
        match self.function(process, index) {
            Some(known) if known.name.is_empty() => format!("{:#x}", known.address),
            Some(known) => known.name.clone(),
            None => format!("<lost name {index}>"),
        }
    }

    /// Returns the types of a function, if they were recorded. A process inherits those of its
    /// parents.
    #[must_use]
    pub fn types(&self, process: u32, index: u32) -> Option<&FunctionTypes> {
        self.find(&self.types, process, index)
    }

    /// Returns a function's source file, and the line where it begins, if these were recorded. A
    /// process inherits those of its parents.
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

    /// Returns the return addresses with a [number](crate::Event::stack_number), the innermost
    /// first, if they are known.
    #[must_use]
    pub fn stack(&self, process: u32, number: u64) -> Option<Vec<u64>> {
        let found = self
            .descriptions
            .get(*self.stacks.get(&(process, number))?)?;
        let addresses = found.texts[0].as_bytes().chunks(ADDRESS_CHARACTERS);
        Some(addresses.map(unpacked_address).collect())
    }

    /// Returns the generated function that contains an address: its name, the file of names that
    /// has it, and its start. A process inherits those of its parents.
    #[must_use]
    pub fn generated(&self, process: u32, address: u64) -> Option<(&str, &str, u64)> {
        let mut process = process;
        for _ in 0..ANCESTORS {
            let mut before = self.generated.range((process, 0)..=(process, address));
            if let Some((&(_, start), &(end, index))) = before.next_back()
                && address < end
            {
                let [name, file] = &self.descriptions.get(index)?.texts;
                return Some((name, file, start));
            }
            match self.processes.get(&process) {
                Some(&(parent, _)) if parent != process => process = parent,
                _ => break,
            }
        }
        None
    }

    /// Returns the name of a thread, if it is known.
    #[must_use]
    pub fn thread(&self, process: u32, thread: u32) -> Option<&str> {
        self.threads.get(&(process, thread)).map(String::as_str)
    }

    /// Returns parent and name of a process, if they are known.
    #[must_use]
    pub fn process(&self, process: u32) -> Option<(u32, &str)> {
        let (parent, name) = self.processes.get(&process)?;
        Some((*parent, name))
    }

    /// Returns the state of a process when recording ended, if it is known. Recordings of
    /// allocations have it.
    #[must_use]
    pub fn last_state(&self, process: u32) -> Option<LastState> {
        let known = self.last_states.get(&process).copied();
        known.or_else(|| {
            let next = executed_before(process).checked_add(1)?;
            let next = process_number(process_id(process), next);
            let has_executed = next != process && self.processes.contains_key(&next);
            has_executed.then_some(LastState::Executed)
        })
    }

    /// Returns the modules, in order of arrival.
    #[must_use]
    pub fn modules(&self) -> &[ModuleName] {
        &self.modules
    }

    /// Returns the times during which functions were not recorded because that cost too much, in
    /// the order in which they began.
    #[must_use]
    pub fn off_times(&self) -> &[OffTime] {
        &self.off_times
    }

    /// Returns the programs that are not recorded: path and reason of each.
    #[must_use]
    pub fn refused(&self) -> &[(String, String)] {
        &self.refused
    }

    /// Returns the programs that are recorded in part: path and restriction of each.
    #[must_use]
    pub fn in_part(&self) -> &[(String, String)] {
        &self.in_part
    }

    /// Returns all functions, each with its process and its index.
    pub fn functions(&self) -> impl Iterator<Item = (u32, u32, &FunctionName)> {
        let all = self.functions.iter();
        all.map(|(&(process, index), function)| (process, index, function))
    }

    /// Returns all descriptions, in order of arrival.
    #[must_use]
    pub fn descriptions(&self) -> &[Description] {
        &self.descriptions
    }

    /// Returns the function of a process that contains `address`, and the distance from its start.
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
    fn first_description_of_the_last_state_counts() {
        let mut names = Names::new(1);
        let mut add = |kind, fields| {
            let texts = [String::new(), String::new()];
            let description = Description {
                kind,
                fields,
                texts,
            };
            names.add(description);
        };
        let killed = LastState::Killed { signal: 9 };
        for (process, state) in [
            (1, LastState::Running),
            (1, LastState::Exited),
            (2, killed),
            (3, LastState::Exited),
            (4, LastState::Ended),
        ] {
            add(
                DescriptionKind::LastState,
                state.to_fields(process).unwrap(),
            );
        }
        add(DescriptionKind::LastState, [5, 99, 0, 0]);
        for process in [6, process_number(6, 1)] {
            add(DescriptionKind::Process, [process.into(), 1, 0, 0]);
        }
        assert_eq!(names.last_state(1), Some(LastState::Running));
        assert_eq!(names.last_state(2), Some(killed));
        assert_eq!(names.last_state(3), Some(LastState::Exited));
        assert_eq!(names.last_state(4), Some(LastState::Ended));
        assert_eq!(names.last_state(5), None);
        assert_eq!(names.last_state(6), Some(LastState::Executed));
        assert_eq!(names.last_state(process_number(6, 1)), None);
    }

    #[test]
    fn stacks_have_the_addresses_that_were_packed() {
        let addresses = [0x7fff_dead_beef, 0, 0x40_1136];
        let text: Vec<u8> = addresses.into_iter().flat_map(packed_address).collect();
        let mut names = Names::new(1);
        names.add(Description {
            kind: DescriptionKind::Stack,
            fields: [1, 7, 0, 0],
            texts: [String::from_utf8(text).unwrap(), String::new()],
        });
        assert_eq!(names.stack(1, 7).as_deref(), Some(&addresses[..]));
        assert_eq!((names.stack(1, 8), names.stack(2, 7)), (None, None));
        // Damaged recordings have anything.
        names.add(Description {
            kind: DescriptionKind::Stack,
            fields: [1, 8, 0, 0],
            texts: ["é~".to_owned(), String::new()],
        });
        assert_eq!(names.stack(1, 8).map(|stack| stack.len()), Some(1));
    }

    #[test]
    fn generated_functions_are_found_by_the_addresses_in_them() {
        let mut names = Names::new(1);
        let mut add = |kind, fields, texts: [&str; 2]| {
            names.add(Description {
                kind,
                fields,
                texts: texts.map(str::to_owned),
            });
        };
        add(
            DescriptionKind::Generated,
            [1, 100, 10, 0],
            ["f", "perf-1.map"],
        );
        add(
            DescriptionKind::Generated,
            [2, 105, u64::MAX, 0],
            ["g", "perf-2.map"],
        );
        add(DescriptionKind::Process, [3, 1, 0, 0], ["child", ""]);
        let at = |process, address| names.generated(process, address).map(|it| (it.0, it.2));
        assert_eq!([at(1, 99), at(1, 110), at(2, 100)], [None; 3]);
        assert_eq!(at(1, 100), Some(("f", 100)));
        assert_eq!(at(3, 109), Some(("f", 100)));
        assert_eq!(at(2, u64::MAX - 1), Some(("g", 105)));
    }

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
