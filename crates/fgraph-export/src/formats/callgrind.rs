//! Writes callgrind's text: the own time of each function, and its calls of others.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use fgraph_analysis::calls::{Slot, one_line};

use super::text::Out;
use crate::output::Trace;
use crate::stacks::{Frame, Stacks};

#[derive(Clone, Copy, Debug, Default)]
struct Edge {
    calls: u64,
    total: u64,
}

pub(crate) fn callgrind(stacks: &Stacks, trace: &Trace<'_>, out: &mut Out) -> io::Result<()> {
    let functions = trace.functions;
    let mut own = vec![0; functions.len()];
    for node in stacks.nodes() {
        if let Frame::Function(symbol) = node.frame {
            own[symbol as usize] += node.own;
        }
    }
    let mut edges = edges(stacks);
    let summary: u64 = own.iter().sum();
    writeln!(out, "# callgrind format\nversion: 1\ncreator: fgraph")?;
    if let Some(command) = trace.command_line() {
        writeln!(out, "cmd: {command}")?;
    }
    writeln!(out, "positions: line\nevents: ns\nsummary: {summary}")?;
    // A name is written with the first occurrence of its number.
    let mut known = vec![false; functions.len()];
    let mut known_modules = vec![false; trace.functions.modules().len()];
    for (symbol, own) in (0..).zip(own) {
        writeln!(out)?;
        write_function(out, trace, symbol, "", &mut known, &mut known_modules)?;
        let line = line(trace, symbol);
        writeln!(out, "{line} {own}")?;
        for (callee, edge) in edges.remove(&symbol).into_iter().flatten() {
            write_function(out, trace, callee, "c", &mut known, &mut known_modules)?;
            let begins = self::line(trace, callee);
            writeln!(out, "calls={} {begins}\n{line} {}", edge.calls, edge.total)?;
        }
    }
    writeln!(out, "\ntotals: {summary}")
}

/// Returns the line at which a function begins; 0 if it is not known.
fn line(trace: &Trace<'_>, symbol: Slot) -> u32 {
    let source = trace.functions.function(symbol).source.as_ref();
    source.map_or(0, |(_, line)| *line)
}

fn write_function(
    out: &mut Out,
    trace: &Trace<'_>,
    symbol: Slot,
    prefix: &str,
    known: &mut [bool],
    known_modules: &mut [bool],
) -> io::Result<()> {
    let function = trace.functions.function(symbol);
    let module = trace.functions.module_number(symbol);
    write!(out, "{prefix}ob=({})", module + 1)?;
    if !std::mem::replace(&mut known_modules[module], true) {
        let path = match trace.functions.modules()[module].as_str() {
            "" => "???",
            path => path,
        };
        write!(out, " {}", one_line(path))?;
    }
    let file = if prefix.is_empty() { "fl" } else { "cfi" };
    let source = function.source.as_ref();
    let source = source.map_or("???".into(), |(file, _)| one_line(file));
    write!(out, "\n{file}={source}\n{prefix}fn=({})", symbol + 1)?;
    if !std::mem::replace(&mut known[symbol as usize], true) {
        write!(out, " {}", one_line(&function.name))?;
    }
    writeln!(out)
}

/// Returns calls and time by caller and callee.
///
/// If a call is inside another one of the same pair, its time is already in that of the other.
fn edges(stacks: &Stacks) -> HashMap<Slot, BTreeMap<Slot, Edge>> {
    let nodes = stacks.nodes();
    let mut children: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    let mut stack = Vec::new();
    for (at, node) in nodes.iter().enumerate() {
        match node.parent() == at {
            true => stack.push((at, false)),
            false => children[node.parent()].push(at),
        }
    }
    let mut edges: HashMap<Slot, BTreeMap<Slot, Edge>> = HashMap::new();
    // Number of calls of the same pair around the current node.
    let mut around: HashMap<(Slot, Slot), u32> = HashMap::new();
    while let Some((at, is_left)) = stack.pop() {
        let node = &nodes[at];
        let of = match (nodes[node.parent()].frame, node.frame) {
            (Frame::Function(caller), Frame::Function(callee)) => Some((caller, callee)),
            _ => None,
        };
        if is_left {
            if let Some(count) = of.and_then(|of| around.get_mut(&of)) {
                *count -= 1;
            }
            continue;
        }
        if let Some(of) = of {
            let count = around.entry(of).or_default();
            let edge = edges.entry(of.0).or_default().entry(of.1).or_default();
            edge.calls += node.calls;
            edge.total += if *count == 0 { node.total } else { 0 };
            *count += 1;
        }
        stack.push((at, true));
        stack.extend(children[at].iter().map(|&child| (child, false)));
    }
    edges
}
