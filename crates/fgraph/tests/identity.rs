//! Names, numbers and source places of functions.

use std::path::PathBuf;
use std::sync::Mutex;

use fgraph::{Entry, FgraphOps, Function, Return};
use fgraph_needs::{CC, Missing, needs};
use fgraph_scenario::{Count, Library, scenario};

const C: &str = "
    #define LOCAL static __attribute__((noinline, noclone))
    LOCAL int twice(int n) { volatile int two = 2; return n * two; }
    LOCAL int thrice(int n) { volatile int three = 3; return n * three; }
    int identity_sum(int n) { return twice(n) + twice(n + 1) + thrice(n); }
";

/// A library that knows the name of `identity_sum` only.
fn stripped() -> Result<PathBuf, Missing> {
    // Without its symbol table.
    fgraph_scenario::build_library(&CC, "identity.c", C, &["-O2", "-s"])
}

#[scenario]
fn functions_without_a_name_are_traced_by_their_place_in_the_module() {
    let path = needs!(stripped());
    let library = Library::open(&path);
    // SAFETY: its signature.
    let sum: extern "C" fn(i32) -> i32 = unsafe { library.get("identity_sum") };
    let unnamed = |site: &fgraph::SiteInfo| {
        site.module.ends_with("libidentity.so") && !site.has_name && site.how.is_ok()
    };
    let sites = fgraph::sites().unwrap();
    let unnamed: Vec<_> = sites.iter().filter(unnamed).collect();
    assert_eq!(unnamed.len(), 2, "{unnamed:?}");
    let all = fgraph_scenario::register(Count::default(), "libidentity.so+0x*").unwrap();
    assert_eq!(all.report().unwrap().traced, 2);
    let users: Vec<_> = unnamed
        .iter()
        .map(|site| {
            assert!(site.size > 0);
            assert!(site.name.starts_with("libidentity.so+0x"), "{}", site.name);
            fgraph_scenario::register(Count::default(), &site.name).unwrap()
        })
        .collect();
    assert_eq!(sum(5), 10 + 12 + 15);
    assert_eq!(all.user().both(), (3, 3));
    let mut counts: Vec<_> = users.iter().map(|user| user.user().both()).collect();
    counts.sort_unstable();
    assert_eq!(counts, [(1, 1), (2, 2)]);
}

#[scenario]
fn functions_of_the_c_library_go_by_the_names_that_programs_use() {
    let sites = fgraph::sites().unwrap();
    let at = |address: usize| {
        let mut all = sites.iter();
        let site = all.find(|site| site.address == address && site.how.is_ok());
        site.map(|site| site.name)
    };
    assert_eq!(
        at(libc::free as *const () as usize),
        Some("free".to_owned())
    );
    assert_eq!(
        at(libc::close as *const () as usize),
        Some("close".to_owned())
    );
    // The target of an IFUNC.
    assert_eq!(
        at(libc::memcpy as *const () as usize),
        Some("memcpy".to_owned())
    );
}

/// Remembers which functions were called, and what is known of the addresses of their first bytes.
#[derive(Default)]
struct Called {
    functions: Mutex<Vec<Function>>,
    found: Mutex<Vec<Option<fgraph::Symbol>>>,
}

impl FgraphOps for Called {
    type Data = ();

    fn entry(&self, call: &mut Entry<'_, ()>) -> Option<()> {
        let function = call.function();
        self.functions.lock().unwrap().push(function);
        let found = fgraph::function_at(function.address());
        self.found.lock().unwrap().push(found);
        None
    }

