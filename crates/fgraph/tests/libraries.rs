//! Libraries that come and go while filters are in force.

// Long strings: C code.

mod common;

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use common::{Count, Library, scenario};
use fgraph::Filter;
use fgraph_needs::{CC, Missing, needs};

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
    common::register(Count::default(), filter).unwrap()
}

/// Builds the library.
fn build(name: &str) -> Result<std::path::PathBuf, Missing> {
    common::build_library(name, &CC, "joined.c", C, &[])
}

fn sum(library: &Library) -> extern "C" fn(i32) -> i32 {
    // SAFETY: its signature.
    unsafe { library.get("joined_sum") }
}

#[test]
fn a_library_joins_a_filter_before_its_constructors_run() {
    let name = "a_library_joins_a_filter_before_its_constructors_run";
    scenario(name, || {
        let path = needs!(build(name));
        let user = count("joined_*");
        assert!(user.report().unwrap().matches_nothing());
        let library = Library::open(&path);
        // The constructor, and what it calls.
        assert_eq!(user.both(), (2, 2));
        assert_eq!(sum(&library)(2), 1010 + 3);
        assert_eq!(user.both(), (3, 3));
        library.close();
        // The destructor, and what it calls.
        assert_eq!(user.both(), (5, 5));
        assert_eq!(user.unregister().unwrap().both(), (5, 5));
    });
}

#[test]
fn a_library_joins_every_filter_that_selects_its_functions() {
    let name = "a_library_joins_every_filter_that_selects_its_functions";
    scenario(name, || {
        let path = needs!(build(name));
        let users = ["joined_sum", ":mod:libjoined.so", "joined_st*", "other_*"].map(count);
        let library = Library::open(&path);
        let before = users.each_ref().map(|user| user.both().0);
        assert_eq!((before[0], before[2], before[3]), (1, 1, 0));
        sum(&library)(2);
        let after = users.each_ref().map(|user| user.both().0);
        assert_eq!(after, [2, before[1] + 1, 1, 0]);
    });
}

#[test]
fn a_library_that_is_loaded_without_filters_is_left_alone() {
    let name = "a_library_that_is_loaded_without_filters_is_left_alone";
    scenario(name, || {
        let path = needs!(build(name));
        let user = count("joined_sum");
        user.unregister().unwrap();
        let library = Library::open(&path);
        let address = library.address("joined_sum");
        assert!(!common::is_patched(address));
        assert_eq!(fgraph::status().unwrap().patched, 0);
    });
}

#[test]
fn libraries_come_and_go_without_growth() {
    let name = "libraries_come_and_go_without_growth";
    scenario(name, || {
        let path = needs!(build(name));
        let user = count("joined_*");
        let mut sites = Vec::new();
        for round in 1..=200 {
            let library = Library::open(&path);
            assert_eq!(sum(&library)(2), 1010 + 3);
            library.close();
            assert_eq!(user.both(), (5 * round, 5 * round));
            sites.push(mapped());
        }
        // Once everything is there, nothing more is mapped.
        assert_eq!(sites[20], sites[199]);
    });
}

/// How many mappings the process has that are executable.
fn mapped() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("r-xp")).count()
}

#[test]
fn libraries_come_and_go_while_filters_change() {
    let name = "libraries_come_and_go_while_filters_change";
    scenario(name, || {
        let path = needs!(build(name));
        let path: &Path = &path;
        let done = AtomicBool::new(false);
        let kept = count("joined_*");
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let user = count("joined_sum");
                    let _ = common::set_filter(&user, "joined_*");
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
    });
}

#[test]
fn a_filter_is_changed_in_the_end_while_another_thread_loads_libraries_all_the_time() {
    let name = "a_filter_is_changed_in_the_end_while_another_thread_loads_libraries_all_the_time";
    scenario(name, || {
        const COPIES: usize = 100;
        let built = needs!(build(name));
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
        let filter = Filter::new().predicate({
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
        let user = common::register(Count::default(), filter).unwrap();
        let before_it = newest.load(Ordering::Relaxed);
        assert!(before_it < COPIES / 2, "{before_it} libraries came first");
        // All but the one that the last look was waited for with.
        let traced = user.functions().unwrap().len();
        assert!(traced >= before_it, "{traced} of {before_it}");
        user.unregister().unwrap();
        libraries.join().unwrap();
    });
}

/// Its constructor says that it runs, waits until it is told to go on, and forks.
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

#[test]
fn a_constructor_may_fork_while_a_filter_waits_for_it() {
    let name = "a_constructor_may_fork_while_a_filter_waits_for_it";
    scenario(name, || {
        let path = needs!(common::build_library(name, &CC, "forking.c", FORKING, &[]));
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
    });
}
