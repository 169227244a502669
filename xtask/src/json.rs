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

/// The number that is the value of `name` in `object`.
pub(crate) fn number(object: &str, name: &str) -> Option<u64> {
    let (_, rest) = object.split_once(&format!("\"{name}\":"))?;
    rest.split([',', '}']).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_found_by_its_name() {
        let object = r#"{"a":1,"ab":23}"#;
        assert_eq!(number(object, "a"), Some(1));
        assert_eq!(number(object, "ab"), Some(23));
        assert_eq!(number(object, "b"), None);
    }

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
