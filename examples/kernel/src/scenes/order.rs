//! Several users, and the functions that filters select.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use fgraph_core::{Entry, FgraphOps, Return};

use super::stage::{register, scene};
use crate::cpu;
use crate::serial::println;
use crate::trace::control;
use crate::work;

const EVENTS: usize = 32;

/// The callbacks in the order in which they came: two bits for the user, and the kind.
static LOG: [AtomicU64; EVENTS] = [const { AtomicU64::new(0) }; EVENTS];
static LEN: AtomicUsize = AtomicUsize::new(0);

fn log(event: u64) {
    if let Some(place) = LOG.get(LEN.fetch_add(1, Ordering::Relaxed)) {
        place.store(event, Ordering::Relaxed);
    }
}

/// A user that notes its callbacks, and passes the argument from entry to return.
#[derive(Debug)]
struct Noter(u64);

impl FgraphOps for Noter {
    type Data = u64;

    fn entry(&self, call: &mut Entry<'_, u64>) -> Option<u64> {
        log(self.0 << 1);
        call.arg(0)
    }

    fn ret(&self, call: &mut Return<'_, u64>, argument: u64) {
        let is_right = call.result() == Some(work::leaf_result(argument));
        log(self.0 << 1 | 1 | u64::from(is_right) << 8);
    }
}

/// Entries come in the order of the users, returns in the opposite one.
pub(super) fn returns() {
    scene("returns in reverse");
    let users = [0, 1, 2].map(|number| register(Noter(number), "kernel::work::leaf"));
    cpu::without_interrupts(|| work::leaf(5));
    for user in users {
        user.unregister();
    }
    for event in &LOG[..LEN.load(Ordering::Relaxed).min(EVENTS)] {
        let event = event.load(Ordering::Relaxed);
        let user = event >> 1 & 3;
        match (event & 1, event >> 8) {
            (0, _) => println!("user {user}: entry"),
            (_, 1) => println!("user {user}: return with its data"),
            _ => println!("user {user}: return with other data"),
        }
    }
}

/// Prints the functions that filters select.
pub(super) fn filters() {
    scene("filters");
    for filter in [
        "kernel::work::outer",
        "kernel::work::m*",
        "*::descend *::pair",
        "kernel::work::* !*_within !*::overflow !*::*i*",
        "kernel::nothing",
    ] {
        println!("{filter}:");
        let mut names: Vec<&str> = Vec::new();
        control::selected(filter, |name| names.push(name));
        // Their order in memory is the compiler's.
        names.sort_unstable();
        names.iter().for_each(|name| println!("  {name}"));
    }
    let user = register(Noter(0), "kernel::work::outer");
    println!("patched: {}", control::patched());
    user.filter("kernel::work::m*");
    println!("patched: {}", control::patched());
    user.unregister();
    println!("patched: {}", control::patched());
}
