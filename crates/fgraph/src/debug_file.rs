//! Finds the debug file of a program or library that was stripped.
//!
//! Distributions split symbols off into files of their own, and install these, if asked, where gdb
//! finds them: by build id,
//!
//! ```text
//!   /usr/lib/debug/.build-id/93/ac61ec5a8eb1396f9fbd350e3169a558528a40.debug
//! ```
//!
//! or by the name that the stripped file `/usr/bin/app` states in its `.gnu_debuglink`,
//!
//! ```text
//!   /usr/bin/NAME    /usr/bin/.debug/NAME    /usr/lib/debug/usr/bin/NAME
//! ```
//!
//! A debug file describes the same sections at the same addresses, but has no content for most of
//! them. Only its symbol table is of use here.

use core::fmt::Write;
use std::path::{Path, PathBuf};

use crate::elf::ElfFile;
use crate::modules::map_file;

/// Where debug files are installed.
const DEBUG: &str = "/usr/lib/debug";

/// The debug file that belongs to `file`, which was loaded from `path`.
///
/// It has the same build id, and if it was found by its name, also the checksum that `file` states.
/// It stays mapped, see [`map_file`].
#[must_use]
pub(crate) fn find(path: &Path, file: &ElfFile<'_>) -> Option<ElfFile<'static>> {
    find_in(Path::new(DEBUG), path, file)
}

fn find_in(debug: &Path, path: &Path, file: &ElfFile<'_>) -> Option<ElfFile<'static>> {
    let by_id = file.build_id().and_then(|id| {
        let (_, debug_file) = open(&by_id(debug, id), file)?;
        Some(debug_file)
    });
    by_id.or_else(|| {
        let (name, crc) = file.debug_link()?;
        // It is a plain name: nothing is to be found by way of `..`.
        let name = Path::new(name).file_name()?;
        let directory = path.parent()?;
        let installed = debug.join(directory.strip_prefix("/").ok()?);
        [directory, &directory.join(".debug"), &installed]
            .iter()
            .filter_map(|directory| open(&directory.join(name), file))
            .find(|(bytes, _)| crc32(bytes) == crc)
            .map(|(_, debug_file)| debug_file)
    })
}

/// Where a debug file is installed by build id.
fn by_id(debug: &Path, id: &[u8]) -> PathBuf {
    let mut name = String::new();
    for (index, byte) in id.iter().enumerate() {
        let slash = if index == 1 { "/" } else { "" };
        // Writing to a string does not fail.
        let _ = write!(name, "{slash}{byte:02x}");
    }
    name.push_str(".debug");
    debug.join(".build-id").join(name)
}

/// Opens a debug file if it has the build id of `file`.
fn open(path: &Path, file: &ElfFile<'_>) -> Option<(&'static [u8], ElfFile<'static>)> {
    let bytes = map_file(path).ok()?;
    let debug_file = ElfFile::parse(bytes).ok()?;
    (debug_file.build_id() == file.build_id()).then_some((bytes, debug_file))
}

/// The checksum that a `.gnu_debuglink` states: CRC-32 as in zip files.
fn crc32(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut index = 0;
        while index < 256 {
            let mut crc = index as u32;
            let mut bit = 0;
            while bit < 8 {
                crc = (crc >> 1) ^ (0xedb8_8320 * (crc & 1));
                bit += 1;
            }
            table[index] = crc;
            index += 1;
        }
        table
    };
    let step = |crc: u32, &byte| (crc >> 8) ^ TABLE[usize::from(crc as u8 ^ byte)];
    !bytes.iter().fold(!0, step)
}
