//! Functions of a running program that filters select, their words, and changes of filters.

use std::error::Error as _;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::probes::{other_one, probe_one, probe_two};
use fgraph::{Error, Filter, FilterError, Function, Handle};
use fgraph_needs::{CC, needs};
use fgraph_scenario::{Count, Library, is_patched, patched, scenario};

trait Shape {
    fn area(&self) -> u64;
}

struct Square<T>(T);

impl Shape for Square<u32> {
    #[inline(never)]
    fn area(&self) -> u64 {
        u64::from(black_box(self.0)).pow(2)
    }
}

const ONE: *const () = probe_one as *const ();
const TWO: *const () = probe_two as *const ();
const OTHER: *const () = other_one as *const ();

fn count(filter: impl fgraph::IntoFilter) -> Handle<Count> {
    fgraph_scenario::register(Count::default(), filter).unwrap()
}

fn refused(filter: impl fgraph::IntoFilter) -> FilterError {
    match fgraph_scenario::register(Count::default(), filter).unwrap_err() {
        Error::Filter(error) => error,
        error => panic!("{error}"),
    }
}

fn add(user: &Handle<Count>, filter: impl fgraph::IntoFilter) -> fgraph::FilterReport {
    // SAFETY: as in `fgraph_scenario::register`.
    unsafe { user.add_filter(filter) }.unwrap()
}

fn names(user: &Handle<Count>) -> Vec<String> {
    let functions = user.functions().unwrap().into_iter();
    functions
        .map(|function| function.name().to_string())
        .collect()
}

fn addresses(user: &Handle<Count>) -> Vec<usize> {
    let functions = user.functions().unwrap().into_iter();
    functions.map(Function::address).collect()
}

fn words(report: &fgraph::FilterReport) -> Vec<(&str, usize)> {
    let words = report.words.iter();
    words.map(|word| (&*word.word, word.functions)).collect()
}

#[scenario]
fn a_function_is_selected_by_name_address_range_or_predicate() {
    let one = ONE.addr();
    let user = count("probe_one");
    let [function] = user.functions().unwrap()[..] else {
        panic!("{:?}", user.functions());
    };
    for filter in [
        Filter::none().name("probe_one"),
        Ok(Filter::none().address(one)),
        Filter::none().range(one..one + 1),
        format!("{one:#x}").parse(),
        format!("{one:#x}..{:#x}", one + 1).parse(),
        "\"probe_one\"".parse(),
        Ok(Filter::none().predicate(move |function| function.address() == one)),
        Ok(Filter::none().predicate(|f| f.name().eq_ignore_ascii_case("PROBE_one"))),
        Filter::none().address_in(one, function.module().path()),
    ] {
        let text = filter.as_ref().unwrap().to_string();
        let other = count(filter);
        assert_eq!(other.functions().unwrap(), [function], "{text}");
        probe_one(1);
        assert_eq!(other.user().both(), (1, 1), "{text}");
    }
    assert_eq!(count(function).functions().unwrap(), [function]);
    let all = count("probe_*").functions().unwrap();
    assert_eq!(count(&all[..]).functions().unwrap(), all);
    // Other facts about a function.
    let seen = Arc::new(AtomicU64::new(0));
    let filter = Filter::none().predicate({
        let (seen, path) = (Arc::clone(&seen), function.module().path());
        move |function| {
            let is_it = function.symbols().contains(&"probe_two");
            if is_it {
                assert_eq!((function.name(), function.module()), ("probe_two", path));
                assert_eq!(function.names(), ["probe_two"]);
                assert!(function.size() > 0);
                seen.fetch_add(1, Ordering::Relaxed);
            }
            is_it
        }
    });
    assert_eq!(addresses(&count(filter)), [TWO.addr()]);
    assert!(seen.load(Ordering::Relaxed) > 0);
    assert!(count(Filter::none()).report().unwrap().matches_nothing());
}

#[scenario]
fn a_name_pasted_from_the_listing_selects_its_function() {
    let sites = fgraph::sites_of("*Square*area*").unwrap();
    let listed: Vec<_> = sites.iter().collect();
    let [ref area] = listed[..] else {
        panic!("{listed:?}");
    };
    assert!(area.name.contains(" as "), "{}", area.name);
    let user = count(&area.name);
    let other = count(format!("probe_one {} probe_two", area.name));
    assert_eq!(Square(3).area(), 9);
    assert_eq!((user.user().both(), other.user().both()), ((1, 1), (1, 1)));
    assert_eq!(names(&user), [&*area.name]);
    assert_eq!(other.report().unwrap().words.len(), 3);
    // By its symbol, too.
    let symbol = user.functions().unwrap()[0].symbol();
    assert_ne!(symbol, area.name);
    assert_eq!(names(&count(symbol)), [&*area.name]);
}

