//! Writes a line for each stack: its frames with `;` between them, a space, and nanoseconds.

use std::io::{self, Write};

use fgraph_analysis::calls::one_line;

use super::text::{Out, push};
use crate::names::process_name;
use crate::output::Trace;
use crate::stacks::{Frame, Stacks};

pub(crate) fn folded(stacks: &Stacks, trace: &Trace<'_>, out: &mut Out) -> io::Result<()> {
    each_line(stacks, trace, |line| {
        out.write_all(line)?;
        out.write_all(b"\n")
    })
}

/// Passes each line on, without its newline.
pub(super) fn each_line(
    stacks: &Stacks,
    trace: &Trace<'_>,
    mut take: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let functions = trace.functions.iter();
    let names: Vec<String> = functions.map(|function| plain(&function.name)).collect();
    let nodes = stacks.nodes();
    let (mut path, mut line) = (Vec::new(), Vec::new());
    for (mut at, (_, own)) in stacks.cut().into_iter().enumerate() {
        if own == 0 {
            continue;
        }
        path.clear();
        loop {
            path.push(nodes[at].frame);
            if nodes[at].parent() == at {
                break;
            }
            at = nodes[at].parent();
        }
        line.clear();
        for frame in path.iter().rev() {
            if !line.is_empty() {
                line.push(b';');
            }
            match *frame {
                Frame::Process(process) => {
                    let name = plain(&process_name(trace.names, process));
                    line.extend_from_slice(name.as_bytes());
                }
                Frame::Function(symbol) => {
                    line.extend_from_slice(names[symbol as usize].as_bytes());
                }
            }
        }
        line.push(b' ');
        push(&mut line, own);
        take(&line)?;
    }
    Ok(())
}

/// Returns a name as lines have it.
pub(super) fn plain(name: &str) -> String {
    one_line(name).replace(';', ":")
}
