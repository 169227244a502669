//! Untrusted text for people: names, arguments and messages of programs.
//!
//! A terminal, an editor or a browser interprets some characters instead of showing them: control
//! characters, those that change the direction of text, separators of lines, and those without any
//! width. With these a program could forge lines and hide or reorder parts of names.

use std::borrow::Cow;
use std::fmt::{self, Display, Formatter, Write as _};

/// Returns true for a character that is shown as it is. Spaces other than the usual one, and
/// characters that Unicode does not have yet, are none.
///
/// ```
/// use fgraph_trace::text::is_visible;
///
/// assert!("größer 関数 <T>".chars().all(is_visible));
/// assert!(!"\x1b\u{202e}\u{2028}\u{61c}\u{180e}\u{200b}\u{3164}".chars().any(is_visible));
/// ```
#[must_use]
pub fn is_visible(character: char) -> bool {
    match character {
        ' '..='~' => true,
        // These take no room, or look like a space, and are none of the categories below.
        '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}' => {
            false
        }
        '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{ffa0}' => false,
        '\u{e0000}'..='\u{e0fff}' => false,
        // Rust's library escapes control, format and private characters, separators, and
        // unassigned ones; after another character, it does not escape accents.
        _ => {
            let mut bytes = [b'a'; 5];
            let len = 1 + character.encode_utf8(&mut bytes[1..]).len();
            let text = str::from_utf8(&bytes[..len]).unwrap_or_default();
            text.escape_debug().count() == 2
        }
    }
}

/// Returns a text in which escapes stand for characters that are not [visible](is_visible).
///
/// ```
/// use fgraph_trace::text::escaped;
///
/// assert_eq!(escaped("a\x1b[2J\u{202e}b\n"), r"a\x1b[2J\u{202e}b\n");
/// ```
#[must_use]
pub fn escaped(text: &str) -> Cow<'_, str> {
    if text.chars().all(is_visible) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        push_escaped(&mut shown, character);
    }
    Cow::Owned(shown)
}

/// Appends a character, or an escape if it is not [visible](is_visible).
pub fn push_escaped(shown: &mut String, character: char) {
    // Writing to a string does not fail.
    _ = match character {
        '\n' => shown.write_str("\\n"),
        '\t' => shown.write_str("\\t"),
        visible if is_visible(visible) => shown.write_char(visible),
        hidden if u32::from(hidden) < 0x100 => write!(shown, "\\x{:02x}", u32::from(hidden)),
        hidden => write!(shown, "\\u{{{:x}}}", u32::from(hidden)),
    };
}

/// Text between quotes: these and backslashes are escaped as well.
#[derive(Clone, Copy, Debug)]
pub struct Quoted<'a>(pub &'a str);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for character in self.0.escape_debug() {
            match is_visible(character) {
                true => f.write_char(character)?,
                false => write!(f, "{}", character.escape_unicode())?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_deceives_is_escaped_and_other_text_is_not() {
        for (text, shown) in [
            ("std::vec::Vec<é>", "std::vec::Vec<é>"),
            ("e\u{301}", "e\u{301}"),
            (
                "Ωμέγα имя עברית العربية 関数 ☃",
                "Ωμέγα имя עברית العربية 関数 ☃",
            ),
            ("quote\"'\\", "quote\"'\\"),
            ("\x1b]0;owned\x07", r"\x1b]0;owned\x07"),
            ("a\r\nb\tc\u{9b}2J\x7f", r"a\x0d\nb\tc\x9b2J\x7f"),
            ("\u{202e}txt.exe", r"\u{202e}txt.exe"),
            ("a\u{2028}b\u{2029}", r"a\u{2028}b\u{2029}"),
            (
                "a\u{61c}\u{180e}\u{ad}\u{feff}",
                r"a\u{61c}\u{180e}\xad\u{feff}",
            ),
            ("a\u{3164}\u{a0}\u{3000}", r"a\u{3164}\xa0\u{3000}"),
            ("a\u{e0041}\u{fe0f}\u{34f}", r"a\u{e0041}\u{fe0f}\u{34f}"),
        ] {
            assert_eq!(escaped(text), shown);
        }
        let hidden = [
            '\u{200b}'..='\u{200f}',
            '\u{202a}'..='\u{202e}',
            '\u{2060}'..='\u{206f}',
        ];
        assert!(!hidden.into_iter().flatten().any(is_visible));
        assert!(!('\u{e0100}'..='\u{e01ef}').any(is_visible));
        assert_eq!(
            Quoted("\"a\u{202e}\u{fe0f}\n").to_string(),
            r#"\"a\u{202e}\u{fe0f}\n"#
        );
    }
}
