//! Core files: the memory of a process and the state of its threads, as the kernel writes them when
//! a signal ends the process, and as `gcore` of gdb writes them.
//!
//! A core file may be larger than the memory of this machine, so only its headers and notes are
//! kept. Nothing in it is trusted. A file that was cut off has what is left of it.

use core::error::Error;
use core::fmt::{self, Display, Formatter};
use core::ops::Range;
use std::io::{self, Read, Seek, SeekFrom};

use object::elf;

/// Bytes of a file header, a program header and a section header.
const HEADER: usize = 64;
const SEGMENT: usize = 56;
const SECTION: usize = 64;
/// Bytes of the head of a note.
const NOTE: usize = 12;
/// The most bytes of notes that are read. The kernel writes a few kilobytes for each thread, and up
/// to 4 MiB for mapped files.
const MAX_NOTES: u64 = 256 << 20;
/// Bytes of notes that are in memory at a time.
const NOTES_AT_ONCE: u64 = 32 << 20;
/// The most bytes of the list of mapped files that are read: 16 MiB are the most that an
/// administrator can allow.
const MAX_FILES: usize = 16 << 20;
/// The most segments that are read; a process has at most 65,530 mappings unless its administrator
/// allows more.
const MAX_SEGMENTS: usize = 1 << 22;

/// A core file of a process on x86-64.
#[derive(Debug)]
pub struct CoreFile<R> {
    file: R,
    /// By address.
    segments: Vec<Segment>,
    threads: Vec<CoreThread>,
    files: Vec<MappedFile>,
    process: Option<CoreProcess>,
    signal: Option<CoreSignal>,
    program_headers: Option<u64>,
    missing: u64,
}

/// Memory with its place in the file.
#[derive(Clone, Debug)]
struct Segment {
    /// The addresses whose content is in the file.
    addresses: Range<u64>,
    offset: u64,
}

/// A thread in a core file. The first one is the one that the signal ended, or that was selected
/// in gdb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CoreThread {
    /// Its id.
    pub id: u32,
    /// The signal that ended the process, or 0.
    pub signal: u16,
    /// The address of its next instruction.
    pub instruction: u64,
    /// Its stack pointer.
    pub stack: u64,
}

/// A part of a file that was mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MappedFile {
    /// Its addresses.
    pub addresses: Range<u64>,
    /// Offset of its first byte in the file.
    pub offset: u64,
    /// The path of the file, with ` (deleted)` after it if the file no longer had it.
    pub path: Vec<u8>,
}

/// The process of a core file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CoreProcess {
    /// Its id.
    pub id: u32,
    /// Its command line. The kernel keeps 80 bytes of it.
    pub command: String,
}

/// The signal that ended the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CoreSignal {
    /// Its number.
    pub number: u32,
    /// The address that the process could not access, if that is the reason.
    pub address: Option<u64>,
}

/// The reason why a file cannot be read as a core file.
#[derive(Debug)]
#[non_exhaustive]
pub enum CoreError {
    /// It is no ELF file.
    NotElf,
    /// It is compressed by this program.
    Compressed(&'static str),
    /// It is an ELF file of another kind, such as a program.
    NotCore,
    /// It is the core file of a process of 32 bits.
    Narrow,
    /// It is the core file of a process on another architecture, with this machine number.
    OtherMachine(u16),
    /// It was cut off within its headers.
    Cut,
    /// It cannot be read.
    Io(io::Error),
}

impl Display for CoreError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotElf => f.write_str("not a core file"),
            Self::Compressed(program) => {
                write!(
                    f,
                    "not a core file: it is compressed, unpack it with `{program}`"
                )
            }
            Self::NotCore => f.write_str("an ELF file, but not a core file"),
            Self::Narrow => f.write_str("the core file of a process of 32 bits"),
            Self::OtherMachine(machine) => write!(
                f,
                "the core file of a process on another architecture: machine number {machine}"
            ),
            Self::Cut => f.write_str("a core file that was cut off within its headers"),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl Error for CoreError {}

impl From<io::Error> for CoreError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Cut,
            _ => Self::Io(error),
        }
    }
}

/// Returns the number at an offset; `None` if the bytes end before.
fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    number(bytes, at).map(u16::from_le_bytes)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    number(bytes, at).map(u32::from_le_bytes)
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    number(bytes, at).map(u64::from_le_bytes)
}

