//! The numbers of events and calls.

/// Numbers of events and calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Events that were followed: in views, those that begin or end calls.
    pub events: u64,
    /// Calls that have begun.
    pub calls: u64,
    /// Texts of the program.
    pub marks: u64,
    /// Missing events.
    pub lost: u64,
    /// Ends of calls whose entry is not among the events.
    pub stray_returns: u64,
    /// Calls whose end is not among the events.
    pub missing_returns: u64,
    /// Calls in progress at the end.
    pub open_calls: u64,
    /// The shortest time from the entry of a call to its end; 0 if none is known. Most of it is the
    /// time that recording takes.
    pub shortest: u64,
}

impl Counts {
    /// Adds a call that has taken this time.
    #[inline]
    pub fn end(&mut self, ran: u64) {
        // 0 is no time, and the longest here.
        if ran.wrapping_sub(1) < self.shortest.wrapping_sub(1) {
            self.shortest = ran;
        }
    }
}
