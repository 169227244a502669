//! The modules of the running process: the program, the shared libraries it has loaded, and the
//! vDSO that the kernel gave it.
//!
//! The dynamic linker knows which files are loaded and where; the file on disk has the names and
//! the sections. A [`LoadedModule`] has the former, an [`ElfFile`] the latter. Both are needed to
//! find the function entries that the compiler listed: the file has the place of the list, but only
//! in memory is the list relocated. The vDSO is a file in memory.
//!
//! The file may have been replaced since it was loaded, and the library may be unloaded at any
//! time. So [`listed_entries()`] compares the two before it trusts the file, and does everything
//! with the lock of the dynamic linker's list held.
//!
//! # Safety
//!
//! The unsafe code here rests on four things.
//!
//! - The linker's descriptions of modules ([`libc::dl_phdr_info`]) are true: program headers,
//!   name and readable segments are mapped where they say. They are only followed inside a
//!   callback of `dl_iterate_phdr`, whose lock keeps every module loaded.
//! - The linker has finished relocating a module before its data is read, so constant data does not
//!   change.
//! - An address from a *file* is read only after it was checked to lie in such a segment.
//! - The copy of a file is never freed, and the vDSO is never unmapped.

mod listed_entries;

use core::ffi::{CStr, c_int, c_void};
use core::ops::Range;
use core::{fmt, mem, ptr, slice};
use std::ffi::{CString, OsStr};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libc::{Elf64_Phdr, dl_phdr_info};
use object::elf;

use crate::os::PAGE;
use crate::os::maps::{self, FileId, FileMapping, Maps, Protections};
use crate::process::generated;
use crate::process::image::read_file;
use crate::process::linker::{self, DlHandle};
use crate::process::loader_event;
use fgraph_symbols::elf::{ElfError, ElfFile};
pub(crate) use listed_entries::{ListedEntry, listed_entries};

/// Links to the file of the program, which work even if that was deleted: the main thread's, which
/// valgrind emulates, and the calling thread's, for when the main thread has ended.
const PROGRAM: [&str; 2] = ["/proc/self/exe", "/proc/thread-self/exe"];

/// The path of the vDSO, as in `/proc/self/maps`.
const VDSO: &str = "[vdso]";

/// The program, a shared library, or the vDSO, as loaded into this process.
#[derive(Clone, Debug)]
pub(crate) struct LoadedModule {
    path: PathBuf,
    kind: Kind,
    bias: usize,
    headers: usize,
    segments: Vec<Segment>,
    /// The bytes of its program headers, and of its notes, which include the build id.
    headers_and_notes: [Vec<u8>; 2],
    /// The file of a library without a build id.
    file: Option<MappedFile>,
    /// The range of the linker's table; empty if there is none.
    dynamic: Range<usize>,
    /// The file of a generated module.
    image: &'static [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Program,
    Library,
    Vdso,
    /// Functions that the program has generated.
    Generated,
}

/// The file from which a module was mapped.
#[derive(Clone, Debug)]
struct MappedFile {
    id: FileId,
    /// The time of its last change, if it still has its path: it distinguishes a later file that
    /// got the same inode number.
    changed: Option<(i64, i64)>,
}

#[derive(Clone, Debug)]
struct Segment {
    range: Range<usize>,
    flags: u32,
}

impl LoadedModule {
    /// Returns the path of the module's file.
    ///
    /// The file may be another one by now, or gone: use [`LoadedModule::map`] to read it.
    #[must_use]
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true if this is the program itself, and not a library.
    #[must_use]
    pub(crate) fn is_program(&self) -> bool {
        self.kind == Kind::Program
    }

    /// Returns true for the vDSO, which the kernel provides. It has no file, and the path `[vdso]`.
    #[must_use]
    pub(crate) fn is_vdso(&self) -> bool {
        self.kind == Kind::Vdso
    }

