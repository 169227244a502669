//! Nothing of a call is kept beyond it.

#![forbid(unsafe_code)]

use std::cell::Cell;
use std::sync::Mutex;

use fgraph::{Entry, FgraphOps};

static DATA: Mutex<Option<&'static u64>> = Mutex::new(None);
static BYTES: Mutex<Option<&'static [u8]>> = Mutex::new(None);

struct Keeps;

impl FgraphOps for Keeps {
    type Data = u64;

    fn entry(&self, call: &mut Entry<'_, u64>) -> Option<u64> {
        *DATA.lock().unwrap() = call.parent_data(); //~ E0521
        None
    }
}

fn bytes(call: &Entry<'_, u64>) {
    *BYTES.lock().unwrap() = call.vector_arg(0); //~ E0521
}

fn word<'a>(call: &Entry<'_, u64>, _: &'a ()) -> &'a Cell<u64> {
    call.thread_word() //~ E0621
}

fn written(call: &mut Entry<'_, u64>) {
    call.vector_arg(0).unwrap()[0] = 1; //~ E0594
}

fn twice(call: &mut Entry<'_, u64>) {
    let parent = call.parent_data();
    *call.parent_data_mut().unwrap() = 1; //~ E0502
    drop(parent);
}

fn main() {}
