//! Enough of Rust's lexical structure to tell code from comments and strings.

/// Kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An identifier, a keyword or a number.
    Word,
    /// One character of punctuation, or a lifetime's quote.
    HazardSlot,
    /// A string or character literal, with its quotes.
    Text,
    /// A comment, with its slashes.
    Comment,
}

/// A token of a source file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'t> {
    pub(super) kind: Kind,
    pub(super) text: &'t str,
    /// Where it begins, from 1.
    pub(super) line: usize,
    /// The byte at which it begins.
    pub(super) start: usize,
}

impl Token<'_> {
    pub(super) fn is(&self, text: &str) -> bool {
        self.text == text && matches!(self.kind, Kind::Word | Kind::HazardSlot)
    }
}

/// All tokens of `source`, white space left out. Any input gives tokens: what is not closed ends
/// with the file.
pub(super) fn tokens(source: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let (mut start, mut line) = (0, 1);
    while let Some(first) = source[start..].chars().next() {
        let rest = &source[start..];
        let (kind, length) = if first.is_whitespace() {
            (None, first.len_utf8())
        } else {
            let (kind, length) = token(rest, first);
            (Some(kind), length)
        };
        let text = &rest[..length];
        if let Some(kind) = kind {
            tokens.push(Token {
                kind,
                text,
                line,
                start,
            });
        }
        line += text.matches('\n').count();
        start += length;
    }
    tokens
}

/// The kind and the length of the token that `rest` begins with; `first` is its first character.
fn token(rest: &str, first: char) -> (Kind, usize) {
    if rest.starts_with("//") {
        return (Kind::Comment, rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return (Kind::Comment, block_comment(rest));
    }
    let word = rest
        .find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(rest.len());
    let is_prefix = matches!(&rest[..word], "" | "r" | "b" | "c" | "br" | "cr");
    let behind = &rest[word..];
    if is_prefix && behind.starts_with('"') && !rest[..word].contains('r') {
        return (Kind::Text, word + quoted(behind, '"'));
    }
    if is_prefix && rest[..word].contains('r') {
        let hashes = behind.len() - behind.trim_start_matches('#').len();
        if behind[hashes..].starts_with('"') {
            let end = format!("\"{}", "#".repeat(hashes));
            let inner = word + hashes + 1;
            let length = rest[inner..].find(&end);
            return (
                Kind::Text,
                length.map_or(rest.len(), |length| inner + length + end.len()),
            );
        }
    }
    if matches!(&rest[..word], "" | "b") && behind.starts_with('\'') {
        let mut inner = behind[1..].chars();
        let character = inner.next();
        if character == Some('\\') || inner.next() == Some('\'') {
            return (Kind::Text, word + quoted(behind, '\''));
        }
    }
    if word > 0 {
        (Kind::Word, word)
    } else {
        (Kind::HazardSlot, first.len_utf8())
    }
}

/// The length of a block comment; they nest.
fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        if rest[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += rest[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

/// The length of a literal that begins with `quote` and may have escapes.
fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        if escaped {
            escaped = false;
        } else if c == '\\' {
            escaped = true;
        } else if c == quote {
            return at + 1;
        }
    }
    rest.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(source: &str) -> Vec<(Kind, &str)> {
        let tokens = tokens(source);
        tokens
            .iter()
            .map(|token| (token.kind, token.text))
            .collect()
    }

    #[test]
    fn words_marks_comments_and_strings_are_told_apart() {
        use Kind::{Comment, HazardSlot, Text, Word};
        assert_eq!(
            kinds("a::b // c\n\"d // \\\" e\" /* f /* g */ */ h"),
            [
                (Word, "a"),
                (HazardSlot, ":"),
                (HazardSlot, ":"),
                (Word, "b"),
                (Comment, "// c"),
                (Text, "\"d // \\\" e\""),
                (Comment, "/* f /* g */ */"),
                (Word, "h"),
            ]
        );
    }

    #[test]
    fn raw_strings_end_where_their_hashes_do() {
        use Kind::{Text, Word};
        let source = r####"r#"a " b"# br##"c"# "## r"\" c"d" x"####;
        let expected = [
            (Text, r##"r#"a " b"#"##),
            (Text, r###"br##"c"# "##"###),
            (Text, r#"r"\""#),
            (Text, r#"c"d""#),
            (Word, "x"),
        ];
        assert_eq!(kinds(source), expected);
    }

    #[test]
    fn lifetimes_are_no_characters() {
        use Kind::{HazardSlot, Text, Word};
        assert_eq!(
            kinds(r#"'a '\'' b'x' '"' '/'"#),
            [
                (HazardSlot, "'"),
                (Word, "a"),
                (Text, r"'\''"),
                (Text, "b'x'"),
                (Text, "'\"'"),
                (Text, "'/'"),
            ]
        );
    }

    #[test]
    fn each_token_knows_its_line() {
        let tokens = tokens("a\n/* \n */ b\n\"\n\" c");
        let lines: Vec<_> = tokens.iter().map(|token| token.line).collect();
        assert_eq!(lines, [1, 2, 3, 4, 5]);
    }

    #[test]
    fn unclosed_tokens_end_with_the_file() {
        for source in ["\"a", "/* a", "r#\"a\"", "'\\", "b\"\\"] {
            assert_eq!(tokens(source).len(), 1, "{source}");
        }
    }
}
