//! The body of a block with the states of threads.
//!
//! ```text
//!   for each thread: its number, the number of changes, and for each change
//!     ticks since the previous one of the thread, from 0
//!     kind (2 bits: 0 running, 1 runnable, 2 blocked, 3 sample), and above it the processor plus 1
//!     of a sample: the ticks on processors, and the ticks in which it waited for one
//!   thread 0: 1, and the number of changes that the kernel had no room to report
//! ```

use super::block::{pull, push};
use crate::schedule::{Change, Schedule, State};

/// The kind of a sample, after those of states.
const SAMPLE: u64 = 3;

/// Appends changes, other than those of thread 0, which does not exist.
pub(super) fn push_changes(out: &mut Vec<u8>, changes: &[(u32, Change)]) {
    for of_thread in changes.chunk_by(|before, change| before.0 == change.0) {
        push_thread(out, of_thread);
    }
}

fn push_thread(out: &mut Vec<u8>, changes: &[(u32, Change)]) {
    let thread = match changes.first() {
        None | Some((0, _)) => return,
        Some((thread, _)) => *thread,
    };
    push(out, thread.into());
    push(out, changes.len() as u64);
    let mut last = 0;
    for (_, change) in changes {
        // Readers take a time before the last one for the last one, too.
        push(out, change.time().saturating_sub(last));
        last = change.time().max(last);
        match *change {
            Change::Switch { state, cpu, .. } => {
                let cpu = cpu.map_or(0, |cpu| u64::from(cpu) + 1);
                push(out, state as u64 | cpu << 2);
            }
            Change::Sample {
                running, runnable, ..
            } => {
                for number in [SAMPLE, running, runnable] {
                    push(out, number);
                }
            }
        }
    }
}

/// Appends the number of changes that the kernel had no room to report.
pub(super) fn push_lost(out: &mut Vec<u8>, lost: u64) {
    for number in [0, 1, lost] {
        push(out, number);
    }
}

/// Adds the changes of a body; `None` if it is damaged, or `take` returns `None` for the number of
/// changes of a thread.
pub(super) fn pull_all(
    body: &mut &[u8],
    schedule: &mut Schedule,
    mut take: impl FnMut(u64) -> Option<()>,
) -> Option<()> {
    while !body.is_empty() {
        let thread = u32::try_from(pull(body)?).ok()?;
        let count = pull(body)?;
        take(count)?;
        if thread == 0 {
            schedule.add_lost(pull(body)?);
            continue;
        }
        let mut time: u64 = 0;
        for _ in 0..count {
            time = time.saturating_add(pull(body)?);
            let kind = pull(body)?;
            let state = match kind & 3 {
                SAMPLE => None,
                state => State::ALL.get(state as usize).copied(),
            };
            let change = match state {
                Some(state) => Change::Switch {
                    time,
                    state,
                    cpu: u32::try_from(kind >> 2).ok()?.checked_sub(1),
                },
                None => Change::Sample {
                    time,
                    running: pull(body)?,
                    runnable: pull(body)?,
                },
            };
            schedule.add(thread, change);
        }
    }
    Some(())
}
