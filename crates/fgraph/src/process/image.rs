//! Copies of files in our own memory.
//!
//! The data of a file is used for the life of the process, and names are returned as `&'static
//! str`. In a mapping of the file they would change together with it, and reading them would cause
//! a SIGBUS once the file is truncated. So everything is read into our own memory, except for parts
//! that are not needed or large:
//!
//! ```text
//!   file      headers | names | tables | text   | constants | data  | .debug_* | symbols, names
//!   image     read    | read  | mapped | mapped | zeros     | zeros | zeros    | read
//!   stripped  read    | read  | mapped | mapped | mapped    | read  |          |
//! ```
//!
//! Data is needed only if there is no symbol table: functions are then found through unwind
//! information and pointers. Text is mapped: it is most of a large library, and the process runs it
//! from such a mapping itself. So are the linker's tables and constants, including unwind
//! information, which the process reads from such a mapping. Truncating these ends the process
//! without fgraph, too. See `docs/decisions/files.md`.
//!
//! # Safety
//!
//! The unsafe code makes a private mapping, writes to it while it is borrowed exclusively, and
//! returns it after the last write; it is never unmapped then. The kernel may forget pages that are
//! mapped from the file.

use core::ops::Range;
use core::ptr;
use core::slice;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use object::LittleEndian as Le;
use object::elf::{self, FileHeader64, SectionHeader64};
use object::read::elf::{FileHeader, SectionHeader};

use crate::os::{PAGE, advice, memory};

/// Text and constants of files that are mapped, for the life of the process.
static MAPPED: Mutex<Vec<Range<usize>>> = Mutex::new(Vec::new());

/// Makes the kernel forget the pages of files that are mapped. They are read again when they are
/// needed.
pub(crate) fn forget_mapped() {
    let mapped = MAPPED.lock().unwrap_or_else(PoisonError::into_inner);
    for range in mapped.iter() {
        let start = ptr::without_provenance_mut(range.start);
        // SAFETY: a mapping of a file that is never written.
        unsafe { libc::madvise(start, range.len(), libc::MADV_DONTNEED) };
    }
}

/// Reads a file, and keeps it for the life of the process. Its `.debug_*` sections are zero, and,
/// if it has a symbol table, so are its data and constants.
///
/// # Errors
///
/// Fails if the file cannot be opened or read, is empty or no regular file, or becomes shorter
/// meanwhile.
pub(crate) fn read_file(path: impl AsRef<Path>) -> io::Result<&'static [u8]> {
    let file = open_file(path.as_ref())?;
    let len = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
    if len == 0 {
        return Err(invalid("an empty file"));
    }
    let mut image = Image::new(len).ok_or(io::ErrorKind::OutOfMemory)?;
    image.fill(&file)?;
    Ok(image.leak())
}

