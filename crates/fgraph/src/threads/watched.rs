//! Filters by thread: the threads that each user watches.
//!
//! [`fgraph_core::owner`] explains how this handles threads that begin meanwhile.

use core::sync::atomic::{Ordering, fence};

use super::FGRAPH;

use super::state::{claim_state, own_process};
use crate::os;
use crate::report::error::{Error, Unsupported};

/// Restricts the user in `slot` to the threads with these ids, or to none. The control lock must be
/// held.
///
/// # Errors
///
/// Fails with [`NoSuchThread`](Error::NoSuchThread), or with [`Unsupported`](Error::Unsupported) if
/// there is no memory for the state of a thread. Nothing is changed then.
pub(crate) fn set(slot: usize, ids: Option<&[u32]>) -> Result<(), Error> {
    let mut wanted = ids.unwrap_or_default().to_vec();
    wanted.sort_unstable();
    wanted.dedup();
    if let Some(&id) = wanted.iter().find(|&&id| !os::thread_exists(id)) {
        return Err(Error::NoSuchThread { id });
    }
    let own = (own_process(), os::thread_id());
    // SAFETY: only the owners are used.
    let states = || unsafe { FGRAPH.threads.iter() };
    let mut known: Vec<u32> = states().map(|thread| thread.id()).collect();
    known.sort_unstable();
    for &id in &wanted {
        if known.binary_search(&id).is_err() {
            let state = claim_state(own).ok_or(Unsupported::Memory(libc::ENOMEM))?;
            FGRAPH.watched.count_reserved(id);
            state.owner.reserve_for(id);
        }
    }
    FGRAPH.watched.set(slot, ids.is_none());
    // Pairs with the fence in `state`.
    fence(Ordering::SeqCst);
    for thread in states() {
        let is_wanted = |id| ids.is_none() || wanted.binary_search(&id).is_ok();
        thread.owner.set_user(slot, is_wanted);
    }
    Ok(())
}
