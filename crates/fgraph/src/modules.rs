//! The modules of the running process: the program and the shared libraries it has loaded.
//!
//! The dynamic linker knows what is loaded and where, the file on disk has the names and the
//! sections. A [`Module`] is the former, an [`ElfFile`] the latter, and both are needed to find
//! the function entries that the compiler padded: the file says where their list is, but only in
//! memory is that list relocated.
//!
//! The file may have been replaced since it was loaded, and the library may be unloaded at any
//! time. So [`patchable_entries`] compares the two before it believes the file, and does all of it
//! with the lock of the dynamic linker's list held.
//!
//! # Safety
//!
//! The unsafe code here rests on four things.
//!
//! - The linker's descriptions of modules ([`libc::dl_phdr_info`]) are true: program headers,
//!   name and readable segments are mapped where they say. They are only followed inside a
//!   callback of `dl_iterate_phdr`, whose lock keeps every module loaded.
//! - The linker is done with relocating a module before its data is read, so what is constant
//!   does not change.
//! - No address from a *file* is read before it was found to lie in such a segment.
//! - A file that was mapped is never unmapped. Whoever cuts off a mapped file in place makes
//!   reading it fail with `SIGBUS`. That holds for the text of a running library as well,
//!   which is why installers and linkers replace files instead.

use core::ffi::{CStr, c_int, c_void};
use core::ops::Range;
use core::{fmt, mem, ptr, slice};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use libc::{Elf64_Phdr, dl_phdr_info};

use crate::elf::{ElfError, ElfFile};

/// A link to the file of the program, which works even if that was deleted.
const PROGRAM: &str = "/proc/self/exe";

/// The program or a shared library, as loaded into this process.
#[derive(Clone, Debug)]
pub(crate) struct Module {
    path: PathBuf,
    is_program: bool,
    bias: usize,
    headers: usize,
    segments: Vec<Segment>,
}

#[derive(Clone, Debug)]
struct Segment {
    range: Range<usize>,
    flags: u32,
}

impl Module {
    /// The path of the module's file.
    ///
    /// The file may be another one by now, or gone: use [`Module::map`] to read it.
    #[must_use]
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether this is the program itself, and not a library.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn is_program(&self) -> bool {
        self.is_program
    }

    /// What is to be added to an address of the file to get one in memory.
    #[must_use]
    pub(crate) fn load_bias(&self) -> usize {
        self.bias
    }

    /// The address ranges of the module's code.
    pub(crate) fn text(&self) -> impl Iterator<Item = Range<usize>> {
        self.with_flags(libc::PF_X)
    }

    /// Maps the module's file, see [`map_file`].
    ///
    /// # Errors
    ///
    /// If the file cannot be opened or mapped.
    pub(crate) fn map(&self) -> io::Result<&'static [u8]> {
        if self.is_program
            && let Ok(bytes) = map_file(PROGRAM)
        {
            return Ok(bytes);
        }
        map_file(&self.path)
    }

    fn with_flags(&self, flags: u32) -> impl Iterator<Item = Range<usize>> {
        let wanted = self
            .segments
            .iter()
            .filter(move |s| s.flags & flags == flags);
        wanted.map(|s| s.range.clone())
    }

    /// Whether the whole range can be read.
    fn is_readable(&self, range: &Range<usize>) -> bool {
        self.with_flags(libc::PF_R)
            .any(|s| s.start <= range.start && range.end <= s.end)
    }

    fn is_text(&self, address: usize) -> bool {
        self.text().any(|range| range.contains(&address))
    }

    /// The module that the linker describes, unless it is one without a file.
    fn new(info: &Info<'_>) -> Option<Self> {
        let loads = info.headers.iter().filter(|h| h.p_type == libc::PT_LOAD);
        let segments: Vec<_> = loads.filter_map(|h| Segment::new(info.bias, h)).collect();
        let vdso = auxiliary(libc::AT_SYSINFO_EHDR);
        if segments.iter().any(|s| s.range.contains(&vdso)) {
            return None;
        }
        let headers = info.headers.as_ptr().addr();
        let is_program = headers == auxiliary(libc::AT_PHDR);
        let path = if is_program {
            program_path()
        } else {
            PathBuf::from(info.name)
        };
        if path.as_os_str().is_empty() {
            return None;
        }
        Some(Self {
            path,
            is_program,
            bias: info.bias,
            headers,
            segments,
        })
    }
}

