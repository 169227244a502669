//! Advice at the end of a recording: how to make the next one cost less.

use std::collections::HashMap;
use std::fs::File;
use std::mem::MaybeUninit;
use std::time::Duration;

use fgraph_trace::recording::Drain;

use crate::overhead::{most_called, word};
use crate::text::grouped;

/// The fewest calls for which there is advice.
const MANY: u64 = 1_000_000;

/// The most called functions.
#[derive(Debug)]
pub(super) struct Busiest {
    /// Their names, the one with the most calls first.
    names: Vec<String>,
    /// Their calls.
    calls: u64,
    /// The number of calls of all functions.
    all: u64,
    /// The approximate time that recording a call takes.
    each: Duration,
}

impl Busiest {
    /// Returns the fewest functions that make half of the calls; `None` if these are many, or make
    /// nearly all calls, or there are few calls.
    pub(super) fn of(drain: &Drain<File>) -> Option<Self> {
        let mut calls: HashMap<&str, u64> = HashMap::new();
        for (process, function, sum) in drain.calls() {
            let name = drain.names().function(process, function);
            let name = name.map_or("", |function| function.name.as_str());
            *calls.entry(name).or_default() += sum.begun;
        }
        // Twice: at the entry and at the return.
        let each = drain.clock_nanoseconds(drain.shortest_call()?.saturating_mul(2));
        Self::among(calls, Duration::from_nanos(each))
    }

    fn among(calls: HashMap<&str, u64>, each: Duration) -> Option<Self> {
        let all = calls.values().sum();
        let (names, calls) = most_called(calls, all);
        let busiest = Self {
            names,
            calls,
            all,
            each,
        };
        // Without nearly all calls, nothing is left to look at.
        let is_most = calls > 0 && 100 * (all - calls) >= all;
        (is_most && all >= MANY).then_some(busiest)
    }

    /// Returns the advice to leave them out, for a program with this processor time; `None` if that
    /// would gain little.
    pub(super) fn advice(&self, time: Duration) -> Option<String> {
        let cost = self.each.as_secs_f64() * self.calls as f64;
        let time = time.as_secs_f64();
        // Some time is always left: a call takes more or less elsewhere.
        let factor = time / (time - cost).max(time / 10.0);
        if factor.is_nan() || factor < 1.3 {
            return None;
        }
        let share = 100.0 * self.calls as f64 / self.all as f64;
        let options = self.names.iter().map(|name| format!(" -N {}", word(name)));
        let options: String = options.collect();
        let functions = match self.names.len() {
            1 => "1 function".to_owned(),
            count => format!("{count} functions"),
        };
        Some(format!(
            "{functions} made {share:.0} % of the {} calls:{options} would make it about \
             {factor:.1} times as fast",
            grouped(self.all)
        ))
    }
}

/// Returns the processor time of all children that were waited for.
pub(super) fn time_of_children() -> Duration {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `getrusage` fills in the local, for which zeros are valid.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr());
        usage.assume_init()
    };
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_functions_that_make_half_of_the_calls_are_named() {
        let each = Duration::from_nanos(50);
        let found = |calls: &[(&'static str, u64)]| {
            let calls = calls.iter().copied().collect();
            let found = Busiest::among(calls, each)?;
            found.advice(Duration::from_secs(1))
        };
        let names = |calls: &[_]| {
            let advice = found(calls)?;
            let (what, rest) = advice.split_once(':')?;
            let (options, gain) = rest.split_once(" would make it about ")?;
            Some([what, options, gain].map(str::to_owned))
        };
        let expected = |words: [&str; 3]| Some(words.map(str::to_owned));
        assert_eq!(
            names(&[("main", 1), ("a::<b c>", 9_000_000), ("d", 6_000_000)]),
            expected([
                "1 function made 60 % of the 15,000,001 calls",
                r" -N 'a::\<b\ c\>'",
                "1.8 times as fast"
            ])
        );
        assert_eq!(
            names(&[("it's", 5_000_000), ("b", 6_000_000), ("c", 4_000_000)]),
            expected([
                "2 functions made 73 % of the 15,000,000 calls",
                r" -N 'b' -N 'it\'\''s'",
                "2.2 times as fast"
            ])
        );
        // All there is, many functions, few calls, and too little to be won.
        assert_eq!(found(&[("fib", 9_000_000), ("main", 1)]), None);
        let many = ["a", "b", "c", "d", "e", "f", "g"].map(|name| (name, 9_000_000));
        assert_eq!(found(&many), None);
        assert_eq!(found(&[("a", 90_000), ("b", 10_000)]), None);
        assert_eq!(found(&[("a", 1_500_000), ("b", 200_000)]), None);
    }
}
