//! Line of text in place, for callbacks, which cannot allocate one.
//!
//! This module does not call `core::fmt` itself; only a user that writes to a line by it does.
//! Where the C library blocks all signals, a callback must not call a function that may be traced:
//! the breakpoint of a function that is being patched would end the process.

use core::fmt;

/// Text of at most `N` bytes. Text beyond the first bytes that fit is dropped.
#[derive(Debug)]
pub(crate) struct Line<const N: usize> {
    text: [u8; N],
    len: usize,
}

const DIGITS: &[u8; 16] = b"0123456789abcdef";

impl<const N: usize> Line<N> {
    pub(crate) const fn new() -> Self {
        Self {
            text: [0; N],
            len: 0,
        }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.text.get(..self.len).unwrap_or_default()
    }

    /// Returns the line up to its first byte that is not text.
    pub(crate) fn as_str(&self) -> &str {
        let chunk = self.as_bytes().utf8_chunks().next();
        chunk.map_or("", |chunk| chunk.valid())
    }

    /// Appends bytes, escaped so that the line is text without newlines. Leaves the last byte of
    /// the line free.
    pub(crate) fn push_escaped(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            let digit = |shift: u32| DIGITS[usize::from(byte >> shift & 15)];
            let (escaped, len) = match byte {
                b'\t' => ([b'\\', b't', 0, 0], 2),
                b'\n' => ([b'\\', b'n', 0, 0], 2),
                b'\r' => ([b'\\', b'r', 0, 0], 2),
                b'\'' | b'"' | b'\\' => ([b'\\', byte, 0, 0], 2),
                b' '..=b'~' => ([byte, 0, 0, 0], 1),
                _ => ([b'\\', b'x', digit(4), digit(0)], 4),
            };
            if self.len + len >= N {
                return;
            }
            let mut at = 0;
            while at < len {
                self.push(escaped[at]);
                at += 1;
            }
        }
    }

    /// Appends a byte.
    #[inline]
    pub(crate) fn push(&mut self, byte: u8) {
        if let Some(place) = self.text.get_mut(self.len) {
            *place = byte;
            self.len += 1;
        }
    }

    /// Appends a text.
    pub(crate) fn push_str(&mut self, text: &str) {
        for &byte in text.as_bytes() {
            self.push(byte);
        }
    }

    /// Appends a text behind blanks, so that both take `width` bytes.
    pub(crate) fn push_right(&mut self, text: &str, width: usize) {
        let mut len = text.len();
        while len < width {
            self.push(b' ');
            len += 1;
        }
        self.push_str(text);
    }

    /// Appends a number in decimal digits, behind `fill` up to `width` bytes.
    pub(crate) fn push_decimal(&mut self, number: u64, width: usize, fill: u8) {
        self.push_digits(number, 10, width, fill);
    }

    /// Appends a number in hexadecimal digits, behind `0x`.
    pub(crate) fn push_hex(&mut self, number: u64) {
        self.push_str("0x");
        self.push_digits(number, 16, 1, b'0');
    }

    fn push_digits(&mut self, mut number: u64, base: u64, width: usize, fill: u8) {
        let mut digits = [fill; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = DIGITS[(number % base) as usize];
            number /= base;
            if number == 0 {
                break;
            }
        }
        let mut at = at.min(digits.len().saturating_sub(width));
        while at < digits.len() {
            self.push(digits[at]);
            at += 1;
        }
    }
}

impl<const N: usize> fmt::Write for Line<N> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push_str(text);
        if self.len < N {
            Ok(())
        } else {
            Err(fmt::Error)
        }
    }
}

#[cfg(test)]
mod tests {
    use core::fmt::Write;

    use super::*;

    #[test]
    fn text_that_does_not_fit_is_left_out() {
        let mut line = Line::<8>::new();
        line.push_str("12-3");
        line.push_escaped(b"\n\0x");
        line.push(b'\n');
        assert_eq!(line.as_bytes(), b"12-3\\n\n");
        line.push_str("abc");
        assert_eq!(line.as_bytes(), b"12-3\\n\na");
    }

    #[test]
    fn a_text_that_is_too_long_is_cut_between_characters() {
        let mut line = Line::<9>::new();
        assert!(write!(line, "{}ä", "x".repeat(8)).is_err());
        assert_eq!(line.as_str(), "x".repeat(8));
    }

    #[test]
    fn numbers_and_bytes_are_written_as_by_the_standard_library() {
        for number in [0, 9, 10, 12_345, u64::MAX] {
            let mut line = Line::<100>::new();
            line.push_decimal(number, 6, b' ');
            line.push_decimal(number, 9, b'0');
            line.push_hex(number);
            line.push_right("abc", 5);
            let expected = format!("{number:>6}{number:09}{number:#x}{:>5}", "abc");
            assert_eq!(line.as_bytes(), expected.as_bytes());
        }
        let bytes: Vec<u8> = (0..=255).collect();
        let mut line = Line::<1024>::new();
        line.push_escaped(&bytes);
        assert_eq!(line.as_bytes(), bytes.escape_ascii().to_string().as_bytes());
    }
}
