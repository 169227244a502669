//! The tokens of Rust code, by `proc-macro2`.

use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};

/// A word or a mark of punctuation.
#[derive(Clone, Debug)]
pub(super) struct Token {
    pub(super) text: String,
    /// The line that it begins in, counted from 1.
    pub(super) line: usize,
}

impl Token {
    pub(super) fn is_word(&self) -> bool {
        self.text
            .starts_with(|c: char| c.is_alphabetic() || c == '_')
    }
}

/// Reads `source`, which must be Rust; other text has no tokens, and compilers say why.
fn parse(source: &str) -> TokenStream {
    source.parse().unwrap_or_default()
}

/// The tokens of `source` without its comments, its literals and what is for tests only.
pub(super) fn code(source: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    flatten(parse(source), &mut tokens);
    let mut kept = Vec::with_capacity(tokens.len());
    let mut at = 0;
    while at < tokens.len() {
        let mut next = tokens[at..].iter().map(|token| &*token.text);
        if ["#", "[", "cfg", "(", "test", ")", "]"]
            .into_iter()
            .all(|text| next.next() == Some(text))
        {
            at = end_of_item(&tokens, at + 7);
        } else {
            kept.push(tokens[at].clone());
            at += 1;
        }
    }
    kept
}

/// Adds the tokens of a tree, with the marks around its groups.
fn flatten(stream: TokenStream, tokens: &mut Vec<Token>) {
    for tree in stream {
        let line = tree.span().start().line;
        let mut push = |text: &str, line| {
            let text = text.to_owned();
            tokens.push(Token { text, line });
        };
        match tree {
            TokenTree::Ident(word) => push(&word.to_string(), line),
            TokenTree::Punct(mark) => push(mark.as_char().encode_utf8(&mut [0; 4]), line),
            TokenTree::Literal(_) => {}
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::Parenthesis | Delimiter::None => ("(", ")"),
                };
                push(open, line);
                flatten(group.stream(), tokens);
                let text = close.to_owned();
                let line = group.span_close().start().line;
                tokens.push(Token { text, line });
            }
        }
    }
}

/// Behind the item that begins at `at`: behind its block, or its semicolon.
fn end_of_item(tokens: &[Token], mut at: usize) -> usize {
    let mut depth = 0usize;
    while at < tokens.len() {
        match &*tokens[at].text {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => {
                depth = depth.saturating_sub(1);
                if depth == 0 && tokens[at].text == "}" {
                    return at + 1;
                }
            }
            ";" if depth == 0 => return at + 1,
            _ => {}
        }
        at += 1;
    }
    at
}

/// The places of the literals of `source`, doc comments among them.
pub(super) fn literals(source: &str) -> Vec<Span> {
    fn add(stream: TokenStream, found: &mut Vec<Span>) {
        for tree in stream {
            match tree {
                TokenTree::Literal(it) => found.push(it.span()),
                TokenTree::Group(group) => add(group.stream(), found),
                TokenTree::Ident(_) | TokenTree::Punct(_) => {}
            }
        }
    }
    let mut found = Vec::new();
    add(parse(source), &mut found);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_literals_and_tests_are_no_code() {
        let source =
            "/// A.\nfn f() { g(\"a\", 'b', 1) } // c\n#[cfg(test)]\nmod tests { h!(); }\nuse x;";
        let code = code(source);
        let text: Vec<&str> = code.iter().map(|token| &*token.text).collect();
        assert_eq!(text.concat(), "#[doc=]fnf(){g(,,)}usex;");
        assert_eq!(code.last().map(|token| token.line), Some(5));
    }

    #[test]
    fn literals_are_found_in_macros_too() {
        let found = literals("f!(\n \"a\n\");");
        let places = [found[0].start(), found[0].end()].map(|it| (it.line, it.column));
        assert_eq!(places, [(2, 1), (3, 1)]);
    }
}
