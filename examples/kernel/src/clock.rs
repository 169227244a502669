//! The time, from the processor's time stamp counter.

use core::hint;
use core::sync::atomic::{AtomicU64, Ordering};

use fgraph_x86_64::clock::counter;

use crate::port;

/// Steps of the counter in a microsecond.
static STEPS: AtomicU64 = AtomicU64::new(1000);

/// Measures the counter for 10 ms of the old timer, whose rate is known.
pub(crate) fn measure() {
    const CONTROL: u16 = 0x61;
    const COUNT: u16 = 11_932;
    // SAFETY: the ports set the timer's second channel, which drives nothing but a loudspeaker.
    unsafe {
        port::write(CONTROL, port::read(CONTROL) & !2 | 1);
        port::write(0x43, 0xb0);
        port::write(0x42, COUNT as u8);
        port::write(0x42, (COUNT >> 8) as u8);
        let start = counter();
        while port::read(CONTROL) & 0x20 == 0 {
            hint::spin_loop();
        }
        STEPS.store(((counter() - start) / 10_000).max(1), Ordering::Relaxed);
    }
}

/// Returns the nanoseconds since the machine was started.
#[inline(always)]
pub(crate) fn now() -> u64 {
    let counter = u128::from(counter());
    (counter * 1000 / u128::from(STEPS.load(Ordering::Relaxed))) as u64
}

/// Waits for some nanoseconds.
pub(crate) fn wait(nanoseconds: u64) {
    let end = now() + nanoseconds;
    while now() < end {
        hint::spin_loop();
    }
}
