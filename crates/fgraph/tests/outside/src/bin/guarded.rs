//! The state that threads and users share has no field that is in reach.

#![forbid(unsafe_code)]

use fgraph_core::FGRAPH;

fn main() {
    FGRAPH.eligible.set(0, true); //~ E0609
    FGRAPH.watched.set(0, false); //~ E0609
    FGRAPH.watched.count_reserved(1); //~ E0609
    FGRAPH.callers.list_none(); //~ E0609
    FGRAPH.epoch.advance(); //~ E0609
    FGRAPH.slots.retire(0); //~ E0609
    FGRAPH.threads.free.clear(); //~ E0609
    FGRAPH.unattached.store(1, std::sync::atomic::Ordering::Relaxed); //~ E0609
    FGRAPH.0.eligible.set(0, true); //~ E0616
}
