//! Untrusted names, and numbers, as text for people, and the columns that text takes.

use std::borrow::Cow;
use std::ops::Range;

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

/// Stands for the part of a text that is left out.
const ELLIPSIS: &str = "…";

/// Returns a text that takes at most `columns` of a terminal. If it is too long, ellipses replace
/// arguments of templates and functions, the innermost first, and then the namespaces of the last
/// name: `std::vector<…>::push_back`. A text that is still too long is cut at its end.
pub(crate) fn cut(text: &str, columns: usize) -> Cow<'_, str> {
    if width(text) <= columns {
        return Cow::Borrowed(text);
    }
    let mut short = text.to_owned();
    while let Some(arguments) = innermost_arguments(&short) {
        short.replace_range(arguments, ELLIPSIS);
        if width(&short) <= columns {
            return Cow::Owned(short);
        }
    }
    if let Some(short) = without_namespaces(&short, columns) {
        return Cow::Owned(short);
    }
    // The name has no room, so the beginning is worth more.
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
    Cow::Owned(kept + ELLIPSIS)
}

/// Returns the range of arguments between brackets of a name: the innermost, and of these the
/// longest. Arguments that an ellipsis does not make shorter do not count.
fn innermost_arguments(text: &str) -> Option<Range<usize>> {
    let mut open: Vec<(usize, char)> = Vec::new();
    let mut found: Option<(usize, Range<usize>)> = None;
    for (at, bracket) in text.char_indices() {
        if !"<>()".contains(bracket) || is_in_operator(&text[..at], bracket) {
            continue;
        }
        if "<(".contains(bracket) {
            open.push((at, bracket));
            continue;
        }
        let opening = if bracket == '>' { '<' } else { '(' };
        // The end of an arrow has no opening bracket.
        let Some((from, _)) = open.pop_if(|(_, it)| *it == opening) else {
            continue;
        };
        let inside = from + 1..at;
        // The arguments of a function may follow `operator<<`.
        let signs = if bracket == '>' { "_:>)" } else { "_:>)<=" };
        let ends_name = |it: char| it.is_alphanumeric() || signs.contains(it);
        let is_of_name = text[..from].ends_with(ends_name) || text[at + 1..].starts_with("::");
        let rank = (open.len(), inside.len());
        let is_best = found
            .as_ref()
            .is_none_or(|(depth, it)| rank > (*depth, it.len()));
        if is_of_name && is_best && width(&text[inside.clone()]) > 1 {
            found = Some((open.len(), inside));
        }
    }
    found.map(|(_, inside)| inside)
}

/// Returns true if a bracket behind this text is part of the name of an operator, such as
/// `operator<<`.
fn is_in_operator(before: &str, bracket: char) -> bool {
    let before = match bracket {
        '(' => before,
        ')' => before.strip_suffix('(').unwrap_or(""),
        _ => before.trim_end_matches(['<', '>', '-', '=']),
    };
    before.ends_with("operator")
}

/// Returns a text that takes at most `columns`, with as few of the first namespaces of its last
/// name left out as that takes; `None` if there is none.
fn without_namespaces(text: &str, columns: usize) -> Option<String> {
    let last = text.rfind("::")?;
    let name = text[..last].rfind(' ').map_or(0, |space| space + 1);
    let mut ends = text[name..].match_indices("::");
    ends.find_map(|(end, _)| {
        let short = format!("{}{ELLIPSIS}{}", &text[..name], &text[name + end..]);
        (width(&short) <= columns).then_some(short)
    })
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
        assert_eq!(cut("関数::x", 6), "…::x");
        assert_eq!(cut("関数::x", 3), "関…");
    }

    #[test]
    fn name_of_a_method_stays_visible() {
        let vector = "9 std::vector<std::pair<int, long>, std::allocator<std::pair<int, long> > \
                      >::push_back(std::pair<int, long> const&) [program]";
        for (columns, expected) in [
            (
                90,
                "9 std::vector<std::pair<…>, std::allocator<…> \
                 >::push_back(std::pair<…> const&) [program]",
            ),
            (46, "9 std::vector<…>::push_back(…) [program]"),
            (35, "9 …::push_back(…) [program]"),
            (20, "9 std::vector<std::…"),
        ] {
            assert_eq!(cut(vector, columns), expected);
            assert!(width(&cut(vector, columns)) <= columns);
        }
        for (text, columns, expected) in [
            (
                "<alloc::vec::Vec<T> as core::iter::Extend<T>>::extend",
                20,
                "<…>::extend",
            ),
            ("core::iter::adapters::map::next", 20, "…::map::next"),
            (
                "(anonymous namespace)::Parser::parse(char*)",
                21,
                "(…)::Parser::parse(…)",
            ),
            (
                "a::operator<<(std::ostream&, b const&)",
                20,
                "a::operator<<(…)",
            ),
            (
                "a::B::operator()(int, unsigned long)",
                20,
                "a::B::operator()(…)",
            ),
            (
                "a::B::operator->(int, unsigned long)",
                20,
                "a::B::operator->(…)",
            ),
            ("(a caller that was not recorded)", 10, "(a caller…"),
            ("f(int, long) -> g<int, long>", 20, "f(…) -> g<int, long>"),
            ("<lost name 12345678>", 10, "<lost nam…"),
            ("<<<((>>>)", 4, "<<<…"),
            ("::", 1, "…"),
        ] {
            assert_eq!(cut(text, columns), expected);
        }
    }

    #[test]
    fn every_text_fits_whatever_its_brackets_are() {
        let letters = ['<', '>', '(', ')', ':', ' ', 'a', 'ß', '-'];
        for mut number in 0..200_000_usize {
            let mut text = String::new();
            while number > 0 {
                text.push(letters[number % letters.len()]);
                number /= letters.len();
            }
            for columns in [0, 1, 3] {
                assert!(width(&cut(&text, columns)) <= columns, "{text:?}");
            }
        }
    }
}