impl Segment {
    fn new(bias: usize, header: &Elf64_Phdr) -> Option<Self> {
        let start = bias.wrapping_add(header.p_vaddr as usize);
        let end = start.checked_add(header.p_memsz as usize)?;
        Some(Self {
            range: start..end,
            flags: header.p_flags,
        })
    }
}

/// How often modules were loaded and unloaded since the process began.
///
/// Two equal generations mean that the list of modules did not change in between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Generation {
    /// The number of modules ever loaded.
    pub(crate) adds: u64,
    /// The number of modules ever unloaded.
    pub(crate) subs: u64,
}

/// The current generation of modules. This is much cheaper than [`loaded`].
#[must_use]
pub(crate) fn generation() -> Generation {
    let mut generation = Generation::default();
    for_each_info(|info| {
        generation = info.generation;
        false
    });
    generation
}

/// Runs `work` with the linker's lock held, unless modules have been loaded or unloaded since
/// `generation`: then `None`. Meanwhile none is.
pub(crate) fn while_loaded<R>(generation: Generation, work: impl FnOnce() -> R) -> Option<R> {
    let mut work = Some(work);
    let mut result = None;
    for_each_info(|info| {
        if info.generation == generation
            && let Some(work) = work.take()
        {
            result = Some(work());
        }
        false
    });
    result
}

/// All modules with a file, the program first, and the generation they belong to.
///
/// The vDSO, which the kernel provides, has no file and is left out.
#[must_use]
pub(crate) fn loaded() -> (Vec<Module>, Generation) {
    let mut modules = Vec::new();
    let mut generation = Generation::default();
    for_each_info(|info| {
        generation = info.generation;
        modules.extend(Module::new(info));
        true
    });
    (modules, generation)
}

/// Maps a whole file for reading, and keeps it mapped for the rest of the process.
///
/// It is never unmapped because the names of functions are borrowed from it, and these are handed
/// out as `&'static str`: a tracer may keep one for as long as it likes. Pages that nobody reads
/// cost no memory, and those that are read belong to the page cache.
///
/// # Errors
///
/// If the file cannot be opened or mapped, is empty, or is not a regular file.
pub(crate) fn map_file(path: impl AsRef<Path>) -> io::Result<&'static [u8]> {
    let path = path.as_ref();
    // Asked first, since opening a pipe would wait for its other end.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        ));
    }
    let file = File::open(path)?;
    let len = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
    // SAFETY: a new mapping at an address of the kernel's choice takes nobody's memory.
    let at = unsafe {
        let (prot, flags) = (libc::PROT_READ, libc::MAP_PRIVATE);
        libc::mmap(ptr::null_mut(), len, prot, flags, file.as_raw_fd(), 0)
    };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `len` bytes are mapped there for reading, for good, and not shared with a writer of
    // this process. See the module documentation for files that are changed in place.
    Ok(unsafe { slice::from_raw_parts(at.cast(), len) })
}

/// The addresses of all padded function entries of a module, in order.
///
/// An address is where the compiler put the padding. That is the start of the function, or, with
/// `-fcf-protection`, what follows its `endbr64`.
///
/// This waits for any `dlopen` that another thread is in the middle of, including the constructors
/// it runs, since the list of a module is not complete before.
///
/// # Errors
///
/// If the module was unloaded, or if `file` is not the file it was loaded from.
pub(crate) fn patchable_entries(
    module: &Module,
    file: &ElfFile<'_>,
) -> Result<Vec<usize>, ElfError> {
    loop {
        let relocated = await_relocation();
        let mut result = Some(Err(ElfError::Unloaded));
        for_each_info(|info| {
            if info.generation.adds != relocated.adds {
                result = None;
            } else if !info.describes(module) {
                return true;
            } else if is_loaded_from(module, info, file) {
                result = Some(Ok(read_entries(module, file)));
            } else {
                result = Some(Err(ElfError::NotTheLoadedFile));
            }
            false
        });
        if let Some(result) = result {
            return result;
        }
    }
}

