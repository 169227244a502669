//! Filters: words with names or patterns. `*` is any run of characters, and `!` leaves functions
//! out that the words before it select.

/// Returns true if a pattern matches a name as a whole.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern.split_first(), name.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), _) => (0..=name.len()).any(|at| matches(rest, &name[at..])),
        (Some((expected, rest)), Some((found, behind))) if expected == found => {
            matches(rest, behind)
        }
        _ => false,
    }
}

/// Returns true if a filter selects the function with this name.
pub(super) fn selects(filter: &str, name: &str) -> bool {
    filter
        .split_whitespace()
        .fold(false, |is_selected, word| match word.strip_prefix('!') {
            Some(word) => is_selected && !matches(word.as_bytes(), name.as_bytes()),
            None => is_selected || matches(word.as_bytes(), name.as_bytes()),
        })
}
