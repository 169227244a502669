//! Chooses the functions that are switched off, so that recording costs no more than a share of a
//! process's own processor time, and the time when they are switched on again.
//!
//! Everything is arithmetic: calls and times in, functions out. At each look,
//!
//! 1. the cost is the number of calls since the last look times the cost of a call; the rest of the
//!    processor time is the program's own;
//! 2. if the cost exceeds the share of the own time, the functions with the shortest calls are
//!    switched off: they cost the most for each nanosecond of their own. Functions that then fit
//!    stay on, the longest first;
//! 3. functions that were off for their waiting time are tried again, all at once. After a failed
//!    attempt, the waiting time is doubled.

use std::collections::HashMap;
use std::time::Duration;

/// The time for which a function is off before it is first tried again. Like all times here, it is
/// processor time of the process: a process that stands still costs nothing.
const WAIT: Duration = Duration::from_secs(2);
/// The longest time for which it is off.
const LONGEST_WAIT: Duration = Duration::from_secs(64);
/// A function that seems to fit waits only for this part of its time.
const SHORT_WAIT: u32 = 8;
/// Calls of a function that come later than this after it was switched off are new calls.
const LATE: Duration = Duration::from_secs(1);
/// The factor by which the cost may exceed the share before functions are switched off.
const SLACK: f64 = 1.1;
/// Functions are switched on again up to this part of the share.
const FILL: f64 = 0.9;
/// The least part of all time that the own time counts as: the cost of a call is not known exactly.
const LEAST_OWN: f64 = 0.02;

/// Calls of a function since the last look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Calls {
    pub(super) function: u32,
    pub(super) calls: f64,
    /// Average nanoseconds that a call takes by itself, if known.
    pub(super) own: Option<f64>,
}

/// Functions that must be switched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) off: Vec<u32>,
    pub(super) on: Vec<u32>,
}

impl Choice {
    pub(super) fn is_empty(&self) -> bool {
        self.off.is_empty() && self.on.is_empty()
    }
}

/// The state of a function.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// Calls in a nanosecond of the program's own time, when it was last recorded; `None` before it
    /// was measured.
    rate: Option<f64>,
    /// Nanoseconds that a call takes by itself.
    own: f64,
    is_off: bool,
    /// The time when it was last switched, or first seen.
    since: Duration,
    /// True if it was off before.
    is_tried: bool,
    /// The time that it will be off the next time.
    wait: Duration,
}

/// The functions of a process.
#[derive(Clone, Debug, Default)]
pub(super) struct Functions {
    known: HashMap<u32, Known>,
    /// True if the rates were measured while recording took most of the time.
    is_rough: bool,
}

impl Functions {
    /// Returns the functions of a forked child; the same ones are off.
    pub(super) fn of_child(&self) -> Self {
        let mut child = self.clone();
        // The child's processor time begins at zero.
        let known = child.known.values_mut();
        known.for_each(|known| known.since = Duration::ZERO);
        child
    }

    /// Chooses the functions to switch. `now` is the processor time of the process, `used` the part
    /// of it since the last look, `each` the nanoseconds that recording a call costs, and `share`
    /// the allowed cost for each nanosecond of the program's own time.
    pub(super) fn look(
        &mut self,
        now: Duration,
        used: Duration,
        each: f64,
        share: f64,
        calls: &[Calls],
    ) -> Choice {
        let used = used.as_nanos() as f64;
        self.measure(now, used, each, calls);
        let mut choice = Choice::default();
        let cost = self.cost(each);
        if cost > share * SLACK {
            choice.off = self.too_much(cost, each, share);
        }
        let left = if choice.off.is_empty() {
            share * FILL - cost
        } else {
            0.0
        };
        choice.on = self.due(now, each, left);
        for function in &choice.off {
            if let Some(known) = self.known.get_mut(function) {
                known.switch_off(now);
            }
        }
        for function in &choice.on {
            if let Some(known) = self.known.get_mut(function) {
                (known.is_off, known.since, known.rate) = (false, now, None);
            }
        }
        choice
    }

    /// Reverts a choice that could not be carried out.
    pub(super) fn undo(&mut self, choice: &Choice) {
        for (functions, is_off) in [(&choice.off, false), (&choice.on, true)] {
            for function in functions {
                if let Some(known) = self.known.get_mut(function) {
                    known.is_off = is_off;
                }
            }
        }
    }

