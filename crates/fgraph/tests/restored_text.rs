//! Text of all modules is their files' again when the last user has gone.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use fgraph_needs::{CC, Missing, needs, skip};
use fgraph_scenario::{Count, Library, scenario};

const EVERYTHING: &str = "*";
const C: &str = "
    int restored_sum(int n) {
        int sum = 0;
        for (int i = 0; i <= n; i++) sum += i;
        return sum;
    }
";

/// A mapping of text of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mapping {
    /// Line of the mapping in `maps`.
    line: String,
    /// Kilobytes that are this process's own.
    private: String,
}

/// Returns the mappings of all text that is of files.
fn text() -> Vec<Mapping> {
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut mappings = Vec::new();
    let mut text = None;
    for line in smaps.lines() {
        if line.contains(" r-xp ") {
            text = line.contains(" /").then(|| line.to_owned());
        } else if let Some(private) = line.strip_prefix("Anonymous:")
            && let Some(line) = text.take()
        {
            let private = private.trim().to_owned();
            mappings.push(Mapping { line, private });
        }
    }
    mappings
}

/// True if pages are this process's own.
fn is_private(mapping: &Mapping) -> bool {
    mapping.private != "0 kB"
}

/// The mappings of the file whose path has `name` in it.
fn of<'a>(name: &str, text: &'a [Mapping]) -> Vec<&'a Mapping> {
    let is_of = |mapping: &&Mapping| mapping.line.contains(name);
    text.iter().filter(is_of).collect()
}

fn build() -> Result<PathBuf, Missing> {
    fgraph_scenario::build_library(&CC, "restored.c", C, &[])
}

fn call(library: &Library) {
    // SAFETY: its signature.
    let sum: extern "C" fn(i32) -> i32 = unsafe { library.get("restored_sum") };
    assert_eq!(sum(4), 10);
}

/// Traces everything, and compares the text after that with the text before.
fn is_restored(path: &Path) {
    // The first user makes memory for stubs.
    let first = fgraph_scenario::register(Count::default(), "nothing_has_this_name").unwrap();
    drop(first);
    let library = Library::open(path);
    let before = text();
    let program = std::env::current_exe().unwrap();
    let program = program.to_str().unwrap();
    let all = ["/libc.so", "/ld-linux", "/librestored", program];
    for module in all {
        let [mapping] = &of(module, &before)[..] else {
            panic!("{module}: {before:?}");
        };
        assert_eq!(mapping.private, "0 kB");
    }
    for filter in [EVERYTHING, "restored_sum getpagesize", EVERYTHING] {
        let user = fgraph_scenario::register(Count::default(), filter).unwrap();
        call(&library);
        let during = text();
        for module in all {
            let private = of(module, &during);
            let private = private.into_iter().filter(|mapping| is_private(mapping));
            let is_traced = filter == EVERYTHING || module == "/libc.so";
            assert!(!is_traced || private.count() > 0, "{module}");
        }
        assert!(user.unregister().unwrap().both().0 > 0);
        assert_eq!(text(), before, "{filter}");
    }
    call(&library);
}

/// Makes this process another user's, who may read its program and `library`.
fn change_user(library: &Path) -> Result<(), String> {
    const NOBODY: libc::uid_t = 65534;
    let program = std::env::current_exe().unwrap();
    // SAFETY: only the user of this process changes.
    if unsafe { libc::setresuid(NOBODY, NOBODY, NOBODY) } != 0 {
        return Err(format!(
            "no other user here: {}",
            io::Error::last_os_error()
        ));
    }
    let read = File::open(program).and(File::open(library));
    read.map_err(|error| format!("other users may not read the program: {error}"))?;
    assert!(File::open("/proc/self/pagemap").is_err());
    Ok(())
}

#[scenario]
fn text_of_all_modules_is_their_files_again() {
    is_restored(&needs!(build()));
}

#[scenario]
fn text_of_all_modules_is_their_files_again_beside_a_thread() {
    let path = needs!(build());
    thread::scope(|scope| {
        let (end, ended) = mpsc::channel::<()>();
        scope.spawn(move || ended.recv());
        is_restored(&path);
        drop(end);
    });
}

#[scenario]
fn text_of_all_modules_is_their_files_again_in_a_process_that_has_changed_its_user() {
    let path = needs!(build());
    if let Err(reason) = change_user(&path) {
        return skip!("{reason}");
    }
    let library = Library::open(&path);
    // Such a process cannot write to the kernel's own functions.
    let all = "* !:mod:[vdso]";
    for filter in [all, "restored_sum getpagesize", all] {
        let user = fgraph_scenario::register(Count::default(), filter).unwrap();
        call(&library);
        assert!(text().iter().any(is_private));
        drop(user);
        // Writes that change the protection of pages may leave several mappings.
        let private: Vec<_> = text().into_iter().filter(is_private).collect();
        assert_eq!(private, [], "{filter}");
    }
    call(&library);
}

#[scenario]
fn threads_end_while_the_text_of_a_process_that_has_changed_its_user_is_patched() {
    let path = needs!(build());
    if let Err(reason) = change_user(&path) {
        return skip!("{reason}");
    }
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                // A thread that ends blocks all signals, and then calls the C library.
                while !is_over.load(Ordering::Relaxed) {
                    thread::spawn(|| ()).join().unwrap();
                }
            });
        }
        for _ in 0..30 {
            drop(fgraph_scenario::register(Count::default(), ":mod:libc.so*").unwrap());
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[scenario]
fn text_of_a_library_that_came_later_is_its_files_again() {
    let path = needs!(build());
    let user = fgraph_scenario::register(Count::default(), EVERYTHING).unwrap();
    let library = Library::open(&path);
    call(&library);
    assert_ne!(of("/librestored", &text())[0].private, "0 kB");
    drop(user);
    let after = text();
    let [mapping] = &of("/librestored", &after)[..] else {
        panic!("{after:?}");
    };
    assert_eq!(mapping.private, "0 kB");
    call(&library);
}
