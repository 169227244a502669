//! The figures for programs: one JSON object. A figure that could not be measured is `null`.

use std::time::Duration;

use fgraph_bench::cases::Case;
use fgraph_bench::functions::Function;
use fgraph_bench::instructions;
use fgraph_bench::memory;
use fgraph_bench::sites::Times;
use serde_json::{Value, json};

use crate::measure::Figures;
use crate::verdict::{self, Verdict};

/// Returns the object.
pub(crate) fn object(figures: &Figures) -> Value {
    let single = figures.calls.iter();
    let single = single.map(|row| call(figures, row.case, 1, row.ns));
    let pairs = figures.pairs.iter();
    let pairs = pairs.map(|row| call(figures, row.case, 2, row.together));
    let instructions = instructions::CASES.iter();
    let instructions = instructions
        .map(|case| json!({ "case": case.to_string(), "leaf": figures.instructions(*case) }));
    let patching = figures.patching.iter().map(|row| {
        json!({
            "sites": row.batch.sites(),
            "best": times(row.best, row.patch, row.unpatch),
            "first": times(row.first, row.first.patch(), row.first.unpatch()),
        })
    });
    let parents = figures.parents.iter();
    let parents = parents.map(|(between, ns)| json!({ "between": between, "ns": ns }));
    let tracers = figures.tracers.iter().map(|(tracer, [leaf, recursive])| {
        json!({ "tracer": tracer.to_string(), "leaf": leaf, "recursive": recursive })
    });
    let own = figures.own.iter().map(|(own, [plain, traced])| {
        json!({ "tracer": own.to_string(), "plain": plain, "traced": traced })
    });
    let verdict = |verdict: Verdict| {
        json!({
            "what": verdict.what,
            "value": verdict.value,
            "limit": verdict.limit,
            "unit": verdict.unit,
            "met": verdict.is_met(),
        })
    };
    let (whole, changes) = (&figures.whole, &figures.changes);
    json!({
        "calls": single.chain(pairs).collect::<Value>(),
        "instructions": instructions.collect::<Value>(),
        "tracers": tracers.chain(own).collect::<Value>(),
        "clock": figures.clock,
        "bare_user": figures.bare_user,
        "random_order": { "plain": figures.random_order[0], "user": figures.random_order[1] },
        "not_traced": figures.not_traced,
        "patching": patching.collect::<Value>(),
        "whole": {
            "functions": whole.functions,
            "traced": whole.traced,
            "list_ns": ns(whole.list),
            "enumerate_ns": ns(whole.enumerate),
            "register_ns": ns(whole.register),
            "unregister_ns": ns(whole.unregister),
        },
        "memory": {
            "site": memory::SITE,
            "stub": memory::STUB,
            "shadow_stack": figures.shadow_stack.size,
            "shadow_stack_touched": figures.shadow_stack.touched,
        },
        "filters": {
            "functions": changes.functions,
            "thousand_ns": ns(changes.thousand),
            "twenty_thousand_ns": ns(changes.twenty_thousand),
            "one_more_ns": ns(changes.one_more),
        },
        "parent_data": parents.collect::<Value>(),
        "processor": figures.processor,
        "vector_bytes": figures.vector_bytes,
        "to_reach": verdict::all(figures).into_iter().map(verdict).collect::<Value>(),
    })
}

fn call(figures: &Figures, case: Case, threads: u32, ns: [f64; 2]) -> Value {
    let mut row = json!({ "case": case.to_string(), "threads": threads });
    for (index, function) in Function::ALL.into_iter().enumerate() {
        let (ns, plain) = (ns[index], figures.ns(Case::Plain, index));
        row[function.name()] = json!({ "ns": ns, "ratio": ns / plain, "over": ns - plain });
    }
    row
}

fn times(times: Times, patch: Duration, unpatch: Duration) -> Value {
    json!({
        "patch_ns": ns(patch),
        "unpatch_ns": ns(unpatch),
        "register_ns": ns(times.register),
        "unregister_ns": ns(times.unregister),
    })
}

fn ns(time: Duration) -> u64 {
    time.as_nanos() as u64
}