/// Returns the text up to its first zero.
fn text(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == 0).next().unwrap_or(bytes)
}

impl<R: Read + Seek> CoreFile<R> {
    /// Reads the headers and notes of a core file.
    ///
    /// # Errors
    ///
    /// Fails if the file is no core file of a process on x86-64, or its headers cannot be read.
    pub fn read(mut file: R) -> Result<Self, CoreError> {
        let len = file.seek(SeekFrom::End(0))?;
        let mut header = Vec::new();
        file.seek(SeekFrom::Start(0))?;
        file.by_ref().take(HEADER as u64).read_to_end(&mut header)?;
        check(&header)?;
        let field = |at| half(&header, at).ok_or(CoreError::Cut);
        let (segments_at, count) = (long(&header, 32).ok_or(CoreError::Cut)?, field(56)?);
        let mut this = Self {
            file,
            segments: Vec::new(),
            threads: Vec::new(),
            files: Vec::new(),
            process: None,
            signal: None,
            program_headers: None,
            missing: 0,
        };
        let mut count = usize::from(count);
        if count == usize::from(elf::PN_XNUM) {
            let sections_at = long(&header, 40).ok_or(CoreError::Cut)?;
            let section = this.bytes(sections_at, SECTION)?;
            // Where the header has no room for it, the first section has the number.
            count = word(&section, 44).ok_or(CoreError::Cut)? as usize;
        }
        let segments = this.bytes(segments_at, count.min(MAX_SEGMENTS) * SEGMENT)?;
        let mut notes = MAX_NOTES;
        for segment in segments.chunks_exact(SEGMENT) {
            let kind = word(segment, 0).unwrap_or(0);
            let [offset, address, in_file] = [8, 16, 32].map(|at| long(segment, at).unwrap_or(0));
            let is_load = kind == elf::PT_LOAD.0;
            let is_notes = kind == elf::PT_NOTE.0;
            let known = len.saturating_sub(offset).min(in_file);
            if is_load || is_notes {
                this.missing = this.missing.saturating_add(in_file - known);
            }
            if is_load && known > 0 {
                let addresses = address..address.saturating_add(known);
                this.segments.push(Segment { addresses, offset });
            }
            if is_notes {
                let known = known.min(notes);
                notes -= known;
                this.read_notes(offset, known)?;
            }
        }
        this.remove_shared();
        this.segments.sort_by_key(|segment| segment.addresses.start);
        Ok(this)
    }

    /// Removes memory whose bytes in the file are those of other memory as well: a small file would
    /// have memory without end. No process has such a core file.
    fn remove_shared(&mut self) {
        self.segments.sort_by_key(|segment| segment.offset);
        let mut end = 0;
        self.segments.retain(|segment| {
            let len = segment.addresses.end - segment.addresses.start;
            let is_own = segment.offset >= end;
            match is_own {
                true => end = segment.offset.saturating_add(len),
                false => self.missing = self.missing.saturating_add(len),
            }
            is_own
        });
    }

    /// Reads notes, some at a time: a file may have long ones without having the bytes on its disk.
    fn read_notes(&mut self, mut at: u64, mut left: u64) -> Result<(), CoreError> {
        while left > 0 {
            let bytes = self.bytes(at, left.min(NOTES_AT_ONCE) as usize)?;
            let taken = self.take_notes(&bytes) as u64;
            // The rest is half a note, or one that is too long.
            if taken == 0 || bytes.len() as u64 == left {
                break;
            }
            at += taken;
            left -= taken;
        }
        Ok(())
    }

    /// Reads bytes of the file.
    fn bytes(&mut self, at: u64, len: usize) -> Result<Vec<u8>, CoreError> {
        self.file.seek(SeekFrom::Start(at))?;
        let mut bytes = Vec::new();
        self.file
            .by_ref()
            .take(len as u64)
            .read_to_end(&mut bytes)?;
        match bytes.len() == len {
            true => Ok(bytes),
            false => Err(CoreError::Cut),
        }
    }

