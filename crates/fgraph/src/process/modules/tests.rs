use core::ffi::CStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use super::*;
use crate::process::image::read_file;
use crate::process::listed_entries::listed_entries;
use crate::process::loaded_module::{PROGRAM, auxiliary, executed_path, file_len};
use fgraph_needs::{CLANG, GCC, Missing, Need, needs, skip};
use fgraph_symbols::demangle;
use fgraph_symbols::elf::EntryList;
use fgraph_symbols::functions::Functions;

/// A directory of one test, which goes when this is dropped.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new(test: &str) -> Self {
        let name = format!("fgraph-{test}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Compiles C code into a shared library.
    pub(crate) fn compile(
        &self,
        compiler: &Need,
        source: &str,
        options: &str,
    ) -> Result<PathBuf, Missing> {
        let [input, library] = ["code.c", "libcode.so"].map(|name| self.0.join(name));
        fs::write(&input, source).unwrap();
        let output = Command::new(compiler.find()?)
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([&library, &input])
            .args(options.split_whitespace())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        Ok(library)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Held while something is loaded, or while nothing must be.
static LOADING: Mutex<()> = Mutex::new(());

#[test]
fn libraries_come_and_go_while_one_is_kept_present() {
    let directory = Directory::new("present");
    let source = "int present(void) { return 7; }";
    let path = needs!(directory.compile(&GCC, source, ""));
    let other = directory.path().join("libother.so");
    fs::copy(&path, &other).unwrap();
    let _loading = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
    let [path, other] =
        [path, other].map(|path| CString::new(path.into_os_string().into_encoded_bytes()).unwrap());
    // SAFETY: libraries of this test's own.
    let open = |path: &CStr| unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    let handle = open(&path);
    assert!(!handle.is_null());
    handle.expose_provenance();
    let (all, _) = loaded();
    let is_it = |module: &&LoadedModule| module.path.as_os_str().as_bytes() == path.to_bytes();
    let module = all.iter().find(is_it).unwrap();
    let address = module.text().next().unwrap().start;
    let is_loaded = || loaded().0.iter().any(|module| module.is_text(address));
    let done = while_present(module, || {
        // In another thread, which has to wait for one that has the linker's lock.
        let comes_and_goes = std::thread::scope(|scope| {
            let handle = handle.addr();
            let thread = scope.spawn(move || {
                let second = open(&other);
                // SAFETY: both are open.
                let closed = [second.expose_provenance(), handle].map(|handle| unsafe {
                    libc::dlclose(ptr::with_exposed_provenance_mut(handle))
                });
                (second.is_null(), closed)
            });
            thread.join().unwrap()
        });
        assert_eq!(comes_and_goes, (false, [0, 0]));
        assert!(is_loaded());
    });
    assert!(done.is_some());
    assert!(!is_loaded());
    assert!(while_present(module, || ()).is_none());
    assert!(while_listed(module, || ()).is_none());
    assert!(while_listed(&all[0], || ()).is_some());
}

/// Loads a library for good.
pub(crate) fn load(path: &Path) -> LoadedModule {
    let _loading = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: a string, and the library has no initialisers of its own.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
    assert!(!handle.is_null(), "{path:?}");
    let (modules, _) = loaded();
    modules.into_iter().find(|m| m.path() == path).unwrap()
}

/// The names of functions at which the entries of a list are, with the distance to them.
fn listed(module: &LoadedModule, list: EntryList) -> Vec<(String, u64)> {
    let file = ElfFile::parse(module.map().unwrap()).unwrap();
    let functions = Functions::read(&file, None).unwrap();
    let entries = listed_entries(module, &file).unwrap();
    let in_list = entries.iter().filter(|entry| entry.list == list);
    let mut names: Vec<_> = in_list
        .map(|entry| {
            let address = (entry.address - module.load_bias()) as u64;
            let index = functions.containing(address).unwrap();
            let name = functions.names(index).next().unwrap();
            (name.to_string(), address - functions.get(index).address)
        })
        .collect();
    names.sort_unstable();
    names
}

const TWO_FUNCTIONS: &str = "
    int called(int);
    int f(int n) { return called(n) + 1; }
    __attribute__((noinline)) int called(int n) { return n * 3; }
";

/// Both functions, and how far behind their starts the listed places are.
fn both(distance: u64) -> [(String, u64); 2] {
    ["called", "f"].map(|name| (name.to_owned(), distance))
}

#[test]
fn padded_entries_are_listed() {
    for (test, compiler, options, distance) in [
        ("pad", GCC, "-fcf-protection=none", 0),
        ("pad-cet", GCC, "-fcf-protection=branch", 4),
        ("pad-clang", CLANG, "", 0),
    ] {
        let directory = Directory::new(test);
        let options = format!("-fpatchable-function-entry=5 {options}");
        let library = needs!(directory.compile(&compiler, TWO_FUNCTIONS, &options));
        let module = load(&library);
        assert_eq!(listed(&module, EntryList::Patchable), both(distance));
        assert_eq!(listed(&module, EntryList::Mcount), []);
    }
}

#[test]
fn calls_of_fentry_are_listed() {
    // Stands for that of the C library, without a call of itself.
    let fentry = "__attribute__((no_instrument_function)) void __fentry__(void) {}";
    let source = format!("{fentry}\n{TWO_FUNCTIONS}");
    for (protection, distance) in [("none", 0), ("branch", 4)] {
        let directory = Directory::new(&format!("mcount-{protection}"));
        let options = format!("-pg -mfentry -mrecord-mcount -fcf-protection={protection}");
        let library = needs!(directory.compile(&GCC, &source, &options));
        let module = load(&library);
        assert_eq!(listed(&module, EntryList::Mcount), both(distance));
    }
}

#[test]
fn entry_sleds_of_xray_are_listed() {
    let directory = Directory::new("xray");
    let options = "-fxray-instrument -fxray-instruction-threshold=1";
    let library = needs!(directory.compile(&CLANG, TWO_FUNCTIONS, options));
    let module = load(&library);
    assert_eq!(listed(&module, EntryList::Xray), both(0));
}

fn program() -> LoadedModule {
    loaded()
        .0
        .into_iter()
        .find(LoadedModule::is_program)
        .unwrap()
}

fn address_of_this_test() -> usize {
    a_function_of_this_program as fn() as usize
}

#[inline(never)]
fn a_function_of_this_program() {
    std::hint::black_box(0);
}

#[test]
fn the_program_comes_first_and_once() {
    let (modules, _) = loaded();
    assert!(modules[0].is_program());
    assert_eq!(modules.iter().filter(|m| m.is_program()).count(), 1);
    assert_eq!(modules[0].path(), std::env::current_exe().unwrap());
}

#[test]
fn code_lies_in_the_text_of_its_module() {
    let holds = |m: &LoadedModule, at| m.text().any(|range| range.contains(&at));
    assert!(holds(&program(), address_of_this_test()));
    let getpid = libc::getpid as unsafe extern "C" fn() -> _ as usize;
    let local = 0;
    assert!(loaded().0.iter().any(|m| holds(m, getpid)));
    assert!(
        !loaded()
            .0
            .iter()
            .any(|m| holds(m, (&raw const local).addr()))
    );
}

#[test]
fn every_module_has_a_file_it_was_loaded_from() {
    for module in loaded().0 {
        if module.path().starts_with(std::env::temp_dir()) {
            continue; // another test's, which removes it
        }
        let file = ElfFile::parse(module.map().unwrap()).unwrap();
        assert!(listed_entries(&module, &file).is_ok(), "{module:?}");
    }
}

#[test]
fn the_vdso_is_a_file_in_memory() {
    if auxiliary(libc::AT_SYSINFO_EHDR) == 0 {
        return skip!("the kernel has given this process no vDSO");
    }
    let (modules, _) = loaded();
    let vdso = modules.iter().find(|m| m.is_vdso()).unwrap();
    assert_eq!(vdso.path(), Path::new("[vdso]"));
    assert_eq!(
        modules.iter().filter(|m| m.path() == vdso.path()).count(),
        1
    );
    let bytes = vdso.map().unwrap();
    assert!(bytes.len() >= file_len(bytes).unwrap());
    let file = ElfFile::parse(bytes).unwrap();
    assert_eq!(listed_entries(vdso, &file), Ok(Vec::new()));
    let functions = Functions::read(&file, None).unwrap();
    let time = (0..functions.len()).find(|&index| {
        functions
            .names(index)
            .any(|n| n.symbol == "__vdso_clock_gettime")
    });
    let address = functions.get(time.unwrap()).address as usize;
    assert!(vdso.is_text(vdso.load_bias() + address));
}

#[test]
fn a_file_ends_with_its_section_headers() {
    let bytes = program().map().unwrap();
    assert_eq!(file_len(bytes), Some(bytes.len()));
    assert_eq!(file_len(&bytes[..61]), None);
}

#[test]
fn generations_change_with_the_list_only() {
    let _nobody = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
    let before = generation();
    let (modules, listed) = loaded();
    assert_eq!(before, listed);
    assert!(before.adds - before.subs >= modules.len() as u64);
}

// Listed as a compiler lists functions with padding; this program may have no other.
std::arch::global_asm!(
    ".pushsection .text.padded_for_tests, \"ax\", @progbits",
    ".type padded_for_tests, @function",
    ".globl padded_for_tests",
    "padded_for_tests:",
    ".byte 0x0f, 0x1f, 0x44, 0x00, 0x08",
    "ret",
    ".size padded_for_tests, . - padded_for_tests",
    ".popsection",
    ".pushsection __patchable_function_entries, \"awo\", @progbits, .text.padded_for_tests",
    ".p2align 3",
    ".quad padded_for_tests",
    ".popsection",
);

unsafe extern "C" {
    safe fn padded_for_tests();
}

#[test]
fn entries_are_starts_of_functions() {
    let program = program();
    let file = ElfFile::parse(program.map().unwrap()).unwrap();
    let entries = listed_entries(&program, &file).unwrap();
    assert!(entries.is_sorted());
    padded_for_tests();
    let padded = padded_for_tests as *const () as usize;
    assert!(entries.iter().any(|entry| entry.address == padded));
    let functions = Functions::read(&file, None).unwrap();
    for entry in entries {
        let address = (entry.address - program.load_bias()) as u64;
        let function = functions.get(functions.containing(address).unwrap());
        assert!(address - function.address <= 4, "{function:?}");
    }
}

#[test]
fn another_file_is_not_believed() {
    let (modules, _) = loaded();
    let other = modules.iter().find(|m| !m.is_program()).unwrap();
    let file = ElfFile::parse(other.map().unwrap()).unwrap();
    assert_eq!(
        listed_entries(&program(), &file),
        Err(ElfError::NotTheLoadedFile)
    );
}

#[test]
fn a_file_with_another_build_id_is_not_believed() {
    let program = program();
    let mut bytes = program.map().unwrap().to_vec();
    let file = ElfFile::parse(&bytes).unwrap();
    let Some((_, note)) = file.notes().next() else {
        return skip!("this program is linked without a build id");
    };
    let last_of_note = note.as_ptr_range().end.addr() - 1 - bytes.as_ptr().addr();
    bytes[last_of_note] ^= 1;
    let file = ElfFile::parse(&bytes).unwrap();
    assert_eq!(
        listed_entries(&program, &file),
        Err(ElfError::NotTheLoadedFile)
    );
}

#[test]
fn an_unloaded_module_has_no_entries() {
    let program = program();
    let file = ElfFile::parse(program.map().unwrap()).unwrap();
    let gone = LoadedModule {
        bias: program.bias.wrapping_add(0x1000),
        ..program
    };
    assert_eq!(listed_entries(&gone, &file), Err(ElfError::Unloaded));
}

#[test]
fn memory_outside_readable_segments_is_not_read() {
    let program = program();
    let first = program.with_flags(libc::PF_R).next().unwrap();
    assert!(program.is_readable(&first));
    assert!(!program.is_readable(&(first.start - 1..first.end)));
    assert!(!program.is_readable(&(first.start..usize::MAX)));
    assert!(!program.is_readable(&(0..8)));
}

#[test]
fn importers_of_a_function_may_call_it_and_definers_are_not_asked() {
    let program = program();
    let address = linker::symbol(c"malloc").addr();
    assert!(program.may_call(c"malloc", address));
    assert!(!program.may_call(c"no such function", 0));
    let (modules, _) = loaded();
    let libc = modules.iter().find(|module| module.is_text(address));
    assert!(!libc.unwrap().may_call(c"malloc", address));
    let names = libc.unwrap().symbol_names().unwrap();
    assert!(names.windows(7).any(|name| name == b"malloc\0"));
}

#[test]
fn only_regular_files_with_content_are_read() {
    let kind = |path: &str| read_file(path).unwrap_err().kind();
    assert_eq!(kind("/nowhere/to/be/found"), io::ErrorKind::NotFound);
    assert_eq!(kind("/dev/null"), io::ErrorKind::InvalidInput);
    assert_eq!(kind("/"), io::ErrorKind::InvalidInput);
    let empty = std::env::temp_dir().join(format!("fgraph-empty-{}", std::process::id()));
    fs::write(&empty, "").unwrap();
    let result = read_file(&empty);
    fs::remove_file(&empty).unwrap();
    assert_eq!(result.unwrap_err().kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn the_executed_path_is_known_without_proc() {
    assert_eq!(
        fs::canonicalize(executed_path()).unwrap(),
        fs::canonicalize(PROGRAM[0]).unwrap()
    );
}

fn functions_of(bytes: &'static [u8]) -> Functions<'static> {
    Functions::read(&ElfFile::parse(bytes).unwrap(), None).unwrap()
}

#[test]
fn the_test_program_knows_its_own_functions() {
    fn inside(functions: &Functions<'_>, address: u64) -> String {
        let index = functions.containing(address).unwrap();
        let name = functions.names(index).next().unwrap();
        demangle::to_string(name.symbol)
    }
    let (loaded, _) = loaded();
    let program = loaded.iter().find(|module| module.is_program()).unwrap();
    let functions = functions_of(program.map().unwrap());
    let here = inside as fn(&Functions<'_>, u64) -> String as usize - program.load_bias();
    let path = "::tests::the_test_program_knows_its_own_functions::inside";
    assert!(inside(&functions, here as u64 + 1).ends_with(path));
}

#[test]
fn versions_are_those_that_the_linker_gives() {
    let (loaded, _) = loaded();
    let libc = |m: &&LoadedModule| m.path().to_string_lossy().contains("/libc.so.6");
    let Some(libc) = loaded.iter().find(libc) else {
        return skip!("another C library than GNU's");
    };
    let functions = functions_of(libc.map().unwrap());
    let all: Vec<_> = (0..functions.len())
        .flat_map(|index| functions.names(index).map(move |name| (index, name)))
        .collect();
    let named = |wanted: &str| {
        let found = all.iter().find(|(_, name)| name.to_string() == wanted);
        found.unwrap_or_else(|| panic!("no {wanted}")).0
    };
    assert!(functions.get(named("memcpy@@GLIBC_2.14")).is_resolver);
    let [new, old] = ["realpath@@GLIBC_2.3", "realpath@GLIBC_2.2.5"].map(named);
    assert_ne!(new, old);
    assert!(!functions.get(named("qsort@@GLIBC_2.2.5")).is_resolver);
}

#[test]
fn program_headers_agree_with_the_maps() {
    let (modules, _) = loaded();
    let here = program_headers_agree_with_the_maps as fn() as usize;
    let as_loaded = Protections::as_loaded(modules.iter().flat_map(LoadedModule::segments));
    assert!(
        as_loaded
            .of(here)
            .is_some_and(|text| text.executable && !text.writable)
    );
    assert_eq!(as_loaded.of(here), protections().of(here));
}
