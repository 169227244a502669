//! The figures for people.

// Long strings: rows of tables.

use core::fmt;
use std::time::Duration;

use fgraph_bench::cases::Case;
use fgraph_bench::functions::Function;
use fgraph_bench::instructions;
use fgraph_bench::memory;
use fgraph_bench::sites::{Batch, Times};

use crate::measure::Figures;
use crate::verdict;

/// Prints the figures.
#[derive(Debug)]
pub(crate) struct Table<'a>(pub(crate) &'a Figures);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "processor: {}\n", self.0.processor)?;
        self.calls(f)?;
        self.instructions(f)?;
        self.tracers(f)?;
        self.parents(f)?;
        self.patching(f)?;
        self.whole(f)?;
        self.changes(f)?;
        self.memory(f)?;
        self.verdicts(f)
    }
}

impl Table<'_> {
    fn calls(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<28}", "calls")?;
        for function in Function::ALL {
            write!(f, "{:>10} ns  ratio   over", function.name())?;
        }
        writeln!(f)?;
        let single = self
            .0
            .calls
            .iter()
            .map(|row| (row.case.to_string(), row.ns));
        let pairs = self.0.pairs.iter();
        let pairs = pairs.map(|row| (format!("{}, 2 threads", row.case), row.together));
        for (name, ns) in single.chain(pairs) {
            write!(f, "{name:<28}")?;
            for (index, ns) in ns.into_iter().enumerate() {
                let plain = self.0.ns(Case::Plain, index);
                write!(f, "{ns:>13.2} {:>6.2} {:>6.2}", ns / plain, ns - plain)?;
            }
            writeln!(f)?;
        }
        let [plain, traced] = self.0.random_order;
        writeln!(
            f,
            "\n{:<28}{:>13}  ratio   over",
            "eight functions, at random", "ns"
        )?;
        for (name, ns) in [("plain", plain), ("1 user", traced)] {
            let (ratio, over) = (ns / plain, ns - plain);
            writeln!(f, "{name:<28}{ns:>13.2} {ratio:>6.2} {over:>6.2}")?;
        }
        let bare = self.0.bare_user;
        writeln!(f, "\na user's two calls, bare     {bare:>13.2}")?;
        if self.0.not_traced != 0 {
            writeln!(
                f,
                "{} calls were not traced: the figures are too low",
                self.0.not_traced
            )?;
        }
        writeln!(f)
    }

    fn instructions(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Err(error) = &self.0.instructions {
            return writeln!(f, "instructions of a call: not counted: {error}\n");
        }
        writeln!(f, "{:<28}{:>13}   over", "instructions", "leaf")?;
        let plain = self.0.instructions(Case::Plain);
        for case in instructions::CASES {
            let count = self.0.instructions(case);
            writeln!(f, "{case:<28}{count:>13.1} {:>6.1}", count - plain)?;
        }
        writeln!(f)
    }

    fn tracers(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<28}", "tracers")?;
        for function in Function::ALL {
            write!(f, "{:>10} ns    over 1 user", function.name())?;
        }
        writeln!(f)?;
        for (tracer, ns) in &self.0.tracers {
            write!(f, "{tracer:<28}")?;
            for (index, ns) in ns.iter().enumerate() {
                let one = self.0.ns(Case::Users(1), index);
                write!(f, "{ns:>13.2} {:>13.2}", ns - one)?;
            }
            writeln!(f)?;
        }
        writeln!(f, "{:<28}{:>13}{:>14}", "", "plain ns", "traced ns")?;
        for (own, [plain, traced]) in &self.0.own {
            writeln!(f, "{own:<28}{plain:>13.2} {traced:>13.2}")?;
        }
        writeln!(
            f,
            "{:<28}{:>13.2}\n",
            "a reading of the clock", self.0.clock
        )
    }

    fn patching(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<28}{:>13}{:>14}{:>11}{:>11}{:>10}{:>12}",
            "patching", "patch", "unpatch", "patch", "unpatch", "register", "unregister"
        )?;
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        for row in &self.0.patching {
            let sites = row.batch.sites();
            let mut line = |name: String, times: Times, patch: Duration, unpatch: Duration| {
                let ns = |time: Duration| time.as_secs_f64() * 1e9 / sites as f64;
                writeln!(
                    f,
                    "{name:<28}{:>5.0} ns/site{:>6.0} ns/site{:>8.3} ms{:>8.3} ms{:>7.3} ms{:>9.3} ms",
                    ns(patch),
                    ns(unpatch),
                    ms(patch),
                    ms(unpatch),
                    ms(times.register),
                    ms(times.unregister),
                )
            };
            let name = format!("{sites} {}", if sites == 1 { "site" } else { "sites" });
            line(name, row.best, row.patch, row.unpatch)?;
            if row.batch == Batch::All {
                let name = format!("{sites} sites, first time");
                line(name, row.first, row.first.patch(), row.first.unpatch())?;
            }
        }
        writeln!(f)
    }

    fn whole(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = &self.0.whole;
        writeln!(
            f,
            "{:<28}{:>13}{:>14}",
            "the whole process", "functions", "per one"
        )?;
        for (name, functions, time) in [
            ("listing", whole.functions, whole.list),
            ("enumerating", whole.functions, whole.enumerate),
            ("register", whole.traced, whole.register),
            ("unregister", whole.traced, whole.unregister),
        ] {
            let ms = time.as_secs_f64() * 1e3;
            let ns = ms * 1e6 / functions as f64;
            writeln!(f, "{name:<28}{functions:>13}{ns:>11.0} ns{ms:>8.3} ms")?;
        }
        writeln!(f)
    }

    fn parents(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<28}{:>13}", "parent_data", "ns")?;
        for (between, ns) in self.0.parents {
            let name = format!("{between} foreign frames between");
            writeln!(f, "{name:<28}{ns:>13.2}")?;
        }
        writeln!(f)
    }

    fn changes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let changes = self.0.changes;
        writeln!(f, "{:<28}{:>13}", "filters", "functions")?;
        for (name, time) in [
            ("1,000 names", changes.thousand),
            ("20,000 names", changes.twenty_thousand),
            ("one name more than 100", changes.one_more),
        ] {
            let ms = time.as_secs_f64() * 1e3;
            writeln!(f, "{name:<28}{:>13}{ms:>11.3} ms", changes.functions)?;
        }
        writeln!(f)
    }

    fn memory(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shadow = self.0.shadow_stack;
        writeln!(f, "memory")?;
        writeln!(f, "{:<38}{:>10} bytes", "a site", memory::SITE)?;
        writeln!(f, "{:<38}{:>10} bytes", "a stub", memory::STUB)?;
        writeln!(
            f,
            "{:<38}{:>10} bytes",
            "shadow stack of a thread", shadow.size
        )?;
        writeln!(
            f,
            "{:<38}{:>10} bytes",
            "  touched by its first call", shadow.touched
        )?;
        let width = self.0.vector_bytes;
        writeln!(
            f,
            "{:<38}{width:>10} bytes\n",
            "saved of each vector register"
        )
    }

    fn verdicts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<42}{:>9}     {:>9}", "to reach", "value", "at most")?;
        for verdict in verdict::all(self.0) {
            let met = match verdict.is_met() {
                Some(true) => "ok",
                Some(false) => "NOT MET",
                None => "not measured",
            };
            let line = format!(
                "{:<42}{:>9.2}     {:>9.2} {:<6}{met}",
                verdict.what, verdict.value, verdict.limit, verdict.unit
            );
            writeln!(f, "{line}")?;
        }
        Ok(())
    }
}
