//! Figures of what the users did, and of their calls.

use std::ops::AddAssign;

/// Makes [`Figures`] of the names of its fields.
macro_rules! figures {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Numbers of what was done, and of the calls of users.
        #[derive(Clone, Copy, Debug, Default)]
        pub(crate) struct Figures {
            $($(#[$doc])* pub(crate) $name: u64,)*
        }

        impl AddAssign for Figures {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

figures! {
    registrations,
    /// Registrations of users that take the fast path.
    fast_path,
    filter_changes,
    unregistrations,
    accepted,
    returned,
    declined,
    /// Calls that were open when their users were unregistered.
    in_flight,
    /// Calls that fgraph has counted as lost.
    lost,
    /// Calls without a return when all threads had ended.
    left_open,
    /// Calls among these that fgraph has counted.
    balanced,
}
