//! The texts that a function's symbols must contain for a filter to mention it, checked without
//! demangling, which takes longer than everything else that is done with a name.
//!
//! Demangling puts punctuation and words of its own between the identifiers of a symbol, and leaves
//! these unchanged:
//!
//! ```text
//!   cargo::ops::*_file          a glob
//!   cargo  ops  _file           its pieces, each a run of letters, digits and underscores
//!   _RNvNtCs..5cargo3ops11_read_file    a symbol that has all of them
//! ```
//!
//! A piece that demangling itself could write (`const`, `u32`) is of no use.

use memchr::memmem::Finder;

use super::pattern::What;

/// Words that demangling writes and that are in no symbol.
const WRITTEN: &str = "\
    isize usize i128 u128 f32 f64 bool char str const dyn extern unsafe for mut fn as is around \
    just null splat closure shim punycode invalid syntax recursion limit reached size true false \
    existential projections this symbol most significant nibble unsafe_binder impl std allocator \
    basic_string string basic_istream istream basic_ostream ostream basic_iostream iostream \
    char_traits anonymous namespace operator new delete lambda unnamed type auto decltype signed \
    unsigned short int long double float half complex imaginary __float128 __int128 _BitInt \
    wchar_t char8_t char16_t char32_t decimal32 decimal64 decimal128 bfloat16_t nullptr_t \
    nullptr volatile restrict noexcept throw sizeof alignof typeid class union enum static_cast \
    dynamic_cast const_cast reinterpret_cast literal real _Accum _Fract _Sat _Float __vector \
    void clone _block_invoke invocation function block global constructors destructors keyed \
    reference temporary parm offset virtual non-virtual covariant return override thunk vtable \
    vtt VTT typeinfo name construction guard variable TLS init wrapper transaction Class";

/// Characters with which demangling writes numbers, including their types.
const NUMBERS: &[u8] = b"0123456789abcdefxuszil";

/// The shortest useful piece: shorter ones are in too many symbols.
const MIN: usize = 3;

/// The pieces of some words of a filter.
#[derive(Debug)]
pub struct SymbolPieces(Vec<Vec<Finder<'static>>>);

impl SymbolPieces {
    /// The most words; more are looked up by their hashes instead.
    const MAX: usize = 8;

    /// Returns the pieces for a list of words; `None` if one of them may mention functions with any
    /// symbols, or if there are too many.
    pub(super) fn of<'f>(words: impl Iterator<Item = &'f What>) -> Option<Self> {
        let all: Option<Vec<_>> = words.take(Self::MAX + 1).map(pieces).collect();
        all.filter(|all| all.len() <= Self::MAX).map(Self)
    }

    /// Returns true if a function with these symbols, each with its version, may be mentioned. A
    /// function without symbols may be.
    pub fn may_match<'s>(
        &self,
        symbols: impl Iterator<Item = (&'s [u8], Option<&'s str>)>,
    ) -> bool {
        let mut symbols = symbols.peekable();
        symbols.peek().is_none() || symbols.any(|(symbol, version)| self.may_be(symbol, version))
    }

    fn may_be(&self, symbol: &[u8], version: Option<&str>) -> bool {
        let version = version.unwrap_or_default().as_bytes();
        let has = |piece: &Finder<'_>| {
            piece.find(symbol).is_some() || version.len() >= MIN && piece.find(version).is_some()
        };
        let mut words = self.0.iter();
        words.any(|pieces| pieces.iter().all(has)) || may_have_text(symbol)
    }
}

/// Returns the pieces of a word, the longest first; `None` if it has none.
fn pieces(word: &What) -> Option<Vec<Finder<'static>>> {
    let texts = word.texts()?;
    let is_outside = |byte: &u8| !(byte.is_ascii_alphanumeric() || *byte == b'_');
    let runs = texts
        .iter()
        .flat_map(|text| text.as_bytes().split(is_outside));
    let mut runs: Vec<&[u8]> = runs.filter(|run| is_telling(run)).collect();
    runs.sort_unstable_by_key(|run| core::cmp::Reverse(run.len()));
    let finders = runs.into_iter().map(|run| Finder::new(run).into_owned());
    let finders: Vec<_> = finders.collect();
    (!finders.is_empty()).then_some(finders)
}

/// Returns true if a sequence of characters of a name is in its symbol, too.
fn is_telling(run: &[u8]) -> bool {
    let is_number = run.iter().all(|byte| NUMBERS.contains(byte));
    run.len() >= MIN && !is_number && memchr::memmem::find(WRITTEN.as_bytes(), run).is_none()
}

