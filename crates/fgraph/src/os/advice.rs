//! The flags that a program has set for a mapping, other than its protection.
//!
//! Advice (`madvise`), locks (`mlock`) and protection keys are flags of the mapping. Only
//! `/proc/self/smaps` shows them. There the kernel counts the pages of each mapping, which takes
//! tens of milliseconds for each gigabyte, and it starts with the lowest address. So the flags of a
//! file's mapping are read from a copy of one of its pages, at the lowest free address:
//!
//! ```text
//!   the mapping    |  ..  | page |      stays, with the same bytes: the page was not changed,
//!                            |          and is read from the file again when a thread needs it
//!                            | mremap(MREMAP_DONTUNMAP), with all flags
//!                            v
//!   smaps          | page | program | heap | ... | libraries
//!                  first row
//! ```
//!
//! # Safety
//!
//! The unsafe code maps memory, and gives advice for mappings of the caller's own.

use core::ops::Range;
use core::ptr;
use std::fs::File;
use std::io::Read as _;

use fgraph_symbols::mapping::Mapping;

use super::{PAGE, memory};

/// The flags that a program has set for a mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Advice {
    /// One bit for each of [`FLAGS`] that is set.
    flags: u8,
    /// The protection key.
    key: u32,
    lock: Lock,
    /// True if it has flags that cannot be given to another mapping.
    has_others: bool,
}

/// The way in which the pages of a mapping are locked into memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Lock {
    #[default]
    None,
    /// All pages are locked.
    Now,
    /// Each page is locked when it is first used.
    OnFault,
}

/// Flags in `smaps`, each with the advice that sets it.
const FLAGS: [(&str, i32); 7] = [
    ("sr", libc::MADV_SEQUENTIAL),
    ("rr", libc::MADV_RANDOM),
    ("dc", libc::MADV_DONTFORK),
    ("dd", libc::MADV_DONTDUMP),
    ("hg", libc::MADV_HUGEPAGE),
    ("nh", libc::MADV_NOHUGEPAGE),
    ("mg", libc::MADV_MERGEABLE),
];

/// The bit of `MADV_DONTDUMP`.
const DONT_DUMP: u8 = {
    assert!(FLAGS[3].1 == libc::MADV_DONTDUMP);
    1 << 3
};

/// Flags in `smaps` of text without advice, and three that make no difference to text: for the
/// accounting of its memory, and for text that may have been written to.
const USUAL: [&str; 8] = ["rd", "ex", "mr", "mw", "me", "ac", "nr", "sd"];

/// Lets core files have the memory in `range`, or not.
pub(crate) fn set_dumped(range: Range<usize>, is_dumped: bool) {
    let start = ptr::without_provenance_mut(range.start);
    let advice = match is_dumped {
        true => libc::MADV_DODUMP,
        false => libc::MADV_DONTDUMP,
    };
    // SAFETY: the advice changes no memory.
    unsafe { libc::madvise(start, range.len(), advice) };
}

impl Advice {
    /// Reads the advice for the mapping at `address` from `smaps`, from its beginning up to there.
    /// Returns `None` if there is no such mapping, or `/proc` is not visible.
    pub(crate) fn at(address: usize) -> Option<Self> {
        Self::read(address, &mut [0; PAGE])
    }

    /// Reads the advice for the file mapping that contains `page`. No byte of the page may differ
    /// from the file, and the process must not have locked memory. Returns `None` if the kernel
    /// refuses it, as kernels before Linux 5.13 do.
    pub(crate) fn of_page(page: usize) -> Option<Self> {
        /// The lowest address that processes without privileges may use on most machines.
        const LOWEST: usize = 0x1_0000;
        /// The number of addresses that are tried.
        const PLACES: usize = 8;
        let mut places = (0..PLACES).map(|place| LOWEST + place * LOWEST);
        let copy = places.find_map(|place| memory::map_at(place, PAGE, libc::PROT_NONE).ok())?;
        let [from, to] = [page, copy].map(ptr::without_provenance_mut);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        // SAFETY: the page stays mapped, to the same file; and `copy` is our own mapping.
        let copied = unsafe { libc::mremap(from, PAGE, PAGE, flags, to) } == to;
        // The row is the first one: the kernel makes only as many as fill the buffer.
        let advice = copied.then(|| Self::read(copy, &mut [0; 256]));
        // SAFETY: the copy was mapped above, and its address is not known elsewhere.
        unsafe { libc::munmap(to, PAGE) };
        advice.flatten()
    }

    fn read(address: usize, buffer: &mut [u8]) -> Option<Self> {
        let mut smaps = File::open("/proc/thread-self/smaps").ok()?;
        let mut row = Row::default();
        let mut unread = Vec::new();
        loop {
            let len = smaps.read(buffer).ok().filter(|&len| len > 0)?;
            unread.extend_from_slice(&buffer[..len]);
            while let Some(end) = unread.iter().position(|&byte| byte == b'\n') {
                if let Some(advice) = row.line(&unread[..end], address) {
                    return Some(advice);
                }
                unread.drain(..=end);
            }
        }
    }

    /// Returns true if all of it can be given to another mapping.
    pub(crate) fn can_be_given(self) -> bool {
        !self.has_others
    }

    /// Returns the same advice for memory that core files have, or not.
    pub(crate) fn dumped(self, is_dumped: bool) -> Self {
        let flags = match is_dumped {
            true => self.flags & !DONT_DUMP,
            false => self.flags | DONT_DUMP,
        };
        Self { flags, ..self }
    }

    /// Returns true if the memory is locked.
    pub(crate) fn is_locked(self) -> bool {
        self.lock != Lock::None
    }

