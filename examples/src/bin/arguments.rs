//! Arguments and results by their types, and calls that are changed.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use fgraph::{EntryOf, FgraphOps, ReturnOf};

#[unsafe(no_mangle)]
pub extern "C" fn mixed_types(small: i8, flag: bool, letter: u32, half: f32, whole: f64) -> i16 {
    let sum = f64::from(small) + f64::from(half) + whole;
    if flag { sum as i16 } else { letter as i16 }
}

#[unsafe(no_mangle)]
pub extern "C" fn is_allowed(number: i32) -> bool {
    number < 10
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Arguments(i8, bool, char, f32, f64);

#[derive(Default)]
struct Watches(Mutex<Vec<(Arguments, i16)>>);

impl FgraphOps for Watches {
    type Data = Arguments;

    fn entry(&self, call: &mut EntryOf<'_, Self>) -> Option<Arguments> {
        Some(Arguments(
            call.arg_as(0)?,
            call.arg_as(1)?,
            call.arg_as(2)?,
            call.float32_arg(0)?,
            call.float_arg(1)?,
        ))
    }

    fn ret(&self, call: &mut ReturnOf<'_, Self>, arguments: Arguments) {
        if let Some(result) = call.result_as::<i16>() {
            self.0.lock().unwrap().push((arguments, result));
        }
    }
}

/// Lets everything be allowed, and counts.
#[derive(Default)]
struct Allows(AtomicU64);

impl FgraphOps for Allows {
    type Data = ();

    fn entry(&self, call: &mut EntryOf<'_, Self>) -> Option<()> {
        self.0.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the function returns a `bool`, and has no other effect.
        let skipped = unsafe { call.rewrite() }.skip(true);
        assert!(skipped.is_ok());
        None
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    type Mixed = extern "C" fn(i8, bool, u32, f32, f64) -> i16;
    // Through pointers: the compiler knows nothing of what is called.
    let mixed: Mixed = std::hint::black_box(mixed_types);
    let allowed: extern "C" fn(i32) -> bool = std::hint::black_box(is_allowed);
    // SAFETY: `main` alone calls the function, without the lock, and where it may allocate.
    let watches = unsafe { fgraph::register(Watches::default(), "mixed_types") }?;
    assert_eq!(mixed(-3, true, 'x'.into(), 0.5, 2.5), 0);
    assert_eq!(mixed(-128, false, 'ß'.into(), -0.0, 1e300), 223);
    let seen = watches
        .unregister()
        .map_err(fgraph::UnregisterError::into_error)?;
    assert_eq!(
        seen.0.into_inner()?,
        [
            (Arguments(-3, true, 'x', 0.5, 2.5), 0),
            (Arguments(-128, false, 'ß', -0.0, 1e300), 223),
        ]
    );
    // SAFETY: an atomic and registers only.
    let allows = unsafe { fgraph::register(Allows::default(), "is_allowed") }?;
    assert!(allowed(100) && allowed(-1));
    assert_eq!(allows.user().0.load(Ordering::Relaxed), 2);
    drop(allows);
    assert!(!allowed(100));
    println!("arguments and results are right");
    Ok(())
}
