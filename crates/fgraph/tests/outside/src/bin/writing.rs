//! Only unsafe code changes what a function computes with.

#![forbid(unsafe_code)]

use fgraph::{Entry, FgraphOps, Return};

struct Writes;

impl FgraphOps for Writes {
    type Data = ();

    fn entry(&self, call: &mut Entry<'_, ()>) -> Option<()> {
        call.rewrite().set_arg(0, 1).ok() //~ E0133
    }

    fn ret(&self, call: &mut Return<'_, ()>, (): ()) {
        drop(call.rewrite().set_result(1)); //~ E0133
    }
}

fn main() {}
