//! Globs over names and paths.

use core::str::Chars;

use super::error::FilterError;
use super::error::MODULE_MARK;
use super::ngrams::END;
use super::words::is_bracket;

/// A parsed glob: equivalent globs are equal, however they were written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Glob(Box<[Token]>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Token {
    Char(char),
    /// `?`
    AnyChar,
    /// `*`, never twice in a row
    AnyRun,
}

impl Token {
    /// Returns true if a character matches.
    fn is(self, c: char) -> bool {
        self == Self::AnyChar || self == Self::Char(c)
    }
}

impl Glob {
    /// Parses a glob.
    pub(super) fn new(glob: &str) -> Result<Self, FilterError> {
        let mut tokens = Vec::with_capacity(glob.len());
        let mut chars = glob.chars();
        while let Some(c) = chars.next() {
            let token = match c {
                '*' if tokens.last() == Some(&Token::AnyRun) => continue,
                '*' => Token::AnyRun,
                '?' => Token::AnyChar,
                '\\' => match chars.next() {
                    Some(c) => Token::Char(c),
                    None => return Err(FilterError::DanglingBackslash(glob.to_owned())),
                },
                c => Token::Char(c),
            };
            tokens.push(token);
        }
        if tokens.is_empty() {
            return Err(FilterError::EmptyGlob);
        }
        Ok(Self(tokens.into()))
    }

    /// Returns the number of bytes it takes.
    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.0)
    }

    pub(super) fn matches_everything(&self) -> bool {
        *self.0 == [Token::AnyRun]
    }

    /// Makes the glob that matches only `text`.
    pub(super) fn literal(text: &str) -> Self {
        Self(text.chars().map(Token::Char).collect())
    }

    /// Returns the only text that the glob matches; `None` if it has wildcards.
    pub(super) fn as_literal(&self) -> Option<String> {
        let chars = self.0.iter().map(|token| match *token {
            Token::Char(c) => Some(c),
            Token::AnyChar | Token::AnyRun => None,
        });
        chars.collect()
    }

    /// Returns true if the glob matches paths, and not file names.
    pub(super) fn has_slash(&self) -> bool {
        self.0.contains(&Token::Char('/'))
    }

    /// Returns true if the colon at `at`, in a word, could be read as one of a `:mod:` there or
    /// next to it.
    fn colon_is_ambiguous(&self, at: usize) -> bool {
        let mark = MODULE_MARK.chars().map(Token::Char);
        let starts_mark = self.0[at..]
            .iter()
            .copied()
            .take(MODULE_MARK.len())
            .eq(mark);
        starts_mark || at == 0 || at + 1 == self.0.len()
    }

    /// Returns the texts between the wildcards, with an [`END`] before and after the glob: a
    /// matching text between two of these contains all of them.
    pub(super) fn texts(&self) -> Vec<String> {
        let end = core::iter::once(Some(END));
        let chars = self.0.iter().map(|token| match *token {
            Token::Char(c) => Some(c),
            Token::AnyChar | Token::AnyRun => None,
        });
        let chars: Vec<_> = end.clone().chain(chars).chain(end).collect();
        let texts = chars.split(Option::is_none);
        texts.map(|text| text.iter().flatten().collect()).collect()
    }

    /// Matches the whole of `text`.
    ///
    /// Only the last `*` is ever retried with a longer match. If the part of the glob before it
    /// could be matched at all, it was matched at the earliest place, which leaves the most text
    /// for the rest. So the work is bounded by the product of the two lengths.
    pub(super) fn matches(&self, text: &str) -> bool {
        let (mut tokens, mut chars) = (&*self.0, text.chars());
        // From the end back to the last `*`: most names differ there already.
        while let Some((last, rest)) = tokens.split_last()
            && *last != Token::AnyRun
        {
            if !chars.next_back().is_some_and(|c| last.is(c)) {
                return false;
            }
            tokens = rest;
        }
        let mut retry = None;
        loop {
            match tokens.split_first() {
                Some((Token::AnyRun, [])) => return true,
                Some((Token::AnyRun, rest)) => {
                    if !skip_to(rest, &mut chars) {
                        return false;
                    }
                    tokens = rest;
                    retry = Some((rest, chars.clone()));
                    continue;
                }
                Some((token, rest)) => {
                    let Some(c) = chars.next() else {
                        return false;
                    };
                    if token.is(c) {
                        tokens = rest;
                        continue;
                    }
                }
                None => return chars.as_str().is_empty(),
            }
            // A mismatch: let the last `*` take one character more.
            let Some((after_run, start)) = &mut retry else {
                return false;
            };
            if start.next().is_none() || !skip_to(after_run, start) {
                return false;
            }
            tokens = after_run;
            chars = start.clone();
        }
    }
}

/// Advances to the next place at which `tokens` could match, judging by their first two; `false` if
/// there is none.
fn skip_to(tokens: &[Token], chars: &mut Chars<'_>) -> bool {
    let text = chars.as_str();
    let at = match *tokens {
        [Token::Char(c), Token::Char(d), ..] if c.is_ascii() && d.is_ascii() => {
            find_pair(text.as_bytes(), [c as u8, d as u8])
        }
        [Token::Char(c), ..] if c.is_ascii() => find(text.as_bytes(), c as u8),
        [Token::Char(c), ..] => text.find(c),
        _ => return true,
    };
    if let Some(at) = at {
        *chars = text[at..].chars();
    }
    at.is_some()
}

