//! The two ways to follow calls.

/// The meaning of a call's time, and the events that count. A view counts times that the recording
/// is sure of; an export shows each thread for as long as it is known to live.
pub trait Mode {
    /// True if times are nanoseconds of the monotonic clock; else they are ticks.
    const HAS_NANOSECONDS: bool;
    /// True if functions at the same address in different source lines are different functions.
    const HAS_LINES: bool;
    /// True if marks and losses are events of their threads, whose calls have run until then.
    const HAS_NOTES: bool;
    /// True if calls in progress run until their program ends, or all events; else they end with
    /// the last event of their thread: its process may have ended then.
    const RUNS_ON: bool;
    /// True if visitors get recorded arguments and results.
    const HAS_VALUES: bool;
}

/// For views, which count calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct Views;

impl Mode for Views {
    const HAS_NANOSECONDS: bool = false;
    const HAS_LINES: bool = false;
    const HAS_NOTES: bool = false;
    const RUNS_ON: bool = false;
    const HAS_VALUES: bool = false;
}

/// For exports, which draw calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct Exports;

impl Mode for Exports {
    const HAS_NANOSECONDS: bool = true;
    const HAS_LINES: bool = true;
    const HAS_NOTES: bool = true;
    const RUNS_ON: bool = true;
    const HAS_VALUES: bool = true;
}
