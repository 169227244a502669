//! Input and output ports.

use core::arch::asm;

/// Writes a byte to a port.
///
/// # Safety
///
/// The device must do nothing with it that breaks memory safety.
#[inline(always)]
pub(crate) unsafe fn write(port: u16, byte: u8) {
    // SAFETY: the caller knows the device.
    unsafe {
        asm!("out dx, al", in("dx") port, in("al") byte, options(nomem, nostack, preserves_flags));
    }
}

/// Writes four bytes to a port.
///
/// # Safety
///
/// The contract of [`write`] holds.
#[inline(always)]
pub(crate) unsafe fn write_long(port: u16, word: u32) {
    // SAFETY: the caller knows the device.
    unsafe {
        asm!("out dx, eax", in("dx") port, in("eax") word,
            options(nomem, nostack, preserves_flags));
    }
}

/// Reads a byte from a port.
///
/// # Safety
///
/// The contract of [`write`] holds.
#[inline(always)]
pub(crate) unsafe fn read(port: u16) -> u8 {
    let byte;
    // SAFETY: the caller knows the device.
    unsafe {
        asm!("in al, dx", in("dx") port, out("al") byte, options(nomem, nostack, preserves_flags));
    }
    byte
}