#[scenario]
fn matched_functions_equal_traced_functions() {
    // Functions of the C library go by several names each.
    for filter in [
        "close:mod:libc.so*",
        "__close:mod:libc.so*",
        "getpid getppid !getp*id",
        "geteuid@*",
        "getuid@@GLIBC_2.2.5",
        "*GLIBC_2.2.5 !* + getuid",
        "get?id + geteuid !geteuid@*",
        "no_such_function",
    ] {
        let user = count(filter);
        let listed = fgraph::sites_of(filter).unwrap();
        let listed = listed.iter().filter(|site| site.how.is_ok());
        let listed: Vec<_> = listed.map(|site| site.address).collect();
        assert_eq!(addresses(&user), listed, "{filter}");
        assert_eq!(user.report().unwrap().traced, listed.len());
    }
    assert_eq!(count("close:mod:libc.so*").report().unwrap().traced, 1);
    assert_eq!(count("geteuid@*:mod:libc.so*").report().unwrap().traced, 1);
}

#[scenario]
fn functions_are_added_and_removed_live() {
    let user = count("probe_one");
    let report = add(&user, "probe_two no_such_function");
    assert_eq!((report.traced, report.patched), (2, 1));
    assert_eq!(words(&report), [("probe_two", 1), ("no_such_function", 0)]);
    assert_eq!(report.unmatched().collect::<Vec<_>>(), ["no_such_function"]);
    assert_eq!(names(&user), ["probe_one", "probe_two"]);
    probe_two(1);
    assert_eq!(user.user().both(), (1, 1));
    // Functions that are there already are not added.
    let report = add(&user, "probe_*");
    assert_eq!((report.traced, report.patched), (2, 0));
    let report = user.remove_filter("probe_one").unwrap();
    assert_eq!((report.traced, words(&report)), (1, vec![("probe_one", 1)]));
    assert!(!is_patched(ONE) && is_patched(TWO));
    probe_one(1);
    assert_eq!(user.user().both(), (1, 1));
    assert_eq!(user.remove_filter("*").unwrap().traced, 0);
    assert_eq!(patched(), 0);
    add(&user, Filter::none().address(OTHER.addr()));
    assert!(is_patched(OTHER));
    assert_eq!(other_one(1), 4);
    assert_eq!(user.user().both(), (2, 2));
    // Others keep what one gives up.
    let other = count("probe_*");
    add(&user, "probe_*");
    other.remove_filter("probe_one").unwrap();
    assert!(is_patched(ONE) && is_patched(TWO));
    user.remove_filter("probe_one").unwrap();
    assert!(!is_patched(ONE) && is_patched(TWO));
    drop(user);
    assert_eq!(
        (patched(), names(&other)),
        (1, vec!["probe_two".to_owned()])
    );
}

const LIBRARY: &str = "
    volatile int plug_state = 1;
    __attribute__((noinline)) int plug_one(int n) { return n + plug_state; }
    __attribute__((noinline)) int plug_two(int n) { return n + 2 * plug_state; }
";

#[scenario]
fn reports_stay_true_while_libraries_come_and_go() {
    let path = needs!(fgraph_scenario::build_library(&CC, "plug.c", LIBRARY, &[]));
    let user = count("plug_* probe_one !plug_two");
    let before = [("plug_*", 0), ("probe_one", 1), ("!plug_two", 0)];
    let report = user.report().unwrap();
    assert_eq!((report.traced, words(&report)), (1, before.to_vec()));
    add(&user, "plug_two");
    user.remove_filter("plug_one").unwrap();
    let library = Library::open(&path);
    // Later changes hold for libraries that come later.
    assert_eq!(names(&user), ["probe_one", "plug_two"]);
    let report = user.report().unwrap();
    let after = [
        ("plug_*", 2),
        ("probe_one", 1),
        ("!plug_two", 1),
        ("plug_two", 1),
        ("!plug_one", 1),
    ];
    assert_eq!((report.traced, words(&report)), (2, after.to_vec()));
    add(&user, "plug_one");
    assert_eq!(user.report().unwrap().traced, 3);
    let plug_one: Vec<_> = count("plug_one").functions().unwrap();
    // SAFETY: its signature.
    let call: extern "C" fn(i32) -> i32 = unsafe { library.get("plug_one") };
    assert_eq!(call(1), 2);
    assert_eq!(user.user().both(), (1, 1));
    library.close();
    let report = user.report().unwrap();
    assert_eq!((report.traced, report.words[0].functions), (1, 0));
    assert_eq!(names(&user), ["probe_one"]);
    // A function of a library that is gone is none.
    let address = plug_one[0].address();
    assert_eq!(refused(plug_one[0]), FilterError::NoFunction { address });
    assert_eq!(user.remove_filter(plug_one[0]).unwrap().traced, 1);
}

