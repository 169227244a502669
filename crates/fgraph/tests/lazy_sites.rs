//! Sites that are made of the functions only that filters mention.

use std::fmt::Write as _;
use std::path::PathBuf;

use crate::common::clobber;
use fgraph::{Entry, FgraphOps, Function, Handle, Options, Return};
use fgraph_needs::{GCC, Missing, needs};
use fgraph_scenario::{Count, Library, build_library, patched, scenario};

const LAZY: Options = Options::new().lazy_sites(true).allow_no_match();

fn count(filter: &str) -> Handle<Count> {
    fgraph_scenario::register_with(Count::default(), filter, &LAZY).unwrap()
}

fn sites() -> usize {
    fgraph::status().unwrap().sites
}

/// Returns true if a user watches the functions that `sites_of` lists for its filter.
fn is_as_listed(filter: &str, user: &Handle<Count>) -> bool {
    let listed = fgraph::sites_of(filter).unwrap();
    let listed = listed.iter().filter(|site| site.how.is_ok());
    let listed: Vec<_> = listed.map(|site| site.address).collect();
    let functions = user.functions().unwrap().into_iter();
    let watched: Vec<_> = functions.map(Function::address).collect();
    watched == listed && user.report().unwrap().traced == listed.len()
}

#[scenario]
fn matched_functions_equal_traced_functions() {
    let mut users = Vec::new();
    for filter in [
        "getppid:mod:libc.so*",
        "close:mod:libc.so*",
        "getpid getppid !getp*id",
        "geteuid@*",
        "no_such_function",
        "getuid@@GLIBC_2.2.5",
        "*GLIBC_2.2.5 !* + getuid",
        ":mod:libc.so*",
        "get?id + geteuid !geteuid@*",
    ] {
        let user = count(filter);
        assert!(is_as_listed(filter, &user), "{filter}");
        users.push((filter, user));
    }
    for (filter, user) in &users {
        assert!(is_as_listed(filter, user), "{filter}, in the end");
    }
    let _ = std::os::unix::process::parent_id();
    assert_eq!(users[0].1.user().both(), (1, 1));
    drop(users);
    assert_eq!(patched(), 0);
}

#[scenario]
fn others_are_left_alone_until_a_filter_mentions_them() {
    let first = count("getppid:mod:libc.so*");
    assert!((1..200).contains(&sites()), "{}", sites());
    let [before] = first.functions().unwrap()[..] else {
        panic!("one function");
    };
    let few = sites();
    let same = count("getppid:mod:libc.so*");
    assert_eq!(sites(), few);
    let left_out = count("getppid !geteuid");
    let report = left_out.report().unwrap();
    let words: Vec<_> = report.words.iter().map(|word| word.functions).collect();
    assert_eq!(words, [1, 1], "what is left out is counted as well");
    let all = count(":mod:libc.so*");
    assert!(sites() > 1000, "{}", sites());
    let _ = std::os::unix::process::parent_id();
    for user in [&first, &same, &left_out] {
        assert_eq!(user.user().both(), (1, 1));
        let [now] = user.functions().unwrap()[..] else {
            panic!("one function");
        };
        assert_eq!((now, now.index()), (before, before.index()));
    }
    let indices = all.functions().unwrap().into_iter().map(Function::index);
    let mut indices: Vec<_> = indices.collect();
    let len = indices.len();
    indices.sort_unstable();
    indices.dedup();
    assert_eq!(indices.len(), len, "each has its own number");
}

#[scenario]
fn a_user_without_the_option_has_the_modules_of_its_own_filter_looked_at() {
    let lazy = count("getppid:mod:libc.so*");
    let few = sites();
    assert!((1..200).contains(&few), "{few}");
    // The functions that it selects have been looked at.
    let same = fgraph_scenario::register(Count::default(), "getppid:mod:libc.so*").unwrap();
    assert_eq!(sites(), few);
    let other = fgraph_scenario::register(Count::default(), "qsort:mod:libc.so*").unwrap();
    assert!(sites() > 1000, "{}", sites());
    let _ = std::os::unix::process::parent_id();
    assert_eq!(
        (lazy.user().both(), same.user().both(), other.user().both()),
        ((1, 1), (1, 1), (0, 0))
    );
}

#[scenario]
fn a_library_is_looked_at_as_a_whole_if_one_of_its_users_is_not_lazy() {
    let path = needs!(build_filler("lazymixed", ""));
    let lazy = count("filler7");
    let before = sites();
    Library::open(&path).close();
    let library = Library::open(&path);
    let few = sites() - before;
    assert!((1..100).contains(&few), "{few}");
    library.close();
    let other = fgraph_scenario::register(Count::default(), "filler99").unwrap();
    let before = sites();
    let library = Library::open(&path);
    assert!(sites() - before >= 200, "{}", sites() - before);
    assert_eq!(
        [&lazy, &other].map(|user| user.functions().unwrap().len()),
        [1, 1]
    );
    drop(library);
}

