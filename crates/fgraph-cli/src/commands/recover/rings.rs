//! Finds the rings in a core file.

use std::cell::Cell;
use std::io::{self, Read, Seek};
use std::ops::Range;

use fgraph_symbols::core_file::{CoreFile, MappedFile};
use fgraph_trace::ring::Rings;

/// The name of rings among the mapped files, if a recorder has made them.
const NAME: &[u8] = b"/memfd:fgraph-rings";
/// The name of shared memory without a file, such as a program's own rings.
const OWN: &[u8] = b"/dev/zero";
/// Part of the path of the agent's library.
const AGENT: &str = "/fgraph-agent-";
/// The distance from the place in the rings' file to the address, beyond that of the headers: an
/// inaccessible page follows these.
const GUARD: u64 = 4096;

/// The rings of a process.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) rings: Rings,
    /// Bytes of the rings that were mapped and are not in the core file.
    pub(super) missing: u64,
}

/// The rings in a core file.
#[derive(Debug, Default)]
pub(super) struct Search {
    pub(super) found: Vec<Found>,
    /// True if rings were mapped whose memory is not in the file.
    pub(super) has_absent: bool,
    /// Why rings cannot be read whose memory is there.
    pub(super) error: Option<io::Error>,
}

/// A part of the rings' memory: its place there, and its address.
type Piece = (Range<u64>, u64);

/// The most rings of one process. Each takes some memory, however few its bytes are.
const MOST: usize = 64;

/// Finds all rings. A process has those of each recorder that it has.
///
/// `on_disk` is the number of bytes that the file has on its disk. A file with holes may seem to
/// have any number: rings that take far more than is there are refused.
pub(super) fn find(core: &mut CoreFile<impl Read + Seek>, on_disk: u64) -> io::Result<Search> {
    // Where the file system compresses, fewer bytes are on the disk.
    let budget = Cell::new(on_disk.saturating_mul(16).saturating_add(64 << 20));
    let mut search = Search::default();
    let has_agent = core
        .files()
        .iter()
        .any(|file| String::from_utf8_lossy(&file.path).contains(AGENT));
    let mut heads = Vec::new();
    for file in core.files().to_vec() {
        if file.offset != 0 {
            continue;
        }
        let mut magic = Rings::MAGIC;
        let len = core.memory(file.addresses.start, &mut magic)?;
        let kind = Rings::MAGIC.len() - 1;
        if magic[..kind] == Rings::MAGIC[..kind] && len == magic.len() {
            if heads.len() < MOST {
                heads.push(file);
            } else {
                search.error = Some(io::Error::other(format!("it has more than {MOST} rings")));
            }
        } else if len < magic.len()
            && (file.path.starts_with(NAME) || has_agent && file.path.starts_with(OWN))
        {
            search.has_absent = true;
        }
    }
    for head in &heads {
        let of_name = heads.iter().filter(|other| other.path == head.path);
        let is_only = of_name.count() == 1;
        let pieces = pieces_of(core.files(), head, is_only);
        let missing = Cell::new(0);
        let copied = Rings::copy_of(|at, to| {
            let (known, absent) = read(core, &pieces, at, to)?;
            // Small parts cost time as well.
            let left = budget.get().checked_sub(known.max(64) as u64);
            budget.set(left.ok_or_else(|| io::Error::other("they take more than the file has"))?);
            missing.set(missing.get() + absent);
            Ok(known)
        });
        match copied {
            Ok(rings) => search.found.push(Found {
                rings,
                missing: missing.get(),
            }),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => search.has_absent = true,
            Err(error) => search.error = Some(error),
        }
    }
    Ok(search)
}

/// Returns the parts of the rings that begin with `head`, the only ones with its name if `is_only`.
/// A process with several rings of one name has the parts of each at the same distances as in the
/// file, as long as there was room.
fn pieces_of(files: &[MappedFile], head: &MappedFile, is_only: bool) -> Vec<Piece> {
    let is_part = |file: &&MappedFile| {
        let distance = file.addresses.start.wrapping_sub(head.addresses.start);
        let is_near = [0, GUARD].contains(&distance.wrapping_sub(file.offset));
        file.path == head.path && (is_only || is_near)
    };
    let piece = |file: &MappedFile| {
        let len = file.addresses.end.saturating_sub(file.addresses.start);
        let end = file.offset.saturating_add(len);
        (file.offset..end, file.addresses.start)
    };
    files.iter().filter(is_part).map(piece).collect()
}

/// Reads memory of rings from `at` on. Returns the number of bytes that are known, and of the next
/// ones that were mapped but are not known.
fn read(
    core: &mut CoreFile<impl Read + Seek>,
    pieces: &[Piece],
    at: u64,
    to: &mut [u8],
) -> io::Result<(usize, u64)> {
    let mut done = 0;
    loop {
        let here = at.saturating_add(done as u64);
        let rest = &mut to[done..];
        if rest.is_empty() {
            return Ok((done, 0));
        }
        let mut absent = 0;
        let mut len = 0;
        for (range, address) in pieces.iter().filter(|(range, _)| range.contains(&here)) {
            let room = usize::try_from(range.end - here).unwrap_or(usize::MAX);
            let room = room.min(rest.len());
            len = core.memory(address + (here - range.start), &mut rest[..room])?;
            if len > 0 {
                break;
            }
            absent = absent.max(room as u64);
        }
        if len == 0 {
            return Ok((done, absent));
        }
        done += len;
    }
}
