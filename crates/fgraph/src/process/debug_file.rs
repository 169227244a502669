//! Finds the debug file of a program or library that was stripped.
//!
//! Distributions split symbols off into separate files, and install these, on request, where gdb
//! finds them: by build id,
//!
//! ```text
//!   /usr/lib/debug/.build-id/93/ac61ec5a8eb1396f9fbd350e3169a558528a40.debug
//! ```
//!
//! or by the name that the stripped file `/usr/bin/app` has in its `.gnu_debuglink`,
//!
//! ```text
//!   /usr/bin/NAME    /usr/bin/.debug/NAME    /usr/lib/debug/usr/bin/NAME
//! ```
//!
//! If there is none, the file may contain a small one, `.gnu_debugdata`, which is read with the
//! feature `debugdata`.
//!
//! A debug file describes the same sections at the same addresses, but has no content for most of
//! them. Its symbol table is used, and with the feature `dwarf` its lines.

use core::fmt::Write;
#[cfg(feature = "dwarf")]
use core::iter;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::process::image::{open_file, read_file};
use fgraph_symbols::elf::ElfFile;
#[cfg(feature = "dwarf")]
use fgraph_symbols::lines::Lines;

/// The directory in which debug files are installed.
const DEBUG: &str = "/usr/lib/debug";

