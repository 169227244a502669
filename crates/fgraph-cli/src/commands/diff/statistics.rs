//! Differences between two groups of measurements, with intervals.

use statrs::distribution::{ContinuousCDF as _, StudentsT};

/// The fewest recordings of each build with which times are judged.
pub(super) const LEAST: usize = 3;

/// The probability that any interval of a comparison misses the true difference.
const RISK: f64 = 0.001;

/// A figure in the recordings of both builds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Change {
    /// The means.
    pub(super) old: f64,
    pub(super) new: f64,
    /// The difference of the means is in this interval, if there were enough recordings for one.
    pub(super) interval: Option<(f64, f64)>,
}

impl Change {
    /// Compares the figures of both builds, one of `comparisons` in a view.
    ///
    /// The interval is Welch's: the builds may vary differently. All intervals of a view hold
    /// together, after Bonferroni. Resampling a handful of recordings gives intervals that are too
    /// narrow.
    pub(super) fn of(old: &[f64], new: &[f64], comparisons: usize) -> Self {
        let [(old_mean, old_error), (new_mean, new_error)] = [old, new].map(mean);
        let mut change = Self {
            old: old_mean,
            new: new_mean,
            interval: None,
        };
        if old.len().min(new.len()) >= LEAST {
            let error = old_error + new_error;
            let parts = old_error.powi(2) / (old.len() - 1) as f64
                + new_error.powi(2) / (new.len() - 1) as f64;
            // Without any variation there is no distribution, and no width.
            let quantile = StudentsT::new(0.0, 1.0, error.powi(2) / parts).map_or(0.0, |it| {
                it.inverse_cdf(1.0 - RISK / 2.0 / comparisons.max(1) as f64)
            });
            let width = quantile * error.sqrt();
            let difference = new_mean - old_mean;
            change.interval = Some((difference - width, difference + width));
        }
        change
    }

    /// Returns the difference of the means.
    pub(super) fn difference(&self) -> f64 {
        self.new - self.old
    }

    /// Returns the difference as a part of the old mean; infinite if that is 0.
    pub(super) fn relative(&self, difference: f64) -> f64 {
        match difference {
            0.0 => 0.0,
            difference => difference / self.old,
        }
    }

    /// Returns true if the interval excludes 0.
    pub(super) fn is_certain(&self) -> bool {
        self.interval
            .is_some_and(|(from, to)| from > 0.0 || to < 0.0)
    }
}

/// The fewest functions that show how fast the machine was.
const FUNCTIONS: usize = 30;

/// Returns for each recording how much longer calls took in it than in the mean of all, as the
/// median of these functions tells; 1 is the mean. A machine that is busy slows all of a program.
///
/// Returns `None` for few functions or recordings, and if the builds differ in this for certain:
/// then most functions have changed.
pub(super) fn slowness(functions: &[[Vec<f64>; 2]]) -> Option<[Vec<f64>; 2]> {
    let mut relative = Vec::new();
    for sides in functions {
        let [old, new] = sides.each_ref().map(|values| mean(values).0);
        if old > 0.0 && new > 0.0 {
            relative.push((sides, f64::midpoint(old, new)));
        }
    }
    if relative.len() < FUNCTIONS {
        return None;
    }
    let median = |side: usize, recording: usize| {
        let part = |(sides, mean): &(&[Vec<f64>; 2], f64)| sides[side][recording] / mean;
        let mut parts: Vec<f64> = relative.iter().map(part).collect();
        let middle = parts.len() / 2;
        *parts.select_nth_unstable_by(middle, f64::total_cmp).1
    };
    let slowness = [0, 1].map(|side| -> Vec<f64> {
        let recordings = relative[0].0[side].len();
        (0..recordings)
            .map(|recording| median(side, recording))
            .collect()
    });
    let [old, new] = &slowness;
    let change = Change::of(old, new, 1);
    let is_usable = change.interval.is_some() && !change.is_certain();
    (is_usable && old.iter().chain(new).all(|&it| it > 0.0)).then_some(slowness)
}

