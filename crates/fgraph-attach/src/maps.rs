//! Memory mappings of another process.

use std::fs::File;
use std::io::{self, Read as _};

use fgraph_symbols::mapping::Mapping;

/// Limit on the bytes of a process's maps that are read: some hundred thousand mappings, except
/// with very long names.
const MAX_MAPS: u64 = 64 << 20;

/// Returns all mappings of a process, in the order of their addresses.
pub(crate) fn of(pid: u32) -> io::Result<Vec<Mapping<'static>>> {
    let mut maps = Vec::new();
    let file = File::open(format!("/proc/{pid}/maps"))?;
    file.take(MAX_MAPS).read_to_end(&mut maps)?;
    Ok(Mapping::all(&maps).map(Mapping::into_owned).collect())
}

/// Returns true if a process may write to its memory at an address.
#[cfg(test)]
pub(crate) fn is_writable(pid: u32, address: u64) -> io::Result<bool> {
    let mappings = of(pid)?;
    let mapping = mappings.iter().find(|it| it.range.contains(&address));
    Ok(mapping.is_some_and(|it| it.protection.writable))
}