/// Returns true if a symbol may contain text in another form: a Rust constant that is a string, or
/// contains one.
fn may_have_text(symbol: &[u8]) -> bool {
    symbol.starts_with(b"_R")
        && memchr::memchr_iter(b'K', symbol).any(|at| {
            symbol
                .get(at + 1)
                .is_some_and(|kind| b"eRQAVTB".contains(kind))
        })
}

#[cfg(test)]
mod tests {
    use crate::demangle;
    use crate::filter::{Filter, FunctionFacts, Matcher};

    /// Checks a symbol with a filter's pieces.
    fn may_match(filter: &str, symbol: &str) -> Option<bool> {
        let filter: Filter = filter.parse().unwrap();
        let matcher = Matcher::new(&filter);
        let pieces = matcher.module("/bin/app").unwrap().pieces()?;
        Some(pieces.may_match([(symbol.as_bytes(), None)].into_iter()))
    }

    const SYMBOLS: [&str; 10] = [
        "_RNvMNtCs4fqI2P2rA04_5cargo3opsNtB2_4Tree6insert",
        "_RINvNtC3std3mem8align_ofjdE",
        "_RINvC4demo3runKRe48656c6c6f_E",
        "_RNCNvC4demo4main0",
        "_ZN3foo3bar17h05af221e174051e9E",
        "_ZN71_$LT$Test$u20$$u2b$$u20$$u27$static$u20$as$u20$foo..Bar$LT$Test$GT$$GT$3barE",
        "_ZNSt6vectorIiSaIiEE9push_backERKi",
        "_ZN12_GLOBAL__N_13FooC2Ev",
        "_ZNKSs4sizeEv",
        "plain_function.part.0",
    ];

    #[test]
    fn no_name_is_missed_by_any_part_of_it() {
        let step = if cfg!(miri) { 13 } else { 1 };
        for symbol in SYMBOLS {
            let name = demangle::to_string(symbol);
            for from in (0..name.len()).step_by(step) {
                for to in (from + 1..=name.len()).step_by(step) {
                    let Some(part) = name.get(from..to) else {
                        continue;
                    };
                    let exactly: String = part.chars().flat_map(|c| ['\\', c]).collect();
                    let glob = Filter::none().trace(&format!("*{exactly}*")).unwrap();
                    assert!(glob.matches(&FunctionFacts::new(&[&name], "/bin/app")));
                    let matcher = Matcher::new(&glob);
                    let pieces = matcher.module("/bin/app").unwrap().pieces();
                    let may = pieces.is_none_or(|pieces| {
                        pieces.may_match([(symbol.as_bytes(), None)].into_iter())
                    });
                    assert!(may, "{part} of {name}");
                }
            }
        }
    }

    #[test]
    fn pieces_tell_symbols_apart() {
        let tree = SYMBOLS[0];
        assert_eq!(may_match("cargo::ops::*", tree), Some(true));
        assert_eq!(may_match("cargo::core::*", tree), Some(false));
        assert_eq!(may_match("*::ops::insert_all", tree), Some(false));
        assert_eq!(may_match("cargo::core::* *Tree*", tree), Some(true));
        assert_eq!(may_match("*Tree* !*insert*", "_ZN3foo6insertE"), Some(true));
        assert_eq!(may_match("*Tree* !*insert*", "_ZN3foo3barE"), Some(false));
    }

    #[test]
    fn words_without_a_piece_let_nothing_be_told() {
        for filter in [
            "*",
            "a*",
            "*<*>*",
            "*const*",
            "*u64*",
            "cargo::* ?x*",
            "0x1000",
            "!*fmt*",
        ] {
            assert_eq!(may_match(filter, "f"), None, "{filter}");
        }
        let predicate = Filter::none().predicate(|_| true);
        let matcher = Matcher::new(&predicate);
        assert!(matcher.module("/bin/app").unwrap().pieces().is_none());
    }

    #[test]
    fn a_function_without_a_symbol_may_match() {
        let filter: Filter = "cargo::ops::*".parse().unwrap();
        let matcher = Matcher::new(&filter);
        let pieces = matcher.module("/bin/app").unwrap().pieces().unwrap();
        assert!(pieces.may_match(core::iter::empty()));
    }

    #[test]
    fn versions_count() {
        let filter: Filter = "*GLIBC_2.14".parse().unwrap();
        let matcher = Matcher::new(&filter);
        let pieces = matcher.module("/lib/libc.so.6").unwrap().pieces().unwrap();
        let may = |version| pieces.may_match([(&b"memcpy"[..], version)].into_iter());
        assert!(may(Some("GLIBC_2.14")));
        assert!(!may(None) && !may(Some("FOO_2.14")));
    }
}
