//! What may be done with the memory of the process, as it is now.
//!
//! A program header says how a segment was mapped at the start. A program may change that with
//! `mprotect`, and then the text that fgraph is about to change is perhaps being written by the
//! program, or cannot be read. `/proc/self/maps` knows.
//!
//! # Safety
//!
//! The unsafe code is one system call, to which a live local is handed.

use core::ops::Range;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::os::PAGE;

/// What may be done with some memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Protection {
    /// Whether it can be read.
    pub(crate) readable: bool,
    /// Whether it can be written to.
    pub(crate) writable: bool,
    /// Whether it can be executed.
    pub(crate) executable: bool,
}

impl Protection {
    /// That of the memory at an address, `None` if there is none.
    ///
    /// # Errors
    ///
    /// In a process that cannot see `/proc`, or with a kernel before 6.11, which says it of all
    /// memory at once only.
    pub(crate) fn at(address: usize) -> io::Result<Option<Self>> {
        /// What `PROCMAP_QUERY` takes and gives.
        #[repr(C)]
        #[derive(Default)]
        struct Query {
            size: u64,
            flags: u64,
            address: u64,
            range: [u64; 2],
            rights: u64,
            rest: [u64; 7],
        }
        const PROCMAP_QUERY: libc::Ioctl = 0xc068_6611_u32 as libc::Ioctl;
        let maps = File::open("/proc/thread-self/maps")?;
        let mut query = Query {
            size: size_of::<Query>() as u64,
            address: address as u64,
            ..Query::default()
        };
        // SAFETY: the kernel writes to no more of the local than the size says.
        if unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut query) } == 0 {
            return Ok(Some(Self {
                readable: query.rights & 1 != 0,
                writable: query.rights & 2 != 0,
                executable: query.rights & 4 != 0,
            }));
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ENOENT) => Ok(None),
            _ => Err(error),
        }
    }
}

/// The protection of all of the memory of the process at one time.
#[derive(Debug, Default)]
pub(crate) struct Protections {
    /// The ranges, in order and apart from each other.
    ranges: Vec<(Range<usize>, Protection)>,
}

impl Protections {
    /// Those of now. In a process that cannot see `/proc` it is only what the program headers of
    /// `as_loaded` say.
    #[must_use]
    pub(crate) fn now(as_loaded: impl Iterator<Item = (Range<usize>, u32)>) -> Self {
        let this = Self::parse(&Maps::now().0);
        if this.ranges.is_empty() {
            Self::as_loaded(as_loaded)
        } else {
            this
        }
    }

    fn parse(maps: &[u8]) -> Self {
        let lines = maps.split(|&byte| byte == b'\n');
        Self {
            ranges: lines.filter_map(mapping).collect(),
        }
    }

    pub(crate) fn as_loaded(segments: impl Iterator<Item = (Range<usize>, u32)>) -> Self {
        let mut ranges: Vec<_> = segments
            .map(|(range, flags)| {
                let start = range.start / PAGE * PAGE;
                let protection = Protection {
                    readable: flags & libc::PF_R != 0,
                    writable: flags & libc::PF_W != 0,
                    executable: flags & libc::PF_X != 0,
                };
                (start..range.end.next_multiple_of(PAGE), protection)
            })
            .collect();
        ranges.sort_unstable_by_key(|(range, _)| range.start);
        Self { ranges }
    }

    /// The protection of the memory at an address, `None` if there is none.
    #[must_use]
    pub(crate) fn of(&self, address: usize) -> Option<Protection> {
        let next = self
            .ranges
            .partition_point(|(range, _)| range.start <= address);
        let (range, protection) = self.ranges.get(next.checked_sub(1)?)?;
        range.contains(&address).then_some(*protection)
    }
}

/// A file, by its device as in `/proc/self/maps`, and its number there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    device: Box<[u8]>,
    pub(crate) inode: u64,
}

/// What `/proc/self/maps` said at one time; nothing in a process that cannot see `/proc`.
#[derive(Debug)]
pub(crate) struct Maps(Vec<u8>);

impl Maps {
    pub(crate) fn now() -> Self {
        Self(fs::read("/proc/thread-self/maps").unwrap_or_default())
    }

    /// The line of the mapping at `address`.
    fn line_at(&self, address: usize) -> Option<&[u8]> {
        let mut lines = self.0.split(|&byte| byte == b'\n');
        lines.find(|line| mapping(line).is_some_and(|(range, _)| range.contains(&address)))
    }

    /// The file that is mapped at `address`.
    pub(crate) fn file_at(&self, address: usize) -> Option<FileId> {
        // Range, rights, offset, device, inode.
        let mut words = self.line_at(address)?.split(|&byte| byte == b' ').skip(3);
        let device = words.next()?.into();
        let inode = str::from_utf8(words.next()?).ok()?.parse().ok()?;
        Some(FileId { device, inode })
    }
}

/// A part of a file that is mapped to be executed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MappedText {
    range: Range<usize>,
    /// Where in the file `range` starts.
    offset: usize,
    path: PathBuf,
}

impl MappedText {
    /// All of the process, in order; none in a process that cannot see `/proc`.
    pub(crate) fn all() -> Vec<Self> {
        let Maps(maps) = Maps::now();
        let lines = maps.split(|&byte| byte == b'\n');
        lines.filter_map(Self::of).collect()
    }