    fn ret(&self, _call: &mut Return<'_, ()>, (): ()) {}
}

/// Calls `identity_sum` with every function of its library traced: the addresses and numbers of the
/// functions that were called, by address.
fn numbers(library: &Library) -> Vec<(usize, u32)> {
    // SAFETY: its signature.
    let sum: extern "C" fn(i32) -> i32 = unsafe { library.get("identity_sum") };
    let user = fgraph_scenario::register(Called::default(), ":mod:libidentity.so").unwrap();
    sum(5);
    let called = user.unregister().unwrap();
    let functions = called.functions.into_inner().unwrap();
    let mut numbers: Vec<_> = functions
        .iter()
        .map(|function| (function.address(), function.index()))
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

#[scenario]
fn functions_have_numbers_and_get_them_back() {
    let path = needs!(stripped());
    assert_eq!(fgraph::function_count(), 0);
    let library = Library::open(&path);
    let first = numbers(&library);
    assert_eq!(first.len(), 3);
    let count = fgraph::function_count();
    assert!(first.iter().all(|&(_, index)| index < count));
    assert!(first.windows(2).all(|pair| pair[0].1 != pair[1].1));
    // Where it was there is something else now.
    let page = (first[0].0 / 4096 * 4096) as *mut _;
    let copy = path.with_file_name("copy.so");
    std::fs::copy(&path, &copy).unwrap();
    library.close();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: new memory.
    let mapped = unsafe { libc::mmap(page, 4096, libc::PROT_NONE, flags, -1, 0) };
    assert_eq!(mapped, page);
    std::fs::rename(&copy, &path).unwrap();
    let library = Library::open(&path);
    let second = numbers(&library);
    assert_ne!(first[0].0, second[0].0);
    let indices = |numbers: &[(usize, u32)]| numbers.iter().map(|n| n.1).collect::<Vec<_>>();
    assert_eq!(indices(&first), indices(&second));
    assert_eq!(fgraph::function_count(), count);
}

#[scenario]
fn callbacks_learn_which_function_an_address_is_in() {
    let path = needs!(stripped());
    let library = Library::open(&path);
    // SAFETY: its signature.
    let sum: extern "C" fn(i32) -> i32 = unsafe { library.get("identity_sum") };
    let user = fgraph_scenario::register(Called::default(), ":mod:libidentity.so").unwrap();
    sum(5);
    let called = user.unregister().unwrap();
    let functions = called.functions.into_inner().unwrap();
    let found = called.found.into_inner().unwrap();
    assert_eq!(functions.len(), 4);
    for (function, found) in functions.iter().zip(found) {
        let found = found.expect("its module has been read");
        assert_eq!(found.address(), function.address());
        assert_eq!(found.name().to_string(), function.name().as_str());
        assert_eq!(found.size(), function.size());
        assert!(found.module().ends_with("libidentity.so"));
        assert!(function.size() > 0);
        let inside = fgraph::function_at(function.address() + function.size() - 1);
        assert_eq!(inside.expect("still inside").address(), function.address());
    }
    assert_eq!(functions[0].symbol(), "identity_sum");
    assert_eq!(functions[1].symbol(), "");
    assert!(
        functions[1]
            .name()
            .as_str()
            .starts_with("libidentity.so+0x")
    );
    assert!(fgraph::function_at(&raw const functions as usize).is_none());
    assert!(fgraph::function_at(0).is_none());
    assert!(fgraph::function_at(usize::MAX).is_none());
}

const CPP: &str = "
    namespace identity {
        int calls;
        __attribute__((noinline)) void over(int n) { calls += n; }
        __attribute__((noinline)) void over(double n) { calls += (int)n; }
    }
    extern \"C\" void identity_call() { identity::over(1); identity::over(2.0); }
";

#[scenario]
fn overloads_have_one_name_and_differ_in_the_full_one() {
    let library = needs!(fgraph_scenario::library(
        &fgraph_needs::GXX,
        "over.cpp",
        CPP,
        &[]
    ));
    // SAFETY: its signature.
    let call: extern "C" fn() = unsafe { library.get("identity_call") };
    let user = fgraph_scenario::register(Called::default(), "identity::over").unwrap();
    call();
    let called = user.unregister().unwrap();
    let functions = called.functions.into_inner().unwrap();
    let [a, b] = functions[..] else {
        panic!("{functions:?}");
    };
    assert_eq!(a.name(), b.name());
    assert_ne!(a, b);
    let full = [a, b].map(|function| function.full_name().to_string());
    assert_eq!(full, ["identity::over(int)", "identity::over(double)"]);
    assert_eq!(a.symbol(), "_ZN8identity4overEi");
    assert_eq!(a.names().collect::<Vec<_>>(), ["identity::over"]);
}

/// Function whose source place is in this file.
#[inline(never)]
extern "C" fn in_this_file(n: u32) -> u32 {
    std::hint::black_box(n) + 1
}
const IN_THIS_FILE: u32 = line!() - 3;

#[scenario]
fn functions_and_symbols_know_where_they_are_in_their_source() {
    let path = needs!(fgraph_scenario::build_library(
        &CC,
        "identity.c",
        C,
        &["-g"]
    ));
    let library = Library::open(&path);
    // SAFETY: only its address is used.
    let sum: extern "C" fn(i32) -> i32 = unsafe { library.get("identity_sum") };
    for (address, file, line) in [
        (sum as usize, "/identity.c", 5..6),
        // With optimisation the code begins with what the first line of the body calls.
        (
            in_this_file as *const () as usize,
            "tests/identity.rs",
            IN_THIS_FILE..IN_THIS_FILE + 2,
        ),
    ] {
        let filter = fgraph::Filter::none().address(address);
        let user = fgraph_scenario::register(Count::default(), filter).unwrap();
        let [function] = user.functions().unwrap()[..] else {
            panic!("{:?}", user.functions());
        };
        let source = function.source().unwrap();
        assert!(source.file.ends_with(file), "{source}");
        assert!(line.contains(&source.line), "{source}");
        let symbol = fgraph::function_at(address + 1).unwrap();
        assert_eq!(symbol.source(), Some(source));
    }
}

#[scenario]
fn a_function_without_debug_information_has_no_source() {
    let path = needs!(stripped());
    let _library = Library::open(&path);
    let user = fgraph_scenario::register(Count::default(), ":mod:libidentity.so").unwrap();
    let functions = user.functions().unwrap();
    assert!(!functions.is_empty());
    assert!(functions.iter().all(|function| function.source().is_none()));
}

/// User that looks up the source place of a function whenever a file is opened.
struct Asks(Function);

impl FgraphOps for Asks {
    type Data = ();

    fn entry(&self, _call: &mut Entry<'_, ()>) -> Option<()> {
        let _ = self.0.source();
        None
    }
}

#[scenario]
fn a_source_place_may_be_requested_during_its_lookup() {
    let path = needs!(fgraph_scenario::build_library(
        &CC,
        "identity.c",
        C,
        &["-g"]
    ));
    let _library = Library::open(&path);
    let sum = fgraph_scenario::register(Count::default(), "identity_sum").unwrap();
    let function = sum.functions().unwrap()[0];
    let asks = fgraph_scenario::register(Asks(function), "open open64 read close statx").unwrap();
    assert!(asks.report().unwrap().traced >= 3);
    // Also in a thread that fgraph has not seen.
    let thread = std::thread::spawn(move || function.source().unwrap().line);
    assert_eq!(thread.join().unwrap(), 5);
    assert_eq!(function.source().unwrap().line, 5);
}

#[scenario]
fn functions_of_all_modules_are_known_once_symbols_are_loaded() {
    let close = libc::close as *const () as usize;
    let here = functions_of_all_modules_are_known_once_symbols_are_loaded as *const () as usize;
    let name = |address| fgraph::function_at(address).map(|it| it.name().to_string());
    assert_eq!([close, here].map(name), [None, None]);
    // A filter of one module asks for that module only.
    let user = fgraph_scenario::register(Called::default(), "getppid:mod:libc.so*").unwrap();
    assert_eq!((name(close).is_some(), name(here)), (true, None));
    fgraph::load_symbols().unwrap();
    let names = [close, here].map(name);
    assert_eq!(names[0].as_deref(), Some("close"));
    assert!(
        names[1]
            .as_ref()
            .unwrap()
            .ends_with("once_symbols_are_loaded"),
        "{names:?}"
    );
    assert_eq!(fgraph::status().unwrap().patched, 1);
    drop(user);
}