    /// Processes the calls of a time.
    fn measure(&mut self, now: Duration, used: f64, each: f64, calls: &[Calls]) {
        for seen in calls {
            let known = self.known.entry(seen.function).or_insert(Known {
                rate: None,
                own: f64::INFINITY,
                is_off: false,
                since: now,
                is_tried: false,
                wait: WAIT,
            });
            known.own = seen.own.unwrap_or(known.own);
            if known.is_off && seen.calls > 0.0 && now.saturating_sub(known.since) > LATE {
                // It was not switched off: the process was forked meanwhile.
                known.is_off = false;
            }
        }
        let counts: HashMap<u32, f64> = calls.iter().map(|it| (it.function, it.calls)).collect();
        let is_on = |function: &u32| self.known.get(function).is_some_and(|it| !it.is_off);
        let recorded = counts.iter().filter(|(function, _)| is_on(function));
        let cost = each * recorded.map(|(_, calls)| calls).sum::<f64>();
        let own = (used - cost).max(used * LEAST_OWN).max(1.0);
        let is_rough = cost > own;
        let mut on = self.known.values().filter(|known| !known.is_off);
        let is_trial = on.any(|known| known.rate.is_none());
        let (mut before, mut after) = (0.0, 0.0);
        for (function, known) in self.known.iter_mut().filter(|(_, known)| !known.is_off) {
            let rate = counts.get(function).copied().unwrap_or(0.0) / own;
            if let (Some(old), false) = (known.rate, is_rough) {
                before += old;
                after += rate;
            }
            known.rate = match known.rate {
                // The earlier rate is better than one that is measured while others are tried.
                Some(old) if is_rough && is_trial => Some(old),
                Some(_) if self.is_rough => Some(rate),
                Some(old) => Some((old + rate) / 2.0),
                None => Some(rate),
            };
        }
        if self.is_rough && !is_rough && before > 0.0 {
            // The rates of the others are wrong in the same way.
            let off = self.known.values_mut().filter(|known| known.is_off);
            off.for_each(|known| known.rate = known.rate.map(|rate| rate * after / before));
        }
        self.is_rough = is_rough;
    }

    /// Returns the cost of recording for each nanosecond of the program's own time.
    fn cost(&self, each: f64) -> f64 {
        let on = self.known.values().filter(|known| !known.is_off);
        on.map(|known| known.cost(each)).sum()
    }

    /// Returns the functions without which the cost is at most the share.
    fn too_much(&self, mut cost: f64, each: f64, share: f64) -> Vec<u32> {
        let on = self.known.iter().filter(|(_, known)| !known.is_off);
        let mut on: Vec<_> = on.filter(|(_, known)| known.cost(each) > 0.0).collect();
        on.sort_by(|a, b| a.1.own.total_cmp(&b.1.own).then(a.0.cmp(b.0)));
        let mut off = Vec::new();
        for (function, known) in on {
            if cost <= share {
                break;
            }
            cost -= known.cost(each);
            off.push((*function, known));
        }
        off.reverse();
        off.retain(|(_, known)| {
            let fits = cost + known.cost(each) <= share;
            if fits {
                cost += known.cost(each);
            }
            !fits
        });
        off.into_iter().map(|(function, _)| function).collect()
    }

    /// Returns the functions to try again; `left` is the cost that is still allowed.
    fn due(&self, now: Duration, each: f64, mut left: f64) -> Vec<u32> {
        let mut off: Vec<_> = self
            .known
            .iter()
            .filter(|(_, known)| known.is_off)
            .collect();
        off.sort_by(|a, b| b.1.own.total_cmp(&a.1.own).then(a.0.cmp(b.0)));
        off.retain(|(_, known)| {
            let time = now.saturating_sub(known.since);
            let fits = known.cost(each) <= left && time >= known.wait / SHORT_WAIT;
            if fits {
                left -= known.cost(each);
            }
            fits || time >= known.wait
        });
        off.into_iter().map(|(function, _)| *function).collect()
    }
}

impl Known {
    fn cost(&self, each: f64) -> f64 {
        each * self.rate.unwrap_or(0.0)
    }

