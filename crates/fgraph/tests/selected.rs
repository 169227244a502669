//! Users that are told of the functions that they have come to watch.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use crate::common::probes::{other_one, probe_one, probe_two};
use fgraph::{Entry, FgraphOps, Function, Handle, Options, UserStatus};
use fgraph_needs::{CC, Missing, needs};
use fgraph_scenario::{Library, scenario};

/// User that notes the functions that `selected` gets, and the number of calls before.
#[derive(Debug, Default)]
struct Told {
    functions: Mutex<Vec<Function>>,
    calls: AtomicUsize,
    /// Calls of functions that it has not been told of.
    unknown: AtomicUsize,
    panics: bool,
}

impl FgraphOps for Told {
    type Data = ();

    fn entry(&self, call: &mut Entry<'_, ()>) -> Option<()> {
        self.calls.fetch_add(1, SeqCst);
        let functions = self.functions.lock().unwrap();
        let is_known = functions.contains(&call.function());
        self.unknown.fetch_add(usize::from(!is_known), SeqCst);
        None
    }

    fn selected(&self, function: Function) {
        assert!(!self.panics, "told of {}", function.name());
        // As in every callback nothing can be changed here.
        assert_eq!(fgraph::status().unwrap_err(), fgraph::Error::InsideCallback);
        self.functions.lock().unwrap().push(function);
    }
}

fn register(filter: &str) -> Handle<Told> {
    fgraph_scenario::register(Told::default(), filter).unwrap()
}

/// The names of what it was told of since the last time, sorted.
fn told(user: &Handle<Told>) -> Vec<String> {
    let functions = std::mem::take(&mut *user.user().functions.lock().unwrap());
    let mut names: Vec<_> = functions.iter().map(|it| it.name().to_string()).collect();
    names.sort_unstable();
    names
}

#[scenario]
fn selected_gets_each_function_that_a_filter_adds_once() {
    let user = register("probe_one");
    assert_eq!(told(&user), ["probe_one"]);
    let other = register("probe_*");
    assert_eq!(told(&other), ["probe_one", "probe_two"]);
    assert!(told(&user).is_empty());
    fgraph_scenario::set_filter(&user, "probe_one probe_two").unwrap();
    assert_eq!(told(&user), ["probe_two"]);
    // SAFETY: as in `fgraph_scenario::register`.
    unsafe { user.add_filter("other_one probe_one") }.unwrap();
    assert_eq!(told(&user), ["other_one"]);
    user.remove_filter("probe_*").unwrap();
    assert!(told(&user).is_empty());
    fgraph_scenario::set_filter(&user, "probe_*").unwrap();
    assert_eq!(told(&user), ["probe_one", "probe_two"]);
    assert!(told(&other).is_empty());
    // It watches exactly the functions that it was told of.
    drop(user);
    let user = register("probe_* other_one");
    let mut functions = std::mem::take(&mut *user.user().functions.lock().unwrap());
    functions.sort_by_key(|function| function.address());
    assert_eq!(functions, user.functions().unwrap());
}

#[scenario]
fn a_user_that_starts_disabled_gets_all_selected_functions_before_any_call() {
    let options = Options::new().enabled(false);
    let user =
        fgraph_scenario::register_with(Told::default(), "probe_* other_one", &options).unwrap();
    probe_one(1);
    assert_eq!((told(&user).len(), user.user().calls.load(SeqCst)), (3, 0));
    *user.user().functions.lock().unwrap() = user.functions().unwrap();
    user.set_enabled(true);
    assert_eq!(probe_one(1) + probe_two(1) + other_one(1), 9);
    assert_eq!(
        (
            user.user().calls.load(SeqCst),
            user.user().unknown.load(SeqCst)
        ),
        (3, 0)
    );
}

const C: &str = "
    int joined_state;
    __attribute__((noinline)) int joined_sum(int n) {
        for (int i = 0; i < n; i++) joined_state += i;
        return joined_state;
    }
    __attribute__((constructor)) void joined_start(void) { joined_state = joined_sum(4); }
";

fn build() -> Result<std::path::PathBuf, Missing> {
    fgraph_scenario::build_library(&CC, "joined.c", C, &[])
}

#[scenario]
fn selected_gets_the_functions_of_a_library_before_its_constructors_run() {
    let path = needs!(build());
    let [user, other] = ["joined_*", "probe_one"].map(register);
    assert_eq!(told(&other), ["probe_one"]);
    for _ in 0..2 {
        let library = Library::open(&path);
        assert_eq!(
            (
                user.user().calls.load(SeqCst),
                user.user().unknown.load(SeqCst)
            ),
            (2, 0)
        );
        assert_eq!(told(&user), ["joined_start", "joined_sum"]);
        library.close();
        user.user().calls.store(0, SeqCst);
    }
    assert!(told(&other).is_empty());
}

#[scenario]
fn a_panic_in_selected_turns_the_user_off() {
    let ops = Told {
        panics: true,
        ..Told::default()
    };
    let user = fgraph_scenario::register(ops, "probe_one").unwrap();
    let UserStatus::Panicked { message } = user.status() else {
        panic!("no panic");
    };
    assert_eq!(message, "told of probe_one");
    assert_eq!((probe_one(1), user.user().calls.load(SeqCst)), (2, 0));
}

#[scenario]
fn selected_gets_each_function_of_a_library_once_whoever_else_watches_it() {
    let path = needs!(build());
    const FILTERS: [&str; 4] = [
        "joined_*",
        "joined_sum",
        "joined_* probe_one",
        "*:mod:*joined*",
    ];
    for users in [1, 2, 16] {
        let filters = FILTERS.iter().cycle().take(users);
        let watching: Vec<_> = filters.map(|filter| (*filter, register(filter))).collect();
        watching.iter().for_each(|(_, user)| drop(told(user)));
        for _ in 0..200 / users {
            let library = Library::open(&path);
            for (filter, user) in &watching {
                let told = told(user);
                let all = ["joined_start", "joined_sum"];
                match *filter {
                    "joined_sum" => assert_eq!(told, all[1..], "{users} {filter}"),
                    "*:mod:*joined*" => {
                        assert!(all.iter().all(|name| told.contains(&(*name).to_owned())));
                        assert!(told.windows(2).all(|two| two[0] != two[1]), "{told:?}");
                    }
                    _ => assert_eq!(told, all, "{users} {filter}"),
                }
            }
            library.close();
        }
    }
}

#[scenario]
fn a_user_that_comes_with_a_library_is_called_once_for_its_functions() {
    let path = needs!(build());
    let others = [register("joined_*"), register("joined_sum")];
    // Inside a callback nothing is applied: the library waits for the next change.
    let opens = fgraph_scenario::user(
        move |_: &mut Entry<'_, ()>| {
            std::mem::forget(Library::open(&path));
            None
        },
        |_, ()| (),
    );
    let opens = fgraph_scenario::register(opens, "other_one").unwrap();
    other_one(1);
    let new = register("joined_*");
    let both = ["joined_start", "joined_sum"];
    assert_eq!(told(&new), both);
    assert_eq!(told(&others[0]), both);
    assert_eq!(told(&others[1]), both[1..]);
    drop(opens);
}
