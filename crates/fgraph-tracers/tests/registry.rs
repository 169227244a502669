//! Tracers by name: once each, again after they have left, and code that is as it was at the end.

use std::error::Error as _;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use fgraph::{AnywhereOps, Entry, FgraphOps, Filter};
use fgraph_scenario::{code, scenario};
use fgraph_tracers::Tracer;
use fgraph_tracers::probe::probe;
use fgraph_tracers::profiler::Profiler;
use fgraph_tracers::registry::{Registry, RegistryError};
use fgraph_tracers::stack::StackTracer;
use fgraph_tracers::threads::{Rule, ThreadChecker};

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn shared(n: u64) -> u64 {
    black_box(n) + 1
}

fn bytes() -> [u8; 9] {
    code(shared as *const ())
}

#[scenario]
fn the_first_patches_and_the_last_restores() {
    let before = bytes();
    let mut registry = Registry::new();
    for round in 0..3 {
        assert_eq!(bytes(), before);
        registry
            .register("profile", || Profiler::start("shared"))
            .unwrap();
        let patched = bytes();
        assert_ne!(patched, before);
        registry
            .register("stack", || StackTracer::start("shared"))
            .unwrap();
        let rules = [(Rule::WorkerOnly, "shared")];
        registry
            .register("threads", || ThreadChecker::start(rules))
            .unwrap();
        assert_eq!(bytes(), patched);
        shared(round);
        let profile = registry.get_as::<Profiler>("profile").unwrap().profile();
        assert_eq!(profile.together().of("shared").unwrap().hits, 1);
        assert!(registry.get_as::<StackTracer>("profile").is_none());
        drop(registry.unregister("profile").unwrap());
        drop(registry.unregister("threads").unwrap());
        assert_eq!(bytes(), patched);
        let stack = registry.unregister("stack").unwrap();
        // It ends when it is dropped.
        assert_eq!(
            stack.downcast_ref::<StackTracer>().unwrap().deepest().len(),
            1
        );
        assert_eq!(bytes(), patched);
    }
    assert_eq!(bytes(), before);
}

#[scenario]
fn errors_of_the_registry_name_the_tracer() {
    let mut registry = Registry::new();
    let start = || Profiler::start("shared");
    let error = |result: Result<&Profiler, RegistryError>| result.unwrap_err().to_string();
    assert_eq!(
        error(registry.register("", start)),
        "\"\" is no name for a tracer"
    );
    assert_eq!(
        error(registry.register("a b", start)),
        "\"a b\" is no name for a tracer"
    );
    let malformed = registry.register("bad", || Profiler::start("!"));
    let malformed = malformed.unwrap_err();
    assert_eq!(malformed.to_string(), "the tracer bad cannot start");
    assert!(matches!(
        malformed.source().and_then(|source| source.downcast_ref()),
        Some(fgraph::Error::Filter(_))
    ));
    registry.register("one", start).unwrap();
    let never = || -> Result<Profiler, _> { panic!("it must not be started") };
    let twice = error(registry.register("one", never));
    assert_eq!(twice, "the tracer one is registered already");
    registry.register("two", start).unwrap();
    assert_eq!(registry.default_name(), Some("two"));
    registry.set_default("one").unwrap();
    let missing = registry.set_default("three").unwrap_err();
    assert_eq!(missing, RegistryError::NotRegistered("three".to_owned()));
    assert_eq!(registry.names().collect::<Vec<_>>(), ["one", "two"]);
    assert_eq!(registry.get("one").unwrap().functions().unwrap().len(), 1);
    drop(registry.unregister("one").unwrap());
    assert_eq!(registry.default_name(), Some("two"));
    let twice = registry.unregister("one").unwrap_err().to_string();
    assert_eq!(twice, "no tracer one is registered");
    registry.register("one", start).unwrap();
    assert_eq!(registry.default_name(), Some("one"));
}

/// A tracer that is only a user.
#[derive(Default)]
struct Counts(AtomicU64);

impl FgraphOps for Counts {
    type Data = ();

    fn entry(&self, _call: &mut Entry<'_, ()>) -> Option<()> {
        self.0.fetch_add(1, Ordering::Relaxed);
        None
    }
}

// SAFETY: the callback adds to an atomic.
unsafe impl AnywhereOps for Counts {}

#[scenario]
fn a_user_of_a_programs_own_is_a_tracer() {
    let mut registry = Registry::new();
    let start = || Ok(fgraph::register_anywhere(Counts::default(), "shared")?);
    let counts = registry.register("own", start).unwrap();
    assert_eq!(shared(1), 2);
    assert_eq!(counts.user().0.load(Ordering::Relaxed), 1);
    let own = registry.get("own").unwrap();
    own.set_filter(Filter::none()).unwrap();
    assert!(own.functions().unwrap().is_empty());
}

#[scenario]
fn sixteen_tracers_work_at_once_and_one_more_is_an_error() {
    let mut registry = Registry::new();
    let start = || Profiler::start("shared");
    let names: Vec<_> = (0..16).map(|nth| format!("profile{nth}")).collect();
    for name in &names {
        registry.register(name, start).unwrap();
    }
    let error = registry.register("more", start).unwrap_err().to_string();
    assert_eq!(error, "the tracer more cannot start");
    let Err(error) = StackTracer::start("shared") else {
        panic!("there is no slot");
    };
    assert!(matches!(error, fgraph::Error::NoFreeSlot { .. }), "{error}");
    assert!(error.to_string().contains("16"), "{error}");
    // SAFETY: it does nothing.
    let error = unsafe { probe("shared").start() }.unwrap_err();
    assert!(matches!(error, fgraph::Error::NoFreeSlot { .. }), "{error}");
    assert_eq!(shared(1), 2);
    for name in &names {
        let profiler = registry.get_as::<Profiler>(name).unwrap();
        assert_eq!(profiler.functions().unwrap().len(), 1);
        let profile = profiler.profile().together();
        assert_eq!(profile.of("shared").unwrap().hits, 1, "{name}");
    }
    drop(registry.unregister("profile7").unwrap());
    registry.register("more", start).unwrap();
}
