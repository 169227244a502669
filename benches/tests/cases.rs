//! The cases do what they claim: the functions compute the same in each, and the users get their
//! calls.

use std::sync::atomic::{AtomicU64, Ordering};

use fgraph::{Entry, FgraphOps, Return, TraceMethod};
use fgraph_bench::cases::Case;
use fgraph_bench::filters::Changes;
use fgraph_bench::functions::{Function, Variant, WATCHED};
use fgraph_bench::hijack::{Handler, Hijack};
use fgraph_bench::memory::ShadowStack;
use fgraph_bench::parent;
use fgraph_bench::sites::Batch;
use fgraph_bench::two_threads;
use fgraph_bench::whole_process::Whole;
use fgraph_needs::skip;

const CALLS: u64 = 1600;

/// One test for all, since all users of the process share its slots and its sites.
#[test]
fn the_cases_are_what_they_say() {
    a_shadow_stack_is_there_as_far_as_it_was_touched();
    every_site_of_a_batch_is_patched_and_unpatched();
    the_functions_compute_the_same_in_every_case();
    both_trampolines_give_the_user_every_call();
    functions_without_nops_are_relocated_and_give_the_user_every_call();
    the_whole_process_can_be_traced();
    the_data_of_the_enclosing_call_is_looked_for();
    filters_of_many_names_can_be_set();
    two_threads_are_timed_on_two_processors();
}

#[derive(Default)]
struct Count {
    entries: AtomicU64,
    returns: AtomicU64,
}

impl FgraphOps for Count {
    type Data = ();

    fn entry(&self, _call: &mut Entry<'_, ()>) -> Option<()> {
        self.entries.fetch_add(1, Ordering::Relaxed);
        Some(())
    }

    fn ret(&self, _call: &mut Return<'_, ()>, _data: ()) {
        self.returns.fetch_add(1, Ordering::Relaxed);
    }
}

fn the_functions_compute_the_same_in_every_case() {
    for (case, _) in Case::ALL {
        let active = case.set_up().unwrap();
        for function in Function::ALL {
            let expected = function.run(Variant::Plain, CALLS);
            let found = function.run(active.variant(), CALLS);
            assert_eq!(found, expected, "{case} {}", function.name());
        }
        assert_eq!(active.not_traced(), 0, "{case}");
    }
}

fn both_trampolines_give_the_user_every_call() {
    let ways = [None, Some(Handler::Balanced), Some(Handler::Plain)];
    for (way, function) in ways
        .into_iter()
        .flat_map(|way| Function::ALL.map(|f| (way, f)))
    {
        let user = fgraph_bench::register(Count::default(), WATCHED).unwrap();
        let hijack = way.map(Hijack::of_the_only_user);
        let variant = match way {
            None => Variant::Patchable,
            Some(_) => Variant::Hijacked,
        };
        function.run(variant, CALLS);
        drop(hijack);
        // After that the user gets no calls.
        function.run(Variant::Hijacked, CALLS);
        let count = user.unregister().unwrap();
        assert_eq!(count.entries.into_inner(), CALLS, "{way:?} {function:?}");
        assert_eq!(count.returns.into_inner(), CALLS, "{way:?} {function:?}");
    }
}

fn functions_without_nops_are_relocated_and_give_the_user_every_call() {
    for variant in [Variant::Rust, Variant::C, Variant::Kept] {
        let filter = variant.filter();
        let sites = fgraph::sites_of(filter).unwrap();
        let how: Vec<_> = sites.iter().map(|site| (site.how, site.returns)).collect();
        assert_eq!(
            how,
            [
                (Ok(TraceMethod::Relocated), true),
                (Ok(TraceMethod::Relocated), true)
            ],
            "{filter}"
        );
        for function in Function::ALL {
            let user = fgraph_bench::register(Count::default(), filter).unwrap();
            function.run(variant, CALLS);
            let count = user.unregister().unwrap();
            // After that the user gets no calls.
            function.run(variant, CALLS);
            assert_eq!(count.entries.into_inner(), CALLS, "{filter} {function:?}");
            assert_eq!(count.returns.into_inner(), CALLS, "{filter} {function:?}");
        }
    }
}

fn the_whole_process_can_be_traced() {
    let whole = Whole::measure().unwrap();
    // Without the debug file of the C library, more of its functions without a name are refused.
    assert!(whole.traced > whole.functions / 100 * 90, "{whole:?}");
}

fn the_data_of_the_enclosing_call_is_looked_for() {
    for between in parent::BETWEEN {
        assert!(parent::measure(between, CALLS).is_ok());
    }
}

fn filters_of_many_names_can_be_set() {
    let changes = Changes::measure().unwrap();
    assert!(changes.functions > 20_000, "{changes:?}");
}

fn every_site_of_a_batch_is_patched_and_unpatched() {
    for batch in Batch::ALL {
        let user = batch.register().unwrap();
        assert_eq!(user.report().unwrap().patched, batch.sites());
        assert_eq!(fgraph::status().unwrap().patched, batch.sites());
        drop(user);
        assert_eq!(fgraph::status().unwrap().patched, 0);
    }
}

fn two_threads_are_timed_on_two_processors() {
    let Some(processors) = two_threads::processors() else {
        return skip!("threads on two processors: there is one");
    };
    let active = Case::Users(1).set_up().unwrap();
    let pair = two_threads::time(Function::Leaf, active.variant(), CALLS, 2, processors);
    assert!(!pair.alone.is_zero() && !pair.together.is_zero());
    assert_eq!(active.not_traced(), 0);
}

fn a_shadow_stack_is_there_as_far_as_it_was_touched() {
    let stack = ShadowStack::of_a_new_thread().unwrap();
    assert!(stack.touched > 0 && stack.touched < stack.size);
}
