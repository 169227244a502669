//! Limits of the figures, and whether they are met.

use fgraph::MAX_USERS;
use fgraph_bench::cases::{Case, Compiler, Watched};
use fgraph_bench::functions::Function;
use fgraph_bench::hijack::Handler;
use fgraph_bench::memory;
use fgraph_bench::sites::Batch;
use fgraph_bench::tracers::Tracer;

use crate::measure::Figures;

/// One figure that has a limit.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) what: String,
    /// Not a number if it could not be measured.
    pub(crate) value: f64,
    pub(crate) limit: f64,
    pub(crate) unit: &'static str,
}

impl Verdict {
    /// True if the limit is met; `None` if it could not be measured.
    pub(crate) fn is_met(&self) -> Option<bool> {
        (!self.value.is_nan()).then_some(self.value <= self.limit)
    }
}

/// Limits in ns that depend on the processor; of two, the first is for the leaf function.
struct Limits {
    one_user: [f64; 2],
    vectors: f64,
    declined: f64,
    sixteen_bytes: f64,
    one_site: f64,
    registering: f64,
}

/// Limits of an AMD EPYC.
const EPYC: Limits = Limits {
    one_user: [7.5, 9.0],
    vectors: 10.0,
    declined: 4.5,
    sixteen_bytes: 0.8,
    one_site: 20_000.0,
    registering: 2_000.0,
};

/// Limits of an Intel Cascade Lake.
const CASCADE_LAKE: Limits = Limits {
    one_user: [12.5, 24.0],
    vectors: 16.0,
    declined: 7.0,
    sixteen_bytes: 1.0,
    one_site: 25_000.0,
    registering: 4_000.0,
};

