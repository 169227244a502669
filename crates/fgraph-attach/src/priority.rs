//! The priority of this thread while it holds another one.
//!
//! # Safety
//!
//! The unsafe code makes system calls with buffers of its own.

use libc::{c_int, c_ulong, sched_param};

/// While this is there, its thread runs before all others, and its sleeps end on time, as far as it
/// may have that. A thread that is held waits for it.
#[derive(Debug)]
pub(crate) struct Urgent {
    /// Whether it was an ordinary thread, of which kind.
    policy: Option<c_int>,
    /// How late its sleeps may end, in ns.
    slack: Option<c_int>,
}

fn set_policy(policy: c_int, priority: c_int) -> bool {
    let parameters = sched_param {
        sched_priority: priority,
    };
    // SAFETY: this thread, and a buffer of ours.
    unsafe { libc::sched_setscheduler(0, policy, &parameters) == 0 }
}

impl Urgent {
    pub(crate) fn new() -> Self {
        // SAFETY: numbers only.
        let (policy, slack) = unsafe {
            (
                libc::sched_getscheduler(0),
                libc::prctl(libc::PR_GET_TIMERSLACK),
            )
        };
        let is_ordinary = policy == libc::SCHED_OTHER || policy == libc::SCHED_BATCH;
        // SAFETY: numbers only.
        let is_set =
            slack > 0 && unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as c_ulong) } == 0;
        Self {
            policy: (is_ordinary && set_policy(libc::SCHED_FIFO, 1)).then_some(policy),
            slack: is_set.then_some(slack),
        }
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        if let Some(policy) = self.policy {
            set_policy(policy, 0);
        }
        if let Some(slack) = self.slack {
            // SAFETY: numbers only.
            unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, slack as c_ulong) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_with_the_value() {
        // SAFETY: a number.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        let before = policy();
        drop(Urgent::new());
        assert_eq!(policy(), before);
    }
}
