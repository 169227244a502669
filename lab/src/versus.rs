//! `cargo xtask versus`: the cost of a watched call with fgraph, compared with other tracers.
//!
//! All call the same function in the same loop, each in a process of its own, in turns.

mod bpftrace;
mod detour;
mod fgraph;
mod gum;
mod lttng;
mod perf;
mod programs;
mod row;
mod table;
mod uftrace;
mod uprobe;
mod xray;

use std::io;

use clap::Args;
use clap::builder::PossibleValuesParser;
use fgraph_needs::processor;

use programs::Programs;
use row::{ROUNDS, Row};
use table::Table;

/// Options of the command line.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// The peers to be measured beside fgraph; all of them if none is named
    #[arg(value_name = "PEER",
        value_parser = PossibleValuesParser::new(PEERS.map(|(name, _)| name)))]
    peers: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A peer: its name, and its ways of watching.
type Peer = (&'static str, fn(&Programs) -> Vec<Row>);

const PEERS: [Peer; 8] = [
    ("xray", xray::rows),
    ("gum", gum::rows),
    ("detour", detour::rows),
    ("uftrace", uftrace::rows),
    ("lttng", lttng::rows),
    ("uprobe", uprobe::rows),
    ("perf", perf::rows),
    ("bpftrace", bpftrace::rows),
];

/// Measures all rows. Fails only where fgraph cannot be measured: what a peer needs, or why it does
/// not work here, is in the table.
pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let programs = Programs::new()?;
    let mut rows = fgraph::rows(&programs)?;
    for (peer, ways) in PEERS {
        if options.peers.is_empty() || options.peers.iter().any(|name| name == peer) {
            rows.extend(ways(&programs));
        }
    }
    let mut figures = vec![Vec::new(); rows.len()];
    for _ in 0..ROUNDS {
        for (row, figures) in rows.iter_mut().zip(&mut figures) {
            let Ok(run) = &row.run else { continue };
            match run(row.calls) {
                Ok(run) => figures.push(run),
                Err(missing) => row.run = Err(missing),
            }
        }
    }
    let table = Table::new(&processor(), &rows, &figures);
    if options.json {
        println!("{}", table.json());
    } else {
        print!("{table}");
    }
    Ok(table.has_reference())
}
