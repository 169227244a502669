//! The results of a probe, as text and as JSON.

use std::cmp::Reverse;
use std::time::Duration;

use serde::Serialize;

use super::follow::{BETWEEN_CALLS, Probe, Tallies};
use super::tally::{Row, Tally};
use crate::action::{Action, By, What};
use crate::error::Error;
use crate::json;
use crate::output::Style;
use crate::text::escaped;

/// The view of `probe` in JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct ProbeView {
    /// Nanoseconds since the beginning, for intermediate results.
    after_ns: Option<u64>,
    /// The number of missing events.
    lost: u64,
    /// Calls without a duration and a result, because their ends are missing.
    ends_lost: u64,
    actions: Vec<ActionView>,
}

/// The calls that an action has counted.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct ActionView {
    action: String,
    /// One for each key, the largest first.
    rows: Vec<Row>,
}

impl Probe {
    /// Writes the results so far.
    pub(super) fn show(&mut self, after: Option<Duration>) -> Result<(), Error> {
        let actions = self.texts.iter().zip(&self.actions);
        let actions = actions.filter(|(_, (action, _))| action.what != What::Print);
        if self.is_json {
            let view = |(text, (action, tallies)): (&String, &(Action, Tallies))| ActionView {
                action: text.clone(),
                rows: rows(action, tallies)
                    .into_iter()
                    .take(self.most_rows)
                    .map(|(key, tally)| tally.to_json(&action.what, key.clone()))
                    .collect(),
            };
            return json::write(&ProbeView {
                after_ns: after.map(|after| after.as_nanos() as u64),
                lost: self.lost,
                ends_lost: self.ends_lost,
                actions: actions.map(view).collect(),
            });
        }
        let out = &mut self.out;
        if let Some(after) = after {
            let heading = format!("after {:.1} s", after.as_secs_f64());
            out.line(Style::Dim.paint(heading))?;
        }
        for (text, (action, tallies)) in actions {
            out.line(Style::Bold.paint(escaped(text)))?;
            for (key, tally) in rows(action, tallies).into_iter().take(self.most_rows) {
                let shown = tally.shown(&action.what);
                let keys = key.iter().zip(&action.by);
                let (stacks, keys): (Vec<_>, Vec<_>) = keys.partition(|&(_, by)| *by == By::Stack);
                let keys: Vec<&str> = keys.iter().map(|(key, _)| key.as_str()).collect();
                out.line(
                    format_args!("{shown:>12}  {}", escaped(&keys.join("  ")))
                        .to_string()
                        .trim_end(),
                )?;
                for call in stacks
                    .iter()
                    .flat_map(|(stack, _)| stack.split(BETWEEN_CALLS))
                {
                    out.line(format_args!("{:>14}{}", "", escaped(call)))?;
                }
                if matches!(action.what, What::Histogram(_)) {
                    tally.write_histogram(&action.what, out)?;
                }
            }
        }
        self.out.flush()
    }
}

/// Returns the rows of an action, the largest first.
fn rows<'t>(action: &Action, tallies: &'t Tallies) -> Vec<(&'t Vec<String>, &'t Tally)> {
    let mut rows: Vec<_> = tallies.iter().collect();
    rows.sort_by_key(|&(key, tally)| (Reverse(tally.weight(&action.what)), key));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_docs_have_the_schema() {
        json::check_schema::<ProbeView>("probe");
    }
}
