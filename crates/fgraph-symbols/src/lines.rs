//! Source files and lines of code, and signatures of functions, from a file's debug information.
//!
//! The tables of debug information are the largest part of a file, and rarely needed. So an
//! [`ElfFile`] contains none of them: this type reads them when a line is first requested, and
//! frees them when it is dropped. Code whose units are in separate files (`-gsplit-dwarf`) has its
//! lines in the file itself.

use core::cell::{OnceCell, RefCell};
use core::fmt;
use core::fmt::Write as _;
use std::io::{Read, Seek};
use std::path::PathBuf;
use std::sync::Arc;

use addr2line::{Context, LookupResult};
use gimli::{Dwarf, EndianArcSlice, Reader, Section, SectionId};
use object::LittleEndian as Le;
use object::elf::FileHeader64;
use object::read::elf::ElfFile as AnyElfFile;
use object::{Object, ObjectSection, ReadCache, ReadRef};

use crate::elf::{self, ElfFile};
use crate::futures::Futures;
use crate::inlined::{self, InlinedAt};
use crate::signature::dwarf::Index;
use crate::signature::dwarf::variables::Variables;
use crate::signature::{NoValue, Signature, Value, ValuePath};

/// The most bytes of a section that are read. Sizes in a file are not trusted.
const MAX_SECTION: u64 = 4 << 30;

/// The sections from which lines and signatures are computed.
const SECTIONS: [SectionId; 12] = [
    SectionId::DebugAbbrev,
    SectionId::DebugAddr,
    SectionId::DebugAranges,
    SectionId::DebugInfo,
    SectionId::DebugLine,
    SectionId::DebugLineStr,
    SectionId::DebugLoc,
    SectionId::DebugLocLists,
    SectionId::DebugRanges,
    SectionId::DebugRngLists,
    SectionId::DebugStr,
    SectionId::DebugStrOffsets,
];

type Content = EndianArcSlice<gimli::LittleEndian>;

/// The lines of the code of a program or library, and the signatures of its functions.
pub struct Lines {
    context: Context<Content>,
    dwarf: Arc<Dwarf<Content>>,
    functions: RefCell<Index>,
    variables: OnceCell<Variables>,
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines").finish_non_exhaustive()
    }
}

impl Lines {
    /// Reads the debug information in `file`: the file from which `of` was read, or its debug file.
    ///
    /// Returns `None` if there is none, if it is damaged, or if it belongs to another build: if the
    /// build id differs, or, without one, if other addresses are loaded.
    #[must_use]
    pub fn read(file: impl Read + Seek, of: &ElfFile<'_>) -> Option<Self> {
        let cache = ReadCache::new(file);
        let file = AnyElfFile::<FileHeader64<Le>, _>::parse(&cache).ok()?;
        if !is_of_same_build(&file, of) {
            return None;
        }
        let section = |id: SectionId| -> Option<Content> {
            let content = if SECTIONS.contains(&id) {
                content(&file, id.name())?
            } else {
                Arc::default()
            };
            Some(Content::new(content, gimli::LittleEndian))
        };
        let dwarf = Dwarf::load(|id| section(id).ok_or(())).ok()?;
        if dwarf.debug_info.reader().is_empty() {
            return None;
        }
        let dwarf = Arc::new(dwarf);
        Some(Self {
            context: Context::from_arc_dwarf(Arc::clone(&dwarf)).ok()?,
            dwarf,
            functions: RefCell::default(),
            variables: OnceCell::new(),
        })
    }

    /// Returns the source file and the line of the instruction at an address of the file, if they
    /// are known. For an inlined instruction, this is the line in the enclosing function.
    #[must_use]
    pub fn in_function(&self, address: u64) -> Option<(String, u32)> {
        // The lookup queries the addresses up to the next one.
        address.checked_add(1)?;
        let mut frames = self.context.find_frames(address).skip_all_loads().ok()?;
        let mut outermost = None;
        while let Some(frame) = frames.next().ok()? {
            let known = frame.location.and_then(|at| Some((at.file?, at.line?)));
            outermost = known.or(outermost);
        }
        outermost.map(|(file, line)| (file.to_owned(), line))
    }

    /// Returns the arguments and the result of the function that begins at an address of the file,
    /// if they are known: for C, C++ and Rust.
    ///
    /// The first call for each unit of its source reads the whole unit.
    #[must_use]
    pub fn signature(&self, address: u64) -> Option<Signature> {
        address.checked_add(1)?;
        let unit = self.context.find_dwarf_and_unit(address);
        let unit = unit.skip_all_loads()?;
        self.functions.borrow_mut().signature(unit, address)
    }