    /// Returns true if its text comes from a file.
    #[must_use]
    pub(crate) fn has_file(&self) -> bool {
        matches!(self.kind, Kind::Program | Kind::Library)
    }

    /// Returns the difference between an address in memory and the address in the file.
    #[must_use]
    pub(crate) fn load_bias(&self) -> usize {
        self.bias
    }

    /// Returns the address ranges of the module's code.
    pub(crate) fn text(&self) -> impl Iterator<Item = Range<usize>> {
        self.with_flags(libc::PF_X)
    }

    /// Returns the memory ranges of the module's segments, with the protection that the file has.
    pub(crate) fn segments(&self) -> impl Iterator<Item = (Range<usize>, u32)> {
        self.segments.iter().map(|s| (s.range.clone(), s.flags))
    }

    /// Reads the module's file, see [`read_file`]. The vDSO's file is in memory already.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be opened or read.
    pub(crate) fn map(&self) -> io::Result<&'static [u8]> {
        if self.is_vdso() {
            return Ok(self.vdso_image());
        }
        if self.kind == Kind::Generated {
            return Ok(self.image);
        }
        if self.is_program()
            && let Some(bytes) = PROGRAM.into_iter().find_map(|link| read_file(link).ok())
        {
            return Ok(bytes);
        }
        let start = self.segments.first().map_or(0, |s| s.range.start);
        if maps::is_deleted(start) {
            return Err(io::Error::other(
                "the file was removed or replaced since it was loaded",
            ));
        }
        read_file(&self.path)
    }

    /// Returns true if it is at the same place as `other` with the same name, from a file with the
    /// same program headers and the same build id; without a build id, from the same file.
    pub(crate) fn is(&self, other: &Self) -> bool {
        let id = |module: &Self| module.file.as_ref().map(|file| file.id);
        self.bias == other.bias
            && self.path == other.path
            && self.headers_and_notes == other.headers_and_notes
            && id(self) == id(other)
            && self.image.as_ptr() == other.image.as_ptr()
    }

    /// Returns true if the file was changed since `other` was loaded, as far as [`is`](Self::is)
    /// does not detect that.
    pub(crate) fn is_newer_than(&self, other: &Self) -> bool {
        let changed = |module: &Self| module.file.as_ref().and_then(|file| file.changed);
        changed(self) != changed(other)
    }

    /// Returns true if it is a library from the same file as `other`, at any addresses.
    pub(crate) fn is_same_file(&self, other: &Self) -> bool {
        let is_same = |(file, other): (&MappedFile, &MappedFile)| {
            file.id == other.id && file.changed.is_some() && file.changed == other.changed
        };
        // This is checked for many libraries: comparing the path as text is the fastest.
        self.kind == Kind::Library
            && other.kind == Kind::Library
            && self.path.as_os_str() == other.path.as_os_str()
            && self.headers_and_notes == other.headers_and_notes
            && (self.has_build_id()
                || self
                    .file
                    .as_ref()
                    .zip(other.file.as_ref())
                    .is_some_and(is_same))
    }

    fn has_build_id(&self) -> bool {
        self.has_note(b"\x03\0\0\0GNU\0")
    }

    /// Returns the start of the index of its unwind information, and the read-only segment that
    /// contains it.
    pub(crate) fn unwind_index(&self) -> Option<(usize, Range<usize>)> {
        let [headers, _] = &self.headers_and_notes;
        let mut headers = headers.chunks_exact(size_of::<Elf64_Phdr>());
        let index = headers.find_map(|header| {
            // p_type comes first, p_vaddr after p_flags and p_offset.
            let kind = u32::from_ne_bytes(*header.first_chunk()?);
            let address = u64::from_ne_bytes(*header.get(16..)?.first_chunk()?);
            (kind == libc::PT_GNU_EH_FRAME).then_some(self.bias.wrapping_add(address as usize))
        })?;
        let segment = self.segments.iter().find(|s| s.range.contains(&index))?;
        let is_constant = segment.flags & (libc::PF_R | libc::PF_W) == libc::PF_R;
        is_constant.then(|| (index, segment.range.clone()))
    }

    /// Returns true if Go has linked it.
    pub(crate) fn is_linked_by_go(&self) -> bool {
        self.has_note(b"\x04\0\0\0Go\0\0")
    }

    /// Returns true if it has a note of this type and owner.
    fn has_note(&self, head: &[u8; 8]) -> bool {
        let [_, notes] = &self.headers_and_notes;
        notes.windows(head.len()).any(|note| note == head)
    }

    /// Returns a value that no other loaded module has.
    fn key(&self) -> usize {
        match self.kind {
            Kind::Generated => self.image.as_ptr().addr(),
            _ => self.headers,
        }
    }

    /// Records the file of a library that has no build id.
    fn identify(&mut self, maps: &mut Option<Maps>) {
        if self.kind == Kind::Library && !self.has_build_id() {
            let id = maps.get_or_insert_with(Maps::now).file_at(self.headers);
            self.file = id.map(|id| {
                let now = fs::metadata(&self.path).ok();
                let now = now.filter(|now| now.ino() == id.inode);
                let changed = now.map(|now| (now.ctime(), now.ctime_nsec()));
                MappedFile { id, changed }
            });
        }
    }

    fn with_flags(&self, flags: u32) -> impl Iterator<Item = Range<usize>> {
        let wanted = self
            .segments
            .iter()
            .filter(move |s| s.flags & flags == flags);
        wanted.map(|s| s.range.clone())
    }

    /// Returns the whole file of the vDSO: its segment, to the end of the page, and the section
    /// headers if these continue after that.
    fn vdso_image(&self) -> &'static [u8] {
        let start = auxiliary(libc::AT_SYSINFO_EHDR);
        let segment = self.with_flags(libc::PF_R).find(|s| s.contains(&start));
        let Some(segment) = segment else {
            return &[];
        };
        let end = segment.end.next_multiple_of(PAGE);
        // SAFETY: the kernel maps whole pages, permanently, and declares these readable.
        let image = unsafe { bytes(start..end) };
        let file = start..start.saturating_add(file_len(image).unwrap_or(0));
        let protections = Protections::now(core::iter::empty());
        let is_readable = |at| protections.of(at).is_some_and(|p| p.readable);
        if file.end <= end || !(end..file.end).step_by(PAGE).all(is_readable) {
            return image;
        }
        // SAFETY: the range was just checked to be readable, and is the rest of the kernel's
        // mapping.
        unsafe { bytes(file) }
    }

    /// Returns true if the whole range is readable.
    fn is_readable(&self, range: &Range<usize>) -> bool {
        self.with_flags(libc::PF_R)
            .any(|s| s.start <= range.start && range.end <= s.end)
    }

    /// Returns true if an address is in the module's code.
    #[must_use]
    pub(crate) fn is_text(&self, address: usize) -> bool {
        self.text().any(|range| range.contains(&address))
    }

    /// Returns true if the program has generated the functions.
    pub(crate) fn is_generated(&self) -> bool {
        self.kind == Kind::Generated
    }

    /// Returns true if a symbol that it exports or imports has `text` in its name. It must be
    /// loaded.
    pub(crate) fn shares(&self, text: &[u8]) -> bool {
        self.symbol_names().is_some_and(|names| {
            let (names, len) = (names.as_ptr().cast(), names.len());
            // SAFETY: both are slices.
            let place = unsafe { libc::memmem(names, len, text.as_ptr().cast(), text.len()) };
            !place.is_null()
        })
    }

    /// Returns true if it may call the function `name`, which is at `address` in another module,
    /// through its symbol. It must be loaded.
    pub(crate) fn may_call(&self, name: &CStr, address: usize) -> bool {
        !self.is_text(address) && self.shares(name.to_bytes_with_nul())
    }

    /// Returns the names of all symbols that it exports or imports, each followed by a zero.
    fn symbol_names(&self) -> Option<&[u8]> {
        let read = |range: Range<usize>| {
            // SAFETY: the range is in a segment of a loaded module.
            self.is_readable(&range).then(|| unsafe { bytes(range) })
        };
        let (words, _) = read(self.dynamic.clone())?.as_chunks::<8>();
        let value = |wanted: elf::DynamicTag| {
            let mut pairs = words.as_chunks::<2>().0.iter();
            let pair = pairs.find(|[tag, _]| u64::from_ne_bytes(*tag) == wanted.0 as u64)?;
            usize::try_from(u64::from_ne_bytes(pair[1])).ok()
        };
        let (start, len) = (value(elf::DT_STRTAB)?, value(elf::DT_STRSZ)?);
        // The linker has converted it to an address, except for the vDSO.
        let at = |start: usize| read(start..start.checked_add(len)?);
        at(start).or_else(|| at(self.bias.wrapping_add(start)))
    }

    /// Makes a module of functions that the program has generated, with their code at `text`, and
    /// the file `image`, which exists only in memory.
    pub(super) fn generated(
        path: PathBuf,
        bias: usize,
        text: Range<usize>,
        image: &'static [u8],
    ) -> Self {
        Self {
            path,
            kind: Kind::Generated,
            bias,
            headers: 0,
            segments: vec![Segment {
                range: text,
                flags: libc::PF_R | libc::PF_X,
            }],
            headers_and_notes: Default::default(),
            file: None,
            dynamic: 0..0,
            image,
        }
    }

    /// Returns the module that the linker describes, unless it is one without a file.
    fn new(info: &Info<'_>) -> Option<Self> {
        let loads = info.headers.iter().filter(|h| h.p_type == libc::PT_LOAD);
        let segments: Vec<_> = loads.filter_map(|h| Segment::new(info.bias, h)).collect();
        let vdso = auxiliary(libc::AT_SYSINFO_EHDR);
        let headers = info.headers.as_ptr().addr();
        let (kind, path) = if segments.iter().any(|s| s.range.contains(&vdso)) {
            (Kind::Vdso, PathBuf::from(VDSO))
        } else if headers == auxiliary(libc::AT_PHDR) {
            (Kind::Program, program_path())
        } else {
            (Kind::Library, PathBuf::from(info.name()))
        };
        if path.as_os_str().is_empty() {
            return None;
        }
        let mut this = Self {
            path,
            kind,
            bias: info.bias,
            headers,
            segments,
            headers_and_notes: Default::default(),
            file: None,
            dynamic: info.dynamic(),
            image: &[],
        };
        this.headers_and_notes = [info.header_bytes().to_vec(), info.notes(&this)];
        Some(this)
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

/// The numbers of modules that were loaded and unloaded since the process began.
///
/// Two equal generations mean that the list of modules did not change in between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Generation {
    /// The number of modules ever loaded.
    pub(crate) adds: u64,
    /// The number of modules ever unloaded.
    pub(crate) subs: u64,
}