#[scenario]
fn a_predicate_that_panics_is_an_error_and_changes_nothing() {
    let user = count("probe_one");
    let bad = || {
        Filter::none().predicate(|function| {
            assert_ne!(function.name(), "probe_two", "it is not to be seen");
            function.name().starts_with("probe")
        })
    };
    let check = |error: FilterError| {
        let FilterError::PredicatePanicked { function, message } = &error else {
            panic!("{error}");
        };
        assert_eq!(function, "probe_two");
        assert!(message.contains("it is not to be seen"), "{message}");
    };
    check(refused(bad()));
    // SAFETY: as in `fgraph_scenario::register`.
    for result in [unsafe { user.set_filter(bad()) }, unsafe {
        user.add_filter(bad())
    }] {
        let Err(Error::Filter(error)) = result else {
            panic!("{result:?}");
        };
        check(error);
    }
    assert!(user.remove_filter(bad()).is_err());
    assert_eq!((patched(), names(&user)), (1, vec!["probe_one".to_owned()]));
    // None of them took a slot, and the lock is free.
    let users: Vec<_> = (0..15).map(|_| count("probe_two")).collect();
    assert_eq!(users.len(), 15);
    probe_one(1);
    assert_eq!(user.user().both(), (1, 1));
}

/// Panics when it is dropped, and asks for what would wait for itself.
struct Unruly;

impl Drop for Unruly {
    fn drop(&mut self) {
        let _ = fgraph::status();
        panic!("dropped");
    }
}

#[scenario]
fn a_predicate_may_panic_when_dropped() {
    let unruly = || {
        let unruly = Unruly;
        Filter::none().predicate(move |function| {
            let _ = &unruly;
            function.name().starts_with("probe")
        })
    };
    let others: Vec<_> = (0..15).map(|_| count("probe_two")).collect();
    for _ in 0..3 {
        let user = count(unruly());
        probe_one(1);
        // SAFETY: as in `fgraph_scenario::register`.
        unsafe { user.set_filter(unruly()) }.unwrap();
        probe_one(1);
        // SAFETY: as above.
        unsafe { user.set_filter("probe_one") }.unwrap();
        assert_eq!((patched(), names(&user)), (2, vec!["probe_one".to_owned()]));
        drop(user);
        let user = count(unruly());
        assert_eq!(user.unregister().unwrap().both(), (0, 0));
        assert_eq!(patched(), 1);
    }
    let user = count(unruly());
    fgraph::stop().unwrap();
    assert_eq!(patched(), 0);
    drop((user, others));
}

#[scenario]
fn a_predicate_that_panics_at_a_library_selects_nothing_of_it() {
    let path = needs!(fgraph_scenario::build_library(&CC, "plug.c", LIBRARY, &[]));
    let user = count(Filter::none().predicate(|function| {
        assert_ne!(function.name(), "plug_two");
        function.name().starts_with("probe") || function.name() == "plug_one"
    }));
    let _library = Library::open(&path);
    assert_eq!(names(&user), ["probe_one", "probe_two"]);
    // Once another user has asked for it, too.
    let other = count("plug_*");
    assert_eq!(other.report().unwrap().traced, 2);
    let error = user.report().unwrap_err();
    assert!(matches!(
        error,
        Error::Filter(FilterError::PredicatePanicked { .. })
    ));
    assert_eq!(names(&user), ["probe_one", "probe_two"]);
}

#[scenario]
fn addresses_of_no_function_are_errors() {
    let user = count("probe_one");
    let local = 0;
    let data = (&raw const local).addr();
    for address in [0, ONE.addr() + 1, data, usize::MAX] {
        let expected = FilterError::NoFunction { address };
        assert_eq!(refused(Filter::none().address(address)), expected);
        let text = format!("probe_two !{address:#x}");
        assert_eq!(refused(&text), expected);
        // SAFETY: as in `fgraph_scenario::register`.
        let error = unsafe { user.add_filter(&text) }.unwrap_err();
        assert_eq!(error, Error::Filter(expected.clone()));
        let source = error.source().unwrap().to_string();
        assert!(source.contains(&format!("{address:#x}")), "{source}");
        assert!(fgraph::sites_of(Filter::none().address(address)).is_err());
    }
    assert_eq!((patched(), names(&user)), (1, vec!["probe_one".to_owned()]));
}

#[scenario]
fn a_text_without_words_is_an_error() {
    let user = count("probe_one");
    for text in ["", " ", ",\n"] {
        assert_eq!(refused(text), FilterError::Empty);
        assert_eq!(
            user.remove_filter(text).unwrap_err(),
            Error::Filter(FilterError::Empty)
        );
    }
    assert_eq!(names(&user), ["probe_one"]);
}