/// Returns all verdicts.
pub(crate) fn all(figures: &Figures) -> Vec<Verdict> {
    let limits = match figures.processor.contains("Intel") {
        true => CASCADE_LAKE,
        false => EPYC,
    };
    let mut verdicts = Vec::new();
    let mut add = |what: String, value: f64, limit: f64, unit: &'static str| {
        verdicts.push(Verdict {
            what,
            value,
            limit,
            unit,
        });
    };
    for (index, function) in Function::ALL.into_iter().enumerate() {
        let name = function.name();
        let ns = |case| figures.ns(case, index);
        let plain = ns(Case::Plain);
        let one = ns(Case::Users(1));
        add(
            format!("{name}: site off / plain"),
            ns(Case::Off) / plain,
            1.03,
            "",
        );
        add(
            format!("{name}: 1 user over plain"),
            one - plain,
            limits.one_user[index],
            "ns",
        );
        add(
            format!("{name}: 1 user / hijacked, balanced"),
            one / ns(Case::Hijacked(Handler::Balanced)),
            0.45,
            "",
        );
        add(
            format!("{name}: 1 user / hijacked, plain"),
            one / ns(Case::Hijacked(Handler::Plain)),
            0.45,
            "",
        );
        add(
            format!("{name}: each further user"),
            (ns(Case::Users(MAX_USERS)) - one) / (MAX_USERS - 1) as f64,
            1.3 * figures.bare_user,
            "ns",
        );
        add(
            format!("{name}: declined return over plain"),
            ns(Case::Declined) - plain,
            limits.declined,
            "ns",
        );
        add(
            format!("{name}: storage per thread"),
            ns(Case::PerThread) - ns(Case::Declined),
            2.0,
            "ns",
        );
        add(
            format!("{name}: declined, 1024 bytes over 0"),
            ns(Case::DeclinedBytes(1024)) - ns(Case::DeclinedBytes(0)),
            0.5,
            "ns",
        );
        add(
            format!("{name}: disabled / declined, over plain"),
            (ns(Case::Disabled) - plain) / (ns(Case::Declined) - plain),
            0.5,
            "",
        );
        add(
            format!("{name}: relocated Rust over NOP, 1 user"),
            ns(Case::Relocated(Compiler::Rust, Watched::OneUser)) - one,
            1.0,
            "ns",
        );
        add(
            format!("{name}: relocated C over NOP, 1 user"),
            ns(Case::Relocated(Compiler::C, Watched::OneUser)) - one,
            1.0,
            "ns",
        );
        add(
            format!("{name}: relied-on C over NOP, 1 user"),
            ns(Case::Relocated(Compiler::Kept, Watched::OneUser)) - one,
            3.0,
            "ns",
        );
        let traced = |tracer| figures.traced(tracer, index);
        let recorder = traced(Tracer::Recorder);
        add(
            format!("{name}: recorder over 1 user, 2 clocks"),
            recorder - one - 2.0 * figures.clock,
            8.0,
            "ns",
        );
        add(
            format!("{name}: profiler / recorder"),
            traced(Tracer::Profiler) / recorder,
            1.3,
            "",
        );
        add(
            format!("{name}: probe over 1 user"),
            traced(Tracer::Probe) - one,
            1.5 * figures.bare_user + 1.0,
            "ns",
        );
        add(
            format!("{name}: 100 probes / five, the fifth matches"),
            traced(Tracer::HundredProbes) / traced(Tracer::SharedProbe),
            1.03,
            "",
        );
        let pair = figures
            .pairs
            .iter()
            .find(|pair| pair.case == Case::Users(1));
        add(
            format!("{name}: 1 user, 2 threads / 1 thread"),
            pair.map_or(f64::NAN, |pair| pair.together[index] / pair.alone[index]),
            1.10,
            "",
        );
    }
    let leaf = |case| figures.ns(case, 0);
    add(
        "leaf: 16 bytes over none".to_owned(),
        leaf(Case::SixteenBytes) - leaf(Case::Users(1)),
        limits.sixteen_bytes,
        "ns",
    );
    add(
        "leaf: 1 user, vector registers, over plain".to_owned(),
        leaf(Case::Vectors) - leaf(Case::Plain),
        limits.vectors,
        "ns",
    );
    let count = figures.instructions(Case::Users(1)) - figures.instructions(Case::Plain);
    add("leaf: instructions for 1 user".to_owned(), count, 140.0, "");
    for (between, ns) in figures.parents {
        let what = format!("parent_data, {between} foreign frames between");
        add(what, ns, 3.0, "ns");
    }
    let changes = figures.changes;
    for (what, time, limit) in [
        ("a filter of 1,000 names", changes.thousand, 50.0),
        ("a filter of 20,000 names", changes.twenty_thousand, 300.0),
        ("one name more than 100", changes.one_more, 1.0),
    ] {
        add(what.to_owned(), time.as_secs_f64() * 1e3, limit, "ms");
    }
    let patching = |batch| figures.patching.iter().find(|row| row.batch == batch);
    let [on, off] = patching(Batch::One).map_or([f64::NAN; 2], |row| {
        [row.patch, row.unpatch].map(|time| time.as_secs_f64() * 1e9)
    });
    add("a site switched on".to_owned(), on, limits.one_site, "ns");
    add("a site switched off".to_owned(), off, limits.one_site, "ns");
    let ms = patching(Batch::All).map_or(f64::NAN, |row| row.patch.as_secs_f64() * 1e3);
    add("20,000 sites patched".to_owned(), ms, 10.0, "ms");
    let whole = &figures.whole;
    add(
        "enumerating, per function".to_owned(),
        whole.per_function(whole.enumerate),
        10_000.0,
        "ns",
    );
    add(
        "hooking everything, per function".to_owned(),
        whole.per_function(whole.register),
        limits.registering,
        "ns",
    );
    add("a site".to_owned(), memory::SITE as f64, 64.0, "bytes");
    add("a stub".to_owned(), memory::STUB as f64, 32.0, "bytes");
    add(
        "shadow stack touched by a call".to_owned(),
        figures.shadow_stack.touched as f64,
        4096.0,
        "bytes",
    );
    verdicts
}
