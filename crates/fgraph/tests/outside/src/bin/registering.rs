//! Only unsafe code says what runs within other functions.

#![forbid(unsafe_code)]

use fgraph::{Entry, FgraphOps, Handle, Options};

struct Allocates;

impl FgraphOps for Allocates {
    type Data = ();

    fn entry(&self, call: &mut Entry<'_, ()>) -> Option<()> {
        drop(format!("{}", call.function().name()));
        None
    }
}

fn main() {
    drop(fgraph::register(Allocates, "malloc")); //~ E0133
    drop(fgraph::register_with(Allocates, "malloc", &Options::new())); //~ E0133
    // Code at addresses of the caller's choice.
    drop(fgraph::add_functions("made up", &[])); //~ E0133
}

fn register_without_a_promise() {
    drop(fgraph::register_anywhere(Allocates, "malloc")); //~ E0277
}

fn widen(user: &Handle<Allocates>) {
    drop(user.set_filter("malloc")); //~ E0133
    drop(user.add_filter("malloc")); //~ E0133
}
