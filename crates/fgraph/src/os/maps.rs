//! The current protection of the process's memory.
//!
//! A program header has the protection with which a segment was mapped. A program may change that
//! with `mprotect`; then the program may be writing the text that fgraph is about to change, or the
//! text may be unreadable. `/proc/self/maps` has the current protection.
//!
//! # Safety
//!
//! The unsafe code is one system call, which gets a live local.

use core::ops::Range;
use std::ffi::{CStr, OsStr};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::os::PAGE;

/// `PROCMAP_QUERY`: the kernel's query for one mapping, since Linux 6.11.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    range: [u64; 2],
    rights: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    /// Major and minor number.
    device: [u32; 2],
    name_len: u32,
    build_id_len: u32,
    name: u64,
    build_id: u64,
}

impl Query {
    /// Queries the mapping at `address`. `name` gets its name, followed by a zero.
    fn of(maps: &File, address: usize, name: &mut [u8]) -> io::Result<Self> {
        Self::with(maps, address, 0, name)
    }

    /// Queries the mapping at `address`, or the next one after it if there is none.
    fn from(maps: &File, address: usize) -> io::Result<Self> {
        /// `PROCMAP_QUERY_COVERING_OR_NEXT_VMA`
        const OR_NEXT: u64 = 0x10;
        Self::with(maps, address, OR_NEXT, &mut [])
    }

    fn with(maps: &File, address: usize, flags: u64, name: &mut [u8]) -> io::Result<Self> {
        const PROCMAP_QUERY: libc::Ioctl = 0xc068_6611_u32 as libc::Ioctl;
        let mut query = Self {
            size: size_of::<Self>() as u64,
            flags,
            address: address as u64,
            name_len: name.len() as u32,
            name: if name.is_empty() {
                0
            } else {
                name.as_mut_ptr().expose_provenance() as u64
            },
            ..Self::default()
        };
        // SAFETY: the kernel writes at most as many bytes to the local as its size field says, and
        // to `name` as its length says.
        match unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut query) } {
            0 => Ok(query),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn protection(&self) -> Protection {
        Protection {
            readable: self.rights & 1 != 0,
            writable: self.rights & 2 != 0,
            executable: self.rights & 4 != 0,
        }
    }

    fn is_shared(&self) -> bool {
        self.rights & 8 != 0
    }
}

/// The protection of some memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Protection {
    /// True if it is readable.
    pub(crate) readable: bool,
    /// True if it is writable.
    pub(crate) writable: bool,
    /// True if it is executable.
    pub(crate) executable: bool,
}