/// Returns the current generation of modules. This is much cheaper than [`loaded`].
#[must_use]
pub(crate) fn generation() -> Generation {
    let mut generation = Generation::default();
    for_each_info(|info| {
        generation = info.generation();
        false
    });
    generation
}

/// Runs `work` with the linker's lock held, and passes it the generation of modules. Meanwhile no
/// module is loaded or unloaded.
///
/// `work` must not call the linker: `dlsym` and similar functions take another lock, which threads
/// that load and unload take before this one.
pub(crate) fn while_locked<R>(work: impl FnOnce(Generation) -> R) -> R {
    let mut work = Some(work);
    let mut result = None;
    for_each_info(|info| {
        result = work.take().map(|work| work(info.generation()));
        false
    });
    result.expect("the program itself is listed")
}

/// Runs `work` with the linker's lock held if `module` is loaded, otherwise returns `None`. As in
/// [`while_locked`], `work` must not call the linker.
pub(crate) fn while_listed<R>(module: &LoadedModule, work: impl FnOnce() -> R) -> Option<R> {
    while_locked(|_| is_described(module).then(work))
}

/// Returns true if a module is loaded, from the same file. The linker's lock may be held.
pub(crate) fn is_present(module: &LoadedModule) -> bool {
    let id = || FileMapping::at(module.headers).map(|mapping| mapping.file);
    let is_it = |file: &MappedFile| id().as_ref() == Some(&file.id);
    is_described(module) && module.file.as_ref().is_none_or(is_it)
}

