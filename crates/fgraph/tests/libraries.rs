//! Libraries that come and go while filters are in force.

// Long strings: C code.

use std::cell::Cell;
use std::fs;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::thread;

use fgraph::Filter;
use fgraph_needs::{CC, Missing, needs};
use fgraph_scenario::{Count, Library, scenario};

const C: &str = "
    int joined_state;
    __attribute__((noinline)) int joined_sum(int n) {
        int sum = joined_state;
        for (int i = 0; i <= n; i++) sum += i;
        return sum;
    }
    __attribute__((constructor)) void joined_start(void) { joined_state = 1000; joined_state = joined_sum(4); }
    __attribute__((destructor)) void joined_stop(void) { joined_state = joined_sum(1); }
";

fn count(filter: &str) -> fgraph::Handle<Count> {
    fgraph_scenario::register(Count::default(), filter).unwrap()
}

/// Builds the library.
fn build() -> Result<std::path::PathBuf, Missing> {
    fgraph_scenario::build_library(&CC, "joined.c", C, &[])
}

fn sum(library: &Library) -> extern "C" fn(i32) -> i32 {
    // SAFETY: its signature.
    unsafe { library.get("joined_sum") }
}

#[scenario]
fn a_library_joins_a_filter_before_its_constructors_run() {
    let path = needs!(build());
    let user = count("joined_*");
    assert!(user.report().unwrap().matches_nothing());
    let library = Library::open(&path);
    // The constructor, and what it calls.
    assert_eq!(user.user().both(), (2, 2));
    assert_eq!(sum(&library)(2), 1010 + 3);
    assert_eq!(user.user().both(), (3, 3));
    library.close();
    // The destructor, and what it calls.
    assert_eq!(user.user().both(), (5, 5));
    assert_eq!(user.unregister().unwrap().both(), (5, 5));
}

#[scenario]
fn a_library_joins_every_filter_that_selects_its_functions() {
    let path = needs!(build());
    let users = ["joined_sum", ":mod:libjoined.so", "joined_st*", "other_*"].map(count);
    let library = Library::open(&path);
    let before = users.each_ref().map(|user| user.user().both().0);
    assert_eq!((before[0], before[2], before[3]), (1, 1, 0));
    sum(&library)(2);
    let after = users.each_ref().map(|user| user.user().both().0);
    assert_eq!(after, [2, before[1] + 1, 1, 0]);
}

#[scenario]
fn a_library_that_is_loaded_without_filters_is_left_alone() {
    let path = needs!(build());
    let user = count("joined_sum");
    user.unregister().unwrap();
    let library = Library::open(&path);
    let address = library.address("joined_sum");
    assert!(!fgraph_scenario::is_patched(address));
    assert_eq!(fgraph::status().unwrap().patched, 0);
}

#[scenario]
fn libraries_come_and_go_without_growth() {
    let path = needs!(build());
    let user = count("joined_*");
    let mut sites = Vec::new();
    for round in 1..=200 {
        let library = Library::open(&path);
        assert_eq!(sum(&library)(2), 1010 + 3);
        library.close();
        assert_eq!(user.user().both(), (5 * round, 5 * round));
        sites.push(mapped());
    }
    // Once everything is there, nothing more is mapped.
    assert_eq!(sites[20], sites[199]);
}

/// Returns the number of executable mappings of the process.
fn mapped() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("r-xp")).count()
}

#[scenario]
fn a_library_that_no_filter_selects_is_read_once_wherever_it_is_loaded() {
    let path = needs!(build());
    let other = path.with_extension("other");
    fs::copy(&path, &other).unwrap();
    let user = count("other_*");
    let mut sizes = Vec::new();
    for round in 0..200 {
        // With another one at its place it comes to another place.
        let taken = (round % 2 == 0).then(|| Library::open(&other));
        let library = Library::open(&path);
        assert_eq!(sum(&library)(2), 1010 + 3);
        library.close();
        taken.map(Library::close);
        sizes.push(size());
    }
    assert_eq!(user.user().both(), (0, 0));
    // A page for each time that it was loaded would be more. Allocators may have grown.
    assert!(sizes[199] < sizes[20] + 100, "{sizes:?}");
}

/// Returns the size of the process's address space in pages.
fn size() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    let size = statm.split_whitespace().next().unwrap();
    size.parse().unwrap()
}

