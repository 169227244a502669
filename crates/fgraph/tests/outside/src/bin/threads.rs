//! Users are shared by threads, calls stay in theirs.

#![forbid(unsafe_code)]

use std::rc::Rc;

use fgraph::{Entry, FgraphOps, Return};

struct OfOneThread(Rc<()>);

impl FgraphOps for OfOneThread {
    //~^ E0277
    type Data = ();

    fn entry(&self, _call: &mut Entry<'_, ()>) -> Option<()> {
        drop(self.0.clone());
        None
    }
}

struct Drops;

impl FgraphOps for Drops {
    type Data = Box<u64>; //~ E0277

    fn entry(&self, _call: &mut Entry<'_, Self::Data>) -> Option<Self::Data> {
        None
    }
}

fn sent(call: &Entry<'_, ()>, back: &Return<'_, ()>) {
    std::thread::scope(|scope| {
        scope.spawn(|| call.arg(0)); //~ E0277
        scope.spawn(|| back.result()); //~ E0277
    });
}

fn main() {}