/// Returns the mean, and the square of its standard error.
fn mean(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count.max(1.0);
    let squares: f64 = values.iter().map(|it| (it - mean).powi(2)).sum();
    (mean, squares / (count - 1.0).max(1.0) / count.max(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_welchs() {
        let old = [27.5, 21.0, 19.0, 23.6, 17.0, 17.9];
        let new = [27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0];
        let change = Change::of(&old, &new, 1);
        let (from, to) = change.interval.unwrap();
        // By numeric integration of the density, with 7.0469 degrees of freedom.
        assert!((from + 7.073_022).abs() < 1e-5, "{from}");
        assert!((to - 12.073_022).abs() < 1e-5, "{to}");
        assert!(!change.is_certain());
        let wider = Change::of(&old, &new, 100).interval.unwrap();
        assert!(wider.0 < from && wider.1 > to);
    }

    #[test]
    fn figures_that_never_vary_differ_for_certain() {
        let change = Change::of(&[5.0; 3], &[6.0; 3], 10);
        assert_eq!(change.interval, Some((1.0, 1.0)));
        assert!(change.is_certain());
        assert!(!Change::of(&[5.0; 3], &[5.0; 3], 10).is_certain());
    }

    #[test]
    fn a_few_recordings_have_no_interval() {
        let change = Change::of(&[5.0, 5.0], &[6.0, 6.0, 6.0], 1);
        assert_eq!((change.old, change.new, change.interval), (5.0, 6.0, None));
        assert_eq!(change.relative(change.difference()), 0.2);
        let change = Change::of(&[0.0], &[6.0], 1);
        assert_eq!(change.relative(change.difference()), f64::INFINITY);
    }

    /// Numbers from 0 to 1 of a generator after Marsaglia, the same in each run.
    fn uniform(state: &mut u64) -> f64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (*state >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Times of a function in ten runs of a program, with a standard deviation of 1 %.
    fn runs(state: &mut u64, time: f64) -> Vec<f64> {
        let run = |_| {
            let normal = (0..12).map(|_| uniform(state)).sum::<f64>() - 6.0;
            time * (1.0 + 0.01 * normal)
        };
        (0..10).map(run).collect()
    }

    /// Times of functions in five recordings a side; one old recording is slower than the others.
    fn functions(count: u32, new: f64) -> Vec<[Vec<f64>; 2]> {
        let times = |function| {
            let time = 1000.0 + f64::from(function);
            let old = [1.0, 1.01, 1.2, 1.0, 0.99].map(|slowness| time * slowness);
            let new = [1.0, 0.99, 1.01, 1.0, 1.0].map(|slowness| time * slowness * new);
            [old.to_vec(), new.to_vec()]
        };
        (0..count).map(times).collect()
    }

    #[test]
    fn all_functions_of_a_recording_tell_how_slow_the_machine_was() {
        let [old, new] = slowness(&functions(30, 1.0)).unwrap();
        let part = old[2] / old[0];
        assert!((part - 1.2).abs() < 1e-9, "{part}");
        let part = new[2] / new[0];
        assert!((part - 1.01).abs() < 1e-9, "{part}");
        assert_eq!(slowness(&functions(29, 1.0)), None);
        // All functions have changed.
        assert_eq!(slowness(&functions(30, 2.0)), None);
    }

    #[test]
    fn one_slower_function_of_two_thousand_is_found_and_no_other() {
        const FUNCTIONS: usize = 2000;
        let mut state = 0x2545_f491_4f6c_dd1d;
        let mut found = 0;
        for _ in 0..20 {
            for function in 0..FUNCTIONS {
                let slower = if function == 7 { 1.05 } else { 1.0 };
                let [old, new] = [1.0, slower].map(|part| runs(&mut state, 1e6 * part));
                let is_certain = Change::of(&old, &new, 2 * FUNCTIONS).is_certain();
                match function {
                    7 => found += u32::from(is_certain),
                    _ => assert!(!is_certain, "{function}: {old:?} {new:?}"),
                }
            }
        }
        assert!(found >= 19, "found {found} times");
    }
}