/// Returns true if the linker [describes](Info::describes) a module.
fn is_described(module: &LoadedModule) -> bool {
    if module.kind == Kind::Generated {
        return generated::has(module);
    }
    let mut is_described = false;
    for_each_info(|info| {
        is_described = info.describes(module);
        !is_described
    });
    is_described
}

/// Runs `work` while `module` cannot be unloaded; `None` if it is gone. Other modules may be loaded
/// and unloaded meanwhile.
///
/// This waits for any `dlopen` in progress in another thread, including the constructors that it
/// runs. A thread that is itself in a `dlopen` keeps the linker's lock, like [`while_listed`]; so
/// does one whose module cannot be found by its path.
pub(crate) fn while_present<R>(module: &LoadedModule, work: impl FnOnce() -> R) -> Option<R> {
    if loader_event::is_loading() {
        return while_listed(module, work);
    }
    let path = CString::new(module.path.as_os_str().as_bytes()).ok();
    // The program and the vDSO are never unloaded.
    let handle = match module.kind {
        Kind::Library => path.and_then(|path| DlHandle::loaded(Some(&path)).map(Some)),
        Kind::Program | Kind::Vdso | Kind::Generated => Some(None),
    };
    match handle {
        Some(_handle) => is_present(module).then(work),
        // It cannot be found by its path.
        None => while_listed(module, work),
    }
}

