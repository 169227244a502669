//! Figures of what the users did, and of their calls.

/// Makes a structure of numbers that can be added to another one.
macro_rules! figures {
    ($(#[$about:meta])* $figures:ident { $($(#[$doc:meta])* $name:ident,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default)]
        pub(crate) struct $figures {
            $($(#[$doc])* pub(crate) $name: u64,)*
        }

        impl std::ops::AddAssign for $figures {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

pub(crate) use figures;

figures! {
    /// Numbers of what was done, and of the calls of users.
    Figures {
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
}
