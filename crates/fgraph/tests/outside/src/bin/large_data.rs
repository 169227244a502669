//! Data that is too large is found by `cargo check`, where it is asked for.

#![forbid(unsafe_code)]

use fgraph::{Entry, FgraphOps};

struct TooMuch;

impl FgraphOps for TooMuch {
    type Data = [u8; fgraph::MAX_DATA_SIZE + 1];

    fn entry(&self, _call: &mut Entry<'_, Self::Data>) -> Option<Self::Data> {
        None
    }
}

#[derive(Clone, Copy)]
#[repr(align(32))]
struct Strict;

struct TooStrict;

impl FgraphOps for TooStrict {
    type Data = Strict;

    fn entry(&self, _call: &mut Entry<'_, Strict>) -> Option<Strict> {
        Some(Strict)
    }
}

fgraph::check_data!(TooMuch); //~ E0080
fgraph::check_data!(TooStrict); //~ E0080

fn main() {}