/// Returns all modules with a file, the program first, and the vDSO, with their generation.
#[must_use]
pub(crate) fn loaded() -> (Vec<LoadedModule>, Generation) {
    while_locked(|generation| {
        let mut modules = Vec::new();
        for_each_info(|info| {
            modules.extend(LoadedModule::new(info));
            true
        });
        let mut maps = None;
        for module in &mut modules {
            module.identify(&mut maps);
        }
        modules.extend(generated::all());
        (modules, generation)
    })
}

/// The result of comparing known modules with the loaded ones.
#[derive(Debug)]
pub(crate) struct Comparison {
    /// For each known module, true if it is certainly still loaded.
    pub(crate) stay: Vec<bool>,
    /// The modules that are not certainly known, as in [`loaded`].
    pub(crate) others: Vec<LoadedModule>,
}

/// Compares the loaded modules with the known ones. Unless `may_be_gone`, none of these was
/// unloaded. Call it with the linker's lock held.
pub(crate) fn compare(known: &[&LoadedModule], may_be_gone: bool) -> Comparison {
    let mut by_key: Vec<_> = known
        .iter()
        .zip(0..)
        .map(|(known, at)| (known.key(), at))
        .collect();
    by_key.sort_unstable();
    let find = |key| {
        let found = by_key.binary_search_by_key(&key, |&(key, _)| key);
        found.ok().map(|at| by_key[at].1)
    };
    let mut stay = vec![false; known.len()];
    let mut others = Vec::new();
    for_each_info(|info| {
        // For a library without a build id, the file must be checked.
        let is_it =
            |known: &LoadedModule| !may_be_gone || known.file.is_none() && info.describes(known);
        match find(info.headers.as_ptr().addr()) {
            Some(at) if is_it(known[at]) => stay[at] = true,
            _ => others.extend(LoadedModule::new(info)),
        }
        true
    });
    let mut maps = None;
    for module in &mut others {
        module.identify(&mut maps);
    }
    for module in generated::all() {
        match find(module.key()) {
            Some(at) if known[at].is(&module) => stay[at] = true,
            _ => others.push(module),
        }
    }
    Comparison { stay, others }
}