/// Whether a module is loaded, and from that file.
///
/// # Errors
///
/// If it is not.
pub(crate) fn check(module: &Module, file: &ElfFile<'_>) -> Result<(), ElfError> {
    let mut result = Err(ElfError::Unloaded);
    for_each_info(|info| {
        let found = info.describes(module);
        if found {
            result = if is_loaded_from(module, info, file) {
                Ok(())
            } else {
                Err(ElfError::NotTheLoadedFile)
            };
        }
        !found
    });
    result
}

/// Waits until all modules of a generation are relocated, and returns that generation.
///
/// A module is listed as soon as it is mapped, and relocated after that under another lock, so
/// without this its list of entries could be empty or half done. Of the functions that take that
/// other lock, `dladdr` has no effect but its answer.
fn await_relocation() -> Generation {
    let generation = generation();
    let mut answer = mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: any address may be asked for, and the answer is written to what can hold it.
    unsafe { libc::dladdr(callback as *const c_void, answer.as_mut_ptr()) };
    generation
}

/// Whether the file is the one the module was loaded from: their program headers are the same,
/// and so are their notes, among which is the build id.
fn is_loaded_from(module: &Module, info: &Info<'_>, file: &ElfFile<'_>) -> bool {
    // SAFETY: program headers are plain integers without padding, so they may be seen as bytes.
    let headers =
        unsafe { slice::from_raw_parts(info.headers.as_ptr().cast(), size_of_val(info.headers)) };
    let same_note = |(address, content): (u64, &[u8])| {
        let start = module.bias.wrapping_add(address as usize);
        let range = start..start.saturating_add(content.len());
        // SAFETY: the module is loaded, since `info` describes it.
        unsafe { read(module, &range) }.is_none_or(|loaded| loaded == content)
    };
    file.program_headers() == headers && file.notes().all(same_note)
}

/// Reads the list of entries of a module that is loaded from `file`, with the lock held.
fn read_entries(module: &Module, file: &ElfFile<'_>) -> Vec<usize> {
    let mut entries = Vec::new();
    for section in file.patchable_sections() {
        let start = module.bias.wrapping_add(section.start as usize);
        let range = start..start.saturating_add((section.end - section.start) as usize);
        // SAFETY: the module is loaded: the lock is held since it was seen to be.
        let Some(bytes) = (unsafe { read(module, &range) }) else {
            continue;
        };
        let (words, _) = bytes.as_chunks();
        entries.extend(words.iter().map(|word| usize::from_ne_bytes(*word)));
    }
    // A section that was discarded by the linker leaves null entries behind.
    entries.retain(|&entry| module.is_text(entry));
    entries.sort_unstable();
    entries.dedup();
    entries
}

/// The memory of a module, if all of the range is in a readable segment of it.
///
/// # Safety
///
/// The module must be loaded, and stay so while the result is used.
unsafe fn read<'a>(module: &'a Module, range: &Range<usize>) -> Option<&'a [u8]> {
    let from = ptr::with_exposed_provenance(range.start);
    // SAFETY: a readable segment of a loaded module is mapped, and what is read of it here is
    // constant once relocated.
    module
        .is_readable(range)
        .then(|| unsafe { slice::from_raw_parts(from, range.len()) })
}

/// The path of the program's file.
fn program_path() -> PathBuf {
    let link = fs::read_link(PROGRAM).unwrap_or_else(|_| executed_path());
    // The kernel marks the path of a file that is no longer there.
    let bytes = link.as_os_str().as_bytes();
    match bytes.strip_suffix(b" (deleted)") {
        Some(path) if !link.exists() => PathBuf::from(OsStr::from_bytes(path)),
        _ => link,
    }
}

/// The path by which the program was executed, for processes that cannot see `/proc`.
fn executed_path() -> PathBuf {
    let name: *const libc::c_char = ptr::with_exposed_provenance(auxiliary(libc::AT_EXECFN));
    if name.is_null() {
        return PathBuf::new();
    }
    // SAFETY: the kernel put the address of a string there, which lies above the stack for good.
    PathBuf::from(OsStr::from_bytes(
        unsafe { CStr::from_ptr(name) }.to_bytes(),
    ))
}