    fn switch_off(&mut self, now: Duration) {
        let is_in_vain = self.is_tried && now.saturating_sub(self.since) < self.wait;
        self.wait = match is_in_vain {
            true => (2 * self.wait).min(LONGEST_WAIT),
            false => WAIT,
        };
        (self.is_off, self.is_tried, self.since) = (true, true, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EACH: f64 = 50.0;
    const STEP: Duration = Duration::from_millis(50);

    /// A program: calls in a nanosecond of its own time, and nanoseconds of each, by function.
    struct Program {
        functions: Vec<(f64, f64)>,
        chosen: Functions,
        off: Vec<bool>,
        now: Duration,
        switches: usize,
    }

    impl Program {
        fn new(functions: &[(f64, f64)]) -> Self {
            Self {
                functions: functions.to_vec(),
                chosen: Functions::default(),
                off: vec![false; functions.len()],
                now: Duration::ZERO,
                switches: 0,
            }
        }

        /// The cost for each nanosecond of its own.
        fn cost(&self) -> f64 {
            let on = self.functions.iter().zip(&self.off);
            on.filter(|(_, off)| !**off)
                .map(|((rate, _), _)| EACH * rate)
                .sum()
        }

        /// Runs so long, and says what recording costs on average. The command takes a call for
        /// `believed` times as expensive as it is.
        fn run(&mut self, time: Duration, share: f64, believed: f64) -> f64 {
            let until = self.now + time;
            let (mut own_time, mut cost) = (0.0, 0.0);
            while self.now < until {
                self.now += STEP;
                let own = STEP.as_nanos() as f64 / (1.0 + self.cost());
                own_time += own;
                cost += own * self.cost();
                let all = (0..).zip(self.functions.iter().zip(&self.off));
                let calls: Vec<Calls> = all
                    .filter(|(_, (_, off))| !**off)
                    .map(|(function, (&(rate, own_each), _))| Calls {
                        function,
                        calls: rate * own,
                        own: Some(own_each),
                    })
                    .collect();
                let each = EACH * believed;
                let choice = self.chosen.look(self.now, STEP, each, share, &calls);
                self.switches += choice.off.len() + choice.on.len();
                choice
                    .off
                    .iter()
                    .for_each(|&it| self.off[it as usize] = true);
                choice
                    .on
                    .iter()
                    .for_each(|&it| self.off[it as usize] = false);
            }
            cost / own_time
        }
    }

    /// Functions, from very many calls to few; half of them have short calls.
    fn many() -> Vec<(f64, f64)> {
        let functions = (0..200_u32).map(|n| {
            let rate = 0.05 / f64::from(n + 1);
            let own = if n % 2 == 0 { 10.0 } else { 400.0 };
            (rate, own)
        });
        functions.collect()
    }

    #[test]
    fn the_cost_comes_to_the_budget() {
        for share in [0.05, 0.2, 1.0] {
            for believed in [0.9, 1.0, 1.1] {
                let mut program = Program::new(&many());
                assert!(program.cost() > 10.0);
                program.run(Duration::from_secs(1), share, believed);
                let found = program.run(Duration::from_secs(60), share, believed);
                let range = share * 0.7..share * 1.4;
                assert!(range.contains(&found), "{share} {believed}: {found}");
            }
        }
    }

    #[test]
    fn functions_are_not_switched_all_the_time() {
        let mut program = Program::new(&many());
        program.run(Duration::from_secs(5), 0.2, 1.0);
        program.switches = 0;
        program.run(Duration::from_secs(300), 0.2, 1.0);
        let count = program.functions.len();
        assert!(program.switches < 20 * count, "{}", program.switches);
        program.switches = 0;
        program.run(Duration::from_secs(300), 0.2, 1.0);
        assert!(program.switches < 12 * count, "{}", program.switches);
    }

    #[test]
    fn a_program_within_its_budget_is_left_alone() {
        let mut program = Program::new(&[(0.001, 10.0), (0.0001, 5000.0)]);
        program.run(Duration::from_secs(60), 0.2, 1.0);
        assert_eq!(program.switches, 0);
    }

    #[test]
    fn short_calls_are_switched_off_and_long_ones_stay() {
        let mut program = Program::new(&[(0.02, 8.0), (0.0015, 300.0), (1e-9, 5e5), (1e-9, 2.0)]);
        program.run(STEP, 0.1, 1.0);
        assert_eq!(program.off, [true, false, false, false]);
    }

    #[test]
    fn a_function_whose_rate_falls_is_recorded_again() {
        let mut program = Program::new(&[(0.02, 8.0), (1e-6, 1000.0)]);
        program.run(Duration::from_secs(10), 0.1, 1.0);
        assert!(program.off[0]);
        program.functions[0].0 = 1e-6;
        program.run(Duration::from_secs(64), 0.1, 1.0);
        assert_eq!(program.off, [false, false]);
        program.switches = 0;
        program.run(Duration::from_secs(60), 0.1, 1.0);
        assert_eq!(program.switches, 0);
        // It is tried again soon after it was called often anew.
        program.functions[0].0 = 0.02;
        program.run(Duration::from_secs(1), 0.1, 1.0);
        assert!(program.off[0]);
    }

    #[test]
    fn one_function_that_is_all_of_the_program_is_tried_ever_less_often() {
        let mut program = Program::new(&[(1.0, 1.0)]);
        let mut found = Vec::new();
        for _ in 0..3 {
            program.switches = 0;
            program.run(Duration::from_secs(128), 0.05, 1.0);
            found.push(program.switches);
        }
        assert!(found[0] <= 16 && found[2] <= 4, "{found:?}");
    }

    #[test]
    fn a_forked_child_that_records_a_function_after_all_switches_it_off() {
        let mut parent = Functions::default();
        let calls = [Calls {
            function: 3,
            calls: 1e6,
            own: Some(5.0),
        }];
        let off = Choice {
            off: vec![3],
            on: Vec::new(),
        };
        let found = parent.look(STEP, STEP, EACH, 0.1, &calls);
        assert_eq!(found, off);
        let mut child = parent.of_child();
        // Calls that were on their way are none of the child's.
        assert!(child.look(2 * STEP, STEP, EACH, 0.1, &calls).is_empty());
        let late = Duration::from_millis(1500);
        assert_eq!(child.look(late, STEP, EACH, 0.1, &calls), off);
    }
}