/// Returns the current protection of the process's memory. If `/proc` cannot be read, it comes from
/// the program headers of all modules.
pub(crate) fn protections() -> Protections {
    Protections::now(loaded().0.iter().flat_map(LoadedModule::segments))
}

/// Returns the current protection of a module's memory. If it is only available for all memory at
/// once, it is stored in `all`.
pub(crate) fn protections_of(
    module: &LoadedModule,
    all: &mut Option<Arc<Protections>>,
) -> Arc<Protections> {
    let mut segments: Vec<_> = module.segments().map(|(range, _)| range).collect();
    segments.sort_unstable_by_key(|range| range.start);
    match Protections::within(segments.into_iter()) {
        Some(own) => Arc::new(own),
        None => all.get_or_insert_with(|| Arc::new(protections())).clone(),
    }
}

/// Returns the functions that the linker found for the module's own calls of IFUNCs, each with its
/// resolver.
///
/// Like [`listed_entries()`], this waits for any `dlopen`.
///
/// # Errors
///
/// Fails if the module was unloaded, or if `file` is not the file from which it was loaded.
pub(crate) fn resolved(
    module: &LoadedModule,
    file: &ElfFile<'_>,
) -> Result<Vec<(usize, u64)>, ElfError> {
    if module.kind == Kind::Generated {
        return Ok(Vec::new());
    }
    when_relocated(module, file, || {
        let target = |(slot, resolver): (u64, u64)| {
            let start = module.bias.wrapping_add(slot as usize);
            let slot: *const usize = ptr::with_exposed_provenance(start);
            let is_slot = slot.is_aligned() && module.is_readable(&(start..start.checked_add(8)?));
            // SAFETY: a readable segment of a module that stays loaded meanwhile. Volatile, since a
            // damaged file may name a place that is being written.
            is_slot.then(|| (unsafe { slot.read_volatile() }, resolver))
        };
        file.irelative().filter_map(target).collect()
    })
}

