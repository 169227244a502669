//! Taking a text apart.

/// The text in two halves, cut at the end of a line.
#[inline(never)]
pub(crate) fn halves(text: &str) -> (&str, &str) {
    let bytes = text.as_bytes();
    let cut = (text.len() / 2..text.len()).find(|&at| bytes[at] == b'\n');
    text.split_at(cut.map_or(text.len(), |at| at + 1))
}

/// The words of a line.
#[inline(never)]
pub(crate) fn words(line: &str) -> impl Iterator<Item = String> {
    line.split(|c: char| !c.is_alphanumeric())
        .filter(|word| word.len() > 2)
        .map(normalize)
}

/// The form in which a word stands in the index.
#[inline(never)]
fn normalize(word: &str) -> String {
    word.to_lowercase()
}
