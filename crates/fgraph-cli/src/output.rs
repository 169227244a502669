//! Text on standard output: colours, the width of the terminal, and names that are not trusted.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use clap::ValueEnum;

use crate::error::Error;

/// When output is coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless the variable NO_COLOR is set.
    Auto,
    Always,
    Never,
}

/// Relaxed: set once, before anything is written.
static IS_COLORED: AtomicBool = AtomicBool::new(false);

/// Decides for the whole process.
pub(crate) fn set_color(color: Color) {
    let is_colored = match color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => {
            let is_refused = std::env::var_os("NO_COLOR").is_some_and(|it| !it.is_empty());
            !is_refused && io::stdout().is_terminal()
        }
    };
    IS_COLORED.store(is_colored, Ordering::Relaxed);
}

/// How a text looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Bold,
    Dim,
    Red,
    Green,
    Yellow,
}

impl Style {
    fn code(self) -> &'static str {
        match self {
            Self::Bold => "1",
            Self::Dim => "2",
            Self::Red => "31",
            Self::Green => "32",
            Self::Yellow => "33",
        }
    }

    /// The text, in this style if output is coloured.
    pub(crate) fn paint(self, text: impl fmt::Display) -> String {
        if IS_COLORED.load(Ordering::Relaxed) {
            format!("\x1b[{}m{text}\x1b[0m", self.code())
        } else {
            text.to_string()
        }
    }
}

/// Standard output, written in large pieces.
#[derive(Debug)]
pub(crate) struct Out {
    out: BufWriter<Stdout>,
    /// Columns of the terminal; `None` where output goes elsewhere and lines are never cut.
    pub(crate) width: Option<usize>,
}

impl Out {
    pub(crate) fn new() -> Self {
        let width = io::stdout().is_terminal().then(|| {
            let asked = std::env::var("COLUMNS").ok();
            let asked = asked.and_then(|columns| columns.parse().ok());
            let found = || terminal_size::terminal_size().map(|(width, _)| width.0.into());
            asked.or_else(found).unwrap_or(80)
        });
        Self {
            out: BufWriter::with_capacity(1 << 16, io::stdout()),
            width,
        }
    }

    /// Writes text as it is.
    pub(crate) fn text(&mut self, text: &str) -> Result<(), Error> {
        self.out.write_all(text.as_bytes()).map_err(Error::Output)
    }

    /// Writes a line.
    pub(crate) fn line(&mut self, line: impl fmt::Display) -> Result<(), Error> {
        writeln!(self.out, "{line}").map_err(Error::Output)
    }

    /// Writes what is still held back. Without it the end may be missing.
    pub(crate) fn finish(mut self) -> Result<(), Error> {
        self.out.flush().map_err(Error::Output)
    }
}

/// Whether a terminal would do something with a character instead of showing it.
fn is_hostile(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(character, '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// A name from a program, without characters that a terminal obeys.
pub(crate) fn escaped(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_hostile) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        match character {
            '\n' => shown.push_str("\\n"),
            '\t' => shown.push_str("\\t"),
            hostile if is_hostile(hostile) && u32::from(hostile) < 0x100 => {
                _ = write!(shown, "\\x{:02x}", u32::from(hostile));
            }
            hostile if is_hostile(hostile) => {
                _ = write!(shown, "\\u{{{:x}}}", u32::from(hostile));
            }
            harmless => shown.push(harmless),
        }
    }
    Cow::Owned(shown)
}

/// A text that takes at most `width` characters; one that is cut ends with an ellipsis.
pub(crate) fn cut(text: &str, width: usize) -> Cow<'_, str> {
    match text.char_indices().nth(width) {
        None => Cow::Borrowed(text),
        Some(_) if width == 0 => Cow::Borrowed(""),
        Some(_) => {
            let kept: String = text.chars().take(width - 1).collect();
            Cow::Owned(kept + "…")
        }
    }
}

/// A number with commas between thousands.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (n, digit) in digits.chars().enumerate() {
        if n != 0 && (digits.len() - n).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Nanoseconds in the unit that fits: `12.345 us`.
pub(crate) fn time(nanoseconds: u64) -> String {
    let ns = nanoseconds as f64;
    match nanoseconds {
        0..1_000 => format!("{nanoseconds} ns"),
        1_000..1_000_000 => format!("{:.3} us", ns / 1e3),
        1_000_000..1_000_000_000 => format!("{:.3} ms", ns / 1e6),
        _ => format!("{:.3} s", ns / 1e9),
    }
}

/// Bytes in the unit that fits: `1.5 MiB`.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut size = bytes as f64 / 1024.0;
    let mut unit = 0;
    while size >= 1024.0 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    format!("{size:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_shown() {
        for (name, shown) in [
            ("std::vec::Vec<é>", "std::vec::Vec<é>"),
            ("\x1b]0;owned\x07", r"\x1b]0;owned\x07"),
            ("a\r\nb\tc\u{9b}2J", r"a\x0d\nb\tc\x9b2J"),
            ("\u{202e}txt.exe", r"\u{202e}txt.exe"),
        ] {
            assert_eq!(escaped(name), shown);
        }
    }

    #[test]
    fn a_text_is_cut_at_characters() {
        assert_eq!(cut("größer", 6), "größer");
        assert_eq!(cut("größer", 5), "größ…");
        assert_eq!(cut("größer", 1), "…");
        assert_eq!(cut("größer", 0), "");
    }

    #[test]
    fn numbers_are_readable() {
        assert_eq!(grouped(7), "7");
        assert_eq!(grouped(123_456), "123,456");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(time(999), "999 ns");
        assert_eq!(time(12_345), "12.345 us");
        assert_eq!(time(61_500_000_000), "61.500 s");
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(u64::MAX), "16384.0 PiB");
    }
}
