//! Limits of the figures, and whether they are met.

use std::time::Duration;

use fgraph::MAX_USERS;
use fgraph_bench::cases::{Case, Watched};
use fgraph_bench::functions::{Function, Variant};
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
    let verdict = |what: String, value: f64, limit: f64, unit| Verdict {
        what,
        value,
        limit,
        unit,
    };
    let mut verdicts = Vec::new();
    for (index, function) in Function::ALL.into_iter().enumerate() {
        let name = function.name();
        let ns = |case| figures.ns(case, index);
        let plain = ns(Case::Plain);
        let one = ns(Case::Users(1));
        let traced = |tracer| figures.traced(tracer, index);
        let recorder = traced(Tracer::Recorder);
        let pair = figures
            .pairs
            .iter()
            .find(|pair| pair.case == Case::Users(1));
        #[rustfmt::skip]
        let rows = [
            ("site off / plain", ns(Case::Off) / plain, 1.03, ""),
            ("1 user over plain", one - plain, limits.one_user[index], "ns"),
            ("1 user / hijacked, balanced", one / ns(Case::Hijacked(Handler::Balanced)), 0.45, ""),
            ("1 user / hijacked, plain", one / ns(Case::Hijacked(Handler::Plain)), 0.45, ""),
            ("each further user",
                (ns(Case::Users(MAX_USERS)) - one) / (MAX_USERS - 1) as f64,
                1.3 * figures.bare_user, "ns"),
            ("each user out of order / each further user",
                (ns(Case::OutOfOrder(MAX_USERS)) - one) / (ns(Case::Users(MAX_USERS)) - one),
                1.5, ""),
            ("declined return over plain", ns(Case::Declined) - plain, limits.declined, "ns"),
            ("storage per thread", ns(Case::PerThread) - ns(Case::Declined), 2.0, "ns"),
            ("declined, 1024 bytes over 0",
                ns(Case::DeclinedBytes(1024)) - ns(Case::DeclinedBytes(0)), 0.5, "ns"),
            ("disabled / declined, over plain",
                (ns(Case::Disabled) - plain) / (ns(Case::Declined) - plain), 0.5, ""),
            ("relocated Rust over NOP, 1 user",
                ns(Case::Relocated(Variant::Rust, Watched::OneUser)) - one, 1.0, "ns"),
            ("relocated C over NOP, 1 user",
                ns(Case::Relocated(Variant::C, Watched::OneUser)) - one, 1.0, "ns"),
            ("relied-on C over NOP, 1 user",
                ns(Case::Relocated(Variant::Kept, Watched::OneUser)) - one, 3.0, "ns"),
            ("recorder over 1 user, 2 clocks", recorder - one - 2.0 * figures.clock, 8.0, "ns"),
            ("profiler / recorder", traced(Tracer::Profiler) / recorder, 1.3, ""),
            ("probe over 1 user", traced(Tracer::Probe) - one, 1.5 * figures.bare_user + 1.0, "ns"),
            ("100 probes / five, the fifth matches",
                traced(Tracer::HundredProbes) / traced(Tracer::SharedProbe), 1.03, ""),
            ("1 user, 2 threads / 1 thread",
                pair.map_or(f64::NAN, |pair| pair.together[index] / pair.alone[index]), 1.10, ""),
        ];
        verdicts.extend(rows.map(|(what, value, limit, unit)| {
            verdict(format!("{name}: {what}"), value, limit, unit)
        }));
    }
    let leaf = |case| figures.ns(case, 0);
    let count = figures.instructions(Case::Users(1)) - figures.instructions(Case::Plain);
    let patching = |batch| figures.patching.iter().find(|row| row.batch == batch);
    let [on, off] = patching(Batch::One).map_or([f64::NAN; 2], |row| {
        [row.patch, row.unpatch].map(|time| time.as_secs_f64() * 1e9)
    });
    let all = patching(Batch::All).map_or(f64::NAN, |row| row.patch.as_secs_f64() * 1e3);
    let (whole, changes) = (&figures.whole, &figures.changes);
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let parents = figures.parents.iter().map(|(between, ns)| {
        let what = format!("parent_data, {between} foreign frames between");
        verdict(what, *ns, 3.0, "ns")
    });
    #[rustfmt::skip]
    let first = [
        ("leaf: 16 bytes over none",
            leaf(Case::SixteenBytes) - leaf(Case::Users(1)), limits.sixteen_bytes, "ns"),
        ("leaf: 1 user, vector registers, over plain",
            leaf(Case::Vectors) - leaf(Case::Plain), limits.vectors, "ns"),
        ("leaf: instructions for 1 user", count, 140.0, ""),
    ];
    #[rustfmt::skip]
    let last = [
        ("a filter of 1,000 names", ms(changes.thousand), 50.0, "ms"),
        ("a filter of 20,000 names", ms(changes.twenty_thousand), 300.0, "ms"),
        ("one name more than 100", ms(changes.one_more), 1.0, "ms"),
        ("a site switched on", on, limits.one_site, "ns"),
        ("a site switched off", off, limits.one_site, "ns"),
        ("20,000 sites patched", all, 10.0, "ms"),
        ("enumerating, per function", whole.per_function(whole.enumerate), 10_000.0, "ns"),
        ("hooking everything, per function",
            whole.per_function(whole.register), limits.registering, "ns"),
        ("a site", memory::SITE as f64, 64.0, "bytes"),
        ("a stub", memory::STUB as f64, 32.0, "bytes"),
        ("shadow stack touched by a call", figures.shadow_stack.touched as f64, 4096.0, "bytes"),
    ];
    let named =
        |(what, value, limit, unit): (&str, _, _, _)| verdict(what.to_owned(), value, limit, unit);
    verdicts.extend(first.map(named));
    verdicts.extend(parents);
    verdicts.extend(last.map(named));
    verdicts
}
