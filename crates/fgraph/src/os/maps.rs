//! The memory mappings of the process, as the kernel has them now.
//!
//! A program header has the protection with which a segment was mapped. A program may change that
//! with `mprotect`; then the program may be writing the text that fgraph is about to change, or the
//! text may be unreadable. `/proc/self/maps` has the current protection. Since Linux 6.11 the
//! kernel can be queried for one mapping of that file.
//!
//! [`File`] and [`MapsFile`] make bare system calls and do not allocate: they also serve a thread
//! that is first seen in `malloc`, or in a signal handler.
//!
//! # Safety
//!
//! The unsafe code is system calls, which get live locals and paths that end with a zero byte.

use core::ffi::{CStr, c_long};
use core::ops::Range;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use fgraph_symbols::mapping::{Mapping, Protection};

use crate::os::PAGE;

/// The file that lists the mappings: the main thread's, which is empty when that has ended.
pub(crate) const OF_MAIN_THREAD: &CStr = c"/proc/self/maps";
/// The same of the calling thread, which the kernel creates anew for each thread.
pub(crate) const OF_THREAD: &CStr = c"/proc/thread-self/maps";

/// A file, open for reading with bare system calls: unlike the C library's functions, these are no
/// cancellation points.
#[derive(Debug)]
pub(crate) struct File(c_long);

impl File {
    pub(crate) fn open(path: &CStr) -> io::Result<Self> {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        // SAFETY: the path ends with a zero byte.
        let file = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) };
        (file >= 0)
            .then_some(Self(file))
            .ok_or_else(io::Error::last_os_error)
    }

    /// Reads the next bytes, and returns their number; `None` if it fails.
    fn read(&self, into: &mut [u8]) -> Option<usize> {
        // SAFETY: reads into the live buffer.
        let read = unsafe { libc::syscall(libc::SYS_read, self.0, into.as_mut_ptr(), into.len()) };
        usize::try_from(read).ok()
    }

    /// Fills `into` with the words from byte `at` on; `None` if there are fewer.
    pub(crate) fn read_words(&self, at: usize, into: &mut [u64]) -> Option<()> {
        let len = size_of_val(into);
        // SAFETY: reads into the live buffer.
        let read = unsafe { libc::syscall(libc::SYS_pread64, self.0, into.as_mut_ptr(), len, at) };
        (read == len as c_long).then_some(())
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: the file is ours.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}

/// The kernel's query for one mapping, with its result: `struct procmap_query`.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
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

/// `_IOWR('f', 17, struct procmap_query)`
const PROCMAP_QUERY: usize = 3 << 30 | size_of::<Query>() << 16 | (b'f' as usize) << 8 | 17;

/// The mapping that a query asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Queried {
    /// The mapping at the address.
    At = 0,
    /// The mapping at the address, or the next one after it: `PROCMAP_QUERY_COVERING_OR_NEXT_VMA`.
    AtOrNext = 0x10,
}

/// A file that lists the mappings of the process.
#[derive(Debug)]
pub(crate) struct MapsFile(File);

impl MapsFile {
    pub(crate) fn open(path: &CStr) -> io::Result<Self> {
        File::open(path).map(Self)
    }

    /// Queries the kernel for a mapping. `name` gets its path or name, followed by a zero; if it is
    /// empty, the result has none.
    ///
    /// # Errors
    ///
    /// The error is `ENOENT` if there is no such mapping, `ENAMETOOLONG` if its name does not fit,
    /// and any other for a kernel before 6.11.
    pub(crate) fn query<'a>(
        &self,
        address: usize,
        which: Queried,
        name: &'a mut [u8],
    ) -> io::Result<Mapping<'a>> {
        let mut query = Query {
            size: size_of::<Query>() as u64,
            flags: which as u64,
            address: address as u64,
            name_len: name.len() as u32,
            name: match name.is_empty() {
                true => 0,
                false => name.as_mut_ptr().expose_provenance() as u64,
            },
            ..Query::default()
        };
        let file = self.0.0;
        // SAFETY: the kernel writes at most as many bytes to the local as its size field says, and
        // to `name` as its length says.
        if unsafe { libc::syscall(libc::SYS_ioctl, file, PROCMAP_QUERY, &raw mut query) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let name = CStr::from_bytes_until_nul(name).unwrap_or_default();
        let [major, minor] = query.device;
        Ok(Mapping {
            range: query.start..query.end,
            protection: Protection {
                readable: query.rights & 1 != 0,
                writable: query.rights & 2 != 0,
                executable: query.rights & 4 != 0,
            },
            is_shared: query.rights & 8 != 0,
            offset: query.offset,
            device: (major, minor),
            inode: query.inode,
            path: name.to_bytes().into(),
        })
    }

    /// Returns the result of `find` for the first mapping for which it returns one. Lines longer
    /// than its buffer are skipped. A separate function, so that its buffer is on no other stack.
    #[inline(never)]
    pub(crate) fn find_map<R>(&self, mut find: impl FnMut(Mapping<'_>) -> Option<R>) -> Option<R> {
        let mut buffer = [0u8; 2048];
        let mut filled = 0;
        while let Some(more @ 1..) = self.0.read(&mut buffer[filled..]) {
            filled += more;
            let mut start = 0;
            while let Some(len) = buffer[start..filled].iter().position(|&byte| byte == b'\n') {
                let mapping = Mapping::parse(&buffer[start..start + len]);
                if let Some(found) = mapping.and_then(&mut find) {
                    return Some(found);
                }
                start += len + 1;
            }
            buffer.copy_within(start..filled, 0);
            filled -= start;
            if filled == buffer.len() {
                filled = 0;
            }
        }
        None
    }
}

