//! Conditions under which `diff` fails.

use std::str::FromStr;

use fgraph_symbols::filter::{Filter, FilterError, FunctionFacts};

use super::statistics::Change;
use crate::input::nanoseconds;
use crate::target::{Pattern, Patterns, parse_patterns};

/// The figures of a function that can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Figure {
    Calls,
    Own,
    Total,
}

/// The least change, or the most, that is too much.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Threshold {
    /// A part of the old figure.
    Part(f64),
    /// Calls, or nanoseconds.
    Number(f64),
}

/// A condition such as `calls(malloc) > +0%`.
#[derive(Clone, Debug)]
pub(super) struct Condition {
    text: String,
    pub(super) figure: Figure,
    /// The functions for which it holds; all, if there is none.
    functions: Option<(Patterns, Filter)>,
    is_increase: bool,
    threshold: Threshold,
}

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || {
            "a condition is a figure (calls, self or total), perhaps names in (), > or <, and a \
             change: 'calls(malloc) > +0%', 'self > +5%', 'total(handle) > +1ms'"
                .to_owned()
        };
        let trimmed = text.trim();
        let end = trimmed
            .find(|it: char| !it.is_ascii_alphabetic())
            .unwrap_or(trimmed.len());
        let (figure, rest) = trimmed.split_at(end);
        let figure = match figure {
            "calls" => Figure::Calls,
            "self" => Figure::Own,
            "total" => Figure::Total,
            _ => return Err(form()),
        };
        // Names have parentheses and angle brackets of their own.
        let (functions, rest) = match rest.trim_start().strip_prefix('(') {
            None => (None, rest),
            Some(inner) => {
                let (names, rest) = inner.rsplit_once(')').ok_or_else(form)?;
                let named = |error: String| format!("'{names}': {error}");
                let patterns = parse_patterns(names).map_err(named)?;
                let words: Vec<String> = patterns.words().collect();
                let filter = words.join(" ").parse();
                let filter: Filter = filter.map_err(|it: FilterError| named(it.to_string()))?;
                (Some((patterns, filter)), rest)
            }
        };
        let rest = rest.trim_start();
        let is_increase = match rest.chars().next() {
            Some('>') => true,
            Some('<') => false,
            _ => return Err(form()),
        };
        let threshold = threshold(figure, rest[1..].trim()).ok_or_else(form)?;
        Ok(Self {
            text: trimmed.to_owned(),
            figure,
            functions,
            is_increase,
            threshold,
        })
    }
}

/// Parses a change: `+5%`, `-1ms`, `100`.
fn threshold(figure: Figure, text: &str) -> Option<Threshold> {
    let (sign, size) = match text.strip_prefix('-') {
        Some(size) => (-1.0, size),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    let number = |text: &str| {
        let is_plain = text.starts_with(|it: char| it.is_ascii_digit());
        text.trim_end().parse::<f64>().ok().filter(|_| is_plain)
    };
    let threshold = match (size.strip_suffix('%'), figure) {
        (Some(part), _) => Threshold::Part(sign * number(part)? / 100.0),
        (None, Figure::Calls) => Threshold::Number(sign * number(size)?),
        (None, _) => Threshold::Number(sign * nanoseconds(size).ok()? as f64),
    };
    Some(threshold)
}

impl Condition {
    /// Returns its text.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the patterns of its functions.
    pub(super) fn patterns(&self) -> &[Pattern] {
        self.functions
            .as_ref()
            .map_or(&[], |(patterns, _)| &patterns.0)
    }

    /// Returns true if it is about this function.
    pub(super) fn is_of(&self, name: &str, module: &str) -> bool {
        let names = [name];
        let facts = FunctionFacts::new(&names, module);
        let functions = self.functions.as_ref();
        functions.is_none_or(|(_, filter)| filter.matches(&facts))
    }

    /// Returns true if it holds for a change.
    pub(super) fn holds(&self, change: &Change) -> bool {
        let difference = change.difference();
        let (found, most) = match self.threshold {
            Threshold::Part(part) => (change.relative(difference), part),
            Threshold::Number(number) => (difference, number),
        };
        match self.is_increase {
            true => found > most,
            false => found < most,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(condition: &str, old: f64, new: f64) -> bool {
        let condition: Condition = condition.parse().unwrap();
        condition.holds(&Change::of(&[old], &[new], 1))
    }

    #[test]
    fn a_condition_holds_beyond_its_change() {
        assert!(holds("calls > +0%", 10.0, 11.0));
        assert!(!holds("calls>0%", 10.0, 10.0));
        assert!(!holds("calls > 0%", 10.0, 9.0));
        assert!(holds("calls > +3", 0.0, 4.0));
        assert!(holds("calls > 500%", 0.0, 4.0));
        assert!(!holds("self > +5 %", 100.0, 105.0));
        assert!(holds("self > +5%", 100.0, 106.0));
        assert!(holds("total > +1us", 0.0, 1001.0));
        assert!(holds("calls < -50%", 10.0, 4.0));
        assert!(!holds("calls < -50%", 10.0, 6.0));
    }

    #[test]
    fn names_in_a_condition_are_those_of_filters() {
        let condition: Condition = "calls(std::vector<*>::push_back()) > 0%".parse().unwrap();
        assert!(condition.is_of("std::vector<int>::push_back()", "app"));
        assert!(!condition.is_of("malloc", "libc.so.6"));
        let condition: Condition = "calls(libc:malloc) > 0%".parse().unwrap();
        assert!(condition.is_of("malloc", "libc.so.6"));
        assert!(!condition.is_of("malloc", "libjemalloc.so.2"));
        let condition: Condition = " self > 1% ".parse().unwrap();
        assert!(condition.is_of("malloc", "libc.so.6"));
        assert_eq!(condition.text(), "self > 1%");
    }

    #[test]
    fn a_condition_that_makes_no_sense_is_refused() {
        for text in [
            "",
            "self",
            "self >",
            "self > x%",
            "self > inf%",
            "self > 5",
            "speed > 1%",
            "calls > 1ms",
            "calls(malloc > 1",
            "self = 1%",
            "é",
            "self > 1%%",
        ] {
            assert!(text.parse::<Condition>().is_err(), "{text}");
        }
    }
}
