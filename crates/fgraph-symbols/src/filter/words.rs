//! The words of a filter's text.
//!
//! White space and commas end a word, but not inside quotes, and not between matching brackets. So
//! names that contain both can be pasted unchanged:
//!
//! ```text
//!   <app::Sq as app::Shape>::area main    two words
//!   "operator new" operator< a b          four: a bracket that is not closed is a character
//! ```

use super::error::{FilterError, MODULE_MARK};

/// The text of a predicate, which cannot be parsed.
pub(super) const PREDICATE: &str = ":predicate:";

/// The word for the system calls within functions.
pub(super) const SYSTEM_CALLS: &str = ":syscalls";

/// A word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Word<'a> {
    /// The word as it is written.
    pub(super) source: &'a str,
    /// The word without its quotes, with a backslash before each character that was in quotes.
    pub(super) unquoted: String,
}

/// The brackets that hold words together.
const BRACKETS: [(char, char); 3] = [('<', '>'), ('(', ')'), ('[', ']')];

pub(super) fn is_bracket(c: char) -> bool {
    BRACKETS
        .iter()
        .any(|&(open, close)| c == open || c == close)
}

/// Returns the words of `text`.
///
/// # Errors
///
/// Fails if a quote is not closed, or is empty.
pub(super) fn words(text: &str) -> Result<Vec<Word<'_>>, FilterError> {
    let mut pairs = pairs(text).into_iter().peekable();
    let mut words = Vec::new();
    let mut unquoted = String::new();
    // The start of the word, and the end of its brackets.
    let mut start = None;
    let mut closed = 0;
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        if let Some((_, end)) = pairs.next_if(|&(open, _)| open == at) {
            closed = end;
        }
        let is_open = at < closed;
        if !is_open && (c.is_whitespace() || c == ',') {
            if let Some(start) = start.take() {
                words.push(Word {
                    source: &text[start..at],
                    unquoted: core::mem::take(&mut unquoted),
                });
            }
            continue;
        }
        let start = *start.get_or_insert(at);
        if c == '"' && !is_open {
            let unclosed = || FilterError::UnclosedQuote(text[start..].to_owned());
            if chars.as_str().starts_with('"') {
                return Err(FilterError::EmptyGlob);
            }
            loop {
                let (_, mut c) = chars.next().ok_or_else(unclosed)?;
                if c == '"' {
                    break;
                }
                if c == '\\' {
                    (_, c) = chars.next().ok_or_else(unclosed)?;
                }
                unquoted.extend(['\\', c]);
            }
            continue;
        }
        unquoted.push(c);
        if c == '\\'
            && let Some((_, c)) = chars.next()
        {
            unquoted.push(c);
        }
    }
    if let Some(start) = start {
        words.push(Word {
            source: &text[start..],
            unquoted,
        });
    }
    Ok(words)
}

/// Returns the start and the end of each outermost pair of brackets.
///
/// The second half of an arrow (`->`) is no bracket, and neither is one without a partner.
fn pairs(text: &str) -> Vec<(usize, usize)> {
    let mut open: Vec<(usize, usize)> = Vec::new();
    let mut open_of_kind = [0; BRACKETS.len()];
    let mut pairs = Vec::new();
    let mut is_quoted = false;
    let mut before = None;
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        let is_arrow = c == '>' && before.replace(c) == Some('-');
        before = Some(c);
        match c {
            '\\' => {
                chars.next();
                before = None;
                continue;
            }
            '"' if open.is_empty() => is_quoted = !is_quoted,
            _ if is_quoted || is_arrow => continue,
            _ => {}
        }
        if let Some(kind) = BRACKETS.iter().position(|&(opens, _)| opens == c) {
            open.push((kind, at));
            open_of_kind[kind] += 1;
        } else if let Some(kind) = BRACKETS.iter().position(|&(_, closes)| closes == c)
            && open_of_kind[kind] != 0
        {
            // Brackets that were opened since have no partner.
            while let Some((other, from)) = open.pop() {
                open_of_kind[other] -= 1;
                if other == kind {
                    // Only the outer one of nested pairs is needed.
                    while pairs.pop_if(|&mut (inner, _)| inner > from).is_some() {}
                    pairs.push((from, at));
                    break;
                }
            }
        }
    }
    pairs
}

/// Returns true if each bracket of a word has its partner in it, so that no other word can be read
/// as a part of it.
pub(super) fn is_balanced(word: &str) -> bool {
    let pairs = pairs(word);
    let within = |at| pairs.iter().any(|&(open, close)| open <= at && at <= close);
    word.char_indices()
        .all(|(at, c)| !is_bracket(c) || within(at))
}

/// Returns true if `name`, as a word, parses as the function of this name. Reads each byte once,
/// which suffices for nearly all names; `None` if it does not.
pub(super) fn is_read_as_name(name: &str) -> Option<bool> {
    /// Brackets within brackets.
    const DEPTH: usize = 32;
    let mut partners = [0; DEPTH];
    let mut depth = 0;
    let mut before = 0;
    for byte in name.bytes() {
        match byte {
            // These parse as other characters, or as none.
            b'*' | b'?' | b'\\' => return Some(false),
            b'>' if before == b'-' && depth != 0 => {}
            b'<' | b'(' | b'[' => {
                let closing = BRACKETS.iter().find(|&&(open, _)| open as u8 == byte)?.1;
                *partners.get_mut(depth)? = closing as u8;
                depth += 1;
            }
            b'>' | b')' | b']' => {
                depth = usize::checked_sub(depth, 1).filter(|&at| partners[at] == byte)?;
            }
            b'"' | b'!' | b'+' | 0x80.. => return None,
            byte if depth == 0 && (byte.is_ascii_control() || b" ,".contains(&byte)) => {
                return None;
            }
            _ => {}
        }
        before = byte;
    }
    let is_special = ["_Z", "_R", "0x"]
        .iter()
        .any(|start| name.starts_with(start))
        || matches!(name, "" | "-" | SYSTEM_CALLS)
        || name.contains(MODULE_MARK)
        || name.contains(PREDICATE);
    (depth == 0 && !is_special).then_some(true)
}

/// Splits a word at its `:mod:`, if it has one that is neither escaped nor part of a path.
pub(super) fn split_module(word: &str) -> Option<(&str, &str)> {
    let mut before = None;
    let mut escaped = false;
    for (at, c) in word.char_indices() {
        let here = &word[at..];
        if !escaped
            && before != Some(':')
            && let Some(module) = here.strip_prefix(MODULE_MARK)
            && !module.starts_with(':')
        {
            return Some((&word[..at], module));
        }
        before = (!escaped).then_some(c);
        escaped = !escaped && c == '\\';
    }
    None
}
