//! Functions that can be traced, and their bytes.

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use fgraph::{Handle, RefusalReason, TextMethod};
use fgraph_needs::{CC, CLANG, GCC, needs, skip};
use fgraph_scenario::{Count, Library, code, is_patched, overwrite, patched, scenario, traceable};

// These have a NOP, whatever the compiler makes of the rest of the program.
traceable!("site_one", "lea rax, [rdi + 1]", "ret");
traceable!("site_two", "lea rax, [rdi + 2]", "ret");

unsafe extern "C" {
    safe fn site_one(n: u64) -> u64;
    safe fn site_two(n: u64) -> u64;
}

const ONE: *const () = site_one as *const ();
const TWO: *const () = site_two as *const ();

fn count(filter: &str) -> Handle<Count> {
    fgraph_scenario::register(Count::default(), filter).unwrap()
}

const C: &str = "
    int library_one(int n) { return n + 1; }
    static __attribute__((noinline)) int hidden(int n) { return n * 3; }
    int library_two(int n) { return hidden(n) + 2; }
";

type Int = extern "C" fn(i32) -> i32;

/// The two functions of the library.
fn functions(library: &Library) -> [Int; 2] {
    // SAFETY: their type.
    unsafe { [library.get("library_one"), library.get("library_two")] }
}

/// Returns all executable memory of the program and of its libraries.
fn text() -> Vec<(String, Vec<u8>)> {
    fgraph_scenario::text("/")
}

/// Returns the number of mappings that are both writable and executable.
fn writable_and_executable() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let both = |line: &&str| {
        let rights = line.split(' ').nth(1).unwrap().as_bytes();
        rights[1] == b'w' && rights[2] == b'x'
    };
    maps.lines().filter(both).count()
}

#[scenario]
fn functions_of_a_library_are_traced() {
    for (file, options) in [
        ("plain.c", &["-fpatchable-function-entry=5"][..]),
        (
            "endbr.c",
            &["-fpatchable-function-entry=5", "-fcf-protection=full"],
        ),
    ] {
        let library = needs!(fgraph_scenario::library(&CLANG, file, C, options));
        let stem = file.trim_end_matches(".c");
        let [one, two] = functions(&library);
        let before: [[u8; 16]; 2] = [code(one as *const ()), code(two as *const ())];
        let has_endbr = before[0].starts_with(&[0xf3, 0x0f, 0x1e, 0xfa]);
        assert_eq!(has_endbr, stem == "endbr");
        let all = count(&format!(
            "library_*:mod:lib{stem}.so hidden:mod:lib{stem}.so"
        ));
        assert_eq!(
            (
                all.report().unwrap().traced,
                &*all.report().unwrap().refused
            ),
            (3, &[][..])
        );
        let some = count("library_two");
        assert!(is_patched(one as *const ()) && is_patched(two as *const ()));
        assert_eq!((one(1), two(1)), (2, 5));
        assert_eq!((all.user().both(), some.user().both()), ((3, 3), (1, 1)));
        // An endbr64 stays: it is where indirect jumps may arrive.
        assert_eq!(
            code::<4>(one as *const ()) == [0xf3, 0x0f, 0x1e, 0xfa],
            has_endbr
        );
        // The function is where its symbol says, before an endbr64.
        let log = fgraph_scenario::Log::new();
        let entries = log.clone();
        let addresses = fgraph_scenario::register(
            fgraph_scenario::user(
                move |call| {
                    let function = call.function();
                    entries.push((function.address(), function.name().to_string()));
                    assert!(function.module().name().starts_with("lib"));
                    None
                },
                |_, ()| (),
            ),
            "library_one hidden",
        )
        .unwrap();
        assert_eq!((one(1), two(1)), (2, 5));
        let seen = log.take();
        assert_eq!(
            seen[0],
            (one as *const () as usize, "library_one".to_owned())
        );
        assert_eq!(seen[1].1, "hidden");
        drop((all, some, addresses));
        assert_eq!([code(one as *const ()), code(two as *const ())], before);
        assert_eq!((one(1), two(1)), (2, 5));
    }
    assert_eq!(patched(), 0);
}