/// Returns the debug file of `file`, which was loaded from `path`.
///
/// It has the same build id, and if it was found by its name, also the checksum in `file`. It stays
/// in memory, see [`read_file`].
#[must_use]
pub(crate) fn find(path: &Path, file: &ElfFile<'_>) -> Option<ElfFile<'static>> {
    find_in(Path::new(DEBUG), path, file)
}

fn find_in(debug: &Path, path: &Path, file: &ElfFile<'_>) -> Option<ElfFile<'static>> {
    let mut places = places(debug, path, file);
    let found = places.find_map(|place| open(&place, file));
    found.or_else(|| in_section(file))
}

/// Returns the source lines of `file`, which was loaded from `path`: from the file itself, or else
/// from its debug file.
#[cfg(feature = "dwarf")]
pub(crate) fn lines(path: &Path, file: &ElfFile<'_>) -> Option<Lines> {
    lines_in(Path::new(DEBUG), path, file)
}

#[cfg(feature = "dwarf")]
fn lines_in(debug: &Path, path: &Path, file: &ElfFile<'_>) -> Option<Lines> {
    let mut places = iter::once(path.to_owned()).chain(places(debug, path, file));
    places.find_map(|place| Lines::read(open_file(&place).ok()?, file))
}

/// Iterates over the possible paths of the debug file of `file`, which was loaded from `path`: by
/// build id, and by name for a file with the right checksum.
fn places(debug: &Path, path: &Path, file: &ElfFile<'_>) -> impl Iterator<Item = PathBuf> {
    let by_id = file.build_id().map(|id| by_id(debug, id));
    let by_name = || {
        let (name, crc) = file.debug_link()?;
        // A plain file name, so that `..` leads nowhere.
        let name = Path::new(name).file_name()?;
        let directory = path.parent()?;
        let installed = debug.join(directory.strip_prefix("/").ok()?);
        let directories = [directory.to_owned(), directory.join(".debug"), installed];
        let places = directories.map(|directory| directory.join(name));
        let has_crc = move |place: &PathBuf| checksum(place).is_ok_and(|found| found == crc);
        Some(places.into_iter().filter(has_crc))
    };
    by_id.into_iter().chain(by_name().into_iter().flatten())
}

/// Returns the small debug file inside `file`.
#[cfg(feature = "debugdata")]
fn in_section(file: &ElfFile<'_>) -> Option<ElfFile<'static>> {
    let words: &'static [u64] = fgraph_symbols::debug_data::read(file)?.leak();
    ElfFile::parse(object::pod::bytes_of_slice(words)).ok()
}

#[cfg(not(feature = "debugdata"))]
fn in_section(_file: &ElfFile<'_>) -> Option<ElfFile<'static>> {
    None
}

/// Returns the path at which a debug file is installed by build id.
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
fn open(path: &Path, file: &ElfFile<'_>) -> Option<ElfFile<'static>> {
    let debug_file = ElfFile::parse(read_file(path).ok()?).ok()?;
    (debug_file.build_id() == file.build_id()).then_some(debug_file)
}

/// Computes the checksum of a file's whole content: an image does not have all of it.
fn checksum(path: &Path) -> io::Result<u32> {
    let (mut file, mut crc) = (open_file(path)?, Crc32::new());
    let mut bytes = vec![0; 1 << 16];
    loop {
        match file.read(&mut bytes)? {
            0 => return Ok(crc.value()),
            len => crc.add(&bytes[..len]),
        }
    }
}

/// The checksum of a `.gnu_debuglink`: CRC-32 as in zip files.
#[derive(Debug)]
struct Crc32(u32);

impl Crc32 {
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

    fn new() -> Self {
        Self(!0)
    }

    fn add(&mut self, bytes: &[u8]) {
        let step = |crc: u32, &byte| (crc >> 8) ^ Self::TABLE[usize::from(crc as u8 ^ byte)];
        self.0 = bytes.iter().fold(self.0, step);
    }

    fn value(&self) -> u32 {
        !self.0
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;
    use crate::process::modules::tests::Directory;
    #[cfg(feature = "debugdata")]
    use fgraph_needs::XZ;
    use fgraph_needs::{GCC, Missing, OBJCOPY, needs};
    use fgraph_symbols::functions::Functions;

    #[test]
    fn the_checksum_is_that_of_zip_files() {
        let mut crc = Crc32::new();
        assert_eq!(crc.value(), 0);
        crc.add(b"1234");
        crc.add(b"56789");
        assert_eq!(crc.value(), 0xcbf4_3926);
    }

    #[test]
    fn a_build_id_is_a_path() {
        let path = by_id(Path::new("/debug"), &[0x0a, 0xbc, 0xde]);
        assert_eq!(path, Path::new("/debug/.build-id/0a/bcde.debug"));
    }

    /// Makes a library without symbols, and its debug file, at a path that is not searched.
    fn split(directory: &Directory, options: &str) -> Result<[PathBuf; 2], Missing> {
        let objcopy = OBJCOPY.find()?;
        let source = "static int __attribute__((noinline, used)) hidden(int n) { return n; }";
        let library = directory.compile(&GCC, source, &format!("-g {options}"))?;
        let debug = directory.path().join("code.debug");
        let link = format!("--add-gnu-debuglink={}", debug.display());
        let keep = ["--only-keep-debug", "libcode.so", "code.debug"];
        let strip = ["--strip-all", &link, "libcode.so"];
        for arguments in [&keep, &strip] {
            let mut objcopy = Command::new(&objcopy);
            objcopy.current_dir(directory.path()).args(arguments);
            let output = objcopy.output().unwrap();
            assert!(output.status.success(), "{output:?}");
        }
        let elsewhere = directory.path().join("elsewhere");
        fs::rename(&debug, &elsewhere).unwrap();
        Ok([library, elsewhere])
    }

    /// Returns true if the debug file of a library is found in `debug` or at its link's path.
    fn finds(debug: &Path, library: &Path) -> bool {
        let file = ElfFile::parse(read_file(library).unwrap()).unwrap();
        let Some(found) = find_in(debug, library, &file) else {
            return false;
        };
        let functions = Functions::read(&file, Some(&found)).unwrap();
        let is_hidden = |index: &usize| {
            let mut names = functions.names(*index);
            names.any(|name| name.symbol == "hidden")
        };
        let hidden = (0..functions.len()).find(is_hidden).unwrap();
        assert!(!functions.is_stripped());
        // A small debug file has no lines.
        #[cfg(feature = "dwarf")]
        if let Some(lines) = lines_in(debug, library, &file) {
            let (source, line) = lines.in_function(functions.get(hidden).address).unwrap();
            assert!(source.ends_with("code.c") && line == 1, "{source}:{line}");
        } else {
            assert!(file.has_section(b".gnu_debugdata"));
        }
        true
    }

    /// Returns true if the file is found at `place`, and not before.
    fn is_found_at(place: &Path, debug_file: &Path, debug: &Path, library: &Path) -> bool {
        let before = finds(debug, library);
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::copy(debug_file, place).unwrap();
        let found = finds(debug, library);
        fs::remove_file(place).unwrap();
        !before && found
    }

    #[test]
    fn debug_files_are_found_where_gdb_finds_them() {
        for (test, options) in [
            ("debug-id", "-Wl,--build-id"),
            ("debug-link", "-Wl,--build-id=none"),
        ] {
            let directory = Directory::new(test);
            let [library, debug_file] = needs!(split(&directory, options));
            let is_found =
                |place: &Path, debug: &Path| is_found_at(place, &debug_file, debug, &library);
            let beside = directory.path();
            let debug = beside.join("debug");
            assert!(is_found(&beside.join("code.debug"), &debug));
            assert!(is_found(&beside.join(".debug/code.debug"), &debug));
            let installed = debug.join(beside.strip_prefix("/").unwrap());
            assert!(is_found(&installed.join("code.debug"), &debug));
            assert!(!is_found(&beside.join("other.debug"), &debug));
            let file = ElfFile::parse(read_file(&library).unwrap()).unwrap();
            if let Some(id) = file.build_id() {
                assert!(is_found(&by_id(&debug, id), &debug));
            }
        }
    }

    /// Fedora makes such files.
    #[cfg(feature = "debugdata")]
    #[test]
    fn a_stripped_file_may_have_a_small_debug_file_in_itself() {
        let directory = Directory::new("debug-data");
        let [library, debug_file] = needs!(split(&directory, "-Wl,--build-id=none"));
        let (objcopy, xz) = (OBJCOPY.find().unwrap(), needs!(XZ.find()));
        let debug = directory.path().join("debug");
        assert!(!finds(&debug, &library));
        let run = |command: &mut Command| {
            let output = command.current_dir(directory.path()).output().unwrap();
            assert!(output.status.success(), "{output:?}");
        };
        run(Command::new(xz).arg(&debug_file));
        let section = ".gnu_debugdata=elsewhere.xz";
        run(Command::new(objcopy).args(["--add-section", section, "libcode.so"]));
        assert!(finds(&debug, &library));
    }

    #[test]
    fn a_debug_file_of_another_build_is_not_believed() {
        let directory = Directory::new("debug-other");
        let [library, debug_file] = needs!(split(&directory, "-Wl,--build-id=0x01020304"));
        let other = Directory::new("debug-other-build");
        let [_, other_file] = split(&other, "-Wl,--build-id=0x01020305").unwrap();
        let debug = directory.path().join("debug");
        let place = by_id(&debug, &[1, 2, 3, 4]);
        assert!(is_found_at(&place, &debug_file, &debug, &library));
        assert!(!is_found_at(&place, &other_file, &debug, &library));
        // The link has a checksum, too.
        let place = directory.path().join("code.debug");
        assert!(is_found_at(&place, &debug_file, &debug, &library));
        let mut bytes = fs::read(&debug_file).unwrap();
        bytes.push(0);
        fs::write(&other_file, bytes).unwrap();
        assert!(!is_found_at(&place, &other_file, &debug, &library));
    }
}
