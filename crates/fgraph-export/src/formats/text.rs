//! Formats numbers and names as text, without allocation.

use std::fs::OpenOptions;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use itoa::Integer;

/// Destination of an export.
pub(crate) type Out = BufWriter<Box<dyn Write + Send>>;

/// Appends a number.
pub(super) fn push(line: &mut Vec<u8>, number: impl Integer) {
    line.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Appends `number` divided by ten to the power of `digits`.
pub(super) fn push_fraction(line: &mut Vec<u8>, number: u64, digits: u32) {
    let unit = 10_u64.pow(digits);
    push(line, number / unit);
    let rest = number % unit;
    if rest != 0 {
        line.push(b'.');
        let begin = line.len();
        // The leading digit keeps the zeros behind the point.
        push(line, rest + unit);
        line.remove(begin);
        while line.last() == Some(&b'0') {
            line.pop();
        }
    }
}

/// Returns a text in quotes as in JSON.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Writes the items of an array, with commas between them and lines of limited length.
pub(super) fn write_items<T>(
    out: &mut impl Write,
    items: impl IntoIterator<Item = T>,
    mut write: impl FnMut(&mut Vec<u8>, T),
) -> io::Result<()> {
    const LINE: usize = 4096;
    let mut line = vec![b'['];
    for (n, item) in items.into_iter().enumerate() {
        if n != 0 {
            line.push(b',');
        }
        if line.len() > LINE {
            out.write_all(&line)?;
            line.clear();
            line.push(b'\n');
        }
        write(&mut line, item);
    }
    line.push(b']');
    out.write_all(&line)
}

/// End of a file that is open only during writes, since there may be one file for each thread.
#[derive(Debug)]
pub(super) struct Appender {
    path: PathBuf,
    pub(super) buffer: Vec<u8>,
}

impl Appender {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            buffer: Vec::new(),
        }
    }

    /// Writes the buffer.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let mut file = options.append(true).create(true).open(&self.path)?;
        file.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_have_the_digits_that_they_need() {
        for (number, digits, expected) in [
            (0, 3, "0"),
            (1, 3, "0.001"),
            (1_500, 3, "1.5"),
            (1_000_001, 6, "1.000001"),
            (7_000, 3, "7"),
            (u64::MAX, 6, "18446744073709.551615"),
        ] {
            let mut line = Vec::new();
            push_fraction(&mut line, number, digits);
            assert_eq!(String::from_utf8(line).unwrap(), expected);
        }
    }
}
