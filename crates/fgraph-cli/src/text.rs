//! Untrusted names, and numbers, as text for people, and the columns that text takes.

use std::borrow::Cow;

pub(crate) use fgraph_analysis::text::{
    calls, counted, file_name, functions, grouped, in_markup, named, percent, signed_time, size,
    time,
};
pub(crate) use fgraph_trace::text::escaped;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// Returns the number of a terminal's columns that a text takes.
pub(crate) fn width(text: &str) -> usize {
    text.width()
}

/// Returns a text that takes at most `columns` of a terminal; one that is cut ends with an
/// ellipsis.
pub(crate) fn cut(text: &str, columns: usize) -> Cow<'_, str> {
    if width(text) <= columns {
        return Cow::Borrowed(text);
    }
    let Some(room) = columns.checked_sub(1) else {
        return Cow::Borrowed("");
    };
    let mut used = 0;
    let kept: String = text
        .chars()
        .take_while(|character| {
            used += character.width().unwrap_or(0);
            used <= room
        })
        .collect();
    Cow::Owned(kept + "…")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_to_the_columns_that_there_are() {
        assert_eq!(cut("größer", 6), "größer");
        assert_eq!(cut("größer", 5), "größ…");
        assert_eq!(cut("größer", 1), "…");
        assert_eq!(cut("größer", 0), "");
        assert_eq!(cut("関数::x", 7), "関数::x");
        assert_eq!(cut("関数::x", 6), "関数:…");
        assert_eq!(cut("関数::x", 4), "関…");
    }
}
