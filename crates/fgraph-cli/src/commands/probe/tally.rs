//! The counts of a probe's actions.

use std::cmp::Reverse;
use std::collections::HashMap;

use fgraph_trace::text::Quoted;
use serde::Serialize;

use crate::action::{Expression, Inputs, Value, What};
use crate::error::Error;
use crate::output::Out;
use crate::text::{grouped, time};

/// The count of an action under one key.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) count: u64,
    pub(super) sum: i128,
    least: Option<Value>,
    most: Option<Value>,
    values: HashMap<Value, u64>,
    /// Calls whose values had no room.
    others: u64,
}

/// The most different values of a histogram; calls with further values are counted as others.
const MAX_VALUES: usize = 1 << 16;
/// The most rows that are shown.
const SHOWN: usize = 20;

impl Tally {
    /// Adds a call.
    pub(super) fn add(&mut self, what: &What, call: &impl Inputs) {
        let Some(value) = what.value() else {
            self.count += 1;
            return;
        };
        let Some(value) = value.of(call) else { return };
        match (what, &value) {
            (What::Sum(_) | What::Average(_), Value::Number(number)) => {
                let Some(sum) = self.sum.checked_add(*number) else {
                    return;
                };
                self.sum = sum;
            }
            (What::Sum(_) | What::Average(_), Value::Text(_)) => return,
            (What::Least(_), _) => {
                if self.least.as_ref().is_none_or(|least| value < *least) {
                    self.least = Some(value);
                }
            }
            (What::Most(_), _) => {
                if self.most.as_ref().is_none_or(|most| value > *most) {
                    self.most = Some(value);
                }
            }
            _ => {
                self.count_value(match value {
                    Value::Number(number) => Value::Number(bucket(number)),
                    text => text,
                });
            }
        }
        self.count += 1;
    }

    fn count_value(&mut self, value: Value) {
        let count = match self.values.len() < MAX_VALUES {
            true => self.values.entry(value).or_default(),
            false => self.values.get_mut(&value).unwrap_or(&mut self.others),
        };
        *count += 1;
    }

    /// Returns its weight, for sorting.
    pub(super) fn weight(&self, what: &What) -> i128 {
        let number = |value: &Option<Value>| match value {
            Some(Value::Number(number)) => *number,
            _ => 0,
        };
        match what {
            What::Sum(_) => self.sum,
            What::Average(_) => self.average(),
            What::Least(_) => number(&self.least),
            What::Most(_) => number(&self.most),
            What::Count | What::Print | What::Histogram(_) => self.count.into(),
        }
    }

    fn average(&self) -> i128 {
        self.sum.checked_div(self.count.into()).unwrap_or(0)
    }

    /// Returns the result of an action as text; times have units.
    pub(super) fn shown(&self, what: &What) -> String {
        let shown = |value: Value| match is_time(what) {
            true => shown_time(&value),
            false => shown(&value),
        };
        match self.result(what) {
            None => "-".to_owned(),
            Some(_) if what.value().is_none() || matches!(what, What::Histogram(_)) => {
                grouped(self.count)
            }
            Some(value) => shown(value),
        }
    }

    /// Returns the value of an action; `None` if no call had one.
    fn result(&self, what: &What) -> Option<Value> {
        match what {
            What::Count | What::Print | What::Histogram(_) => {
                Some(Value::Number(self.count.into()))
            }
            What::Sum(_) => Some(Value::Number(self.sum)),
            What::Average(_) => Some(Value::Number(self.average())),
            What::Least(_) => self.least.clone(),
            What::Most(_) => self.most.clone(),
        }
    }

    /// Returns a row for JSON.
    pub(super) fn to_json(&self, what: &What, key: Vec<String>) -> Row {
        let mut values: Vec<_> = self.values.iter().collect();
        values.sort();
        let part = |(value, calls): (&Value, &u64)| {
            let (from, to) = bounds(value);
            Part {
                from,
                to,
                calls: *calls,
            }
        };
        Row {
            key,
            calls: self.count,
            value: self.result(what).map(Json::from),
            values: matches!(what, What::Histogram(_))
                .then(|| values.into_iter().map(part).collect()),
            others: self.others,
        }
    }

    /// Writes the rows of a histogram: a value or a range, the number of calls, and a bar.
    pub(super) fn write_histogram(&self, what: &What, out: &mut Out) -> Result<(), Error> {
        const BAR: u64 = 40;
        let mut values: Vec<_> = self.values.iter().collect();
        let is_text = values
            .iter()
            .any(|(value, _)| matches!(value, Value::Text(_)));
        match is_text {
            true => values.sort_by_key(|&(value, count)| (Reverse(*count), value)),
            false => values.sort(),
        }
        let most = values.iter().map(|(_, count)| **count).max().unwrap_or(1);
        let rest = values.len().saturating_sub(SHOWN);
        if is_text {
            values.truncate(SHOWN);
        }
        let names: Vec<String> = values
            .iter()
            .map(|(value, _)| range(value, is_time(what)))
            .collect();
        let width = names.iter().map(|name| name.chars().count()).max();
        let width = width.unwrap_or(0);
        for (name, (_, count)) in names.iter().zip(values) {
            let bar = u128::from(*count) * u128::from(BAR) / u128::from(most);
            let bar = "#".repeat(bar as usize);
            let count = grouped(*count);
            out.line(
                format_args!("  {name:<width$}  {count:>12}  {bar}")
                    .to_string()
                    .trim_end(),
            )?;
        }
        if is_text && rest > 0 {
            out.line(format_args!("  and {} other texts", grouped(rest as u64)))?;
        }
        if self.others > 0 {
            let [most, others] = [MAX_VALUES as u64, self.others].map(grouped);
            out.line(format_args!(
                "  and {others} calls with texts after the first {most}"
            ))?;
        }
        Ok(())
    }
}