    /// Reads memory of the process, and returns the number of bytes from `address` on that the file
    /// has, at most as many as `to`.
    ///
    /// # Errors
    ///
    /// Fails with an error of the file.
    pub fn memory(&mut self, address: u64, to: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < to.len() {
            let Some(at) = address.checked_add(done as u64) else {
                break;
            };
            let after = self.segments.partition_point(|it| it.addresses.start <= at);
            let segment = after
                .checked_sub(1)
                .and_then(|index| self.segments.get(index));
            let Some(segment) = segment.filter(|it| it.addresses.contains(&at)) else {
                break;
            };
            let rest = (segment.addresses.end - at).min((to.len() - done) as u64) as usize;
            let place = segment.offset.checked_add(at - segment.addresses.start);
            self.file.seek(SeekFrom::Start(place.unwrap_or(u64::MAX)))?;
            self.file.read_exact(&mut to[done..done + rest])?;
            done += rest;
        }
        Ok(done)
    }

    /// Returns the build id of the file that is mapped at `address` with its first byte; `None` if
    /// it has none, or the core file does not have its headers.
    pub fn build_id(&mut self, address: u64) -> Option<Vec<u8>> {
        let mut page = vec![0; 4096];
        let len = self.memory(address, &mut page).ok()?;
        let page = &page[..len];
        page.starts_with(&elf::ELFMAG).then_some(())?;
        let (segments_at, count) = (long(page, 32)? as usize, half(page, 56)?);
        let segments = page.get(segments_at..)?.chunks_exact(SEGMENT);
        let segments = segments.take(count.into());
        let fields = |segment: &[u8]| {
            let [at, len] = [16, 32].map(|at| long(segment, at).unwrap_or(0));
            (word(segment, 0) == Some(elf::PT_NOTE.0)).then_some((at, len))
        };
        let first = segments.clone().find_map(|segment| {
            let is_load = word(segment, 0) == Some(elf::PT_LOAD.0);
            is_load.then(|| long(segment, 16)).flatten()
        });
        let base = address.wrapping_sub(first? & !0xfff);
        let notes: Vec<(u64, u64)> = segments.filter_map(fields).collect();
        let mut left = 1 << 16;
        for (at, len) in notes {
            let mut bytes = vec![0; len.min(left) as usize];
            left -= bytes.len() as u64;
            let known = self.memory(base.wrapping_add(at), &mut bytes).ok()?;
            let mut notes = &bytes[..known];
            let id = std::iter::from_fn(|| next_note(&mut notes))
                .find(|(name, kind, _)| *name == b"GNU" && *kind == elf::NT_GNU_BUILD_ID.0);
            if let Some((_, _, id)) = id {
                return Some(id.to_vec());
            }
        }
        None
    }
}

impl<R> CoreFile<R> {
    /// Returns the threads, at least those whose state is in the file.
    #[must_use]
    pub fn threads(&self) -> &[CoreThread] {
        &self.threads
    }

    /// Returns the parts of files that were mapped, including memory that processes share.
    #[must_use]
    pub fn files(&self) -> &[MappedFile] {
        &self.files
    }

    /// Returns the process.
    #[must_use]
    pub fn process(&self) -> Option<&CoreProcess> {
        self.process.as_ref()
    }

    /// Returns the signal that ended the process.
    #[must_use]
    pub fn signal(&self) -> Option<CoreSignal> {
        self.signal
    }

    /// Returns the number of bytes that the headers announce and the file does not have.
    #[must_use]
    pub fn missing(&self) -> u64 {
        self.missing
    }

    /// Returns the path of the program.
    #[must_use]
    pub fn program(&self) -> Option<&MappedFile> {
        let headers = self.program_headers?;
        self.files
            .iter()
            .find(|file| file.addresses.contains(&headers))
    }

    /// Takes the whole notes, and returns the number of their bytes.
    fn take_notes(&mut self, bytes: &[u8]) -> usize {
        let mut left = bytes;
        for (name, kind, content) in std::iter::from_fn(|| next_note(&mut left)) {
            if name != b"CORE" {
                continue;
            }
            match elf::NoteType(kind) {
                elf::NT_PRSTATUS => self.threads.extend(thread(content)),
                elf::NT_PRPSINFO if self.process.is_none() => self.process = process(content),
                elf::NT_SIGINFO if self.signal.is_none() => self.signal = signal(content),
                elf::NT_AUXV => self.program_headers = program_headers(content),
                elf::NT_FILE => self.files = files(content).unwrap_or_default(),
                _ => {}
            }
        }
        bytes.len() - left.len()
    }
}

