//! The little that is written in JSON.

use std::fmt::Write as _;

/// `text` in quotes.
pub(crate) fn string(text: &str) -> String {
    let mut quoted = String::from('"');
    for char in text.chars() {
        match char {
            '"' | '\\' => quoted.extend(['\\', char]),
            char if char < ' ' => {
                write!(quoted, "\\u{:04x}", u32::from(char)).expect("a string takes all");
            }
            char => quoted.push(char),
        }
    }
    quoted.push('"');
    quoted
}

/// An array of `items`, which are JSON already.
pub(crate) fn array(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_and_control_characters_are_escaped() {
        assert_eq!(string("a\"b\\c\nd"), r#""a\"b\\c\u000ad""#);
    }

    #[test]
    fn items_are_joined() {
        assert_eq!(array(iter_of(&[])), "[]");
        assert_eq!(array(iter_of(&["1", "2"])), "[1,2]");
    }

    fn iter_of<'a>(items: &'a [&str]) -> impl Iterator<Item = String> + use<'a> {
        items.iter().map(|item| (*item).to_owned())
    }
}
