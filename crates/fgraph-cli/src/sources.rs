//! The files of modules on this machine: checks that they are the recorded ones, and reads source
//! files and lines from their debug information.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufReader, Read as _};
use std::iter;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use fgraph_analysis::runtimes::{self, Act};
use fgraph_symbols::elf::ElfFile;
use fgraph_symbols::functions::Functions;
use fgraph_symbols::lines::{self, Lines};
use fgraph_trace::names::{Description, DescriptionKind, ModuleName, Names, process_id};

use crate::debuginfod;
use crate::text::escaped;

/// The directory in which debug files are installed.
const DEBUG: &str = "/usr/lib/debug";

/// Looks up source files. Modules are read when they are first needed.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    modules: HashMap<String, Option<Module>>,
}

#[derive(Debug)]
struct Module {
    lines: Lines,
    /// The address in the file of its first byte.
    first: u64,
}

impl Sources {
    /// Returns source file and line of an address of a process, in a module with this path; `None`
    /// if there is no debug information of that build on this machine.
    pub(crate) fn at(
        &mut self,
        names: &Names,
        process: u32,
        path: &str,
        address: u64,
    ) -> Option<(String, u32)> {
        let (known, in_module) = in_module(names, process, path, address)?;
        let module = self.module(known)?;
        let address = in_module.checked_add(module.first)?;
        module.lines.in_function(address)
    }

    /// The path to what is so far from the first byte of a variable, which is at an address of the
    /// module's file: `.lock`.
    pub(crate) fn member(
        &mut self,
        module: &ModuleName,
        variable: u64,
        distance: u64,
    ) -> Option<String> {
        self.module(module)?.lines.member(variable, distance)
    }

    fn module(&mut self, module: &ModuleName) -> Option<&Module> {
        let known = self.modules.entry(module.path.clone());
        known.or_insert_with(|| Module::read(module)).as_ref()
    }
}

/// Returns the debug information of a program or library, from the file itself or its debug file.
pub(crate) fn lines_of(path: &Path) -> Option<Lines> {
    Module::read_if(path, |_| true).map(|module| module.lines)
}

/// Returns the debug information of a module.
pub(crate) fn lines_of_module(module: &ModuleName) -> Option<Lines> {
    Module::read(module).map(|module| module.lines)
}

/// Returns a module with this path, and the offset in it of an address of a process.
pub(crate) fn in_module<'n>(
    names: &'n Names,
    process: u32,
    path: &str,
    address: u64,
) -> Option<(&'n ModuleName, u64)> {
    let (known, first) = names.module_of(process, path)?;
    Some((known, address.checked_sub(first)?))
}

/// Returns the address in a file of its module's first byte.
pub(crate) fn first_address_of(path: &Path) -> Option<u64> {
    first_address(&ElfFile::parse(&bytes(path)?).ok()?)
}

impl Module {
    /// Reads the file itself, or else its debug file.
    fn read(module: &ModuleName) -> Option<Self> {
        let path = place(module);
        let is_it = |id: &[u8]| module.build_id.is_empty() || hexadecimal(id) == module.build_id;
        Self::read_if(&path, is_it)
    }

    /// Reads a file if the build id is the right one.
    fn read_if(path: &Path, is_it: impl Fn(&[u8]) -> bool) -> Option<Self> {
        let bytes = bytes(path)?;
        let elf = ElfFile::parse(&bytes).ok()?;
        let build_id = elf.build_id().unwrap_or_default();
        if !is_it(build_id) {
            return None;
        }
        let debug = Path::new(DEBUG).join(lines::debug_file(build_id));
        let fetched = iter::once_with(|| debuginfod::debug_file(build_id)).flatten();
        let places = [path.to_owned(), debug].into_iter().chain(fetched);
        let mut files = places.filter_map(|place| open(&place));
        let lines = files.find_map(|file| Lines::read(BufReader::new(file), &elf))?;
        let first = first_address(&elf)?;
        Some(Self { lines, first })
    }
}

/// Returns the address in a file of its module's first byte.
pub(crate) fn first_address(elf: &ElfFile<'_>) -> Option<u64> {
    let first = elf.load_addresses().map(|(start, _)| start).min()?;
    // Segments are mapped from the page on in which they begin.
    Some(first & !0xfff)
}

/// Returns the bytes of a module's file.
pub(crate) fn bytes_of(module: &ModuleName) -> Option<Vec<u8>> {
    bytes(&place(module))
}

/// Returns the bytes of a file, if it is a regular one.
pub(crate) fn bytes(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Returns the bytes of the debug file that is installed for a file; if that is stripped, of one
/// from a server.
pub(crate) fn debug_bytes_of(elf: &ElfFile<'_>) -> Option<Vec<u8>> {
    let build_id = elf.build_id()?;
    let installed = bytes(&Path::new(DEBUG).join(lines::debug_file(build_id)));
    installed.or_else(|| {
        let is_stripped = Functions::read(elf, None).is_ok_and(|all| all.is_stripped());
        let fetched = is_stripped.then(|| debuginfod::debug_file(build_id));
        bytes(&fetched.flatten()?)
    })
}

/// The size of the largest file that is read.
const MAX_FILE: u64 = 2 << 30;

/// Opens a file, if it is a regular one: a program may name any file as its module, and replace it
/// at any time. Opening a pipe or a device may wait or have an effect.
fn open(path: &Path) -> Option<File> {
    let mut options = File::options();
    let place = options.read(true).custom_flags(libc::O_PATH).open(path);
    let place = place.ok()?;
    let found = place.metadata().ok()?;
    let same = format!("/proc/self/fd/{}", place.as_raw_fd());
    (found.is_file() && found.len() < MAX_FILE).then(|| File::open(same).ok())?
}

/// Returns the path of a module's file, as its process sees it if that still exists.
fn place(module: &ModuleName) -> PathBuf {
    let root = PathBuf::from(format!("/proc/{}/root", process_id(module.process)));
    let inside = root.join(module.path.trim_start_matches('/'));
    match inside.is_file() {
        true => inside,
        false => module.path.clone().into(),
    }
}

pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        _ = write!(text, "{byte:02x}");
        text
    })
}