/// Returns the first offset of two consecutive bytes.
fn find_pair(bytes: &[u8], [first, second]: [u8; 2]) -> Option<usize> {
    const LOW: u64 = u64::from_ne_bytes([0x7f; 8]);
    // The highest bit of each byte that equals this one.
    let which = |word: &[u8; 8], byte: u8| {
        let differs = u64::from_le_bytes(*word) ^ u64::from_ne_bytes([byte; 8]);
        !(((differs & LOW) + LOW) | differs | LOW)
    };
    let (firsts, _) = bytes.as_chunks();
    let (seconds, _) = bytes.get(1..).unwrap_or_default().as_chunks();
    for (index, (word, next)) in firsts.iter().zip(seconds).enumerate() {
        let same = which(word, first) & which(next, second);
        if same != 0 {
            return Some(8 * index + same.trailing_zeros() as usize / 8);
        }
    }
    let done = 8 * firsts.len().min(seconds.len());
    let mut pairs = bytes[done..].windows(2);
    let at = pairs.position(|pair| pair == [first, second])?;
    Some(done + at)
}

/// Returns the first offset of a byte. For texts as short as names this is faster than `str::find`.
fn find(bytes: &[u8], byte: u8) -> Option<usize> {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    let (words, rest) = bytes.as_chunks();
    for (index, word) in words.iter().enumerate() {
        let differs = u64::from_le_bytes(*word) ^ (ONES * u64::from(byte));
        // The lowest set bit is in the first byte that does not differ.
        let same = differs.wrapping_sub(ONES) & !differs & (ONES << 7);
        if same != 0 {
            return Some(8 * index + same.trailing_zeros() as usize / 8);
        }
    }
    let at = rest.iter().position(|&other| other == byte)?;
    Some(bytes.len() - rest.len() + at)
}

impl Glob {
    /// Writes the glob as a part of a word: with a backslash before every character that would be
    /// read otherwise, or, if `bare`, only before characters that are wildcards or marks anywhere.
    pub(super) fn text(&self, bare: bool) -> String {
        let mut text = String::new();
        for (i, token) in self.0.iter().enumerate() {
            let c = match *token {
                Token::AnyRun => '*',
                Token::AnyChar => '?',
                Token::Char(c) => {
                    let separates = c.is_whitespace() || matches!(c, ',' | '"') || is_bracket(c);
                    if matches!(c, '*' | '?' | '\\')
                        || (c == '!' && i == 0)
                        || (c == ':' && self.colon_is_ambiguous(i))
                        || (separates && !bare)
                    {
                        text.push('\\');
                    }
                    c
                }
            };
            text.push(c);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_is_found_where_it_is_first() {
        let bytes: Vec<u8> = (0..40).map(|n: u8| (n % 20).wrapping_mul(13)).collect();
        for from in 0..bytes.len() {
            for byte in (0..=u8::MAX).step_by(if cfg!(miri) { 32 } else { 1 }) {
                let rest = &bytes[from..];
                assert_eq!(find(rest, byte), rest.iter().position(|&b| b == byte));
            }
        }
    }

    #[test]
    fn two_bytes_are_found_where_they_first_follow_each_other() {
        let bytes: Vec<u8> = (0..80).map(|n: u32| (n * n / 5 % 8 * 36) as u8).collect();
        for from in 0..bytes.len() {
            let rest = &bytes[from..];
            for pair in (0..64).map(|n| [n / 8 * 36, n % 8 * 36]) {
                let found = rest.windows(2).position(|other| other == pair);
                assert_eq!(find_pair(rest, pair), found);
            }
        }
        assert_eq!(find_pair(&[], [0, 0]), None);
    }

    #[test]
    fn texts_are_what_is_between_wildcards() {
        let texts = |glob| Glob::new(glob).unwrap().texts();
        assert_eq!(texts("main"), ["\0main\0"]);
        assert_eq!(texts("*fn_?1*"), ["\0", "fn_", "1", "\0"]);
        assert_eq!(texts(r"a\*::né*"), ["\0a*::né", "\0"]);
    }

    #[test]
    fn agrees_with_the_obvious_recursive_matcher() {
        fn obvious(glob: &[u8], text: &[u8]) -> bool {
            match (glob, text) {
                ([], []) => true,
                ([b'*', rest @ ..], _) => {
                    obvious(rest, text) || (!text.is_empty() && obvious(glob, &text[1..]))
                }
                ([b'?', g @ ..], [_, t @ ..]) => obvious(g, t),
                ([a, g @ ..], [b, t @ ..]) => a == b && obvious(g, t),
                _ => false,
            }
        }
        fn all(alphabet: &[char], len: u32) -> impl Iterator<Item = String> {
            let base = alphabet.len();
            (1..=len).flat_map(move |len| {
                (0..base.pow(len)).map(move |mut n| {
                    let next = |_| {
                        let c = alphabet[n % base];
                        n /= base;
                        c
                    };
                    (0..len).map(next).collect()
                })
            })
        }
        const LEN: u32 = if cfg!(miri) { 2 } else { 5 };
        for pattern in all(&['a', 'b', '*', '?'], LEN) {
            let parsed = Glob::new(&pattern).unwrap();
            for text in all(&['a', 'b'], LEN) {
                let whole = format!("{END}{text}{END}");
                let has_texts = parsed.texts().iter().all(|part| whole.contains(part));
                let expected = obvious(pattern.as_bytes(), text.as_bytes());
                assert_eq!(parsed.matches(&text), expected, "{pattern} {text}");
                assert!(has_texts || !expected, "{pattern} {text}");
            }
        }
    }

    #[test]
    fn pathological_stars_stay_linear() {
        let pattern = "*a".repeat(50) + "*b*";
        let glob = Glob::new(&pattern).unwrap();
        let name = "a".repeat(20_000);
        assert!(!glob.matches(&name));
        assert!(glob.matches(&(name + "b")));
    }
}