/// Returns the result of `read`, which runs when the module is loaded and relocated, with the
/// linker's lock held.
///
/// # Errors
///
/// Fails if the module was unloaded, or if `file` is not the file from which it was loaded.
pub(crate) fn when_relocated<R>(
    module: &LoadedModule,
    file: &ElfFile<'_>,
    read: impl Fn() -> R,
) -> Result<R, ElfError> {
    loop {
        let relocated = await_relocation();
        let mut result = Some(Err(ElfError::Unloaded));
        for_each_info(|info| {
            if info.generation().adds != relocated.adds {
                result = None;
            } else if !info.describes(module) {
                return true;
            } else if is_loaded_from(module, info, file) {
                result = Some(Ok(read()));
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

/// Checks that a module is loaded, and from that file.
///
/// # Errors
///
/// Fails if it is not.
pub(crate) fn check(module: &LoadedModule, file: &ElfFile<'_>) -> Result<(), ElfError> {
    if module.kind == Kind::Generated && generated::has(module) {
        return Ok(());
    }
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
/// A module is listed as soon as it is mapped, and relocated afterwards under another lock, so
/// without this its list of entries could be empty or incomplete. Of the functions that take that
/// other lock, `dladdr` has no effect except its result.
fn await_relocation() -> Generation {
    let generation = generation();
    let _ = linker::module_of(callback as *const c_void);
    generation
}

/// Returns true if the module was loaded from the file: their program headers are the same, and so
/// are their notes, which include the build id.
fn is_loaded_from(module: &LoadedModule, info: &Info<'_>, file: &ElfFile<'_>) -> bool {
    let same_note = |(address, content): (u64, &[u8])| {
        let start = module.bias.wrapping_add(address as usize);
        let range = start..start.saturating_add(content.len());
        // SAFETY: the module is loaded, since `info` describes it.
        unsafe { read(module, &range) }.is_none_or(|loaded| loaded == content)
    };
    file.program_headers() == info.header_bytes() && file.notes().all(same_note)
}

/// Returns the memory of a module, if all of the range is in a readable segment of it.
///
/// # Safety
///
/// The module must be loaded, and stay so while the result is used.
unsafe fn read<'a>(module: &'a LoadedModule, range: &Range<usize>) -> Option<&'a [u8]> {
    // SAFETY: a readable segment of a loaded module is mapped, and the data that is read here is
    // constant once relocated.
    module
        .is_readable(range)
        .then(|| unsafe { bytes(range.clone()) })
}

/// Returns the memory in a range of addresses.
///
/// # Safety
///
/// It must be readable, and not change, while the result is used.
unsafe fn bytes<'a>(range: Range<usize>) -> &'a [u8] {
    let from = ptr::with_exposed_provenance(range.start);
    // SAFETY: the caller keeps the same contract.
    unsafe { slice::from_raw_parts(from, range.len()) }
}

/// Returns the length of an ELF file whose section headers come last, as linkers write them.
fn file_len(start: &[u8]) -> Option<usize> {
    let word = |at| Some(u64::from_le_bytes(*start.get(at..)?.first_chunk()?));
    let half = |at| Some(u16::from_le_bytes(*start.get(at..)?.first_chunk()?));
    // e_shoff, e_shentsize, e_shnum.
    let (sections, size, count) = (word(40)?, half(58)?, half(60)?);
    usize::try_from(sections)
        .ok()?
        .checked_add(usize::from(size) * usize::from(count))
}

/// Returns the path of the program's file.
fn program_path() -> PathBuf {
    let link = PROGRAM
        .into_iter()
        .find_map(|link| fs::read_link(link).ok());
    let link = link.unwrap_or_else(executed_path);
    // The kernel marks the path of a file that was deleted.
    let bytes = link.as_os_str().as_bytes();
    match bytes.strip_suffix(b" (deleted)") {
        Some(path) if !link.exists() => PathBuf::from(OsStr::from_bytes(path)),
        _ => link,
    }
}

/// Returns the path with which the program was executed, for processes that do not see `/proc`.
fn executed_path() -> PathBuf {
    let name: *const libc::c_char = ptr::with_exposed_provenance(auxiliary(libc::AT_EXECFN));
    if name.is_null() {
        return PathBuf::new();
    }
    // SAFETY: the kernel stored the address of a string there, which is above the stack
    // permanently.
    PathBuf::from(OsStr::from_bytes(
        unsafe { CStr::from_ptr(name) }.to_bytes(),
    ))
}

/// Returns a value that the kernel gave to the process at its start; 0 if there is none.
fn auxiliary(key: libc::c_ulong) -> usize {
    // SAFETY: this only looks up a key, and any key is allowed.
    unsafe { libc::getauxval(key) as usize }
}

/// The linker's description of one module, valid during the callback. Most modules are skipped by
/// the address of their headers, so the rest is computed when it is requested.
struct Info<'a> {
    told: &'a dl_phdr_info,
    size: usize,
    bias: usize,
    headers: &'a [Elf64_Phdr],
}

impl fmt::Debug for Info<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Info")
            .field("name", &self.name())
            .field("bias", &self.bias)
            .finish()
    }
}

impl<'a> Info<'a> {
    /// # Safety
    ///
    /// `info` must come from `dl_iterate_phdr`, with the size it passed, and be borrowed only until
    /// the callback returns.
    unsafe fn new(info: &'a dl_phdr_info, size: usize) -> Self {
        let count = usize::from(info.dlpi_phnum);
        // SAFETY: there are as many headers as the count says.
        let headers = (count > 0).then(|| unsafe { slice::from_raw_parts(info.dlpi_phdr, count) });
        Self {
            told: info,
            size,
            bias: info.dlpi_addr as usize,
            headers: headers.unwrap_or_default(),
        }
    }

    fn name(&self) -> &'a OsStr {
        let name = self.told.dlpi_name;
        // SAFETY: a name, if any, is a C string of the linker's, as `new` requires.
        let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) });
        OsStr::from_bytes(name.unwrap_or_default().to_bytes())
    }

    fn generation(&self) -> Generation {
        // A linker without the counters passes a shorter structure.
        let counted = self.size >= mem::offset_of!(dl_phdr_info, dlpi_subs) + size_of::<u64>();
        let (added, removed) = generated::changes();
        match counted {
            true => Generation {
                adds: self.told.dlpi_adds + added,
                subs: self.told.dlpi_subs + removed,
            },
            false => Generation {
                adds: added,
                subs: removed,
            },
        }
    }

    fn dynamic(&self) -> Range<usize> {
        let dynamic = self.headers.iter().find(|h| h.p_type == libc::PT_DYNAMIC);
        dynamic.map_or(0..0, |header| {
            let start = self.bias.wrapping_add(header.p_vaddr as usize);
            start..start.saturating_add(header.p_memsz as usize)
        })
    }

    fn header_bytes(&self) -> &[u8] {
        // SAFETY: program headers are plain integers without padding, so they may be read as bytes.
        unsafe { slice::from_raw_parts(self.headers.as_ptr().cast(), size_of_val(self.headers)) }
    }

    /// Returns the bytes of all notes of `module`, which has these program headers.
    fn notes(&self, module: &LoadedModule) -> Vec<u8> {
        let notes = self.headers.iter().filter(|h| h.p_type == libc::PT_NOTE);
        let content = |header: &Elf64_Phdr| {
            let start = self.bias.wrapping_add(header.p_vaddr as usize);
            // SAFETY: the module is loaded, since this describes it.
            unsafe {
                read(
                    module,
                    &(start..start.saturating_add(header.p_memsz as usize)),
                )
            }
        };
        notes.filter_map(content).flatten().copied().collect()
    }

    /// Returns true if this is the module, and it was not replaced by that of another file; a file
    /// without a build id and with the same program headers is not told apart.
    fn describes(&self, module: &LoadedModule) -> bool {
        let [headers, notes] = &module.headers_and_notes;
        self.bias == module.bias
            && self.headers.as_ptr().addr() == module.headers
            && (module.kind != Kind::Library || self.name() == module.path.as_os_str())
            && self.header_bytes() == headers
            && self.notes(module) == *notes
    }
}

/// Calls `visit` for one module after the other while it returns true, with the linker's lock held.
fn for_each_info(mut visit: impl FnMut(&Info<'_>) -> bool) {
    let mut visit: &mut dyn FnMut(&Info<'_>) -> bool = &mut visit;
    let data: *mut &mut dyn FnMut(&Info<'_>) -> bool = &mut visit;
    // SAFETY: the callback gets `data`, which lives until the end of this function.
    unsafe { libc::dl_iterate_phdr(Some(callback), data.cast()) };
}

unsafe extern "C" fn callback(info: *mut dl_phdr_info, size: usize, data: *mut c_void) -> c_int {
    let visit: *mut &mut dyn FnMut(&Info<'_>) -> bool = data.cast();
    // SAFETY: `info` and `size` are the linker's, and `data` is that of `for_each_info`, which no
    // other code uses meanwhile.
    let goes_on = unsafe { (*visit)(&Info::new(&*info, size)) };
    c_int::from(!goes_on)
}

#[cfg(test)]
pub(crate) mod tests;