#[scenario]
fn libraries_come_and_go_while_filters_change() {
    let path = needs!(build());
    let path: &Path = &path;
    let done = AtomicBool::new(false);
    let kept = count("joined_*");
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let user = count("joined_sum");
                let _ = fgraph_scenario::set_filter(&user, "joined_*");
                user.unregister().unwrap();
            }
        });
        for _ in 0..200 {
            let library = Library::open(path);
            assert_eq!(sum(&library)(2), 1010 + 3);
            library.close();
        }
        done.store(true, Ordering::Relaxed);
    });
    let (entries, returns) = kept.unregister().unwrap().both();
    assert_eq!(entries, returns);
    assert_eq!(fgraph::status().unwrap().patched, 0);
}

#[scenario]
fn a_filter_is_changed_in_the_end_while_another_thread_loads_libraries_all_the_time() {
    const COPIES: usize = 100;
    let built = needs!(build());
    let copy = move |index: usize| built.with_file_name(format!("libcopy{index}.so"));
    for index in 0..COPIES {
        fs::copy(copy(0).with_file_name("libjoined.so"), copy(index)).unwrap();
    }
    let (order, orders) = mpsc::channel::<usize>();
    let (say, loaded) = mpsc::channel();
    let libraries = thread::spawn(move || {
        let load = |index| {
            let library = Library::open(&copy(index));
            say.send(()).unwrap();
            library
        };
        drop(orders.iter().map(load).collect::<Vec<_>>());
    });
    // Whenever this thread looks at the newest library, the other thread loads another one.
    let newest = Arc::new(AtomicUsize::new(0));
    let (this, loads) = (thread::current().id(), Mutex::new((order, loaded)));
    let load = {
        let newest = newest.clone();
        move |index| {
            let loads = loads.lock().unwrap();
            newest.store(index, Ordering::Relaxed);
            loads.0.send(index).unwrap();
            loads.1.recv().unwrap();
        }
    };
    load(0);
    let filter = Filter::none().predicate({
        let newest = newest.clone();
        move |function| {
            let newest = newest.load(Ordering::Relaxed);
            let is_newest = function.module().contains(&format!("libcopy{newest}."));
            if is_newest && thread::current().id() == this && newest + 1 < COPIES {
                load(newest + 1);
            }
            function.name() == "joined_sum"
        }
    });
    let user = fgraph_scenario::register(Count::default(), filter).unwrap();
    let before_it = newest.load(Ordering::Relaxed);
    assert!(before_it < COPIES / 2, "{before_it} libraries came first");
    // All but the one that the last look was waited for with.
    let traced = user.functions().unwrap().len();
    assert!(traced >= before_it, "{traced} of {before_it}");
    user.unregister().unwrap();
    libraries.join().unwrap();
}

/// Two versions of a library that differ in an operand of the first instruction only.
fn versions(options: &[&str]) -> Result<[std::path::PathBuf; 2], Missing> {
    let build = |version: &str| {
        let source = format!("int joined_version(void) {{ return {version}; }}");
        let file = format!("version{version}.c");
        fgraph_scenario::build_library(&CC, &file, &source, options)
    };
    Ok([build("1")?, build("2")?])
}

/// Returns the addresses of the library with this symbol.
fn extent(library: &Library, symbol: &str) -> Range<usize> {
    // SAFETY: a live local, and any address may be asked for.
    let start = unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        assert_ne!(libc::dladdr(library.address(symbol).cast(), &mut info), 0);
        info.dli_fbase.addr()
    };
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let mut place = start..start;
    for line in maps.lines().filter(|line| line.contains(".so")) {
        let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let [start, end] = [start, end].map(|hex| usize::from_str_radix(hex, 16).unwrap());
        if start == place.end {
            place.end = end;
        }
    }
    place
}

/// Takes memory where nothing is.
fn reserve(range: Range<usize>) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let place = std::ptr::without_provenance_mut(range.start);
    // SAFETY: only where nothing is.
    unsafe { libc::mmap(place, range.len(), libc::PROT_NONE, flags, -1, 0) };
}

