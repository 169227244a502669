//! A plugin that traces.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use fgraph::{AnywhereHandle, AnywhereOps, EntryOf, Error, FgraphOps};

struct Count(AtomicU64);

impl FgraphOps for Count {
    type Data = ();

    fn entry(&self, _call: &mut EntryOf<'_, Self>) -> Option<()> {
        self.0.fetch_add(1, Ordering::Relaxed);
        None
    }
}

// SAFETY: the callback adds to an atomic.
unsafe impl AnywhereOps for Count {}

static USER: Mutex<Option<AnywhereHandle<Count>>> = Mutex::new(None);

/// Registers a user for `getppid`. Returns 0, 1 if a copy with a known version is there, or 2.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_register() -> i32 {
    match fgraph::register_anywhere(Count(AtomicU64::new(0)), "getppid") {
        Ok(user) => {
            *USER.lock().unwrap() = Some(user);
            0
        }
        Err(failed) => match failed.error {
            Error::AnotherCopy { version } => i32::from(version.is_empty()) + 1,
            _ => 2,
        },
    }
}