/// A value the kernel gave to the process at its start, 0 if it did not.
fn auxiliary(key: libc::c_ulong) -> usize {
    // SAFETY: this only looks up a key, any key.
    unsafe { libc::getauxval(key) as usize }
}

/// What the linker tells about one module, valid during the callback.
struct Info<'a> {
    name: &'a OsStr,
    bias: usize,
    headers: &'a [Elf64_Phdr],
    generation: Generation,
}

impl fmt::Debug for Info<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Info")
            .field("name", &self.name)
            .field("bias", &self.bias)
            .finish()
    }
}

impl<'a> Info<'a> {
    /// # Safety
    ///
    /// `info` must come from `dl_iterate_phdr`, with the size it gave, and be borrowed no longer
    /// than the callback lasts.
    unsafe fn new(info: &'a dl_phdr_info, size: usize) -> Self {
        // SAFETY: a name, if any, is a string, and the headers are as many as stated.
        let (name, headers) = unsafe {
            let name = (!info.dlpi_name.is_null()).then(|| CStr::from_ptr(info.dlpi_name));
            let count = usize::from(info.dlpi_phnum);
            let headers = (count > 0).then(|| slice::from_raw_parts(info.dlpi_phdr, count));
            (name.unwrap_or_default(), headers.unwrap_or_default())
        };
        // A linker from before the counters passes a shorter structure.
        let counted = size >= mem::offset_of!(dl_phdr_info, dlpi_subs) + size_of::<u64>();
        Self {
            name: OsStr::from_bytes(name.to_bytes()),
            bias: info.dlpi_addr as usize,
            headers,
            generation: if counted {
                Generation {
                    adds: info.dlpi_adds,
                    subs: info.dlpi_subs,
                }
            } else {
                Generation::default()
            },
        }
    }

    fn describes(&self, module: &Module) -> bool {
        self.bias == module.bias
            && self.headers.as_ptr().addr() == module.headers
            && (module.is_program || self.name == module.path)
    }
}