/// Returns the addresses of a mapping of this process.
pub(crate) fn range_of(mapping: &Mapping<'_>) -> Range<usize> {
    mapping.range.start as usize..mapping.range.end as usize
}

/// Returns the protection of the memory at an address, `None` if there is none.
///
/// # Errors
///
/// Fails if `/proc` is not visible, or with a kernel before 6.11, which returns it only for all
/// memory at once.
pub(crate) fn protection_at(address: usize) -> io::Result<Option<Protection>> {
    match MapsFile::open(OF_THREAD)?.query(address, Queried::At, &mut []) {
        Ok(mapping) => Ok(Some(mapping.protection)),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
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
        let this = Self::of_maps(&Maps::now());
        if this.ranges.is_empty() {
            Self::as_loaded(as_loaded)
        } else {
            this
        }
    }

    fn of_maps(maps: &Maps) -> Self {
        let ranges = Mapping::all(&maps.0).map(|it| (range_of(&it), it.protection));
        Self {
            ranges: ranges.collect(),
        }
    }

    /// Returns the current protections in `ranges`, which are in order. Returns `None` if `/proc`
    /// is not visible, or with a kernel before 6.11, which returns them only for all memory at
    /// once.
    pub(crate) fn within(ranges: impl Iterator<Item = Range<usize>>) -> Option<Self> {
        let maps = MapsFile::open(OF_THREAD).ok()?;
        let mut this = Self::default();
        let mut known = 0;
        for range in ranges {
            let mut at = range.start.max(known);
            while at < range.end {
                let mapping = match maps.query(at, Queried::AtOrNext, &mut []) {
                    Ok(mapping) => mapping,
                    Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Some(this),
                    Err(_) => return None,
                };
                let range = range_of(&mapping);
                (at, known) = (range.end, range.end);
                this.ranges.push((range, mapping.protection));
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

/// A file, identified by the major and minor number of its device and its inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    device: (u32, u32),
    pub(crate) inode: u64,
}

impl FileId {
    fn of(mapping: &Mapping<'_>) -> Self {
        Self {
            device: mapping.device,
            inode: mapping.inode,
        }
    }
}

/// The content of `/proc/self/maps` at one time; empty if `/proc` is not visible.
#[derive(Debug)]
pub(crate) struct Maps(Vec<u8>);

impl Maps {
    pub(crate) fn now() -> Self {
        Self(fs::read("/proc/thread-self/maps").unwrap_or_default())
    }

    /// Iterates over all mappings.
    pub(crate) fn all(&self) -> impl Iterator<Item = Mapping<'_>> {
        Mapping::all(&self.0)
    }

    /// Returns the mapping at `address`.
    fn at(&self, address: usize) -> Option<Mapping<'_>> {
        Mapping::all(&self.0).find(|mapping| range_of(mapping).contains(&address))
    }

    /// Returns the file that is mapped at `address`.
    pub(crate) fn file_at(&self, address: usize) -> Option<FileId> {
        self.at(address).map(|mapping| FileId::of(&mapping))
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
        let maps = MapsFile::open(OF_THREAD).ok()?;
        let mut name = [0; libc::PATH_MAX as usize];
        match maps.query(address, Queried::At, &mut name) {
            Ok(mapping) => Self::of(&mapping),
            Err(_) => Self::of(&Maps::now().at(address)?),
        }
    }

    fn of(mapping: &Mapping<'_>) -> Option<Self> {
        let is_private_file = mapping.inode != 0 && !mapping.is_shared;
        is_private_file.then(|| Self {
            range: range_of(mapping),
            protection: mapping.protection,
            offset: mapping.offset as usize,
            file: FileId::of(mapping),
            path: PathBuf::from(OsStr::from_bytes(&mapping.path)),
        })
    }
}

/// Returns true if the file that is mapped at `address` no longer has its name: it was removed, or
/// replaced by another one. Returns `false` if `/proc` is not visible.
pub(crate) fn is_deleted(address: usize) -> bool {
    let mapping = FileMapping::at(address);
    mapping.is_some_and(|mapping| mapping.path.as_os_str().as_bytes().ends_with(b" (deleted)"))
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
        let this = Protections::of_maps(&Maps(maps.into()));
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
        assert_eq!((id.device, id.inode), ((0xfe, 1), 12));
        assert_eq!(maps.file_at(0x3000).unwrap().inode, 0);
        assert_eq!(maps.file_at(0x4000), None);
    }

    #[test]
    fn a_line_of_the_maps_says_which_part_of_a_file_is_mapped() {
        let of = |line: &str| FileMapping::of(&Mapping::parse(line.as_bytes()).unwrap());
        let text = of("1000-3000 r-xp 00005000 fe:01 12    /a b").unwrap();
        assert_eq!((text.range, text.offset), (0x1000..0x3000, 0x5000));
        assert_eq!((text.file.device, text.file.inode), ((0xfe, 1), 12));
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
        let read = FileMapping::of(&Maps::now().at(address).unwrap());
        assert_eq!(Some(asked), read);
        let local = 0;
        assert_eq!(FileMapping::at((&raw const local).addr()), None);
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
                match protection_at(address) {
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