/// Loads the library with this symbol at a place that is free. Others that are free are taken
/// first.
fn open_at(path: &Path, symbol: &str, place: usize) -> Library {
    for _ in 0..1000 {
        let library = Library::open(path);
        let taken = extent(&library, symbol);
        if taken.start == place {
            return library;
        }
        library.close();
        reserve(taken);
    }
    panic!("{path:?} does not come to {place:x}");
}

/// A library is closed, replaced and loaded again, while its functions are traced or in between.
fn replace(options: &[&str], is_traced: bool) {
    let [first, second] = needs!(versions(options));
    let call = |library: &Library| {
        // SAFETY: its type.
        let version: extern "C" fn() -> i32 = unsafe { library.get("joined_version") };
        version()
    };
    let library = Library::open(&first);
    let place = extent(&library, "joined_version").start;
    let user = count("joined_version");
    assert_eq!((call(&library), user.user().both()), (1, (1, 1)));
    let user = is_traced.then_some(user);
    let path = library.close();
    fs::rename(second, &path).unwrap();
    let library = open_at(&path, "joined_version", place);
    let user = user.unwrap_or_else(|| count("joined_version"));
    let before = user.user().both().0;
    assert_eq!((call(&library), user.user().both().0), (2, before + 1));
    user.unregister().unwrap();
    assert_eq!(call(&library), 2);
}

#[scenario]
fn a_library_that_is_replaced_at_the_same_place_is_another() {
    replace(&[], false);
}

#[scenario]
fn a_library_without_a_build_id_that_is_replaced_is_another() {
    replace(&["-Wl,--build-id=none"], false);
}

#[scenario]
fn a_library_without_a_build_id_that_is_replaced_while_traced_is_another() {
    replace(&["-Wl,--build-id=none"], true);
}

#[scenario]
fn a_file_with_the_number_of_the_one_before_is_another() {
    let [first, second] = needs!(versions(&["-Wl,--build-id=none"]));
    let library = Library::open(&first);
    let place = extent(&library, "joined_version").start;
    let user = count("joined_version");
    user.unregister().unwrap();
    let path = library.close();
    // The file stays the same, not what is in it.
    fs::write(&path, fs::read(second).unwrap()).unwrap();
    let library = open_at(&path, "joined_version", place);
    let user = count("joined_version");
    // SAFETY: its type.
    let version: extern "C" fn() -> i32 = unsafe { library.get("joined_version") };
    assert_eq!((version(), user.user().both()), (2, (1, 1)));
}

thread_local! {
    /// The library that is replaced, and the file that takes its place.
    static LIBRARY: Cell<Option<(Library, std::path::PathBuf)>> = const { Cell::new(None) };
}

#[scenario]
fn a_smaller_library_takes_the_place_of_one_whose_sites_are_patched() {
    let functions = (0..2000)
        .map(|n| format!("int joined_{n}(int n) {{ return n * {n} + joined_first(n); }}\n"));
    let first = "__attribute__((noinline)) int joined_first(int n) { return n * 7 + 1; }\n";
    let many = [first.to_owned()]
        .into_iter()
        .chain(functions)
        .collect::<String>();
    let build = |file, source| fgraph_scenario::build_library(&CC, file, source, &[]);
    let (large, small) = (
        needs!(build("large.c", &many)),
        needs!(build("small.c", first)),
    );
    let library = Library::open(&small);
    let len = extent(&library, "joined_first").len();
    library.close();
    let user = count("joined_*");
    LIBRARY.set(Some((Library::open(&large), small)));
    // In a callback nothing is seen of libraries that come and go.
    let entry = move |_: &mut fgraph::Entry<'_, ()>| {
        let (library, small) = LIBRARY.take()?;
        let place = extent(&library, "joined_first");
        library.close();
        fs::rename(&small, &large).unwrap();
        reserve(place.start + len..place.end);
        LIBRARY.set(Some((open_at(&large, "joined_first", place.start), small)));
        None
    };
    let replaces =
        fgraph_scenario::register(fgraph_scenario::user(entry, |_, ()| ()), "getppid").unwrap();
    // SAFETY: no arguments.
    unsafe { libc::getppid() };
    replaces.unregister().unwrap();
    let replaces = count("joined_*");
    assert_eq!(replaces.functions().unwrap().len(), 1);
    assert_eq!(user.functions().unwrap().len(), 1);
}

/// A thread that loads a library when it is told to.
struct Loader {
    tell: mpsc::SyncSender<()>,
    done: Mutex<mpsc::Receiver<()>>,
}