/// Returns the least number of the power of two that contains a number; -1 for all below zero.
fn bucket(number: i128) -> i128 {
    match number {
        ..0 => -1,
        0 => 0,
        _ => 1 << number.ilog2(),
    }
}

/// Returns the first and the last number of the power of two that contains a number; for a text,
/// the text.
fn bounds(value: &Value) -> (Option<Json>, Option<Json>) {
    let number = |number: i128| Some(Json::Number(number));
    match value {
        Value::Number(..0) => (None, number(-1)),
        Value::Number(0 | 1) | Value::Text(_) => {
            let value = Some(Json::from(value.clone()));
            (value.clone(), value)
        }
        Value::Number(least) => (number(*least), number(least.saturating_mul(2) - 1)),
    }
}

/// Returns the values of a row of a histogram as text.
fn range(value: &Value, is_time: bool) -> String {
    match value {
        Value::Number(..0) => "less than 0".to_owned(),
        Value::Number(least) if is_time => {
            let end = Value::Number(least.saturating_mul(2).max(1));
            format!("{} to {}", shown_time(value), shown_time(&end))
        }
        Value::Number(0 | 1) => shown(value),
        Value::Number(least) => format!("{least} to {}", least.saturating_mul(2) - 1),
        Value::Text(_) => shown(value),
    }
}

/// Returns true if the value of an action is a time.
fn is_time(what: &What) -> bool {
    what.value().is_some_and(Expression::is_time)
}

pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::Number(number) => number.to_string(),
        Value::Text(text) => format!("\"{}\"", Quoted(text)),
    }
}

/// Returns a number of nanoseconds with a unit.
fn shown_time(value: &Value) -> String {
    match value {
        Value::Number(number) => match u64::try_from(number.unsigned_abs()) {
            Ok(long) => format!("{}{}", if *number < 0 { "-" } else { "" }, time(long)),
            Err(_) => format!("{number} ns"),
        },
        Value::Text(_) => shown(value),
    }
}

/// A value as JSON.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged)]
enum Json {
    Number(i128),
    Text(String),
}

impl From<Value> for Json {
    fn from(value: Value) -> Self {
        match value {
            Value::Number(number) => Self::Number(number),
            Value::Text(text) => Self::Text(text),
        }
    }
}

/// The result for one key.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Row {
    /// A text for each item of `by`; a stack has a line for each call, the innermost first.
    key: Vec<String>,
    /// The number of calls that have the value.
    calls: u64,
    /// The count, sum, average, minimum or maximum; null if no call had a value. Times are in
    /// nanoseconds.
    value: Option<Json>,
    /// The parts of a histogram; null for other actions.
    values: Option<Vec<Part>>,
    /// Calls of a histogram whose texts had no room.
    others: u64,
}

/// The calls of a histogram whose values are in a range, or are one text.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Part {
    /// The smallest number, or the text; null for all numbers below `to`.
    from: Option<Json>,
    /// The largest number, or the text.
    to: Option<Json>,
    calls: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_in_the_range_of_its_power_of_two() {
        for (number, expected) in [
            (i128::MIN, "less than 0"),
            (-1, "less than 0"),
            (0, "0"),
            (1, "1"),
            (2, "2 to 3"),
            (1023, "512 to 1023"),
            (1024, "1024 to 2047"),
        ] {
            assert_eq!(range(&Value::Number(bucket(number)), false), expected);
        }
        _ = range(&Value::Number(bucket(i128::MAX)), false);
    }

    #[test]
    fn texts_without_room_in_a_histogram_are_counted() {
        let mut tally = Tally::default();
        let text = |n: usize| Value::Text(n.to_string());
        (0..MAX_VALUES + 5).for_each(|n| tally.count_value(text(n)));
        (0..3).for_each(|_| tally.count_value(text(7)));
        assert_eq!((tally.values.len(), tally.others), (MAX_VALUES, 5));
        assert_eq!(tally.values[&text(7)], 4);
    }

    #[test]
    fn times_have_units() {
        for (number, expected) in [
            (-1, "less than 0"),
            (0, "0 ns to 1 ns"),
            (1, "1 ns to 2 ns"),
            (600, "512 ns to 1.024 us"),
            (3_000_000, "2.097 ms to 4.194 ms"),
        ] {
            assert_eq!(range(&Value::Number(bucket(number)), true), expected);
        }
        _ = range(&Value::Number(bucket(i128::MAX)), true);
    }
}