/// Fails if a file with this head is no core file of a process on x86-64.
fn check(head: &[u8]) -> Result<(), CoreError> {
    const PACKED: [(&[u8], &str); 4] = [
        (b"\x28\xb5\x2f\xfd", "zstd -d"),
        (b"\xfd7zXZ", "xz -d"),
        (b"\x04\x22\x4d\x18", "lz4 -d"),
        (b"\x1f\x8b", "gzip -d"),
    ];
    if let Some((_, program)) = PACKED.iter().find(|(start, _)| head.starts_with(start)) {
        return Err(CoreError::Compressed(program));
    }
    if !head.starts_with(&elf::ELFMAG) {
        return Err(CoreError::NotElf);
    }
    let [kind, machine] = [16, 18].map(|at| half(head, at));
    let (Some(kind), Some(machine)) = (kind, machine) else {
        return Err(CoreError::Cut);
    };
    let is_little = head.get(5) == Some(&elf::ELFDATA2LSB.0);
    if is_little && kind != elf::ET_CORE.0 {
        return Err(CoreError::NotCore);
    }
    if head.get(4) == Some(&elf::ELFCLASS32.0) {
        return Err(CoreError::Narrow);
    }
    match is_little && machine == elf::EM_X86_64.0 {
        true if head.len() < HEADER => Err(CoreError::Cut),
        true => Ok(()),
        false if is_little => Err(CoreError::OtherMachine(machine)),
        false => Err(CoreError::OtherMachine(machine.swap_bytes())),
    }
}

/// A note: name, kind and content.
type Note<'a> = (&'a [u8], u32, &'a [u8]);

/// Takes the next note off its bytes.
fn next_note<'a>(bytes: &mut &'a [u8]) -> Option<Note<'a>> {
    let [name, content, kind] = [0, 4, 8].map(|at| word(bytes, at));
    let (name, content) = (name? as usize, content? as usize);
    let start = NOTE.checked_add(name)?.checked_next_multiple_of(4)?;
    let end = start.checked_add(content)?;
    let note = (
        text(bytes.get(NOTE..NOTE + name)?),
        kind?,
        bytes.get(start..end)?,
    );
    // Some writers do not pad the last one.
    *bytes = bytes.get(end.checked_next_multiple_of(4)?..).unwrap_or(&[]);
    Some(note)
}

/// Reads `struct elf_prstatus`.
fn thread(content: &[u8]) -> Option<CoreThread> {
    Some(CoreThread {
        id: word(content, 32)?,
        signal: half(content, 12)?,
        instruction: long(content, 112 + 16 * 8)?,
        stack: long(content, 112 + 19 * 8)?,
    })
}

/// Reads `struct elf_prpsinfo`.
fn process(content: &[u8]) -> Option<CoreProcess> {
    let command = text(content.get(56..136)?);
    Some(CoreProcess {
        id: word(content, 24)?,
        command: String::from_utf8_lossy(command).trim_end().to_owned(),
    })
}

/// Reads `siginfo_t`.
fn signal(content: &[u8]) -> Option<CoreSignal> {
    /// SIGILL, SIGTRAP, SIGBUS, SIGFPE and SIGSEGV.
    const FAULTS: [u32; 5] = [4, 5, 7, 8, 11];
    let (number, code) = (word(content, 0)?, word(content, 8)? as i32);
    // Positive codes are the kernel's.
    let is_fault = FAULTS.contains(&number) && code > 0 && code != 0x80;
    let address = is_fault.then(|| long(content, 16)).flatten();
    Some(CoreSignal { number, address })
}

/// Returns the address of the program's headers from the auxiliary vector.
fn program_headers(content: &[u8]) -> Option<u64> {
    const AT_PHDR: u64 = 3;
    let mut pairs = content.chunks_exact(16);
    let pair = pairs.find(|pair| long(pair, 0) == Some(AT_PHDR))?;
    long(pair, 8)
}

