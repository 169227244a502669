//! The figures for programs: one JSON object.

use std::time::Duration;

use fgraph_bench::cases::Case;
use fgraph_bench::functions::Function;
use fgraph_bench::instructions;
use fgraph_bench::memory;
use fgraph_bench::sites::Times;
use fgraph_bench::whole_process::Whole;

use crate::measure::Figures;
use crate::verdict;

/// The object, on one line.
pub(crate) fn object(figures: &Figures) -> String {
    let single = figures
        .calls
        .iter()
        .map(|row| call(figures, row.case, 1, row.ns));
    let pairs = figures.pairs.iter();
    let pairs = pairs.map(|row| call(figures, row.case, 2, row.together));
    let instructions = instructions::CASES.iter().map(|case| {
        let count = number(figures.instructions(*case));
        format!(r#"{{"case":"{case}","leaf":{count}}}"#)
    });
    let patching = figures.patching.iter().map(|row| {
        format!(
            r#"{{"sites":{},"best":{},"first":{}}}"#,
            row.batch.sites(),
            times(row.best, row.patch, row.unpatch),
            times(row.first, row.first.patch(), row.first.unpatch())
        )
    });
    let parents = figures.parents.iter();
    let parents =
        parents.map(|(between, ns)| format!(r#"{{"between":{between},"ns":{}}}"#, number(*ns)));
    let verdicts = verdict::all(figures).into_iter().map(|verdict| {
        format!(
            r#"{{"what":"{}","value":{},"limit":{},"unit":"{}","met":{}}}"#,
            verdict.what,
            number(verdict.value),
            number(verdict.limit),
            verdict.unit,
            verdict
                .is_met()
                .map_or("null".to_owned(), |met| met.to_string())
        )
    });
    let tracers = figures.tracers.iter().map(|(tracer, [leaf, recursive])| {
        let [leaf, recursive] = [leaf, recursive].map(|ns| number(*ns));
        format!(r#"{{"tracer":"{tracer}","leaf":{leaf},"recursive":{recursive}}}"#)
    });
    let own = figures.own.iter().map(|(own, [plain, traced])| {
        let [plain, traced] = [plain, traced].map(|ns| number(*ns));
        format!(r#"{{"tracer":"{own}","plain":{plain},"traced":{traced}}}"#)
    });
    format!(
        concat!(
            r#"{{"calls":[{}],"instructions":[{}],"tracers":[{}],"clock":{},"bare_user":{},"#,
            r#""not_traced":{},"patching":[{}],"whole":{},"#,
            r#""memory":{{"site":{},"stub":{},"shadow_stack":{},"shadow_stack_touched":{}}},"#,
            r#""filters":{{"functions":{},"thousand_ns":{},"twenty_thousand_ns":{},"#,
            r#""one_more_ns":{}}},"parent_data":[{}],"#,
            r#""processor":"{}","vector_bytes":{},"to_reach":[{}]}}"#
        ),
        join(single.chain(pairs)),
        join(instructions),
        join(tracers.chain(own)),
        number(figures.clock),
        number(figures.bare_user),
        figures.not_traced,
        join(patching),
        whole(&figures.whole),
        memory::SITE,
        memory::STUB,
        figures.shadow_stack.size,
        figures.shadow_stack.touched,
        figures.changes.functions,
        figures.changes.thousand.as_nanos(),
        figures.changes.twenty_thousand.as_nanos(),
        figures.changes.one_more.as_nanos(),
        join(parents),
        figures.processor.replace(['"', '\\'], ""),
        figures.vector_bytes,
        join(verdicts)
    )
}

fn call(figures: &Figures, case: Case, threads: u32, ns: [f64; 2]) -> String {
    let functions = Function::ALL.into_iter().zip(ns).enumerate();
    let functions = functions.map(|(index, (function, ns))| {
        let plain = figures.ns(Case::Plain, index);
        format!(
            r#""{}":{{"ns":{},"ratio":{},"over":{}}}"#,
            function.name(),
            number(ns),
            number(ns / plain),
            number(ns - plain)
        )
    });
    format!(
        r#"{{"case":"{case}","threads":{threads},{}}}"#,
        join(functions)
    )
}

fn times(times: Times, patch: Duration, unpatch: Duration) -> String {
    let ns = |time: Duration| time.as_nanos();
    format!(
        r#"{{"patch_ns":{},"unpatch_ns":{},"register_ns":{},"unregister_ns":{}}}"#,
        ns(patch),
        ns(unpatch),
        ns(times.register),
        ns(times.unregister)
    )
}

fn whole(whole: &Whole) -> String {
    format!(
        concat!(
            r#"{{"functions":{},"traced":{},"list_ns":{},"enumerate_ns":{},"#,
            r#""register_ns":{},"unregister_ns":{}}}"#
        ),
        whole.functions,
        whole.traced,
        whole.list.as_nanos(),
        whole.enumerate.as_nanos(),
        whole.register.as_nanos(),
        whole.unregister.as_nanos()
    )
}

/// JSON has no infinities and no NaN.
fn number(value: f64) -> String {
    if value.is_finite() {
        format!("{value:.3}")
    } else {
        "null".to_owned()
    }
}

fn join(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(",")
}
