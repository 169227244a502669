//! A line of text in place, for callbacks, which cannot allocate one.

use core::fmt;

/// Text of at most `N` bytes. What does not fit is left out, all but the first bytes that do.
#[derive(Debug)]
pub(crate) struct Line<const N: usize> {
    text: [u8; N],
    len: usize,
}

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

    /// Adds bytes, escaped so that the line is text without line ends. The last byte of the line is
    /// left free.
    pub(crate) fn push_escaped(&mut self, bytes: &[u8]) {
        for escaped in bytes.iter().map(|byte| byte.escape_ascii()) {
            if self.len + escaped.len() >= N {
                return;
            }
            escaped.for_each(|byte| self.push(byte));
        }
    }

    /// Adds a byte.
    pub(crate) fn push(&mut self, byte: u8) {
        if let Some(place) = self.text.get_mut(self.len) {
            *place = byte;
            self.len += 1;
        }
    }
}

impl<const N: usize> fmt::Write for Line<N> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes().for_each(|byte| self.push(byte));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use core::fmt::Write as _;

    use super::*;

    #[test]
    fn what_does_not_fit_is_left_out() {
        let mut line = Line::<8>::new();
        write!(line, "{}-{}", 12, 3).unwrap();
        line.push_escaped(b"\n\0x");
        line.push(b'\n');
        assert_eq!(line.as_bytes(), b"12-3\\n\n");
        write!(line, "abc").unwrap();
        assert_eq!(line.as_bytes(), b"12-3\\n\na");
    }
}
