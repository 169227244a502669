//! A module of the running process: the program, a shared library, or the vDSO.
//!
//! # Safety
//!
//! The unsafe code reads segments of loaded modules, and the vDSO, which is never unmapped. An
//! address from a *file* is read only after it was checked to lie in such a segment.

use core::ffi::CStr;
use core::ops::Range;
use core::{ptr, slice};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use libc::Elf64_Phdr;
use object::elf;

use crate::os::PAGE;
use crate::os::maps::{self, FileId, Maps, Protections};
use crate::process::image::read_file;

/// Links to the file of the program, which work even if that was deleted: the main thread's, which
/// valgrind emulates, and the calling thread's, for when the main thread has ended.
pub(super) const PROGRAM: [&str; 2] = ["/proc/self/exe", "/proc/thread-self/exe"];

/// The path of the vDSO, as in `/proc/self/maps`.
pub(super) const VDSO: &str = "[vdso]";

/// The program, a shared library, or the vDSO, as loaded into this process.
#[derive(Clone, Debug)]
pub(crate) struct LoadedModule {
    pub(super) path: PathBuf,
    pub(super) kind: Kind,
    pub(super) bias: usize,
    pub(super) headers: usize,
    pub(super) segments: Vec<Segment>,
    /// The bytes of its program headers, and of its notes, which include the build id.
    pub(super) headers_and_notes: [Vec<u8>; 2],
    /// The file of a library without a build id.
    pub(super) file: Option<MappedFile>,
    /// The range of the linker's table; empty if there is none.
    pub(super) dynamic: Range<usize>,
    /// The file of a generated module.
    pub(super) image: &'static [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Program,
    Library,
    Vdso,
    /// Functions that the program has generated.
    Generated,
}

/// The file from which a module was mapped.
#[derive(Clone, Debug)]
pub(super) struct MappedFile {
    pub(super) id: FileId,
    /// The time of its last change, if it still has its path: it distinguishes a later file that
    /// got the same inode number.
    pub(super) changed: Option<(i64, i64)>,
}

#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) range: Range<usize>,
    pub(super) flags: u32,
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

    pub(super) fn has_build_id(&self) -> bool {
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
    pub(super) fn has_note(&self, head: &[u8; 8]) -> bool {
        let [_, notes] = &self.headers_and_notes;
        notes.windows(head.len()).any(|note| note == head)
    }

    /// Returns a value that no other loaded module has.
    pub(super) fn key(&self) -> usize {
        match self.kind {
            Kind::Generated => self.image.as_ptr().addr(),
            _ => self.headers,
        }
    }

    /// Records the file of a library that has no build id.
    pub(super) fn identify(&mut self, maps: &mut Option<Maps>) {
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

    pub(super) fn with_flags(&self, flags: u32) -> impl Iterator<Item = Range<usize>> {
        let wanted = self
            .segments
            .iter()
            .filter(move |s| s.flags & flags == flags);
        wanted.map(|s| s.range.clone())
    }

    /// Returns the whole file of the vDSO: its segment, to the end of the page, and the section
    /// headers if these continue after that.
    pub(super) fn vdso_image(&self) -> &'static [u8] {
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
    pub(super) fn is_readable(&self, range: &Range<usize>) -> bool {
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
    pub(super) fn symbol_names(&self) -> Option<&[u8]> {
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
}

impl Segment {
    pub(super) fn new(bias: usize, header: &Elf64_Phdr) -> Option<Self> {
        let start = bias.wrapping_add(header.p_vaddr as usize);
        let end = start.checked_add(header.p_memsz as usize)?;
        Some(Self {
            range: start..end,
            flags: header.p_flags,
        })
    }
}

/// Returns the memory of a module, if all of the range is in a readable segment of it.
///
/// # Safety
///
/// The module must be loaded, and stay so while the result is used.
pub(super) unsafe fn read<'a>(module: &'a LoadedModule, range: &Range<usize>) -> Option<&'a [u8]> {
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
pub(super) unsafe fn bytes<'a>(range: Range<usize>) -> &'a [u8] {
    let from = ptr::with_exposed_provenance(range.start);
    // SAFETY: the caller keeps the same contract.
    unsafe { slice::from_raw_parts(from, range.len()) }
}

/// Returns the length of an ELF file whose section headers come last, as linkers write them.
pub(super) fn file_len(start: &[u8]) -> Option<usize> {
    let word = |at| Some(u64::from_le_bytes(*start.get(at..)?.first_chunk()?));
    let half = |at| Some(u16::from_le_bytes(*start.get(at..)?.first_chunk()?));
    // e_shoff, e_shentsize, e_shnum.
    let (sections, size, count) = (word(40)?, half(58)?, half(60)?);
    usize::try_from(sections)
        .ok()?
        .checked_add(usize::from(size) * usize::from(count))
}

/// Returns the path of the program's file.
pub(super) fn program_path() -> PathBuf {
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
pub(super) fn executed_path() -> PathBuf {
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
pub(super) fn auxiliary(key: libc::c_ulong) -> usize {
    // SAFETY: this only looks up a key, and any key is allowed.
    unsafe { libc::getauxval(key) as usize }
}
