//! Counters of the tracer, in a file that it shares with the runner.
//!
//! ```text
//!   0    8    16 ...
//!   +----+----+-----
//!   |  one u64 for each Count, in the order of their declaration
//! ```
//!
//! The file is mapped shared, so the counts of a process survive its death, and its children add to
//! them. The runner and the tracer both have this file as a module.

use core::sync::atomic::{AtomicU64, Ordering};

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident = $label:literal,)*) => {
        /// Counters, for all users, threads and processes together.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Count {
            $($(#[$doc])* $name,)*
        }

        impl Count {
            /// All of them, in their order.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns its name in messages.
            pub const fn label(self) -> &'static str {
                match self {
                    $(Self::$name => $label,)*
                }
            }
        }
    };
}

counts! {
    /// Processes that were traced: started, executed anew or forked.
    Processes = "processes",
    /// Processes that ended in order, so that the tracer unregistered its users.
    Finished = "finished",
    /// Functions of the program that have a NOP.
    Nops = "nops",
    /// Functions of the program that are relocated.
    Relocated = "relocated",
    /// Entries that users with data have accepted.
    Entries = "entries",
    /// Entries for which users did not want the return.
    Declined = "declined",
    /// Entries of calls that are running in the child of a fork.
    Inherited = "inherited",
    /// Returns to users with data, the unwound ones included.
    Returns = "returns",
    /// Returns that were unwound.
    Unwound = "unwound",
    /// Entries that never returned, as a later return of an outer call shows.
    Skipped = "skipped",
    /// Entries that had not returned when their process ended, in the thread that ended it.
    Live = "live",
    /// Entries that the user without data has accepted.
    EmptyEntries = "entries without data",
    /// Returns to the user without data.
    EmptyReturns = "returns without data",
    /// Returns with data other than the entry's.
    Mismatched = "mismatched",
    /// Returns of an entry that had already returned, or whose outer call had.
    Disordered = "disordered",
    /// Callbacks of users that were no longer registered.
    Late = "late",
    /// Calls missed because their thread was inside a callback, by fgraph's counter.
    Missed = "missed",
    /// Calls without room on the shadow stack, by fgraph's counter.
    Overrun = "overrun",
    /// Calls without room for a user's data, by fgraph's counter.
    Unreserved = "unreserved",
    /// Entries of users with data that never returned, by fgraph's counter.
    Lost = "lost",
    /// Calls on other stacks, by fgraph's counter.
    NoShadowStack = "no shadow stack",
    /// Calls of threads without state, by fgraph's counter.
    Unattached = "unattached",
    /// Processes in which fgraph has stopped.
    Stopped = "stopped",
    /// Users that were not active at the end.
    Inactive = "inactive users",
    /// Filters that were changed while the program ran.
    Toggles = "changed filters",
    /// Functions that were still patched, and processes whose text had changed, at the end.
    Unrestored = "unrestored",
}

/// The counts, as the tracer changes them.
#[derive(Debug)]
#[repr(transparent)]
pub struct Record([AtomicU64; Count::ALL.len()]);

impl Record {
    /// Adds to a count. Allocates nothing and takes no lock.
    pub fn add(&self, count: Count, more: u64) {
        // Relaxed: a plain count.
        self.0[count as usize].fetch_add(more, Ordering::Relaxed);
    }
}
