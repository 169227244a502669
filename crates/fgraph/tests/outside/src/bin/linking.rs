//! Free lists hold what cannot be led elsewhere.

#![forbid(unsafe_code)]

use std::sync::atomic::AtomicPtr;

use fgraph_core::free::Linked;

struct Misled(AtomicPtr<Self>);

impl Linked for Misled { //~ E0200
    fn next_free(&self) -> &AtomicPtr<Self> {
        &self.0
    }
}

fn main() {}