impl Loader {
    fn start(path: std::path::PathBuf) -> Self {
        let (tell, told) = mpsc::sync_channel(1);
        let (say, done) = mpsc::sync_channel(1);
        thread::spawn(move || {
            for () in told {
                std::mem::forget(Library::open(&path));
                say.send(()).unwrap();
            }
        });
        let done = Mutex::new(done);
        Self { tell, done }
    }

    fn load(&self) {
        self.tell.send(()).unwrap();
        self.done.lock().unwrap().recv().unwrap();
    }
}

static LOADER: OnceLock<Loader> = OnceLock::new();

/// Checks that the library that was loaded meanwhile is traced.
fn assert_joined(user: &fgraph::Handle<Count>, path: &Path) {
    let before = user.user().both().0;
    sum(&Library::open(path))(2);
    assert_eq!(user.user().both().0, before + 1);
}

#[scenario]
fn a_library_that_is_loaded_during_a_fork_is_traced_after_it() {
    extern "C" fn load() {
        LOADER.get().unwrap().load();
    }
    let path = needs!(build());
    LOADER.get_or_init(|| Loader::start(path.clone()));
    // Before fgraph has its own, and so called after it.
    // SAFETY: the other thread does not need the forking one.
    assert_eq!(unsafe { libc::pthread_atfork(Some(load), None, None) }, 0);
    let user = count("joined_sum");
    assert!(fgraph_scenario::forked(|| 0).success());
    assert_joined(&user, &path);
}

#[scenario]
fn a_library_that_is_loaded_while_a_callback_drops_its_user_is_traced() {
    /// A part of a filter that loads a library when it is dropped.
    struct Loads;
    impl Drop for Loads {
        fn drop(&mut self) {
            LOADER.get().unwrap().load();
        }
    }
    let path = needs!(build());
    LOADER.get_or_init(|| Loader::start(path.clone()));
    let user = count("joined_sum");
    let loads = Loads;
    let filter = Filter::none().predicate(move |_| {
        let _ = &loads;
        false
    });
    let dropped = Mutex::new(Some(
        fgraph_scenario::register(Count::default(), filter).unwrap(),
    ));
    let drops = move |_: &mut fgraph::Entry<'_, ()>| {
        drop(dropped.lock().unwrap().take());
        None
    };
    let drops =
        fgraph_scenario::register(fgraph_scenario::user(drops, |_, ()| ()), "getppid").unwrap();
    // SAFETY: no arguments.
    unsafe { libc::getppid() };
    assert_joined(&user, &path);
    drops.unregister().unwrap();
}