    /// Gives all of it to the text that is mapped in `range`. Returns `None` if the kernel refuses
    /// that, for example because the program may not lock that much memory.
    pub(crate) fn give(self, range: Range<usize>) -> Option<()> {
        let start = ptr::without_provenance_mut(range.start);
        let len = range.len();
        let given = FLAGS.iter().enumerate();
        let mut given = given.filter(|(index, _)| self.flags & 1 << index != 0);
        // SAFETY: the caller's own mapping; no advice in `FLAGS` changes its content.
        let mut is_given =
            given.all(|(_, &(_, advice))| unsafe { libc::madvise(start, len, advice) == 0 });
        if self.key != 0 {
            let rights = libc::PROT_READ | libc::PROT_EXEC;
            // SAFETY: the caller's own mapping, which has these rights.
            is_given &= unsafe {
                libc::syscall(libc::SYS_pkey_mprotect, start, len, rights, self.key) == 0
            };
        }
        let locked = match self.lock {
            Lock::None => 0,
            // SAFETY: `mlock` changes no memory.
            Lock::Now => unsafe { libc::mlock(start, len) },
            // SAFETY: `mlock2` changes no memory.
            Lock::OnFault => unsafe { libc::mlock2(start, len, libc::MLOCK_ONFAULT) },
        };
        (is_given && locked == 0).then_some(())
    }
}

/// The row of `smaps` that is being read.
#[derive(Debug, Default)]
struct Row {
    is_wanted: bool,
    key: u32,
}

impl Row {
    /// Reads a line. Returns the flags of the mapping at `address` when its row ends.
    fn line(&mut self, line: &[u8], address: usize) -> Option<Advice> {
        if let Some(mapping) = Mapping::parse(line) {
            self.is_wanted = mapping.range.contains(&(address as u64));
            self.key = 0;
        }
        if !self.is_wanted {
            return None;
        }
        let (name, rest) = str::from_utf8(line).ok()?.split_once([' ', ':'])?;
        match name {
            "ProtectionKey" => self.key = rest.trim().parse().ok()?,
            "VmFlags" => return Some(Advice::parse(rest, self.key)),
            _ => {}
        }
        None
    }
}

impl Advice {
    fn parse(flags: &str, key: u32) -> Self {
        let mut this = Self {
            key,
            ..Self::default()
        };
        for flag in flags.split_ascii_whitespace() {
            match FLAGS.iter().position(|&(name, _)| name == flag) {
                Some(index) => this.flags |= 1 << index,
                None if flag == "lo" && this.lock == Lock::None => this.lock = Lock::Now,
                None if flag == "lo" => {}
                None if flag == "lf" => this.lock = Lock::OnFault,
                None => this.has_others |= !USUAL.contains(&flag),
            }
        }
        this
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use fgraph_needs::skip;

    use super::*;

    #[test]
    fn a_row_of_smaps_says_which_advice_was_given() {
        let rows = "1000-3000 r-xp 00000000 fe:01 12   /a b: c\n\
            Size:   8 kB\n\
            ProtectionKey:         3\n\
            VmFlags: rd ex mr mw me sr dd lo lf \n\
            3000-4000 r-xp 00000000 fe:01 12   /a\n\
            ProtectionKey:         0\n\
            VmFlags: rd ex mr mw me ac sd lo\n\
            4000-5000 r-xp 00000000 fe:01 12   /a\n\
            VmFlags: rd ex mr mw me um\n";
        let of = |address| {
            let mut row = Row::default();
            let mut lines = rows.lines();
            lines.find_map(|line| row.line(line.as_bytes(), address))
        };
        let first = of(0x2fff).unwrap();
        assert_eq!((first.flags, first.key), (0b1001, 3));
        assert_eq!((first.lock, first.has_others), (Lock::OnFault, false));
        let second = of(0x3000).unwrap();
        assert_eq!((second.flags, second.key), (0, 0));
        assert_eq!((second.lock, second.has_others), (Lock::Now, false));
        assert!(!of(0x4fff).unwrap().can_be_given());
        assert_eq!(of(0x5000), None);
    }

    #[test]
    fn a_page_has_the_advice_of_its_mapping_and_stays() {
        const LEN: usize = 4 * PAGE;
        let file = File::open("/proc/self/exe").unwrap();
        // SAFETY: a new mapping of a file, all of whose first pages are there.
        let text = unsafe {
            let rights = libc::PROT_READ | libc::PROT_EXEC;
            let private = libc::MAP_PRIVATE;
            libc::mmap(ptr::null_mut(), LEN, rights, private, file.as_raw_fd(), 0)
        };
        assert_ne!(text, libc::MAP_FAILED);
        let text = text.expose_provenance();
        let word = || memory::peek(text + 2 * PAGE).unwrap();
        let before = word();
        let Some(none) = Advice::of_page(text + 2 * PAGE) else {
            return skip!("no page can be copied with its flags, or not to a low address");
        };
        assert_eq!(none, Advice::default());
        let mut given = Advice {
            flags: 0b1001,
            ..none
        };
        given.give(text..text + LEN).unwrap();
        for page in [0, 2, 3] {
            assert_eq!(Advice::of_page(text + page * PAGE), Some(given));
        }
        assert_eq!(Advice::at(text), Some(given));
        assert_eq!(word(), before);
        given.lock = Lock::OnFault;
        if given.give(text..text + LEN).is_none() {
            return skip!("memory cannot be locked here");
        }
        assert_eq!(Advice::at(text), Some(given));
        // SAFETY: mapped above.
        unsafe { libc::munmap(ptr::with_exposed_provenance_mut(text), LEN) };
    }
}