/// Calls `visit` for one module after the other while it returns true, with the linker's lock
/// held.
fn for_each_info(mut visit: impl FnMut(&Info<'_>) -> bool) {
    let mut visit: &mut dyn FnMut(&Info<'_>) -> bool = &mut visit;
    let data: *mut &mut dyn FnMut(&Info<'_>) -> bool = &mut visit;
    // SAFETY: the callback is called with `data`, which lives until the end of this function.
    unsafe { libc::dl_iterate_phdr(Some(callback), data.cast()) };
}

unsafe extern "C" fn callback(info: *mut dl_phdr_info, size: usize, data: *mut c_void) -> c_int {
    let visit: *mut &mut dyn FnMut(&Info<'_>) -> bool = data.cast();
    // SAFETY: `info` and `size` are the linker's, and `data` is that of `for_each_info`, which
    // nobody else uses meanwhile.
    let goes_on = unsafe { (*visit)(&Info::new(&*info, size)) };
    c_int::from(!goes_on)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::SymbolSource;

    fn program() -> Module {
        loaded().0.into_iter().find(Module::is_program).unwrap()
    }

    fn address_of_this_test() -> usize {
        a_function_of_this_program as fn() as usize
    }

    #[inline(never)]
    fn a_function_of_this_program() {
        std::hint::black_box(0);
    }

    #[test]
    fn the_program_comes_first_and_once() {
        let (modules, _) = loaded();
        assert!(modules[0].is_program());
        assert_eq!(modules.iter().filter(|m| m.is_program()).count(), 1);
        assert_eq!(modules[0].path(), std::env::current_exe().unwrap());
    }

    #[test]
    fn code_lies_in_the_text_of_its_module() {
        let holds = |m: &Module, at| m.text().any(|range| range.contains(&at));
        assert!(holds(&program(), address_of_this_test()));
        let getpid = libc::getpid as unsafe extern "C" fn() -> _ as usize;
        let local = 0;
        assert!(loaded().0.iter().any(|m| holds(m, getpid)));
        assert!(
            !loaded()
                .0
                .iter()
                .any(|m| holds(m, (&raw const local).addr()))
        );
    }

    #[test]
    fn every_module_has_a_file_it_was_loaded_from() {
        for module in loaded().0 {
            let file = ElfFile::parse(module.map().unwrap()).unwrap();
            assert!(patchable_entries(&module, &file).is_ok(), "{module:?}");
        }
    }

    #[test]
    fn the_vdso_is_left_out() {
        for module in loaded().0 {
            assert!(
                !module.path().to_string_lossy().contains("vdso"),
                "{module:?}"
            );
        }
    }

    #[test]
    fn generations_change_with_the_list_only() {
        let before = generation();
        let (modules, listed) = loaded();
        assert_eq!(before, listed);
        assert!(before.adds - before.subs >= modules.len() as u64);
    }

    #[test]
    fn entries_are_starts_of_functions() {
        let program = program();
        let file = ElfFile::parse(program.map().unwrap()).unwrap();
        let entries = patchable_entries(&program, &file).unwrap();
        assert!(entries.is_sorted());
        if file.patchable_sections().is_empty() {
            return; // compiled without padding
        }
        assert!(entries.contains(&address_of_this_test()));
        let symbols = file.symbols().unwrap();
        assert_eq!(symbols.source(), SymbolSource::Symtab);
        for entry in entries {
            let address = (entry - program.load_bias()) as u64;
            let symbol = symbols.symbol_at(address).unwrap();
            assert!(address - symbol.address <= 4, "{symbol:?}");
        }
    }

    #[test]
    fn another_file_is_not_believed() {
        let (modules, _) = loaded();
        let other = modules.iter().find(|m| !m.is_program()).unwrap();
        let file = ElfFile::parse(other.map().unwrap()).unwrap();
        assert_eq!(
            patchable_entries(&program(), &file),
            Err(ElfError::NotTheLoadedFile)
        );
    }

    #[test]
    fn a_file_with_another_build_id_is_not_believed() {
        let program = program();
        let mut bytes = program.map().unwrap().to_vec();
        let file = ElfFile::parse(&bytes).unwrap();
        let Some((_, note)) = file.notes().next() else {
            return; // linked without notes
        };
        let last_of_note = note.as_ptr_range().end.addr() - 1 - bytes.as_ptr().addr();
        bytes[last_of_note] ^= 1;
        let file = ElfFile::parse(&bytes).unwrap();
        assert_eq!(
            patchable_entries(&program, &file),
            Err(ElfError::NotTheLoadedFile)
        );
    }

    #[test]
    fn an_unloaded_module_has_no_entries() {
        let program = program();
        let file = ElfFile::parse(program.map().unwrap()).unwrap();
        let gone = Module {
            bias: program.bias.wrapping_add(0x1000),
            ..program
        };
        assert_eq!(patchable_entries(&gone, &file), Err(ElfError::Unloaded));
    }

    #[test]
    fn memory_outside_readable_segments_is_not_read() {
        let program = program();
        let first = program.with_flags(libc::PF_R).next().unwrap();
        assert!(program.is_readable(&first));
        assert!(!program.is_readable(&(first.start - 1..first.end)));
        assert!(!program.is_readable(&(first.start..usize::MAX)));
        assert!(!program.is_readable(&(0..8)));
    }

    #[test]
    fn only_regular_files_with_content_are_mapped() {
        let kind = |path: &str| map_file(path).unwrap_err().kind();
        assert_eq!(kind("/nowhere/to/be/found"), io::ErrorKind::NotFound);
        assert_eq!(kind("/dev/null"), io::ErrorKind::InvalidInput);
        assert_eq!(kind("/"), io::ErrorKind::InvalidInput);
        let empty = std::env::temp_dir().join(format!("fgraph-empty-{}", std::process::id()));
        fs::write(&empty, "").unwrap();
        let result = map_file(&empty);
        fs::remove_file(&empty).unwrap();
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn the_executed_path_is_known_without_proc() {
        assert_eq!(
            fs::canonicalize(executed_path()).unwrap(),
            fs::canonicalize(PROGRAM).unwrap()
        );
    }
}