/// The linker writes an address to the first instruction of one function, and to a later one of the
/// other.
const RELOCATED: &str = "
    int relocated_data = 42;
    __asm__(\".text\\n\"
            \".globl relocated_first, relocated_later\\n\"
            \".type relocated_first,@function\\n\"
            \"relocated_first: movabs $relocated_data, %rax\\n movl (%rax), %eax\\n ret\\n\"
            \".size relocated_first, . - relocated_first\\n\"
            \".type relocated_later,@function\\n\"
            \"relocated_later: movl $1, %eax\\n movabs $relocated_data, %rcx\\n\"
            \"addl (%rcx), %eax\\n ret\\n\"
            \".size relocated_later, . - relocated_later\\n\");
";

#[scenario]
fn functions_that_the_linker_writes_to_are_refused() {
    let options = ["-Wl,-z,notext"];
    let path = needs!(fgraph_scenario::build_library(
        &CC, "text.c", RELOCATED, &options
    ));
    let user = count("relocated_*");
    let library = Library::open(&path);
    let calls = |library: &Library| {
        ["relocated_first", "relocated_later"].map(|function| {
            // SAFETY: their type.
            let function: extern "C" fn() -> i32 = unsafe { library.get(function) };
            function()
        })
    };
    // Loaded while there is a filter, and before there is one.
    for user in [user, count("relocated_*")] {
        let before = user.user().both().0;
        assert_eq!(
            (calls(&library), user.user().both().0),
            ([42, 43], before + 1)
        );
        let refused = user.report().unwrap().refused;
        assert_eq!(refused.len(), 1, "{refused:?}");
        assert_eq!(refused[0].name, "relocated_first");
        assert_eq!(refused[0].reason, fgraph::RefusalReason::TextRelocation);
        user.unregister().unwrap();
    }
    assert_eq!(calls(&library), [42, 43]);
}

/// A function that begins with a restartable sequence, one where such a sequence goes on that was
/// interrupted, and one that has nothing to do with it.
const SEQUENCED: &str = "
    __asm__(\".text\\n .globl sequenced, sequence_ends, unsequenced\\n\"
            \".type sequenced,@function\\n .p2align 4\\n\"
            \"sequenced: 1: movl $42, %eax\\n nop\\n 2: ret\\n\"
            \".size sequenced, . - sequenced\\n .p2align 4\\n .long 0x53053053\\n\"
            \".type sequence_ends,@function\\n\"
            \"sequence_ends: movl $43, %eax\\n ret\\n\"
            \".size sequence_ends, . - sequence_ends\\n .p2align 4\\n\"
            \".type unsequenced,@function\\n\"
            \"unsequenced: movl $44, %eax\\n ret\\n\"
            \".size unsequenced, . - unsequenced\\n\"
            \".pushsection __rseq_cs,\\\"aw\\\"\\n .balign 32\\n .long 0, 0\\n\"
            \".quad 1b, 2b - 1b, sequence_ends_here\\n .popsection\\n\"
            \".set sequence_ends_here, sequence_ends\\n\");
";

#[scenario]
fn restartable_sequences_stay_where_the_kernel_knows_them() {
    let library = needs!(fgraph_scenario::library(&CC, "rseq.c", SEQUENCED, &[]));
    let user = count("sequence* unsequenced");
    for (function, result) in [
        ("sequenced", 42),
        ("sequence_ends", 43),
        ("unsequenced", 44),
    ] {
        // SAFETY: its type.
        let function: extern "C" fn() -> i32 = unsafe { library.get(function) };
        assert_eq!(function(), result);
    }
    assert_eq!(user.user().both(), (1, 1));
    let mut refused: Vec<_> = user.report().unwrap().refused;
    refused.sort_by(|a, b| a.name.cmp(&b.name));
    let names: Vec<_> = refused.iter().map(|refused| &refused.name[..]).collect();
    assert_eq!(names, ["sequence_ends", "sequenced"]);
}

/// Library whose constructor reports that it runs, waits for a byte, and forks.
const FORKING: &str = "
    #include <stdlib.h>
    #include <unistd.h>
    int forking_child;
    __attribute__((noinline)) int forking_work(int n) {
        int product = 1;
        for (int i = 2; i <= n; i++) product *= i;
        return product;
    }
    __attribute__((constructor)) static void forking_start(void) {
        char byte = 0;
        if (write(atoi(getenv(\"FORKING_RUNS\")), &byte, 1) == 1 && read(atoi(getenv(\"FORKING_GOES_ON\")), &byte, 1) == 1)
            forking_child = fork();
    }
";

#[scenario]
fn a_constructor_may_fork_while_a_filter_waits_for_it() {
    let path = needs!(fgraph_scenario::build_library(
        &CC,
        "forking.c",
        FORKING,
        &[]
    ));
    let mut pipes = ["FORKING_RUNS", "FORKING_GOES_ON"].map(|name| {
        let (reader, writer) = io::pipe().unwrap();
        let theirs = if name == "FORKING_RUNS" {
            writer.as_raw_fd()
        } else {
            reader.as_raw_fd()
        };
        // SAFETY: there is one thread.
        unsafe { std::env::set_var(name, theirs.to_string()) };
        (reader, writer)
    });
    let [(runs, _), (_, goes_on)] = &mut pipes;
    let registers_as = Arc::new(AtomicI32::new(0));
    let in_constructor = Arc::new(AtomicBool::new(false));
    let registers = thread::spawn({
        let (registers_as, in_constructor) = (registers_as.clone(), in_constructor.clone());
        move || {
            // SAFETY: no arguments.
            registers_as.store(unsafe { libc::gettid() }, Ordering::SeqCst);
            while !in_constructor.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            count("forking_work")
        }
    });
    while registers_as.load(Ordering::SeqCst) == 0 {
        thread::yield_now();
    }
    let loader = thread::spawn(move || {
        let library = Library::open(&path);
        // SAFETY: their types.
        let work: extern "C" fn(i32) -> i32 = unsafe { library.get("forking_work") };
        // SAFETY: an `int`, which nobody writes to now.
        let child = unsafe { *(library.address("forking_child") as *const i32) };
        assert!(child >= 0);
        if child == 0 {
            // SAFETY: the child ends here, also if it hangs.
            unsafe {
                libc::alarm(60);
                let user = count("forking_work");
                work(3);
                libc::_exit(i32::from(user.unregister().unwrap().both() != (1, 1)));
            }
        }
        let mut status = 0;
        // SAFETY: a live local.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child has hung (14), or failed");
        let user = registers.join().unwrap();
        assert_eq!(work(3), 6);
        assert_eq!(user.unregister().unwrap().both(), (1, 1));
        library.close();
    });
    // The linker is not asked for anything here, as the C library does when it starts a thread.
    runs.read_exact(&mut [0]).unwrap();
    in_constructor.store(true, Ordering::SeqCst);
    let status = format!(
        "/proc/self/task/{}/syscall",
        registers_as.load(Ordering::SeqCst)
    );
    // futex is 202.
    while !fs::read_to_string(&status).unwrap().starts_with("202 ") {
        thread::yield_now();
    }
    goes_on.write_all(&[0]).unwrap();
    loader.join().unwrap();
}

/// An event of a library: true if it was loaded, its path, its place, the number of watched
/// functions, and the number of calls before.
type Heard = (bool, String, Range<usize>, usize, usize);

/// User that notes the callbacks for libraries.
#[derive(Default)]
struct Hears {
    heard: Mutex<Vec<Heard>>,
    calls: AtomicUsize,
    panics: bool,
}

impl fgraph::FgraphOps for Hears {
    type Data = ();

    fn entry(&self, _call: &mut fgraph::Entry<'_, ()>) -> Option<()> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        None
    }

    fn library(&self, event: &fgraph::LibraryEvent<'_>) {
        assert!(!self.panics, "heard of {}", event.path);
        // In a callback nothing can be changed.
        assert_eq!(fgraph::status().unwrap_err(), fgraph::Error::InsideCallback);
        self.heard.lock().unwrap().push((
            event.is_loaded,
            event.path.to_owned(),
            event.range.clone(),
            event.functions,
            self.calls.load(Ordering::Relaxed),
        ));
    }
}

#[scenario]
fn users_get_callbacks_for_libraries_that_come_and_go() {
    let path = needs!(build());
    let hears = |filter: &str| fgraph_scenario::register(Hears::default(), filter).unwrap();
    let (user, other) = (hears("joined_*"), hears("no such function"));
    let library = Library::open(&path);
    let address = library.address("joined_sum");
    let late = hears("joined_*");
    library.close();
    let heard = user.user().heard.lock().unwrap().clone();
    // Before the constructor, and after the destructor: each calls another function.
    let told: Vec<_> = heard.iter().map(|h| (h.0, h.3, h.4)).collect();
    assert_eq!(told, [(true, 3, 0), (false, 3, 4)]);
    for (_, heard, range, ..) in &heard {
        assert_eq!(Path::new(heard), path);
        assert!(range.contains(&address.addr()));
    }
    let heard = |user: &fgraph::Handle<Hears>| {
        let heard = user.user().heard.lock().unwrap();
        heard.iter().map(|h| (h.0, h.3)).collect::<Vec<_>>()
    };
    // A user without functions there hears of the library, too; one that came later hears only
    // of its end.
    assert_eq!(heard(&other), [(true, 0), (false, 0)]);
    assert_eq!(heard(&late), [(false, 3)]);
}

#[scenario]
fn a_panic_in_a_callback_for_a_library_is_caught() {
    let path = needs!(build());
    let ops = Hears {
        panics: true,
        ..Hears::default()
    };
    let user = fgraph_scenario::register(ops, "joined_*").unwrap();
    let count = count("joined_*");
    let library = Library::open(&path);
    assert_eq!(sum(&library)(2), 1010 + 3);
    assert_eq!(count.user().both(), (3, 3));
    let fgraph::UserStatus::Panicked { message } = user.status() else {
        panic!("no panic");
    };
    assert!(message.contains("joined"), "{message}");
    assert_eq!(user.user().calls.load(Ordering::Relaxed), 0);
}
