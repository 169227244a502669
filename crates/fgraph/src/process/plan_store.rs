//! Storage for plans of modules that processes share.

use std::sync::{Arc, Mutex, PoisonError};

/// Storage for plans of modules, so that one process makes them for many: for example a directory.
/// See [`set_plan_store`](crate::set_plan_store).
///
/// A plan has 100 to 250 bytes for each function: one of the C library has 360 KiB, one of LLVM 25
/// MiB.
///
/// # Safety
///
/// [`load`](Self::load) returns bytes for a module and a key only if [`save`](Self::save) got them
/// for the same module and key, from a process with the same build of this crate. Bytes that were
/// cut or changed by accident, and those of another key, are detected. Neither method calls
/// functions of this crate, nor panics.
#[cfg_attr(
    not(feature = "plans"),
    expect(unreachable_pub, reason = "a feature exports it")
)]
pub unsafe trait PlanStore: Send + Sync {
    /// Returns the plan that was saved for the module at a path with this key, if there is one.
    fn load(&self, module: &str, key: u128) -> Option<Vec<u8>>;

    /// Saves a plan for the module at a path with this key, and replaces any other. A failure does
    /// no harm.
    fn save(&self, module: &str, key: u128, plan: &[u8]);
}

static STORE: Mutex<Option<Arc<dyn PlanStore>>> = Mutex::new(None);

/// Returns the current storage, if there is one.
pub(crate) fn get() -> Option<Arc<dyn PlanStore>> {
    STORE.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Uses another storage from now on, or none.
#[cfg(feature = "plans")]
pub(crate) fn set(store: Option<Arc<dyn PlanStore>>) {
    let mut place = STORE.lock().unwrap_or_else(PoisonError::into_inner);
    let before = core::mem::replace(&mut *place, store);
    drop(place);
    drop(before);
}
