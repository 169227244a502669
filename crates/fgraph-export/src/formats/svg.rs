//! A picture of a flame graph, made by inferno.

use std::io;

use inferno::flamegraph::{self, Options};

use super::folded::each_line;
use super::text::Out;
use crate::calls::Trace;
use crate::stacks::Stacks;
use crate::states::NAMES;

pub(crate) fn svg(stacks: &Stacks, trace: &Trace<'_>, out: &mut Out) -> io::Result<()> {
    let mut lines = Vec::new();
    each_line(stacks, trace, |line| {
        lines.push(String::from_utf8_lossy(line).into_owned());
        Ok(())
    })?;
    let mut options = Options::default();
    options.title = match (trace.measured, trace.weight) {
        (None, None) => "Flame graph".to_owned(),
        (Some(state), _) => format!("Flame graph of {} time", NAMES[state as usize]),
        (_, Some((kind, unit))) => format!("Flame graph of {kind} {unit}"),
    };
    options.count_name = trace.weight.map_or("ns", |(_, unit)| unit).to_owned();
    let is_empty = lines.is_empty();
    match flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), out) {
        // The picture says that it is empty.
        Err(_) if is_empty => Ok(()),
        result => result.map_err(io::Error::other),
    }
}
