//! What the tracer counts, in a file that it shares with the runner.
//!
//! ```text
//!   0    8    16 ...
//!   +----+----+-----
//!   |  one u64 for each Count, in the order of their declaration
//! ```
//!
//! The file is mapped shared, so the counts of a process survive its death, and those of its
//! children add to them. The runner and the tracer both have this file as a module.

use core::sync::atomic::{AtomicU64, Ordering};

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident = $label:literal,)*) => {
        /// What is counted, for all users, threads and processes together.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Count {
            $($(#[$doc])* $name,)*
        }

        impl Count {
            /// All of them, in their order.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// What it is called in messages.
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
    /// Processes that came to their end in order, where the tracer unregistered its users.
    Finished = "finished",
    /// Functions of the program that have a NOP.
    Nops = "nops",
    /// Functions of the program that are relocated.
    Relocated = "relocated",
    /// Entries that users with data have accepted.
    Entries = "entries",
    /// Entries that users have declined.
    Declined = "declined",
    /// Entries of calls that go on in the child of a fork.
    Inherited = "inherited",
    /// Returns to users with data, the unwound ones included.
    Returns = "returns",
    /// Returns that were unwound.
    Unwound = "unwound",
    /// Entries that never returned, as a later return of an outer call shows.
    Skipped = "skipped",
    /// Entries that had not returned when their process came to its end, in the thread that ended
    /// it.
    Live = "live",
    /// Entries that the user without data has accepted.
    EmptyEntries = "entries without data",
    /// Returns to the user without data.
    EmptyReturns = "returns without data",
    /// Returns with data other than the entry's.
    Mismatched = "mismatched",
    /// Returns of an entry that had returned already, or whose outer call had.
    Disordered = "disordered",
    /// Callbacks of users that were not registered any more.
    Late = "late",
    /// What fgraph says was not traced because its thread was inside a callback.
    Missed = "missed",
    /// What fgraph says its shadow stack had no room for.
    Overrun = "overrun",
    /// What fgraph says it had no room for a user's data for.
    Unreserved = "unreserved",
    /// What fgraph says never returned: entries of users with data.
    Lost = "lost",
    /// What fgraph says was called on other stacks.
    NoShadowStack = "no shadow stack",
    /// What fgraph says was called by threads without state.
    Unattached = "unattached",
    /// Processes in which fgraph has stopped.
    Stopped = "stopped",
    /// Users that were not active at the end.
    Inactive = "inactive users",
    /// Filters that were changed while the program ran.
    Toggles = "changed filters",
    /// Functions still patched, and processes whose text was not the same again, at the end.
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
