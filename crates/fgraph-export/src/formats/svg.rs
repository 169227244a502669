//! A picture of a flame graph, made by inferno.

use std::io;

use fgraph_analysis::calls::Slot;
use inferno::flamegraph::color::{Color, PaletteMap};
use inferno::flamegraph::{self, Options};

use super::folded::{each_line, plain};
use super::text::Out;
use crate::names::process_name;
use crate::output::Trace;
use crate::stacks::Stacks;
use crate::states::NAMES;

/// The line below the title of a picture with Python's functions.
const LEGEND: &str = "blue: Python's functions, orange: native functions";

pub(crate) fn svg(stacks: &Stacks, trace: &Trace<'_>, out: &mut Out) -> io::Result<()> {
    let mut lines = Vec::new();
    each_line(stacks, trace, |line| {
        lines.push(String::from_utf8_lossy(line).into_owned());
        Ok(())
    })?;
    let mut palette = palette(trace);
    let mut options = Options::default();
    if trace.functions.has_python() {
        options.palette_map = Some(&mut palette);
        options.subtitle = Some(LEGEND.to_owned());
    }
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

/// Returns the color of each name: blue for Python's functions, orange for native ones, and grey
/// for processes.
fn palette(trace: &Trace<'_>) -> PaletteMap {
    let mut palette = PaletteMap::default();
    for process in trace.processes() {
        let name = plain(&process_name(trace.names, process));
        palette.insert(name, Color::new(190, 190, 190));
    }
    for (symbol, function) in trace.functions.iter().enumerate() {
        let name = plain(&function.name);
        // Names that stand beside each other differ a little.
        let shade = name
            .bytes()
            .fold(0_u8, |sum, byte| sum.wrapping_mul(31) ^ byte)
            % 6;
        let color = match trace.functions.is_python(symbol as Slot) {
            true => Color::new(110 + 14 * shade, 160 + 10 * shade, 225 + 4 * shade),
            false => Color::new(245, 150 + 12 * shade, 80 + 16 * shade),
        };
        palette.insert(name, color);
    }
    palette
}
