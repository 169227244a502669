//! The tracer of stack depth: the deepest stack of all tasks, and the calls that have led there.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use fgraph_core::{Entry, FgraphOps};

use crate::serial::println;
use crate::symbols;

const CALLS: usize = 24;

/// The tracer.
#[derive(Debug, Default)]
pub(crate) struct Depth {
    deepest: AtomicUsize,
    /// True while a callback stores the calls: another one, of an NMI too, leaves them alone.
    is_storing: AtomicBool,
    calls: [AtomicUsize; CALLS],
}

impl Depth {
    /// Returns the bytes of the deepest stack.
    pub(crate) fn deepest(&self) -> usize {
        self.deepest.load(Ordering::Relaxed)
    }

    /// Prints the calls that have led to the deepest stack, the innermost first.
    pub(crate) fn print_calls(&self, most: usize) {
        let calls = self.calls.iter().map(|call| call.load(Ordering::Relaxed));
        for address in calls.take_while(|&address| address != 0).take(most) {
            let name = symbols::find(address - 1).map_or("?", |symbol| symbol.name);
            println!("  {name}");
        }
    }
}

impl FgraphOps for Depth {
    type Data = ();

    fn entry(&self, call: &mut Entry<'_, ()>) -> Option<()> {
        let stack = call.thread_stack()?;
        let depth = stack.end - call.stack_pointer();
        // Acquire pairs with the Release below: the calls are those of one callback.
        if depth > self.deepest() && !self.is_storing.swap(true, Ordering::Acquire) {
            self.deepest.fetch_max(depth, Ordering::Relaxed);
            let mut addresses = [0; CALLS];
            let count = call.unwind(&mut addresses[..CALLS - 1]);
            for (place, address) in self.calls.iter().zip(&addresses[..=count]) {
                place.store(*address, Ordering::Relaxed);
            }
            // Release pairs with the Acquire above.
            self.is_storing.store(false, Ordering::Release);
        }
        None
    }
}
