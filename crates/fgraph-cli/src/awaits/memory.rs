//! The memory of a process, and the files that are mapped there.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use fgraph_symbols::demangle;
use fgraph_symbols::elf::ElfFile;
use fgraph_symbols::functions::Functions;
use fgraph_symbols::futures::Memory;
use fgraph_symbols::mapping::Mapping;

/// The size of a page.
pub(super) const PAGE: usize = 4096;
/// The pages that are read at once.
const PAGES: u64 = 256;

/// The memory of a process. Pages are read once, until they are forgotten.
pub(super) struct ProcessMemory {
    file: File,
    /// The list of pages that are there; none if the kernel does not tell.
    pages: Option<File>,
    known: RefCell<HashMap<u64, Option<Box<[u8; PAGE]>>>>,
    /// Contents of modules' files, and the distances from their addresses to those in memory.
    files: Vec<(u64, Vec<u8>)>,
    /// The names of functions that were looked up, by address.
    names: RefCell<HashMap<u64, Option<String>>>,
}

impl ProcessMemory {
    pub(super) fn open(process: u32) -> io::Result<Self> {
        Ok(Self {
            file: File::open(format!("/proc/{process}/mem"))?,
            pages: File::open(format!("/proc/{process}/pagemap")).ok(),
            known: RefCell::default(),
            files: Vec::new(),
            names: RefCell::default(),
        })
    }

    /// Adds the content of a module's file, which names its functions.
    pub(super) fn add(&mut self, bias: u64, file: Vec<u8>) {
        self.files.push((bias, file));
    }

    /// Forgets the pages that were read.
    pub(super) fn forget(&self) {
        self.known.borrow_mut().clear();
    }

    /// Reads memory as it is now, whatever was read before.
    pub(super) fn read_now(&self, address: u64, into: &mut [u8]) -> Option<()> {
        self.file.read_exact_at(into, address).ok()
    }

    pub(super) fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Some(u64::from_le_bytes(bytes))
    }

    /// Passes on all words with their addresses, of the pages that are there: a program may reserve
    /// far more memory than it uses.
    pub(super) fn words(&self, range: Range<u64>, mut with: impl FnMut(u64, u64) -> Option<()>) {
        let step = PAGES * PAGE as u64;
        let mut bytes = vec![0; step as usize];
        let mut start = range.start;
        while start < range.end {
            let end = range.end.min(start.saturating_add(step));
            for (first, last) in self.present(start..end) {
                let len = usize::try_from(last - first).unwrap_or(0);
                let part = &mut bytes[..len];
                if self.file.read_exact_at(part, first).is_err() {
                    continue;
                }
                for (at, word) in (first..).step_by(8).zip(part.as_chunks().0) {
                    let word = u64::from_le_bytes(*word);
                    if word != 0 {
                        with(at, word);
                    }
                }
            }
            start = end;
        }
    }

    /// Returns the parts of a range that are there.
    fn present(&self, range: Range<u64>) -> Vec<(u64, u64)> {
        const ENTRY: u64 = 8;
        /// In memory, or swapped out.
        const PRESENT: u64 = 3 << 62;
        let page = PAGE as u64;
        let count = (range.end - range.start) / page;
        let mut entries = vec![0; (count * ENTRY) as usize];
        let at = range.start / page * ENTRY;
        let read = self.pages.as_ref();
        let read = read.is_some_and(|pages| pages.read_exact_at(&mut entries, at).is_ok());
        if !read {
            return vec![(range.start, range.end)];
        }
        let mut found: Vec<(u64, u64)> = Vec::new();
        for (nth, entry) in (0..).zip(entries.as_chunks().0) {
            if u64::from_le_bytes(*entry) & PRESENT == 0 {
                continue;
            }
            let start = range.start + nth * page;
            match found.last_mut() {
                Some((_, end)) if *end == start => *end += page,
                _ => found.push((start, start + page)),
            }
        }
        found
    }
}

impl Memory for ProcessMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> Option<()> {
        let mut known = self.known.borrow_mut();
        let (mut at, mut rest) = (address, into);
        while !rest.is_empty() {
            let page = at - at % PAGE as u64;
            let bytes = known.entry(page).or_insert_with(|| {
                let mut bytes = Box::new([0; PAGE]);
                let read = self.file.read_exact_at(&mut *bytes, page);
                read.is_ok().then_some(bytes)
            });
            let from = usize::try_from(at - page).ok()?;
            let part = &bytes.as_ref()?[from..];
            let len = part.len().min(rest.len());
            let (filled, more) = rest.split_at_mut(len);
            filled.copy_from_slice(&part[..len]);
            (at, rest) = (at.checked_add(len as u64)?, more);
        }
        Some(())
    }

    fn function(&self, address: u64) -> Option<String> {
        let mut names = self.names.borrow_mut();
        let known = names.entry(address);
        let find = |(bias, file): &(u64, Vec<u8>)| {
            let elf = ElfFile::parse(file).ok()?;
            let functions = Functions::read(&elf, None).ok()?;
            let index = functions.index_at(address.checked_sub(*bias)?)?;
            let name = functions.names(index).next()?;
            Some(demangle::to_string(name.symbol))
        };
        let name = known.or_insert_with(|| self.files.iter().find_map(find));
        name.clone()
    }
}

/// Returns the starts of the mappings with the stacks of threads, as far as they are known: a
/// thread that runs does not tell.
pub(super) fn stacks(process: u32, maps: &[Mapping<'_>]) -> Vec<u64> {
    let threads = fs::read_dir(format!("/proc/{process}/task"));
    let pointers = threads.into_iter().flatten().filter_map(|thread| {
        let call = fs::read_to_string(thread.ok()?.path().join("syscall")).ok()?;
        // The last two words are the stack pointer, and the address of the code.
        let pointer = call.split_whitespace().rev().nth(1)?;
        u64::from_str_radix(pointer.strip_prefix("0x")?, 16).ok()
    });
    let starts = pointers.filter_map(|pointer| {
        let found = maps.iter().find(|it| it.range.contains(&pointer));
        Some(found?.range.start)
    });
    starts.collect()
}

/// Returns the mapping with the beginning of a mapping's file. Parts of it may be mapped elsewhere,
/// as those of a traced program.
pub(super) fn begin_of<'m>(maps: &'m [Mapping<'m>], of: &'m Mapping<'m>) -> &'m Mapping<'m> {
    let same = maps.iter().filter(|it| it.path == of.path);
    same.min_by_key(|it| it.offset).unwrap_or(of)
}

/// Returns the path of a file of the process, as this process can open it.
pub(super) fn file_of(process: u32, path: &[u8]) -> PathBuf {
    let program = format!("/proc/{process}/exe");
    match fs::read_link(&program) {
        Ok(known) if known.as_os_str().as_encoded_bytes() == path => program.into(),
        _ => {
            let path = String::from_utf8_lossy(path);
            format!("/proc/{process}/root{path}").into()
        }
    }
}