    fn of(line: &[u8]) -> Option<Self> {
        let (range, protection) = mapping(line)?;
        // Range, rights, offset, device, inode, and the path behind blanks.
        let mut words = line.splitn(6, |&byte| byte == b' ');
        let offset = str::from_utf8(words.nth(2)?).ok()?;
        let path = words.nth(2)?.trim_ascii_start();
        let is_file = path.starts_with(b"/") && !path.ends_with(b" (deleted)");
        let of_path = || Self {
            range,
            offset: usize::from_str_radix(offset, 16).unwrap_or(0),
            path: PathBuf::from(OsStr::from_bytes(path)),
        };
        (protection.executable && is_file).then(of_path)
    }

    /// The path of the file that is mapped at an address, and where in it that is.
    pub(crate) fn place(all: &[Self], address: usize) -> Option<(&Path, usize)> {
        let next = all.partition_point(|text| text.range.start <= address);
        let text = all.get(next.checked_sub(1)?)?;
        let offset = text.offset + (address - text.range.start);
        (address < text.range.end).then_some((&text.path, offset))
    }
}

/// Whether the file that is mapped at `address` is no longer there by its name: removed, or
/// replaced by another one. `false` in a process that cannot see `/proc`.
pub(crate) fn is_deleted(address: usize) -> bool {
    let maps = Maps::now();
    let line = maps.line_at(address);
    line.is_some_and(|line| line.ends_with(b" (deleted)"))
}

/// What a line of `/proc/self/maps` says: `55d0a000-55d0b000 r-xp ...`.
fn mapping(line: &[u8]) -> Option<(Range<usize>, Protection)> {
    let mut words = line.split(|&byte| byte == b' ');
    let range = str::from_utf8(words.next()?).ok()?;
    let (start, end) = range.split_once('-')?;
    let [start, end] = [start, end].map(|hex| usize::from_str_radix(hex, 16));
    let [read, write, execute, _] = *words.next()?.first_chunk()?;
    let protection = Protection {
        readable: read == b'r',
        writable: write == b'w',
        executable: execute == b'x',
    };
    Some((start.ok()?..end.ok()?, protection))
}

#[cfg(test)]
mod tests {
    use fgraph_needs::skip;

    use super::*;

    const TEXT: Protection = Protection {
        readable: true,
        writable: false,
        executable: true,
    };

    #[test]
    fn a_line_of_the_maps_says_range_and_rights() {
        let maps = b"1000-3000 r-xp 00000000 fe:01 12 /a b\n\
            3000-4000 rw-p 0 0:0 0\n\
            8000-9000 --xp 0 0:0 0 /\xff\n";
        let this = Protections::parse(maps);
        assert_eq!(this.of(0xfff), None);
        assert_eq!(this.of(0x1000), Some(TEXT));
        assert_eq!(this.of(0x2fff), Some(TEXT));
        assert!(this.of(0x3000).unwrap().writable);
        assert_eq!(this.of(0x4000), None);
        assert!(!this.of(0x8000).unwrap().readable);
        assert_eq!(this.of(usize::MAX), None);
    }

    #[test]
    fn a_line_of_the_maps_says_which_file_is_there() {
        let maps = Maps(b"1000-3000 r-xp 00000000 fe:01 12 /a b\n3000-4000 rw-p 0 0:0 0\n".into());
        let id = maps.file_at(0x2000).unwrap();
        assert_eq!((&*id.device, id.inode), (&b"fe:01"[..], 12));
        assert_eq!(maps.file_at(0x3000).unwrap().inode, 0);
        assert_eq!(maps.file_at(0x4000), None);
    }

    #[test]
    fn a_line_of_the_maps_says_where_text_is_in_its_file() {
        let of = |line: &str| MappedText::of(line.as_bytes());
        let text = of("1000-3000 r-xp 00005000 fe:01 12    /a b").unwrap();
        for other in [
            "3000-4000 rw-p 0 fe:01 12 /a b",
            "3000-4000 r-xp 0 0:0 0",
            "3000-4000 r-xp 0 0:0 0   [vdso]",
            "3000-4000 r-xp 0 fe:01 12   /a (deleted)",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
        let all = [text];
        assert_eq!(MappedText::place(&all, 0xfff), None);
        assert_eq!(
            MappedText::place(&all, 0x2010),
            Some((Path::new("/a b"), 0x6010))
        );
        assert_eq!(MappedText::place(&all, 0x3000), None);
    }

    #[test]
    fn other_lines_say_nothing() {
        for line in [
            "",
            " ",
            "1000",
            "1000-",
            "1000-2000",
            "1-2 r",
            "x-y r-xp",
            "-1-2 r-xp",
        ] {
            assert_eq!(mapping(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn memory_is_protected_as_it_is_now() {
        // SAFETY: new memory of this test's own.
        unsafe {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let page = libc::mmap(std::ptr::null_mut(), PAGE, rights, flags, -1, 0);
            assert_ne!(page, libc::MAP_FAILED);
            let of_address = |address| {
                let protection = Protections::now(core::iter::empty()).of(address);
                match Protection::at(address) {
                    Ok(at) => assert_eq!(at, protection),
                    Err(error) => skip!("the protection at an address: {error}"),
                }
                protection
            };
            let of = || of_address(page.addr());
            assert!(of().unwrap().writable);
            libc::mprotect(page, PAGE, libc::PROT_READ);
            assert!(!of().unwrap().writable);
            libc::munmap(page, PAGE);
            assert_eq!(of_address(1), None);
        }
    }
}