/// Returns the build id of a file, in hexadecimal.
pub(crate) fn build_id(path: &Path) -> Option<String> {
    let file = BufReader::new(open(path)?);
    lines::build_id(file).map(|id| hexadecimal(&id))
}

/// Returns the build ids of modules.
pub(crate) fn build_ids(modules: &[ModuleName]) -> Vec<Description> {
    let describe = |module: &ModuleName| {
        let id = build_id(&place(module))?;
        Some(Description {
            kind: DescriptionKind::BuildId,
            fields: [module.process.into(), module.start, 0, 0],
            texts: [module.path.clone(), id],
        })
    };
    modules.iter().filter_map(describe).collect()
}

/// Returns the sources of all known functions, as far as there is debug information on this
/// machine, or those found until `is_enough` returns true.
pub(crate) fn of_functions(names: &Names, is_enough: impl Fn() -> bool) -> Vec<Description> {
    let mut sources = Sources::default();
    let mut found = Vec::new();
    for (process, index, function) in names.functions() {
        if is_enough() {
            break;
        }
        let source = sources.at(names, process, &function.module, function.address);
        let Some((file, line)) = source else { continue };
        found.push(Description {
            kind: DescriptionKind::Source,
            fields: [process.into(), index.into(), line.into(), 0],
            texts: [file, String::new()],
        });
    }
    found
}

/// Returns the types of tasks that functions of a runtime poll, as far as debug information tells.
pub(crate) fn of_tasks(names: &Names) -> Vec<Description> {
    let mut polls: BTreeMap<&str, Vec<Poll>> = BTreeMap::new();
    for (process, index, function) in names.functions() {
        if runtimes::role(&function.name).is_some_and(|role| role.act == Act::Poll) {
            let polls = polls.entry(&function.module).or_default();
            polls.push((process, index, function.address));
        }
    }
    let found = polls.into_iter();
    let found = found.filter_map(|(path, polls)| of_tasks_in(names, path, &polls));
    found.flatten().collect()
}

/// A function that polls: its process, its index, and its address there.
type Poll = (u32, u32, u64);

/// Returns the types of tasks that functions of a module poll.
fn of_tasks_in(names: &Names, path: &str, polls: &[Poll]) -> Option<Vec<Description>> {
    let (known, _) = names.module_of(polls.first()?.0, path)?;
    let Module { lines, first } = Module::read(known)?;
    let futures = lines.futures();
    let bytes = bytes_of(known)?;
    let functions = Functions::read(&ElfFile::parse(&bytes).ok()?, None).ok()?;
    let describe = |&(process, index, address): &Poll| {
        let (_, in_module) = in_module(names, process, path, address)?;
        let address = in_module.checked_add(first)?;
        let found = futures.poll(address).filter(|it| !it.name.is_empty())?;
        // A compiler may have merged functions for several types, whose code is the same.
        let symbols = functions.raw_names(functions.index_at(address)?);
        (symbols.count() == 1).then(|| Description {
            kind: DescriptionKind::FutureType,
            fields: [process.into(), index.into(), 0, 0],
            texts: [found.name.clone(), String::new()],
        })
    };
    Some(polls.iter().filter_map(describe).collect())
}

/// The most modules with changed files that are named.
const SHOWN: usize = 3;

/// Reports on stderr if files of a recording's modules are missing or have changed.
pub(crate) fn say_changes(recording: &Path, names: &Names) {
    if let Some(changes) = changes(names) {
        let message = format!("{}: {changes}", recording.display());
        say!("fgraph: {}", escaped(&message));
    }
}

/// Returns a line with the modules of called functions whose files are missing here or of another
/// build than the recorded one; `None` if there are none.
pub(crate) fn changes(names: &Names) -> Option<String> {
    let called = names.functions().map(|(_, _, it)| it.module.as_str());
    let called: HashSet<&str> = called.collect();
    let (mut found, mut seen) = (Vec::new(), HashSet::new());
    let modules = names.modules().iter();
    let modules = modules.filter(|it| called.contains(it.path.as_str()));
    for module in modules.filter(|it| seen.insert((&it.path, &it.build_id))) {
        let path = Path::new(&module.path);
        let why = match build_id(path) {
            _ if module.build_id.is_empty() => continue,
            Some(id) if id == module.build_id => continue,
            None if !path.exists() => "missing",
            _ => "of another build",
        };
        found.push((&module.path, why));
    }
    let mut told = HashSet::new();
    found.retain(|it| told.insert(*it));
    let more = match found.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    found.truncate(SHOWN);
    let found: Vec<_> = found
        .iter()
        .map(|(path, why)| format!("{path} is {why}"))
        .collect();
    (!found.is_empty()).then(|| format!("not as recorded: {}{more}", found.join(", ")))
}
