//! Random filters over the functions, and what they select.

use std::fmt;

use crate::functions::FUNCTIONS;
use crate::rng::Rng;

/// Digits of a function's number.
const DIGITS: usize = 4;

/// The digits of a number.
fn digits(number: usize) -> [u8; DIGITS] {
    [1000, 100, 10, 1].map(|power| (number / power % 10) as u8)
}

/// A glob over function names: some digits of the number, any others.
#[derive(Clone, Copy, Debug)]
struct Glob([Option<u8>; DIGITS]);

impl Glob {
    /// One that selects `example`, by `fixed` of its digits.
    fn around(example: usize, fixed: usize, rng: &mut Rng) -> Self {
        let mut glob = [None; DIGITS];
        for _ in 0..fixed {
            let digit = rng.below(DIGITS);
            glob[digit] = Some(digits(example)[digit]);
        }
        Self(glob)
    }

    fn matches(&self, number: [u8; DIGITS]) -> bool {
        self.0
            .iter()
            .zip(number)
            .all(|(wanted, digit)| wanted.is_none_or(|wanted| wanted == digit))
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("*fn_")?;
        let last = self.0.iter().rposition(Option::is_some);
        let digits = last.map_or(0, |last| last + 1);
        for digit in &self.0[..digits] {
            match digit {
                Some(digit) => write!(f, "{digit}")?,
                None => f.write_str("?")?,
            }
        }
        if digits < DIGITS {
            f.write_str("*")?;
        }
        Ok(())
    }
}

/// The functions that take part: those with the lowest numbers.
#[derive(Clone, Debug)]
pub(crate) struct Range {
    sites: usize,
    /// Globs for the others.
    beyond: Vec<Glob>,
    /// True if filters may select what else the program has.
    has_program: bool,
}

impl Range {
    /// The first `sites` functions, at least one.
    pub(crate) fn new(sites: usize) -> Self {
        let highest = digits(sites - 1);
        let beyond = (0..DIGITS)
            .flat_map(|position| {
                // A number with the same digits before, and a higher one here, is higher.
                (highest[position] + 1..10).map(move |digit| {
                    let mut glob = [None; DIGITS];
                    for (place, &same) in glob.iter_mut().zip(&highest[..position]) {
                        *place = Some(same);
                    }
                    glob[position] = Some(digit);
                    Glob(glob)
                })
            })
            .filter(|glob| (sites..FUNCTIONS.len()).any(|number| glob.matches(digits(number))))
            .collect();
        Self {
            sites,
            beyond,
            has_program: true,
        }
    }

    /// The same without what else the program has: callbacks that watch what threads call with all
    /// signals blocked call it then, too.
    pub(crate) fn without_program(self) -> Self {
        Self {
            has_program: false,
            ..self
        }
    }

    /// A random filter, as text, and how many functions it selects; `None` when it may select
    /// others besides.
    pub(crate) fn filter(&self, rng: &mut Rng) -> (String, Option<usize>) {
        let (trace, notrace) = match rng.below(32) {
            0 => return (String::from("*no_such_function*"), Some(0)),
            // All other functions of the program: the users' own callbacks, and what they call.
            1 if self.has_program => {
                let mut text = String::from(":mod:*victim* ");
                append(&mut text, "!", &self.beyond);
                return (text, None);
            }
            2..=9 => (vec![Glob([None; DIGITS])], 0),
            10..=17 => (self.globs(1, 2, rng), 0),
            18..=24 => (self.globs(1, 1, rng), rng.below(3)),
            _ => (self.globs(2, 1, rng), rng.below(2)),
        };
        let mut notrace = self.globs(notrace, 2, rng);
        notrace.extend(&self.beyond);
        let selects = (0..self.sites)
            .map(digits)
            .filter(|&number| {
                let listed = |globs: &[Glob]| globs.iter().any(|glob| glob.matches(number));
                listed(&trace) && !listed(&notrace)
            })
            .count();
        let mut text = String::new();
        append(&mut text, "", &trace);
        append(&mut text, "!", &notrace);
        (text, Some(selects))
    }

    fn globs(&self, count: usize, fixed: usize, rng: &mut Rng) -> Vec<Glob> {
        (0..count)
            .map(|_| Glob::around(rng.below(self.sites), fixed, rng))
            .collect()
    }
}

/// Adds globs to a filter, each behind `sign`.
fn append(text: &mut String, sign: &str, globs: &[Glob]) {
    for glob in globs {
        use fmt::Write as _;
        write!(text, "{sign}{glob} ").expect("a string takes all");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_select_what_they_say_and_nothing_beyond() {
        for sites in [1, 9, 10, 100, 999, 1234, 2000, 4095, 4096] {
            let range = Range::new(sites);
            let mut rng = Rng::new(sites as u64, 0);
            for _ in 0..100 {
                let (text, Some(selects)) = range.filter(&mut rng) else {
                    continue;
                };
                let filter: fgraph::Filter = text.parse().unwrap();
                let selected = |number: &usize| {
                    let name = format!("a::fn_{number:04}");
                    filter.matches(&fgraph::FunctionFacts::new(&[&*name], ""))
                };
                let found: Vec<usize> = (0..FUNCTIONS.len()).filter(selected).collect();
                assert_eq!(found.len(), selects, "{text}");
                assert!(found.iter().all(|&number| number < sites), "{text}");
            }
        }
    }
}
