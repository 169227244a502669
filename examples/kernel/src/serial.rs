//! The serial port, to which everything is printed.

use core::fmt::{self, Write};

use crate::cpu::Lock;
use crate::port;

const PORT: u16 = 0x3f8;

/// The port; printing a line is not interrupted by another processor's.
static SERIAL: Lock<Serial> = Lock::new(Serial);

struct Serial;

impl Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        const LINE_STATUS: u16 = PORT + 5;
        const IS_EMPTY: u8 = 1 << 5;
        for byte in text.bytes() {
            // SAFETY: the port only sends the byte.
            unsafe {
                while port::read(LINE_STATUS) & IS_EMPTY == 0 {}
                port::write(PORT, byte);
            }
        }
        Ok(())
    }
}

/// Sets the port up, for 115,200 baud and without interrupts.
pub(crate) fn prepare() {
    for (offset, byte) in [(1, 0), (3, 0x80), (0, 1), (1, 0), (3, 3), (2, 7), (4, 3)] {
        // SAFETY: the registers of the port set its speed and format only.
        unsafe { port::write(PORT + offset, byte) };
    }
}

/// Prints formatted text.
pub(crate) fn print(text: fmt::Arguments<'_>) {
    // The port does not fail.
    let _ = SERIAL.lock().write_fmt(text);
}

/// Prints a line.
macro_rules! println {
    ($($text:tt)*) => {
        $crate::serial::print(format_args!("{}\n", format_args!($($text)*)))
    };
}

pub(crate) use println;