#[scenario]
fn a_library_that_is_loaded_later_is_traced_from_the_start() {
    let user = count("library_*");
    assert!(user.report().unwrap().matches_nothing());
    let options = ["-fpatchable-function-entry=5"];
    let library = needs!(fgraph_scenario::library(&CLANG, "later.c", C, &options));
    let [one, two] = functions(&library);
    assert!(is_patched(one as *const ()) && is_patched(two as *const ()));
    assert_eq!(one(1), 2);
    assert_eq!(user.user().both(), (1, 1));
    // There is nothing left to do.
    let report = fgraph_scenario::set_filter(&user, "library_*").unwrap();
    assert_eq!((report.traced, report.patched), (2, 0));
    assert_eq!(one(1), 2);
    assert_eq!(user.unregister().unwrap().both(), (2, 2));
}

#[scenario]
fn a_library_may_be_unloaded_while_it_is_traced() {
    let options = ["-fpatchable-function-entry=5"];
    let mut library = needs!(fgraph_scenario::library(&CLANG, "unload.c", C, &options));
    for round in 0..5 {
        let user = count("library_* site_one");
        assert_eq!(user.report().unwrap().traced, 3, "round {round}");
        let [one, two] = functions(&library);
        assert_eq!((one(1), two(1)), (2, 5));
        assert_eq!(user.user().both(), (2, 2));
        let file = library.close();
        if round % 2 == 0 {
            assert_eq!(
                fgraph_scenario::set_filter(&user, "site_two")
                    .unwrap()
                    .traced,
                1
            );
            site_two(1);
        } else {
            site_one(1);
        }
        assert_eq!(user.unregister().unwrap().both(), (3, 3));
        assert_eq!(patched(), 0);
        library = Library::open(&file);
    }
}

/// It most likely comes to the same place, but its text is that of the file again.
#[scenario]
fn a_library_that_comes_back_is_traced_again() {
    let options = ["-fpatchable-function-entry=5"];
    let library = needs!(fgraph_scenario::library(&CLANG, "again.c", C, &options));
    let user = count("library_one");
    assert!(is_patched(library.address("library_one")));
    let mut library = library;
    for round in 1..4 {
        library = Library::open(&library.close());
        let [one, _] = functions(&library);
        assert!(is_patched(one as *const ()));
        assert_eq!(one(1), 2);
        assert_eq!(user.user().both(), (round, round));
    }
    let [one, _] = functions(&library);
    let report = fgraph_scenario::set_filter(&user, "library_*").unwrap();
    assert_eq!(report.traced, 2);
    let new = count("library_one");
    assert_eq!(one(1), 2);
    assert_eq!((user.user().both(), new.user().both()), ((4, 4), (1, 1)));
}

/// gcc makes five NOPs of one byte each, between which a thread may stand.
#[scenario]
fn pads_of_gcc_are_traced() {
    let options = ["-fpatchable-function-entry=5"];
    let library = needs!(fgraph_scenario::library(&GCC, "pads.c", C, &options));
    let [one, two] = functions(&library);
    let before: [u8; 16] = code(one as *const ());
    if before.starts_with(&[0x0f, 0x1f]) {
        return skip!("this gcc makes a single NOP");
    }
    assert!(before.starts_with(&[0x90; 5]));
    let user = count("library_* hidden site_one");
    let report = user.report().unwrap();
    assert_eq!((report.traced, report.patched), (4, 4));
    assert_eq!(report.refused, []);
    // Wherever a thread stands within the pad, it traps; the last byte may be an opcode that
    // there is none of.
    assert_eq!(code::<4>(one as *const ()), [0xe9, 0xcc, 0xcc, 0xcc]);
    assert_eq!((one(1), two(1)), (2, 5));
    assert_eq!(user.unregister().unwrap().both(), (3, 3));
    assert_eq!(code::<16>(one as *const ()), before);
}

#[scenario]
fn a_module_that_cannot_be_read_is_refused_with_the_reason() {
    let options = ["-fpatchable-function-entry=5"];
    let library = needs!(fgraph_scenario::library(&CLANG, "gone.c", C, &options));
    library.remove_file();
    let user = count(":mod:libgone.so");
    let report = user.report().unwrap();
    assert_eq!((report.traced, report.refused.len()), (0, 1), "{report:?}");
    assert!(matches!(report.refused[0].reason, RefusalReason::Module(_)));
    assert!(report.refused[0].module.ends_with("libgone.so"));
    assert!(!report.matches_nothing());
}