    /// Returns the value to which a path leads, in the function that begins at an address of the
    /// file.
    ///
    /// # Errors
    ///
    /// Fails with the reason that there is none.
    pub fn value(&self, address: u64, path: &ValuePath) -> Result<Value, NoValue> {
        let unit = || {
            address.checked_add(1)?;
            self.context.find_dwarf_and_unit(address).skip_all_loads()
        };
        let unit = unit().ok_or_else(NoValue::unknown)?;
        self.functions.borrow_mut().value(unit, address, path)
    }

    /// Returns the places at which functions are inlined, by address: of each function for whose
    /// symbol (in C, its name) `is_wanted` returns true. The number of places is limited to 10,000.
    ///
    /// Each call reads the entries of all units.
    pub fn inlined(&self, is_wanted: impl FnMut(&str) -> bool) -> Vec<InlinedAt> {
        let mut places = inlined::places(&self.dwarf, is_wanted);
        places.sort_unstable_by(|(a, at), (b, other)| (at, a).cmp(&(other, b)));
        places.dedup();
        let places = places.into_iter();
        let places = places.map(|(symbol, address)| self.inlined_at(symbol, address));
        // A compiler may split a function, and inline one part in the other: the call is seen.
        places
            .filter(|it| it.caller.as_ref() != Some(&it.symbol))
            .collect()
    }

    /// Returns the caller of inlined code, and the place of the call.
    fn inlined_at(&self, symbol: String, address: u64) -> InlinedAt {
        let mut found = InlinedAt {
            symbol,
            address,
            caller: None,
            place: None,
        };
        // The lookup queries the addresses up to the next one.
        let frames = address
            .checked_add(1)
            .map(|_| self.context.find_frames(address));
        let Some(Ok(mut frames)) = frames.map(LookupResult::skip_all_loads) else {
            return found;
        };
        // The innermost frame is the first one; the next one has the place of its call.
        let mut is_next = false;
        while let Ok(Some(frame)) = frames.next() {
            let symbol = frame
                .function
                .and_then(|it| Some(it.raw_name().ok()?.into_owned()));
            if is_next {
                found.place = frame
                    .location
                    .and_then(|at| Some((at.file?.to_owned(), at.line?)));
                is_next = false;
            } else if found.place.is_none() {
                is_next = symbol.as_ref() == Some(&found.symbol);
            }
            found.caller = symbol;
        }
        found
    }

    /// Returns the futures that debug information describes.
    ///
    /// It reads all units.
    #[must_use]
    pub fn futures(&self) -> Futures {
        Futures::read(Arc::clone(&self.dwarf))
    }

    /// Returns the path to the member at `offset` in the variable at an address of the file, as
    /// `.lock` or `[3].lock`, if that is known. In a lock, the path leads to the lock.
    ///
    /// The first call reads the variables of all units.
    #[must_use]
    pub fn member(&self, variable: u64, offset: u64) -> Option<String> {
        let variables = self.variables.get_or_init(|| Variables::read(&self.dwarf));
        variables.member(&self.dwarf, variable, offset)
    }
}

/// Returns the build id of a program or library, and reads no more of the file than that takes: see
/// [`ElfFile::build_id`].
#[must_use]
pub fn build_id(file: impl Read + Seek) -> Option<Vec<u8>> {
    let cache = ReadCache::new(file);
    let file = AnyElfFile::<FileHeader64<Le>, _>::parse(&cache).ok()?;
    let (segments, sections) = (file.elf_program_headers(), file.elf_section_table());
    elf::build_id(segments, sections, file.data()).map(<[u8]>::to_vec)
}

/// Returns the path, within the directory of debug files, at which a distribution installs the
/// debug file with a build id.
#[must_use]
pub fn debug_file(build_id: &[u8]) -> PathBuf {
    let mut name = String::from(".build-id/");
    for (index, byte) in build_id.iter().enumerate() {
        let slash = if index == 1 { "/" } else { "" };
        // Writing to a string does not fail.
        _ = write!(name, "{slash}{byte:02x}");
    }
    name.push_str(".debug");
    name.into()
}

/// Returns true if a file and `of` are of one build, as far as they tell.
fn is_of_same_build<'a, R: ReadRef<'a>>(
    file: &AnyElfFile<'a, FileHeader64<Le>, R>,
    of: &ElfFile<'_>,
) -> bool {
    let (segments, sections) = (file.elf_program_headers(), file.elf_section_table());
    let id = elf::build_id(segments, sections, file.data());
    id == of.build_id() && (id.is_some() || elf::load_addresses(segments).eq(of.load_addresses()))
}