#[scenario]
fn many_names_are_found_with_what_does_not_exist_told() {
    let sites = fgraph::sites().unwrap();
    let mut wanted: Vec<_> = sites
        .iter()
        .filter(|site| site.how.is_ok() && site.module.contains("libc.so"))
        .map(|site| site.name)
        .collect();
    wanted.sort();
    wanted.dedup();
    wanted.truncate(1000);
    let exists = wanted.len();
    wanted.extend((0..1000).map(|n| format!("no_such_function_{n}")));
    let filter = wanted.iter().try_fold(Filter::none(), |filter, name| {
        filter.trace_in(name, "libc.so*")
    });
    let user = count(filter);
    let report = user.report().unwrap();
    assert!(report.traced >= exists, "{report}");
    assert_eq!(report.unmatched().count(), 1000);
    let traced = user.functions().unwrap().into_iter();
    let traced: Vec<_> = traced.map(|function| function.name().to_string()).collect();
    for name in &wanted[..exists] {
        assert!(traced.contains(name), "{name}");
    }
}

/// Registers a user that must watch something, as without options.
fn strict(filter: impl fgraph::IntoFilter) -> Result<Handle<Count>, Error> {
    // SAFETY: as in `fgraph_scenario::register`.
    Ok(unsafe { fgraph::register(Count::default(), filter) }?)
}

fn failed(filter: impl fgraph::IntoFilter) -> Error {
    let failed = strict(filter).unwrap_err();
    assert!(!is_patched(ONE) && fgraph::status().unwrap().users == 0);
    failed
}

fn nothing(words: &[&str]) -> Error {
    Error::NothingMatched {
        words: words.iter().map(|&word| word.to_owned()).collect(),
    }
}

#[scenario]
fn a_word_that_matches_nothing_is_an_error() {
    let text = "probe_one prob_two \"no such\" probe_two";
    let error = failed(text);
    assert_eq!(error, nothing(&["prob_two", "\"no such\""]));
    assert_eq!(
        error.to_string(),
        "no function matches `prob_two`, `\"no such\"`: look for its name in fgraph::sites()"
    );
    assert_eq!(addresses(&count(text)), [ONE as usize, TWO as usize]);

    let user = strict("probe_one !probe_three").unwrap();
    // SAFETY: as in `fgraph_scenario::register`.
    let [set, add] = unsafe { [user.set_filter("probe"), user.add_filter("probe")] };
    assert_eq!([set, add], [(); 2].map(|()| Err(nothing(&["probe"]))));
    assert_eq!(addresses(&user), [ONE as usize]);
    assert!(is_patched(ONE) && !is_patched(TWO));
    // Filters that are removed need not match.
    assert_eq!(user.remove_filter("probe").unwrap().traced, 1);
    assert_eq!(
        add_names(&user, &["probe_twx"]).unwrap_err(),
        nothing(&["probe_twx"])
    );
}

#[scenario]
fn a_filter_that_excludes_all_that_it_selects_is_an_error() {
    assert_eq!(failed("!*"), nothing(&["!*"]));
    assert_eq!(failed("probe_one !*"), nothing(&["!*"]));
    let error = failed("probe_one !probe_*");
    assert_eq!(error, nothing(&["probe_one", "!probe_*"]));
    assert_eq!(
        error.to_string(),
        "no function matches `probe_one`, `!probe_*`: look for its name in fgraph::sites()"
    );
    let written = "!!probe_one";
    assert_eq!(
        failed(written),
        FilterError::TwoExclamationMarks(written.to_owned()).into()
    );
    for text in ["!*", "probe_one !probe_*"] {
        assert!(addresses(&count(text)).is_empty());
    }
    // Without a word nothing is asked for.
    assert!(addresses(&strict(Filter::none()).unwrap()).is_empty());
}

#[scenario]
fn a_message_about_many_words_names_ten() {
    let names: Vec<_> = (0..100_000).map(|nth| format!("no_such_{nth}")).collect();
    let error = failed(Filter::names(&names));
    let Error::NothingMatched { words } = &error else {
        panic!("{error}");
    };
    assert_eq!(*words, names);
    let text = error.to_string();
    assert!(text.contains("`no_such_9` and 99990 more: "), "{text}");
    assert!(!text.contains("no_such_10"), "{text}");
}

fn add_names(user: &Handle<Count>, names: &[&str]) -> Result<fgraph::FilterReport, Error> {
    // SAFETY: as in `fgraph_scenario::register`.
    unsafe { user.add_filter(Filter::names(names)) }
}

#[scenario]
fn a_filter_of_names_selects_just_these() {
    let names = names(&count("probe_one probe_two"));
    assert_eq!(names.len(), 2);
    assert_eq!(
        addresses(&count(Filter::names(&names))),
        [ONE as usize, TWO as usize]
    );
    assert!(addresses(&count(Filter::names([""; 0]))).is_empty());
    assert_eq!(refused(Filter::names([""])), FilterError::EmptyGlob);
}
