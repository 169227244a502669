//! The modules of functions that the program has generated.

use core::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::described::{ADDED, REMOVED};
use super::loaded_module::LoadedModule;

/// The modules that were added and not removed.
static MODULES: Mutex<Vec<LoadedModule>> = Mutex::new(Vec::new());

fn locked() -> MutexGuard<'static, Vec<LoadedModule>> {
    MODULES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns all modules that were added and not removed.
pub(super) fn all() -> Vec<LoadedModule> {
    locked().clone()
}

/// Returns true if a module was added and not removed.
pub(super) fn has(module: &LoadedModule) -> bool {
    locked().iter().any(|known| known.is(module))
}

/// Adds a module.
pub(super) fn add(module: LoadedModule) {
    locked().push(module);
    ADDED.fetch_add(1, Ordering::Relaxed);
}

/// Forgets a module.
pub(crate) fn remove(module: &LoadedModule) {
    locked().retain(|known| !known.is(module));
    REMOVED.fetch_add(1, Ordering::Relaxed);
}