/// Returns the content of a section, decompressed; empty if there is no such section.
fn content<'a, R: ReadRef<'a>>(
    file: &AnyElfFile<'a, FileHeader64<Le>, R>,
    name: &str,
) -> Option<Arc<[u8]>> {
    let Some(section) = file.section_by_name(name) else {
        return Some(Arc::default());
    };
    let content = section.compressed_data().ok()?;
    if content.uncompressed_size > MAX_SECTION {
        return None;
    }
    Some(content.decompress().ok()?.into())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Cursor;
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use super::*;
    use crate::demangle;
    use crate::functions::Functions;
    use fgraph_needs::{GCC, GXX, Missing, OBJCOPY, RUSTC, needs};

    /// Source in both languages; the lines are the same.
    const C: &str = "\n\nint first(int n) { return n; }\n\n\nint sixth(int n) { return n; }\n";
    const RUST: &str = "\n\n#[no_mangle] extern \"C\" fn first(n: i32) -> i32 { n }\n\n
        #[no_mangle] extern \"C\" fn sixth(n: i32) -> i32 { n }\n";

    /// A function that gcc splits into two parts.
    const PARTS: &str = "__attribute__((cold, noinline)) void failed(int n) {
            __asm__ volatile(\"\" :: \"r\"(n)); }
        int checked(int n, const char *why) {
            if (n < 0) { failed(n); failed(2); return why[n]; }
            return n * 3; }";

    /// A test's own directory.
    struct Directory(PathBuf);

    impl Directory {
        fn new(test: &str) -> Self {
            let path = std::env::temp_dir().join(format!("{test}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn run(&self, program: &Path, arguments: &str) {
            let arguments = arguments.split_whitespace();
            let mut program = Command::new(program);
            let output = program.current_dir(&self.0).args(arguments).output();
            let output = output.unwrap();
            assert!(output.status.success(), "{output:?}");
        }

        fn read(&self, name: &str) -> Vec<u8> {
            fs::read(self.0.join(name)).unwrap()
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// Aligned as required for the bytes of a file.
    fn with_file<R>(bytes: &[u8], work: impl FnOnce(&ElfFile<'_>) -> R) -> R {
        let mut words = vec![0u64; bytes.len().div_ceil(8)];
        let aligned = &mut object::pod::bytes_of_slice_mut(&mut words)[..bytes.len()];
        aligned.copy_from_slice(bytes);
        work(&ElfFile::parse(aligned).unwrap())
    }

    /// Returns the source locations of a library's functions, from the debug file `debug`.
    fn lines_of(library: &[u8], debug: &[u8]) -> Option<[(String, u32); 2]> {
        with_file(library, |file| {
            let lines = Lines::read(Cursor::new(debug), file)?;
            let functions = Functions::read(file, None).unwrap();
            let at = |wanted: &str| {
                let is_it = |&index: &usize| {
                    let mut names = functions.names(index);
                    names.any(|name| name.symbol == wanted)
                };
                let index = (0..functions.len()).find(is_it).unwrap();
                lines.in_function(functions.get(index).address).unwrap()
            };
            Some(["first", "sixth"].map(at))
        })
    }

    fn check(library: &[u8], debug: &[u8], source: &str) {
        let lines = lines_of(library, debug).unwrap();
        for ((file, line), wanted) in lines.iter().zip([3, 6]) {
            assert!(file.ends_with(source) && file.starts_with('/'), "{file}");
            assert_eq!(*line, wanted);
        }
    }

    fn compile_c(directory: &Directory, options: &str) -> Result<Vec<u8>, Missing> {
        let gcc = GCC.find()?;
        fs::write(directory.0.join("code.c"), C).unwrap();
        directory.run(&gcc, &format!("-shared -fPIC -O1 {options} -o c.so code.c"));
        Ok(directory.read("c.so"))
    }

    #[test]
    fn lines_of_c_are_found_in_every_form_of_debug_information() {
        let directory = Directory::new("lines-c");
        for options in ["-g -gdwarf-4", "-g -gdwarf-5", "-g1", "-g -gz"] {
            let library = needs!(compile_c(&directory, options));
            check(&library, &library, "/code.c");
        }
        let library = compile_c(&directory, "-g0").unwrap();
        assert_eq!(lines_of(&library, &library), None);
        // For gcc, to split the file.
        needs!(OBJCOPY.find());
        let library = compile_c(&directory, "-g -gsplit-dwarf").unwrap();
        check(&library, &library, "/code.c");
    }

    #[test]
    fn lines_of_rust_are_found() {
        let directory = Directory::new("lines-rust");
        let rustc = needs!(RUSTC.find());
        fs::write(directory.0.join("code.rs"), RUST).unwrap();
        directory.run(&rustc, "--crate-type cdylib -g -o rust.so code.rs");
        let library = directory.read("rust.so");
        check(&library, &library, "/code.rs");
    }

    #[test]
    fn lines_are_found_in_the_debug_file_of_the_same_build_alone() {
        let directory = Directory::new("lines-debug-file");
        let objcopy = needs!(OBJCOPY.find());
        for id in ["", "-Wl,--build-id=none"] {
            let library = needs!(compile_c(&directory, &format!("-g {id}")));
            let found = build_id(Cursor::new(&library));
            with_file(&library, |file| {
                assert_eq!(found.as_deref(), file.build_id())
            });
            directory.run(&objcopy, "--only-keep-debug c.so c.debug");
            let debug = directory.read("c.debug");
            check(&library, &debug, "/code.c");
            let more = "-g -DMORE -Wl,-z,max-page-size=0x4000 -Wl,--build-id=0x01020304";
            let other = compile_c(&directory, more).unwrap();
            assert_eq!(lines_of(&other, &debug), None);
            let other = compile_c(
                &directory,
                "-g -Wl,-z,max-page-size=0x200000 -Wl,--build-id=none",
            );
            assert_eq!(lines_of(&other.unwrap(), &debug), None);
        }
    }

    #[test]
    fn functions_in_several_parts_have_signatures() {
        let directory = Directory::new("lines-parts");
        let gcc = needs!(GCC.find());
        fs::write(directory.0.join("parts.c"), PARTS).unwrap();
        for version in ["4", "5"] {
            let options = format!("-shared -fPIC -O2 -g -gdwarf-{version} -o parts.so parts.c");
            directory.run(&gcc, &options);
            let library = directory.read("parts.so");
            let found = with_file(&library, |file| {
                let functions = Functions::read(file, None).unwrap();
                let lines = Lines::read(Cursor::new(&library), file).unwrap();
                let is_it = |&index: &usize| {
                    let mut names = functions.names(index);
                    names.any(|name| name.symbol == "checked")
                };
                let index = (0..functions.len()).find(is_it).unwrap();
                lines.signature(functions.get(index).address).unwrap()
            });
            assert_eq!(found.to_string(), "(n: int, why: const char *) -> int");
        }
    }

    /// The paths to members of the variable with this symbol.
    fn members(library: &[u8], symbol: &str, offsets: &[u64]) -> Vec<Option<String>> {
        with_file(library, |file| {
            let lines = Lines::read(Cursor::new(library), file).unwrap();
            let table = file.symbol_table(elf::SymbolSource::Symtab).unwrap();
            let name = [symbol.as_bytes(), b"\0"].concat();
            let mut defined = table.defined();
            let variable =
                defined.find(|it| table.strings()[it.name as usize..].starts_with(&name));
            let variable = variable.unwrap().address;
            let paths = offsets.iter().map(|&offset| lines.member(variable, offset));
            paths.collect()
        })
    }

    #[test]
    fn members_of_variables_have_paths() {
        const TABLE: &str = "#include <pthread.h>
            struct entry { char name[16]; pthread_mutex_t lock; };
            struct table { long count; struct entry entries[3]; union { int a; long b; } either;
                unsigned flags : 3; struct { int state; pthread_cond_t ready; }; } table;";
        const CACHE: &str = "#include <mutex>
            namespace store { struct Base { std::mutex guard; };
            struct Cache : Base { static int used; int size; std::mutex other; } cache; }";
        let directory = Directory::new("lines-members");
        let (gcc, gxx) = (needs!(GCC.find()), needs!(GXX.find()));
        fs::write(directory.0.join("table.c"), TABLE).unwrap();
        fs::write(directory.0.join("cache.cc"), CACHE).unwrap();
        for version in ["4", "5"] {
            let options = format!("-shared -fPIC -g -gdwarf-{version}");
            directory.run(&gcc, &format!("{options} -o table.so table.c"));
            let found = members(
                &directory.read("table.so"),
                "table",
                &[0, 80, 81, 176, 192, 200, 5000],
            );
            let expected = [
                Some(".count"),
                Some(".entries[1].lock"),
                None,
                Some(".either"),
                Some(".state"),
                Some(".ready"),
                None,
            ];
            assert_eq!(found, expected.map(|path| path.map(str::to_owned)));
            directory.run(&gxx, &format!("{options} -o cache.so cache.cc"));
            let library = directory.read("cache.so");
            let found = members(&library, "_ZN5store5cacheE", &[0, 40, 48]);
            let expected = [".guard", ".size", ".other"];
            assert_eq!(found, expected.map(|path| Some(path.to_owned())));
        }
    }

    /// Source in three languages that inlines `get` in `one`, twice, and in `two`.
    const INLINED_C: &str = "static inline __attribute__((always_inline)) int get(int k) {
            return k * 7 + (k >> 3); }
        int one(int k) { return get(k) +
            get(k + 5); }
        int two(int k) { return get(k * 3) - 1; }";
    const INLINED_CPP: &str = "namespace store { struct Cache { int last; int get(int k); }; }
        inline __attribute__((always_inline)) int store::Cache::get(int k) { return last = k * 7; }
        extern \"C\" int one(store::Cache *c, int k) { return c->get(k) +
            c->get(k + 5); }
        extern \"C\" int two(store::Cache *c, int k) { return c->get(k * 3) - 1; }";
    const INLINED_RUST: &str = "#[inline(always)] fn get(k: i32) -> i32 { (k * 7) ^ (k >> 3) }
        #[unsafe(no_mangle)]
        pub extern \"C\" fn one(k: i32) -> i32 { get(k) &
            get(k + 5) }
        #[unsafe(no_mangle)] pub extern \"C\" fn two(k: i32) -> i32 { get(k * 3) & 1023 }";

    #[test]
    fn inlined_functions_are_found_at_the_places_of_their_calls() {
        let directory = Directory::new("lines-inlined");
        let (gcc, gxx) = (needs!(GCC.find()), needs!(GXX.find()));
        let rustc = needs!(RUSTC.find());
        let rust = "--edition 2024 --crate-type cdylib -g -C opt-level=2 -C overflow-checks=off";
        for (compiler, options, source, text, name) in [
            (&gcc, "-shared -fPIC -O2 -g", "i.c", INLINED_C, "get"),
            (
                &gcc,
                "-shared -fPIC -O2 -g -gdwarf-4",
                "i.c",
                INLINED_C,
                "get",
            ),
            (&gcc, "-shared -fPIC -O2 -g -flto", "i.c", INLINED_C, "get"),
            (
                &gxx,
                "-shared -fPIC -O2 -g",
                "i.cc",
                INLINED_CPP,
                "store::Cache::get",
            ),
            (&rustc, rust, "i.rs", INLINED_RUST, "i::get"),
        ] {
            fs::write(directory.0.join(source), text).unwrap();
            directory.run(compiler, &format!("{options} -o i.so {source}"));
            let library = directory.read("i.so");
            let found = with_file(&library, |file| {
                let lines = Lines::read(Cursor::new(&library), file).unwrap();
                assert!(lines.inlined(|symbol| symbol == "one").is_empty());
                lines.inlined(|symbol| demangle::to_string(symbol) == name)
            });
            let mut places: Vec<_> = found
                .into_iter()
                .map(|it| {
                    let (file, line) = it.place.unwrap();
                    assert!(file.ends_with(source), "{file}");
                    (it.caller.unwrap(), line)
                })
                .collect();
            places.sort_unstable();
            // An optimizer may split the code of one call.
            places.dedup();
            let expected = [("one", 3), ("one", 4), ("two", 5)];
            let expected = expected.map(|(caller, line)| (caller.to_owned(), line));
            assert_eq!(places, expected, "{source} {options}");
        }
    }

    #[test]
    fn debug_information_that_lies_does_no_harm() {
        let directory = Directory::new("lines-lies");
        for options in ["-g", "-g -gz", "-g -gdwarf-4"] {
            let library = needs!(compile_c(&directory, options));
            for at in (0..library.len()).step_by(13) {
                let mut lies = library.clone();
                for (byte, value) in lies[at..].iter_mut().zip([0xff, 0x80, 0x00, 0x7f]) {
                    *byte = value;
                }
                with_file(&library, |file| {
                    if let Some(lines) = Lines::read(Cursor::new(&lies), file) {
                        for address in (0..0x2000).step_by(16).chain([u64::MAX]) {
                            let _ = (lines.in_function(address), lines.signature(address));
                            let _ = lines.member(address, 8);
                        }
                        let _ = lines.inlined(|_| true);
                    }
                    assert!(Lines::read(Cursor::new(&library[..at]), file).is_none());
                });
            }
        }
    }
}
