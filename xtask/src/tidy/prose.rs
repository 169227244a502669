//! The text that readers meet: pages, comments, and the string literals of Rust.

use std::mem;

use super::tokens;
use super::tree::File;

/// The lines of a paragraph, an item of a list, a cell of a table or a comment. Each is its number,
/// counted from 1, and its text without a marker.
pub(super) type Passage<'t> = Vec<(usize, &'t str)>;

/// Markers of comments, those first that begin with another one.
const SLASHES: &[&str] = &["///", "//!", "//", "/*"];
const HASH: &[&str] = &["#"];

/// Marks that may stand behind the last one of a sentence.
pub(super) const CLOSERS: [char; 6] = ['"', '\'', ')', ']', '*', '_'];

/// Returns the text of a page, or the comments of another file. Fenced blocks and headings are left
/// out.
pub(super) fn passages(file: &File) -> Vec<Passage<'_>> {
    let mut passages = Passages::default();
    let mut is_in_block = false;
    for (line, text) in (1..).zip(file.text.lines()) {
        let text = text.trim();
        let (code, marker, text) = match () {
            () if file.is_markdown() => ("", "", text),
            () if is_in_block => ("", "/*", text.trim_start_matches('*')),
            () => match comment(markers(&file.path), text) {
                Some(found) => found,
                None => {
                    passages.end();
                    continue;
                }
            },
        };
        if !code.is_empty() {
            passages.end();
        }
        is_in_block = marker == "/*" && !text.contains("*/");
        passages.add(line, marker, text.trim_end_matches("*/").trim());
        if !code.is_empty() {
            passages.end();
        }
    }
    passages.all
}

/// Returns the texts of the string literals of `file`, if it is Rust.
pub(super) fn literals(file: &File) -> Vec<Passage<'_>> {
    let mut passages = Passages::default();
    if !file.is_rust() {
        return passages.all;
    }
    for span in tokens::literals(&file.text) {
        let text = &file.text[span.byte_range()];
        if text.starts_with('/') {
            continue; // A doc comment, which is a literal for the compiler.
        }
        passages.end();
        let text = text.split_once('"').map_or(text, |(_, text)| text);
        let text = text.trim_end_matches(['"', '#']);
        for (line, text) in (span.start().line..).zip(text.lines()) {
            for text in text.trim_end_matches('\\').split("\\n") {
                // Comments of C and of assembly; a `#` without an indent makes a heading.
                let is_indented = text.starts_with(' ');
                let text = text.trim();
                let assembly = text.strip_prefix('#').filter(|_| is_indented);
                match text.strip_prefix("//").or(assembly) {
                    Some(text) => passages.add(line, "#", text.trim()),
                    None => passages.add(line, "", text),
                }
            }
        }
    }
    passages.all
}

/// Returns the sentences of a passage, each with the line that it begins in.
pub(super) fn sentences(passage: &[(usize, &str)]) -> Vec<(usize, String)> {
    let mut sentences = Vec::new();
    let (mut begins, mut sentence, mut is_code) = (0, String::new(), false);
    for (line, text) in passage {
        for word in text.split_whitespace() {
            if sentence.is_empty() {
                begins = *line;
            } else {
                sentence.push(' ');
            }
            sentence.push_str(word);
            is_code ^= word.matches('`').count() % 2 == 1;
            let is_last = word
                .trim_end_matches(CLOSERS)
                .ends_with(['.', '!', '?', ':']);
            if is_last && !is_code {
                sentences.push((begins, mem::take(&mut sentence)));
            }
        }
    }
    if !sentence.is_empty() {
        sentences.push((begins, sentence));
    }
    sentences
}

/// Builds passages of lines.
#[derive(Debug, Default)]
struct Passages<'t> {
    all: Vec<Passage<'t>>,
    marker: &'static str,
    is_fenced: bool,
    /// True if the next line may belong to the last passage.
    is_open: bool,
}

impl<'t> Passages<'t> {
    fn add(&mut self, line: usize, marker: &'static str, text: &'t str) {
        if mem::replace(&mut self.marker, marker) != marker {
            self.end();
        }
        let is_fence = text.starts_with("```");
        self.is_fenced ^= is_fence;
        let is_row = text.starts_with('|');
        if self.is_fenced || is_fence || is_row || text.is_empty() || text.starts_with('#') {
            self.is_open = false;
            if is_row && !self.is_fenced {
                let cells = text.split('|').map(str::trim);
                let cells = cells.filter(|cell| !cell.is_empty());
                self.all.extend(cells.map(|cell| vec![(line, cell)]));
            }
            return;
        }
        let (is_item, text) = item(text);
        match self.all.last_mut().filter(|_| self.is_open && !is_item) {
            Some(passage) => passage.push((line, text)),
            None => self.all.push(vec![(line, text)]),
        }
        self.is_open = true;
    }

