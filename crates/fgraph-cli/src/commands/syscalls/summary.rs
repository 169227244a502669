//! Counts system calls and adds up their times.

use std::cmp::Reverse;
use std::collections::HashMap;

use fgraph_tracers::syscalls::{SystemCall, known_name};
use serde::Serialize;

use super::decode::{is_error, name};
use super::signatures::{self, Given};
use crate::table::Table;
use crate::text::{grouped, percent, time};

/// The calls of each system call.
#[derive(Debug, Default)]
pub(super) struct Summary(HashMap<u64, Sum>);

/// The calls of one system call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    calls: u64,
    errors: u64,
    total: u64,
}

/// A table of system calls, the longest total first.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct SummaryView {
    system_calls: Vec<SumView>,
    /// The number of calls that are missing in the table.
    lost_calls: u64,
}

/// The calls of one system call.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct SumView {
    number: u64,
    name: String,
    /// The number of its calls. `exit` and `exit_group` do not end, and are not counted.
    calls: u64,
    /// The number of calls that returned an error.
    errors: u64,
    /// The time that all its calls took, with waiting, in nanoseconds.
    total_ns: u64,
}

impl Summary {
    /// Adds a call that has ended, or that executes a program.
    pub(super) fn add(&mut self, call: &SystemCall) {
        let ends_thread = [libc::SYS_exit, libc::SYS_exit_group].map(|number| number as u64);
        let Some((left, result)) = call.end else {
            return;
        };
        if ends_thread.contains(&call.number) {
            return;
        }
        let sum = self.0.entry(call.number).or_default();
        sum.calls += 1;
        let signature = known_name(call.number).and_then(signatures::find);
        if signature.is_some_and(|(_, given)| given == Given::Nothing) {
            return;
        }
        sum.errors += u64::from(is_error(result));
        sum.total = sum.total.saturating_add(left.saturating_sub(call.entered));
    }

    /// Returns the system calls, the longest total first.
    fn sorted(&self) -> Vec<(u64, Sum)> {
        let mut sums: Vec<_> = self.0.iter().map(|(number, sum)| (*number, *sum)).collect();
        sums.sort_unstable_by_key(|(number, sum)| (Reverse((sum.total, sum.calls)), *number));
        sums
    }

    /// Returns the lines of the table.
    pub(super) fn lines(&self) -> Vec<String> {
        let sums = self.sorted();
        let mut all = Sum::default();
        for (_, sum) in &sums {
            all.calls += sum.calls;
            all.errors += sum.errors;
            all.total = all.total.saturating_add(sum.total);
        }
        let headings = [
            "% time",
            "total",
            "per call",
            "calls",
            "errors",
            "system call",
        ];
        let mut table = Table::new(&headings.map(|heading| (heading, 0)));
        let rows = sums.iter().map(|(number, sum)| (name(*number), sum));
        for (name, sum) in rows.chain([("total".to_owned(), &all)]) {
            table.row(vec![
                percent(sum.total, all.total),
                time(sum.total),
                time(sum.total.checked_div(sum.calls).unwrap_or(0)),
                grouped(sum.calls),
                match sum.errors {
                    0 => String::new(),
                    errors => grouped(errors),
                },
                name,
            ]);
        }
        table.lines(None)
    }

    /// Returns the table for programs.
    pub(super) fn view(&self, lost_calls: u64) -> SummaryView {
        let view = |(number, sum): (u64, Sum)| SumView {
            number,
            name: name(number),
            calls: sum.calls,
            errors: sum.errors,
            total_ns: sum.total,
        };
        SummaryView {
            system_calls: self.sorted().into_iter().map(view).collect(),
            lost_calls,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(calls: u64, errors: u64, total: u64) -> Sum {
        Sum {
            calls,
            errors,
            total,
        }
    }

    #[test]
    fn the_table_is_sorted_by_time_and_has_a_total() {
        let sums = [
            (0, sum(3, 0, 3_000)),
            (3, sum(2, 1, 400)),
            (9999, sum(1, 1, 600)),
        ];
        let summary = Summary(sums.into());
        let expected = [
            "% time     total  per call  calls  errors  system call",
            "  75.0  3.000 us  1.000 us      3          read",
            "  15.0    600 ns    600 ns      1       1  syscall_0x270f",
            "  10.0    400 ns    200 ns      2       1  close",
            " 100.0  4.000 us    666 ns      6       2  total",
        ];
        assert_eq!(summary.lines(), expected);
        let view = serde_json::to_value(summary.view(7)).unwrap();
        assert_eq!(view["lost_calls"], 7);
        assert_eq!(view["system_calls"][2]["name"], "close");
        assert_eq!(view["system_calls"][2]["total_ns"], 400);
    }

    #[test]
    fn a_table_without_calls_has_a_total() {
        let lines = Summary::default().lines();
        assert_eq!(lines[1], "   0.0   0 ns      0 ns      0          total");
    }
}