/// Reads the list of mapped files: numbers first, then all paths. Files are left out whose
/// addresses another one has as well.
fn files(content: &[u8]) -> Option<Vec<MappedFile>> {
    (content.len() <= MAX_FILES).then_some(())?;
    let (count, page) = (long(content, 0)?, long(content, 8)?);
    let count = usize::try_from(count).ok()?;
    let numbers = content.get(16..16_usize.checked_add(count.checked_mul(24)?)?)?;
    let paths = content.get(16 + numbers.len()..)?.split(|&byte| byte == 0);
    let files = numbers.chunks_exact(24).zip(paths);
    let file = |(numbers, path): (&[u8], &[u8])| {
        let [start, end, offset] = [0, 8, 16].map(|at| long(numbers, at));
        Some(MappedFile {
            addresses: start?..end?,
            offset: offset?.checked_mul(page)?,
            path: path.to_vec(),
        })
    };
    let mut files: Vec<_> = files.map(file).collect::<Option<_>>()?;
    files.sort_by_key(|file: &MappedFile| file.addresses.start);
    let mut end = 0;
    files.retain(|file| {
        let is_own = file.addresses.start >= end && file.addresses.start < file.addresses.end;
        end = end.max(file.addresses.end);
        is_own
    });
    Some(files)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// Appends a note.
    fn note(notes: &mut Vec<u8>, name: &[u8], kind: u32, content: &[u8]) {
        for number in [name.len() as u32, content.len() as u32, kind] {
            notes.extend(number.to_le_bytes());
        }
        for bytes in [name, content] {
            notes.extend(bytes);
            notes.resize(notes.len().next_multiple_of(4), 0);
        }
    }

    fn longs(numbers: &[u64]) -> Vec<u8> {
        numbers.iter().flat_map(|it| it.to_le_bytes()).collect()
    }

    /// The notes of a process with one thread, which has mapped one file.
    fn notes() -> Vec<u8> {
        let mut notes = Vec::new();
        let mut status = vec![0; 336];
        status[12] = 11;
        status[32] = 77;
        status[240..248].copy_from_slice(&longs(&[0x1234]));
        status[264..272].copy_from_slice(&longs(&[0x7fff]));
        note(&mut notes, b"CORE\0", elf::NT_PRSTATUS.0, &status);
        let mut info = vec![0; 136];
        info[24] = 76;
        info[56..65].copy_from_slice(b"./a b c \0");
        note(&mut notes, b"CORE\0", elf::NT_PRPSINFO.0, &info);
        let mut signal = vec![0; 128];
        (signal[0], signal[8], signal[16]) = (11, 1, 12);
        note(&mut notes, b"CORE\0", elf::NT_SIGINFO.0, &signal);
        let vector = longs(&[6, 4096, 3, 0x5040, 0, 0]);
        note(&mut notes, b"CORE\0", elf::NT_AUXV.0, &vector);
        let mut files = longs(&[1, 4096, 0x5000, 0x7000, 0]);
        files.extend(b"/usr/bin/a\0");
        note(&mut notes, b"CORE\0", elf::NT_FILE.0, &files);
        notes
    }

    /// A core file with these notes and parts of memory.
    fn core(notes: &[u8], memory: &[(u64, &[u8])]) -> Vec<u8> {
        let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        for half in [elf::ET_CORE.0, elf::EM_X86_64.0] {
            file.extend(half.to_le_bytes());
        }
        file.extend(1_u32.to_le_bytes());
        file.extend(longs(&[0, 64, 0]));
        file.extend(0_u32.to_le_bytes());
        for half in [64, 56, 1 + memory.len() as u16, 0, 0, 0] {
            file.extend(half.to_le_bytes());
        }
        let mut at = file.len() + (1 + memory.len()) * SEGMENT;
        let mut content: Vec<u8> = Vec::new();
        let notes = (elf::PT_NOTE, 0, notes);
        let memory = memory
            .iter()
            .map(|&(address, it)| (elf::PT_LOAD, address, it));
        for (kind, address, bytes) in [notes].into_iter().chain(memory) {
            file.extend(kind.0.to_le_bytes());
            file.extend(0_u32.to_le_bytes());
            let len = bytes.len() as u64;
            file.extend(longs(&[at as u64, address, 0, len, len, 1]));
            content.extend(bytes);
            at += bytes.len();
        }
        file.extend(content);
        file
    }

    fn read(bytes: &[u8]) -> Result<CoreFile<Cursor<&[u8]>>, CoreError> {
        CoreFile::read(Cursor::new(bytes))
    }

    #[test]
    fn notes_describe_the_process() {
        let file = core(&notes(), &[]);
        let core = read(&file).unwrap();
        let thread = CoreThread {
            id: 77,
            signal: 11,
            instruction: 0x1234,
            stack: 0x7fff,
        };
        assert_eq!(core.threads(), [thread]);
        let process = core.process().unwrap();
        assert_eq!((process.id, process.command.as_str()), (76, "./a b c"));
        let signal = CoreSignal {
            number: 11,
            address: Some(12),
        };
        assert_eq!(core.signal(), Some(signal));
        let program = core.program().unwrap();
        assert_eq!(program.path, b"/usr/bin/a");
        assert_eq!((&program.addresses, program.offset), (&(0x5000..0x7000), 0));
        assert_eq!(core.missing(), 0);
    }

    #[test]
    fn memory_is_read_over_parts_that_follow_each_other() {
        let file = core(&[], &[(0x3000, b"cd"), (0x1000, b"ab"), (0x1002, b"xyz")]);
        let mut core = read(&file).unwrap();
        let mut bytes = [0; 8];
        assert_eq!(core.memory(0x1001, &mut bytes).unwrap(), 4);
        assert_eq!(&bytes[..4], b"bxyz");
        assert_eq!(core.memory(0x3001, &mut bytes).unwrap(), 1);
        assert_eq!(core.memory(0x3002, &mut bytes).unwrap(), 0);
        assert_eq!(core.memory(u64::MAX, &mut bytes).unwrap(), 0);
    }

    #[test]
    fn a_file_that_was_cut_off_has_what_is_left() {
        let file = core(&notes(), &[(0x1000, b"abcdefgh")]);
        let mut cut = read(&file[..file.len() - 3]).unwrap();
        assert_eq!(cut.missing(), 3);
        let mut bytes = [0; 8];
        assert_eq!(cut.memory(0x1000, &mut bytes).unwrap(), 5);
        for len in 0..file.len() {
            match read(&file[..len]) {
                Ok(core) => assert!(core.missing() > 0, "{len} bytes"),
                Err(CoreError::NotElf) => assert!(len < 4),
                Err(CoreError::Cut) => {}
                Err(other) => panic!("{len} bytes: {other:?}"),
            }
        }
    }

    #[test]
    fn no_bytes_do_harm() {
        let file = core(&notes(), &[(0x1000, b"abcdefgh")]);
        for at in 0..file.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut file = file.clone();
                file[at] = value;
                if let Ok(mut core) = read(&file) {
                    let mut bytes = [0; 16];
                    assert!(core.memory(0x1000, &mut bytes).unwrap_or(0) <= 16);
                    core.build_id(0x1000);
                    _ = core.program();
                }
            }
        }
    }

    #[test]
    fn other_files_are_named() {
        let named = |bytes: &[u8]| read(bytes).unwrap_err().to_string();
        assert_eq!(named(b"text"), "not a core file");
        assert!(named(b"\x28\xb5\x2f\xfd").ends_with("unpack it with `zstd -d`"));
        let mut file = core(&[], &[]);
        file[18] = 183;
        assert!(named(&file).ends_with("machine number 183"));
        file[4] = 1;
        assert_eq!(named(&file), "the core file of a process of 32 bits");
        file[16] = 2;
        assert_eq!(named(&file), "an ELF file, but not a core file");
    }

    #[test]
    fn the_build_id_is_read_from_memory() {
        let mut notes = Vec::new();
        note(
            &mut notes,
            b"GNU\0",
            elf::NT_GNU_BUILD_ID.0,
            b"\x01\x02\x03",
        );
        let mut program = core(&notes, &[(0, b"x")]);
        // The notes of a program are at the address of their place in the file.
        let at = program[64 + 8..64 + 16].to_vec();
        program[64 + 16..64 + 24].copy_from_slice(&at);
        let file = core(&[], &[(0x5000, &program)]);
        let mut core = read(&file).unwrap();
        assert_eq!(core.build_id(0x5000).unwrap(), [1, 2, 3]);
        assert_eq!(core.build_id(0x6000), None);
    }
}