#[scenario]
fn an_entry_that_differs_from_the_file_is_refused_and_left_alone() {
    let original: [u8; 5] = code(ONE);
    // Another NOP, other code, and what a debugger and another tracer leave.
    for found in [
        [0x0f, 0x1f, 0x44, 0x00, 0x77],
        [0x55, 0x48, 0x89, 0xe5, 0x90],
        [0xcc, 0x1f, 0x44, 0x00, 0x08],
        [0xe9, 0, 0, 0, 0],
    ] {
        let status = fgraph_scenario::forked(|| {
            let listed = fgraph::sites_of("site_one").unwrap();
            overwrite(ONE as usize, &found);
            // It is as it is when the list is read.
            let now = listed.iter().next().unwrap();
            assert_eq!(now.how, Err(RefusalReason::Patched { found }));
            let user = count("site_*");
            let report = user.report().unwrap();
            assert_eq!((report.traced, report.refused.len()), (1, 1), "{report:?}");
            let refused = &report.refused[0];
            assert_eq!(refused.reason, RefusalReason::Patched { found });
            assert_eq!(
                (refused.name.as_str(), refused.address),
                ("site_one", ONE as usize)
            );
            assert!(refused.module.contains("it-"), "{refused:?}");
            assert!(report.to_string().contains("1 refused"), "{report}");
            assert!(refused.to_string().contains("site_one"), "{refused}");
            assert_eq!(code::<5>(ONE), found);
            assert_eq!(site_two(1), 3);
            assert_eq!(user.unregister().unwrap().both(), (1, 1));
            assert_eq!(code::<5>(ONE), found);
            0
        });
        assert!(status.success(), "{found:x?}: {status}");
    }
    assert_eq!(code::<5>(ONE), original);
}

#[scenario]
fn an_entry_that_has_changed_since_is_refused_and_left_alone() {
    let original: [u8; 5] = code(ONE);
    let other = count("site_two");
    // Still a NOP, so that the function may be called.
    let changed = [0x0f, 0x1f, 0x44, 0x00, 0x77];
    overwrite(ONE as usize, &changed);
    let user = count("site_*");
    let report = user.report().unwrap();
    assert_eq!(
        (report.traced, report.patched, report.refused.len()),
        (1, 0, 1)
    );
    let refused = &report.refused[0];
    assert_eq!(refused.reason, RefusalReason::Changed { found: changed });
    assert_eq!(
        (refused.name.as_str(), refused.address),
        ("site_one", ONE as usize)
    );
    assert!(refused.to_string().contains("0f 1f 44 00 77"), "{refused}");
    assert_eq!(site_one(1) + site_two(1), 5);
    assert_eq!((user.user().both(), other.user().both()), ((1, 1), (1, 1)));
    drop(user);
    assert_eq!(code::<5>(ONE), changed);
    // Put right again, it can be traced.
    overwrite(ONE as usize, &original);
    let user = count("site_one");
    assert_eq!(
        (
            user.report().unwrap().traced,
            user.report().unwrap().refused.len()
        ),
        (1, 0)
    );
    site_one(1);
    assert_eq!(user.unregister().unwrap().both(), (1, 1));
    assert_eq!(code::<5>(ONE), original);
}

#[scenario]
fn a_patched_entry_that_somebody_else_overwrites_is_left_to_them() {
    let user = count("site_*");
    assert!(is_patched(ONE));
    let foreign = [0x0f, 0x1f, 0x44, 0x00, 0x77];
    overwrite(ONE as usize, &foreign);
    assert_eq!(site_one(1) + site_two(1), 5);
    assert_eq!(user.unregister().unwrap().both(), (1, 1));
    assert_eq!(code::<5>(ONE), foreign);
    assert!(!is_patched(TWO));
}

#[scenario]
fn all_text_is_restored() {
    let options = ["-fpatchable-function-entry=5"];
    let library = needs!(fgraph_scenario::library(&CC, "text.c", C, &options));
    // Everything that is loaded later is loaded now.
    drop(count("site_one"));
    let before = text();
    assert!(before.len() > 2);
    for _ in 0..3 {
        let everything = count("*");
        let some = count("site_* library_*");
        assert_ne!(text(), before);
        site_one(1);
        fgraph_scenario::set_filter(&some, "site_one").unwrap();
        fgraph_scenario::set_filter(&everything, "*a*").unwrap();
        drop(everything);
        drop(some);
        assert!(text() == before, "some text is not what it was");
    }
    drop(library);
    assert_eq!(fgraph::status().unwrap().text, TextMethod::ProcMem);
}

