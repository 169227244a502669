//! Where plans of modules are kept between processes.

use std::sync::{Arc, Mutex, PoisonError};

/// A place where plans of modules are kept, so that one process makes them for many: a directory,
/// say. See [`keep_plans`](crate::keep_plans).
///
/// A plan has 100 to 250 bytes for each function: one of the C library 360 KiB, one of LLVM 25 MiB.
///
/// # Safety
///
/// [`load`](Self::load) returns bytes for a module and a key only that [`save`](Self::save) was
/// given for the same, by a process that had the same build of this crate in it. Bytes that were
/// cut or changed by accident, and those of another key, are found out. Neither calls functions of
/// this crate, nor panics.
pub unsafe trait PlanStore: Send + Sync {
    /// The plan that was saved for the module at a path with this key, if there is one.
    fn load(&self, module: &str, key: u128) -> Option<Vec<u8>>;

    /// Saves a plan for the module at a path with this key, in place of any other. A failure does
    /// no harm.
    fn save(&self, module: &str, key: u128, plan: &[u8]);
}

static STORE: Mutex<Option<Arc<dyn PlanStore>>> = Mutex::new(None);

/// The place where plans are kept, if there is one.
pub(crate) fn get() -> Option<Arc<dyn PlanStore>> {
    STORE.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Keeps plans at another place from now on, or at none.
pub(crate) fn set(store: Option<Arc<dyn PlanStore>>) {
    let mut place = STORE.lock().unwrap_or_else(PoisonError::into_inner);
    let before = core::mem::replace(&mut *place, store);
    drop(place);
    drop(before);
}