    fn end(&mut self) {
        (self.is_fenced, self.is_open) = (false, false);
    }
}

/// Returns the markers of comments in the file at `path`.
fn markers(path: &str) -> &'static [&'static str] {
    let has_slashes = [".rs", ".c", ".cc", ".cpp", ".h", ".js", ".html"];
    match has_slashes.iter().any(|end| path.ends_with(end)) {
        true => SLASHES,
        false => HASH,
    }
}

/// Returns the code before the comment of a line, the comment's marker, and its text.
fn comment<'t>(
    markers: &[&'static str],
    line: &'t str,
) -> Option<(&'t str, &'static str, &'t str)> {
    let whole = |marker: &&'static str| Some(("", *marker, line.strip_prefix(*marker)?));
    let behind_code = |marker: &&'static str| {
        let (code, text) = line.split_once(&format!(" {marker} "))?;
        let is_in_string = code.matches('"').count() % 2 == 1;
        (!is_in_string).then_some((code, *marker, text))
    };
    let whole = markers.iter().find_map(whole);
    whole.or_else(|| markers.iter().find_map(behind_code))
}

/// True for an item of a list, and the text without the item's bullet or number.
fn item(line: &str) -> (bool, &str) {
    let number = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let rest = if number.len() < line.len() {
        number.strip_prefix(". ")
    } else {
        line.strip_prefix("- ").or_else(|| line.strip_prefix("* "))
    };
    rest.map_or((false, line), |rest| (true, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    /// Shows each passage as its lines, each after its number.
    fn shown(passages: &[Passage]) -> Vec<String> {
        let line = |(number, text): &(usize, &str)| format!("{number} {text}");
        let passage = |lines: &Passage| lines.iter().map(line).collect::<Vec<_>>().join(" / ");
        passages.iter().map(passage).collect()
    }

    fn comments(path: &str, text: &str) -> Vec<String> {
        shown(&passages(&file(path, text)))
    }

    #[test]
    fn comments_of_one_kind_in_a_row_are_a_passage() {
        let rust = "//! A\n//! b.\n\n// C.\n    /// D.\n    ///\n    /// E.\nf(); // G.\n// H.\n";
        let expected = ["1 A / 2 b.", "4 C.", "5 D.", "7 E.", "8 G.", "9 H."];
        assert_eq!(comments("a.rs", rust), expected);
        let c = "/* A\n * b.\n   c. */\nint d; /* E */\nputs(\"// f /* g\");\n";
        assert_eq!(comments("a.c", c), ["1 A / 2 b. / 3 c.", "4 E"]);
        let shell = "#!/bin/sh\n# A\n# b.\necho '# c' # D.\n";
        let expected = ["1 !/bin/sh / 2 A / 3 b.", "4 D."];
        assert_eq!(comments(".ci/run", shell), expected);
    }

    #[test]
    fn paragraphs_items_and_cells_are_passages() {
        let page = "# A\nb\n```text\nc\n```\n| d | e |\n- f\n  g\n1. h\n2nd\n";
        let expected = ["2 b", "6 d", "6 e", "7 f / 8 g", "9 h / 10 2nd"];
        assert_eq!(comments("a.md", page), expected);
    }

    #[test]
    fn literals_are_passages_without_their_quotes_and_escapes() {
        let rust = "/// \"A\"\nf(\"B\\nc \\\n  d.\\n\\ne\", r#\"G\n # h\"#, b'i', 1);\n";
        let found = shown(&literals(&file("a.rs", rust)));
        assert_eq!(
            found,
            ["2 B / 2 c / 3 d.", "3 e", "3 G", "4 h", "4 b'i'", "4 1"]
        );
        assert_eq!(shown(&literals(&file("a.c", rust))), [""; 0]);
    }

    #[test]
    fn sentences_end_at_marks_outside_of_code() {
        let passage = [(1, "A b. (C"), (2, "`d. e` f.) G? H: I")];
        let sentences = sentences(&passage);
        let shown: Vec<_> = sentences
            .iter()
            .map(|(line, text)| (*line, &**text))
            .collect();
        let expected = [
            (1, "A b."),
            (1, "(C `d. e` f.)"),
            (2, "G?"),
            (2, "H:"),
            (2, "I"),
        ];
        assert_eq!(shown, expected);
    }
}