#[scenario]
fn no_mapping_is_both_writable_and_executable() {
    assert_eq!(writable_and_executable(), 0);
    let done = AtomicBool::new(false);
    let samples = AtomicU64::new(0);
    let found = thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            let mut found = 0;
            while !done.load(Ordering::Relaxed) {
                found += writable_and_executable();
                samples.fetch_add(1, Ordering::SeqCst);
            }
            found
        });
        let patcher = scope.spawn(|| {
            while samples.load(Ordering::SeqCst) < 200 {
                let user = count("*site*");
                assert_eq!(site_one(1) + site_two(1), 5);
                fgraph_scenario::set_filter(&user, "site_one").unwrap();
            }
        });
        let result = patcher.join();
        done.store(true, Ordering::Relaxed);
        result.unwrap();
        sampler.join().unwrap()
    });
    assert_eq!(found, 0);
}

#[scenario]
fn mappings_without_system_calls_are_not_split_by_patching() {
    let executable = || {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let lines = maps.lines().filter(|line| line.contains(" r-xp "));
        let files = lines.filter(|line| line.contains(" /"));
        let others = files.filter(|line| !line.contains("/libc.so") && !line.contains("/ld-"));
        others.map(str::to_owned).collect::<Vec<_>>()
    };
    let before = executable();
    assert!(before.len() > 1);
    let user = count("*");
    assert_eq!(executable(), before);
    drop(user);
    assert_eq!(executable(), before);
}

#[scenario]
fn the_status_says_how_much_is_patched() {
    let user = count("site_*");
    let status = fgraph::status().unwrap();
    assert_eq!((status.patched, status.stopped), (2, None));
    assert!(status.sites > 10);
    let text = status.to_string();
    assert!(
        text.contains(&format!("2 of {} sites", status.sites)),
        "{text}"
    );
    assert!(text.contains("/proc/self/mem"), "{text}");
    assert_eq!((status.text, status.unattached), (TextMethod::ProcMem, 0));
    // More users of the same functions patch nothing.
    let other = count("site_one");
    assert_eq!(
        (
            other.report().unwrap().traced,
            other.report().unwrap().patched
        ),
        (1, 0)
    );
    drop((user, other));
    assert_eq!(patched(), 0);
}

#[scenario]
fn functions_of_a_list_are_counted_and_skipped_as_they_are_reached() {
    let sites = fgraph::sites_of("site_* close getpid").unwrap();
    let all: Vec<_> = sites.iter().collect();
    assert!(all.iter().any(|site| site.name == "site_two"));
    assert!(all.iter().any(|site| site.module.contains("libc.so")));
    assert_eq!((sites.len(), sites.iter().count()), (all.len(), all.len()));
    for (index, site) in all.iter().enumerate() {
        let mut rest = sites.iter();
        assert_eq!(rest.nth(index).as_ref(), Some(site));
        assert_eq!(rest.len(), all.len() - index - 1);
        assert!(rest.eq(all[index + 1..].iter().cloned()));
    }
    assert_eq!(sites.iter().nth(all.len()), None);
    let counts = sites.modules();
    let sum = |count: &fgraph::ModuleCount| {
        count.nops + count.relocated + count.breakpoints + count.refused
    };
    assert_eq!(counts.iter().map(sum).sum::<usize>(), all.len());
    assert!(fgraph::sites_of("no_such_function").unwrap().is_empty());
}

// A function with the name of one in the C library that runs with all signals blocked.
traceable!("create_thread", "lea rax, [rdi + 3]", "ret");

#[scenario]
fn names_of_what_runs_with_all_signals_blocked_are_free_outside_the_c_library() {
    unsafe extern "C" {
        safe fn create_thread(n: u64) -> u64;
        safe fn getpagesize() -> i32;
    }
    let user = count("create_thread getpagesize");
    assert_eq!(create_thread(1), 4);
    assert_eq!(user.user().both(), (1, 1));
    assert_eq!(getpagesize(), 4096);
    assert_eq!(user.user().both(), (2, 2));
}

#[scenario]
fn the_own_functions_of_fgraph_are_no_sites() {
    let user = count("fgraph::* fgraph_core::* fgraph_x86_64::*");
    assert!(
        user.report().unwrap().matches_nothing(),
        "{:?}",
        user.report().unwrap()
    );
}

/// Other programs run normally, also while this one is patched.
#[scenario]
fn other_programs_can_be_run_while_functions_are_traced() {
    let user = count("*");
    for _ in 0..10 {
        assert!(Command::new("true").status().unwrap().success());
    }
    assert_eq!(user.status(), fgraph::UserStatus::Active);
}