#[scenario]
fn modules_that_a_filter_leaves_out_are_left_alone() {
    let user = count("getppid !:mod:it-* !:mod:ld-linux*");
    assert_eq!(user.report().unwrap().traced, 1);
    assert!(sites() < 200, "{}", sites());
}

/// A library of many functions, and these.
fn library(name: &str, source: &str) -> Result<Library, Missing> {
    Ok(Library::open(&build_filler(name, source)?))
}

/// Builds the library of [`library`], and returns its path.
fn build_filler(name: &str, source: &str) -> Result<PathBuf, Missing> {
    let mut all = String::new();
    for number in 0..200 {
        writeln!(
            all,
            "__attribute__((noinline)) long filler{number}(long a) {{
                 return a * {number} + (a >> 3) + (a ^ {number}) * (a + 5);
             }}"
        )
        .unwrap();
    }
    all.push_str(source);
    let options = ["-O2", "-fno-inline", "-fipa-ra"];
    build_library(&GCC, &format!("{name}.c"), &all, &options)
}

/// A user whose callbacks leave garbage in all scratch registers.
struct Clobber;

impl FgraphOps for Clobber {
    type Data = ();

    fn entry(&self, _call: &mut Entry<'_, ()>) -> Option<()> {
        clobber::at_entry();
        Some(())
    }

    fn ret(&self, _call: &mut Return<'_, ()>, (): ()) {
        clobber::at_return();
    }
}

const CALLEE_PRESERVED: &str = "
    static __attribute__((noinline, noclone)) unsigned long leaf(unsigned long a) {
        return a * 3 + 1;
    }
    unsigned long caller(unsigned long a, unsigned long b, unsigned long c, unsigned long d,
                         unsigned long e, unsigned long f) {
        unsigned long x = leaf(a), y = leaf(x ^ b), z = leaf(y + c);
        return x + y * 5 + z * 7 + b * 11 + c * 13 + d * 17 + e * 19 + f * 23;
    }
    __attribute__((ms_abi, noinline, noclone)) unsigned long by_other(unsigned long a) {
        return a * 5 + 1;
    }
    unsigned long caller_of_other(unsigned long a, unsigned long b) {
        return by_other(a) * 3 + by_other(b) * 7 + a * b;
    }
";

#[scenario]
fn registers_that_callers_rely_on_survive() {
    let library = needs!(library("lazypreserved", CALLEE_PRESERVED));
    type Caller = extern "C" fn(u64, u64, u64, u64, u64, u64) -> u64;
    type Other = extern "C" fn(u64, u64) -> u64;
    // SAFETY: their types.
    let (caller, other): (Caller, Other) =
        unsafe { (library.get("caller"), library.get("caller_of_other")) };
    let work = || (caller(1, 2, 3, 4, 5, 6), other(8, 9));
    let untraced = work();
    let filter = "leaf by_other :mod:no_such_library";
    let user = fgraph_scenario::register_with(Clobber, filter, &LAZY).unwrap();
    assert_eq!(user.report().unwrap().traced, 2);
    assert!(sites() < 200, "{}", sites());
    assert_eq!(work(), untraced);
    // Sites that are made later are checked.
    let all = fgraph_scenario::register_with(Clobber, "*:mod:liblazypreserved.so", &LAZY).unwrap();
    assert!(all.report().unwrap().traced > 200);
    assert_eq!(work(), untraced);
    drop((user, all));
    assert_eq!(work(), untraced);
}

#[scenario]
fn a_library_that_comes_back_is_traced_as_before() {
    let user = count("filler7 filler99");
    let mut indices = Vec::new();
    let path = needs!(build_filler("lazyback", ""));
    for round in 1..4 {
        let library = Library::open(&path);
        // SAFETY: its type.
        let filler: extern "C" fn(i64) -> i64 = unsafe { library.get("filler99") };
        filler(round);
        assert_eq!(user.user().both(), (round as u64, round as u64));
        let functions = user.functions().unwrap();
        assert_eq!(functions.len(), 2);
        indices.push(
            functions
                .into_iter()
                .map(Function::index)
                .collect::<Vec<_>>(),
        );
        let more = count("filler1?:mod:liblazyback.so");
        assert_eq!(more.report().unwrap().traced, 10);
        library.close();
    }
    assert!(
        indices.windows(2).all(|two| two[0] == two[1]),
        "{indices:?}"
    );
}