/// Opens a file for reading.
///
/// # Errors
///
/// Fails if it cannot be opened, or is no regular file.
pub(crate) fn open_file(path: &Path) -> io::Result<File> {
    // Checked first, since opening a pipe would wait for its other end.
    if !fs::metadata(path)?.is_file() {
        return Err(invalid("not a regular file"));
    }
    File::open(path)
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

/// Memory for a file.
#[derive(Debug)]
struct Image {
    memory: *mut u8,
    len: usize,
    /// The addresses of its text and constants.
    mapped: Vec<Range<usize>>,
}

/// A part of a file that is not read.
#[derive(Debug)]
struct Part {
    range: Range<usize>,
    /// True if it is mapped, and begins and ends at page boundaries. Otherwise it stays zero.
    is_mapped: bool,
}

impl Image {
    fn new(len: usize) -> Option<Self> {
        let memory = memory::map(len)?;
        // Debuggers have the file.
        advice::set_dumped(memory.addr()..memory.addr() + len, false);
        Some(Self {
            memory,
            len,
            mapped: Vec::new(),
        })
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is mapped, and written only while `self` is borrowed exclusively.
        unsafe { slice::from_raw_parts(self.memory, self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the memory is mapped for writing, and no other code has its address.
        unsafe { slice::from_raw_parts_mut(self.memory, self.len) }
    }

    /// Returns the content, permanently.
    fn leak(self) -> &'static [u8] {
        let mut this = core::mem::ManuallyDrop::new(self);
        let mut mapped = MAPPED.lock().unwrap_or_else(PoisonError::into_inner);
        mapped.extend(core::mem::take(&mut this.mapped));
        // SAFETY: the memory is never unmapped, nor written any more.
        unsafe { slice::from_raw_parts(this.memory, this.len) }
    }

    /// Reads the needed parts of the file, and maps its text and constants.
    fn fill(&mut self, file: &File) -> io::Result<()> {
        let mut at = 0;
        for part in self.parts(file)? {
            // Overlapping parts come from a damaged file.
            if part.range.start < at {
                continue;
            }
            self.read(file, at..part.range.start)?;
            at = part.range.end;
            if part.is_mapped {
                self.map(file, &part.range)?;
            }
        }
        self.read(file, at..self.len)
    }

    fn read(&mut self, file: &File, range: Range<usize>) -> io::Result<()> {
        let at = range.start as u64;
        file.read_exact_at(&mut self.bytes_mut()[range], at)
    }

    /// Maps a part of the file, read-only, at the place of its copy.
    fn map(&mut self, file: &File, range: &Range<usize>) -> io::Result<()> {
        let Range { start, end } = *range;
        let (prot, flags) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_FIXED);
        // SAFETY: whole pages of our own mapping, which no code has read.
        let mapped = unsafe {
            let place = self.memory.add(start).cast();
            let offset = start as libc::off_t;
            libc::mmap(place, end - start, prot, flags, file.as_raw_fd(), offset)
        };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapped = mapped.addr();
        self.mapped.push(mapped..mapped + range.len());
        Ok(())
    }

    /// Returns the parts of the file that are not read, in order; none if it is no ELF file.
    fn parts(&mut self, file: &File) -> io::Result<Vec<Part>> {
        self.read(file, 0..self.len.min(size_of::<FileHeader64<Le>>()))?;
        let mut parts = Vec::new();
        for tables in [Self::headers, Self::section_names] {
            let Some(tables) = tables(self) else {
                return Ok(parts);
            };
            for table in tables {
                self.read(file, table)?;
            }
        }
        self.add_parts(&mut parts);
        parts.sort_unstable_by_key(|part| part.range.start);
        Ok(parts)
    }

    fn header(&self) -> Option<&FileHeader64<Le>> {
        FileHeader64::<Le>::parse(self.bytes()).ok()
    }

    /// Returns the range of `len` bytes from `offset`, if the file has them.
    fn range(&self, offset: u64, len: u64) -> Option<Range<usize>> {
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(usize::try_from(len).ok()?)?;
        (end <= self.len).then_some(start..end)
    }

    /// Returns the ranges of the tables of segments and of sections.
    fn headers(&self) -> Option<Vec<Range<usize>>> {
        let header = self.header()?;
        let table =
            |offset, count: u16, size: u16| self.range(offset, u64::from(count) * u64::from(size));
        Some(vec![
            table(
                header.e_phoff(Le),
                header.e_phnum(Le),
                header.e_phentsize(Le),
            )?,
            table(
                header.e_shoff(Le),
                header.e_shnum(Le),
                header.e_shentsize(Le),
            )?,
        ])
    }

    /// Returns the range of the names of sections, once the table is read.
    fn section_names(&self) -> Option<Vec<Range<usize>>> {
        let header = self.header()?;
        let sections = header.section_headers(Le, self.bytes()).ok()?;
        let names = sections.get(header.section_strings_index(Le, self.bytes()).ok()?.0)?;
        Some(vec![self.range(names.sh_offset(Le), names.sh_size(Le))?])
    }

    /// Finds text and constants, and parts that only debuggers and programs need, once the headers
    /// are read.
    fn add_parts(&self, parts: &mut Vec<Part>) {
        let Some(header) = self.header() else { return };
        let Ok(sections) = header.sections(Le, self.bytes()) else {
            return;
        };
        let symtab = |section: &SectionHeader64<Le>| {
            section.sh_type(Le) == elf::SHT_SYMTAB && section.sh_size(Le) != 0
        };
        let has_symbols = sections.iter().any(symtab);
        for section in sections.iter() {
            let (flags, kind) = (section.sh_flags(Le), section.sh_type(Le));
            let name = sections.section_name(Le, section).unwrap_or_default();
            let is_loaded = flags.contains(elf::SHF_ALLOC);
            let range = self.range(section.sh_offset(Le), section.sh_size(Le));
            let Some(Range { start, end }) = range.filter(|_| kind != elf::SHT_NOBITS) else {
                continue;
            };
            let (is_content, is_names) = (kind == elf::SHT_PROGBITS, kind == elf::SHT_STRTAB);
            let is_text = is_content && flags.contains(elf::SHF_EXECINSTR);
            // The starts of parts of functions, and the ids that distinguish files.
            let is_kept = name == b".eh_frame_hdr" || name.starts_with(b".note");
            let is_data = is_content && is_loaded && has_symbols && !is_kept;
            let is_constant = !flags.contains(elf::SHF_WRITE) && !is_names && !is_data;
            let is_mapped = is_loaded && (is_text || is_constant);
            let range = if is_mapped {
                start.next_multiple_of(PAGE)..end / PAGE * PAGE
            } else {
                start..end
            };
            let is_debug = is_content && !is_loaded && name.starts_with(b".debug_");
            let is_unread = is_data || is_debug;
            if (is_mapped || is_unread) && !range.is_empty() {
                parts.push(Part { range, is_mapped });
            }
        }
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // SAFETY: our own mapping, to which no reference exists.
        unsafe { libc::munmap(self.memory.cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_the_file_but_for_what_only_debuggers_and_programs_read() {
        let libc = "/lib/x86_64-linux-gnu/libc.so.6";
        let program = std::env::current_exe().unwrap();
        for path in [&program, Path::new(libc)]
            .into_iter()
            .filter(|path| path.exists())
        {
            let (image, bytes) = (read_file(path).unwrap(), fs::read(path).unwrap());
            assert_eq!(image.len(), bytes.len());
            let mut parts = Vec::new();
            let mut whole = Image::new(bytes.len()).unwrap();
            whole.bytes_mut().copy_from_slice(&bytes);
            whole.add_parts(&mut parts);
            assert!(parts.iter().any(|part| part.is_mapped), "{path:?} has text");
            let unread = |at| {
                let mut unread = parts.iter().filter(|part| !part.is_mapped);
                unread.any(|part| part.range.contains(&at))
            };
            let differs = |&at: &usize| image[at] != bytes[at];
            let wrong = (0..bytes.len())
                .filter(differs)
                .find(|&at| !unread(at) || image[at] != 0);
            assert_eq!(wrong, None, "{path:?}");
        }
    }

    #[test]
    fn any_bytes_can_be_read() {
        let path = std::env::temp_dir().join(format!("fgraph-image-{}", std::process::id()));
        let program = fs::read(std::env::current_exe().unwrap()).unwrap();
        let mut lies = program[..1 << 16].to_vec();
        // Tables that are not in the file.
        lies[32..48].fill(0xff);
        for bytes in [
            &b"text"[..],
            &program[..1],
            &program[..64],
            &program[..100],
            &lies,
        ] {
            fs::write(&path, bytes).unwrap();
            assert_eq!(read_file(&path).unwrap(), bytes);
        }
        fs::remove_file(&path).unwrap();
    }
}