impl Protection {
    /// Returns the protection of the memory at an address, `None` if there is none.
    ///
    /// # Errors
    ///
    /// Fails if `/proc` is not visible, or with a kernel before 6.11, which returns it only for all
    /// memory at once.
    pub(crate) fn at(address: usize) -> io::Result<Option<Self>> {
        let maps = File::open("/proc/thread-self/maps")?;
        match Query::of(&maps, address, &mut []) {
            Ok(query) => Ok(Some(query.protection())),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The protection of all of the process's memory at one time.
#[derive(Debug, Default)]
pub(crate) struct Protections {
    /// The ranges, in order and without overlaps.
    ranges: Vec<(Range<usize>, Protection)>,
}

impl Protections {
    /// Returns the current protections. If `/proc` is not visible, they come from the program
    /// headers in `as_loaded`.
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

    /// Returns the current protections in `ranges`, which are in order. Returns `None` if `/proc`
    /// is not visible, or with a kernel before 6.11, which returns them only for all memory at
    /// once.
    pub(crate) fn within(ranges: impl Iterator<Item = Range<usize>>) -> Option<Self> {
        let maps = File::open("/proc/thread-self/maps").ok()?;
        let mut this = Self::default();
        let mut known = 0;
        for range in ranges {
            let mut at = range.start.max(known);
            while at < range.end {
                let query = match Query::from(&maps, at) {
                    Ok(query) => query,
                    Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Some(this),
                    Err(_) => return None,
                };
                let [start, end] = query.range.map(|address| address as usize);
                this.ranges.push((start..end, query.protection()));
                (at, known) = (end, end);
            }
        }
        Some(this)
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

    /// Returns the protection of the memory at an address, `None` if there is none.
    #[must_use]
    pub(crate) fn of(&self, address: usize) -> Option<Protection> {
        let next = self
            .ranges
            .partition_point(|(range, _)| range.start <= address);
        let (range, protection) = self.ranges.get(next.checked_sub(1)?)?;
        range.contains(&address).then_some(*protection)
    }
}

/// A file, identified by its device as in `/proc/self/maps` and its inode number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    device: Box<[u8]>,
    pub(crate) inode: u64,
}

/// The content of `/proc/self/maps` at one time; empty if `/proc` is not visible.
#[derive(Debug)]
pub(crate) struct Maps(Vec<u8>);

impl Maps {
    pub(crate) fn now() -> Self {
        Self(fs::read("/proc/thread-self/maps").unwrap_or_default())
    }

    /// Returns the line of the mapping at `address`.
    fn line_at(&self, address: usize) -> Option<&[u8]> {
        let mut lines = self.0.split(|&byte| byte == b'\n');
        lines.find(|line| mapping(line).is_some_and(|(range, _)| range.contains(&address)))
    }

    /// Returns the file that is mapped at `address`.
    pub(crate) fn file_at(&self, address: usize) -> Option<FileId> {
        // Range, rights, offset, device, inode.
        let mut words = self.line_at(address)?.split(|&byte| byte == b' ').skip(3);
        let device = words.next()?.into();
        let inode = str::from_utf8(words.next()?).ok()?.parse().ok()?;
        Some(FileId { device, inode })
    }
}

/// A private mapping of a part of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileMapping {
    pub(crate) range: Range<usize>,
    pub(crate) protection: Protection,
    /// Offset in the file of its first byte.
    pub(crate) offset: usize,
    pub(crate) file: FileId,
    /// The path of the file; it ends with ` (deleted)` if the file no longer has it.
    pub(crate) path: PathBuf,
}

impl FileMapping {
    /// Returns the mapping at `address`; `None` if it is shared, not of a file, or unknown, as when
    /// `/proc` is not visible.
    pub(crate) fn at(address: usize) -> Option<Self> {
        let maps = File::open("/proc/thread-self/maps").ok()?;
        let mut name = [0; libc::PATH_MAX as usize];
        let Ok(query) = Query::of(&maps, address, &mut name) else {
            return Self::of(Maps::now().line_at(address)?);
        };
        let name = CStr::from_bytes_until_nul(&name).ok()?.to_bytes();
        let [major, minor] = query.device;
        let this = Self {
            range: query.range[0] as usize..query.range[1] as usize,
            protection: query.protection(),
            offset: query.offset as usize,
            file: FileId {
                device: format!("{major:02x}:{minor:02x}").into_bytes().into(),
                inode: query.inode,
            },
            path: PathBuf::from(OsStr::from_bytes(name)),
        };
        (query.inode != 0 && !query.is_shared()).then_some(this)
    }

    fn of(line: &[u8]) -> Option<Self> {
        let (range, protection) = mapping(line)?;
        // Range, rights, offset, device, inode, and the path after blanks.
        let mut words = line.splitn(6, |&byte| byte == b' ').skip(1);
        let is_private = words.next()?.ends_with(b"p");
        let offset = str::from_utf8(words.next()?).ok()?;
        let device = words.next()?.into();
        let inode = str::from_utf8(words.next()?).ok()?.parse().ok()?;
        let path = words.next()?.trim_ascii_start();
        let this = Self {
            range,
            protection,
            offset: usize::from_str_radix(offset, 16).ok()?,
            file: FileId { device, inode },
            path: PathBuf::from(OsStr::from_bytes(path)),
        };
        (inode != 0 && is_private).then_some(this)
    }
}

/// Returns true if the file that is mapped at `address` no longer has its name: it was removed, or
/// replaced by another one. Returns `false` if `/proc` is not visible.
pub(crate) fn is_deleted(address: usize) -> bool {
    let mapping = FileMapping::at(address);
    mapping.is_some_and(|mapping| mapping.path.as_os_str().as_bytes().ends_with(b" (deleted)"))
}

/// Parses a line of `/proc/self/maps`: `55d0a000-55d0b000 r-xp ...`.
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
    fn a_line_of_the_maps_says_which_part_of_a_file_is_mapped() {
        let of = |line: &str| FileMapping::of(line.as_bytes());
        let text = of("1000-3000 r-xp 00005000 fe:01 12    /a b").unwrap();
        assert_eq!((text.range, text.offset), (0x1000..0x3000, 0x5000));
        assert_eq!((&*text.file.device, text.file.inode), (&b"fe:01"[..], 12));
        assert_eq!(text.path.to_str(), Some("/a b"));
        for other in [
            "3000-4000 rw-s 0 fe:01 12 /a b",
            "3000-4000 r-xp 0 00:00 0",
            "3000-4000 r-xp 0 00:00 0   [vdso]",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn a_mapping_of_a_file_is_the_same_by_both_ways_to_ask() {
        let address = a_mapping_of_a_file_is_the_same_by_both_ways_to_ask as *const () as usize;
        let asked = FileMapping::at(address).unwrap();
        let read = FileMapping::of(Maps::now().line_at(address).unwrap());
        assert_eq!(Some(asked), read);
        let local = 0;
        assert_eq!(FileMapping::at((&raw const local).addr()), None);
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
    fn memory_of_ranges_is_protected_as_all_memory_is() {
        let code = memory_of_ranges_is_protected_as_all_memory_is as *const () as usize;
        let local = 0;
        let stack = (&raw const local).addr();
        let mut ranges = [code, stack].map(|at| at - PAGE..at + PAGE);
        ranges.sort_unstable_by_key(|range| range.start);
        let none = [1..2, 1..3 * PAGE];
        let Some(within) = Protections::within(none.into_iter().chain(ranges)) else {
            return skip!("the kernel says it of all memory at once only");
        };
        let all = Protections::now(core::iter::empty());
        for address in [code, stack] {
            assert_eq!(within.of(address), all.of(address));
        }
        assert_eq!(within.of(code), Some(TEXT));
        assert_eq!(within.of(1), None);
        assert!(within.ranges.is_sorted_by_key(|(range, _)| range.start));
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
