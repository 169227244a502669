//! One word of a filter.

use core::fmt::{self, Display, Formatter};
use core::ops::Range;

use super::error::FilterError;
use super::error::MODULE_MARK;
use super::facts::{FunctionFacts, Predicate};
use super::glob::Glob;
use super::ngrams::END;
use super::words::{
    PREDICATE, SYSTEM_CALLS, Word, is_balanced, is_read_as_name, split_module, words,
};
use crate::demangle;
use crate::functions::without_llvm;

/// One entry of a list: some functions, of some modules.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pattern {
    pub(super) what: What,
    /// The modules whose functions match; `None` stands for all.
    pub(super) module: Option<Glob>,
}

/// The functions that a pattern selects.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum What {
    /// Functions that have this name.
    Name(Box<str>),
    /// The function with this symbol, whose name in the source is `name`.
    Symbol { symbol: Box<str>, name: Box<str> },
    /// Functions with a name that matches.
    Glob(Glob),
    /// The function that begins at this address.
    Address(usize),
    /// Functions that begin in this range.
    Range(Range<usize>),
    /// Functions for which the predicate is true.
    Predicate(Predicate),
    /// The system calls within functions, and no functions.
    SystemCalls,
}

impl What {
    /// Makes the pattern for functions with this name, or this symbol.
    pub(super) fn name(name: &str) -> Result<Self, FilterError> {
        if name.is_empty() {
            return Err(FilterError::EmptyGlob);
        }
        if name.starts_with("_Z") || name.starts_with("_R") {
            let symbol = without_llvm(name);
            let source = demangle::to_string(symbol);
            if source != symbol {
                return Ok(Self::Symbol {
                    symbol: symbol.into(),
                    name: source.into(),
                });
            }
        }
        Ok(Self::Name(name.into()))
    }

    pub(super) fn glob(glob: &str) -> Result<Self, FilterError> {
        let glob = Glob::new(glob)?;
        match glob.as_literal() {
            Some(name) => Self::name(&name),
            None => Ok(Self::Glob(glob)),
        }
    }

    pub(super) fn range(range: Range<usize>) -> Result<Self, FilterError> {
        if range.is_empty() {
            let Range { start, end } = range;
            return Err(FilterError::EmptyRange { start, end });
        }
        Ok(Self::Range(range))
    }

    /// Parses the part of a word before its `:mod:`.
    fn parse(text: &str, word: &str) -> Result<Self, FilterError> {
        if text == PREDICATE {
            return Err(FilterError::PredicateAsText);
        }
        if text == SYSTEM_CALLS {
            return Ok(Self::SystemCalls);
        }
        if !text.starts_with("0x") {
            return Self::glob(text);
        }
        let address = |part: &str| {
            let digits = part.strip_prefix("0x").filter(|digits| {
                !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
            });
            let address = digits.and_then(|digits| usize::from_str_radix(digits, 16).ok());
            address.ok_or_else(|| FilterError::Address {
                part: part.to_owned(),
                word: word.to_owned(),
            })
        };
        match text.split_once("..") {
            Some((start, end)) => Self::range(address(start)?..address(end)?),
            None => address(text).map(Self::Address),
        }
    }

    pub(super) fn matches_everything(&self) -> bool {
        matches!(self, Self::Glob(glob) if glob.matches_everything())
    }

    /// Returns true if a function matches, regardless of its module.
    fn matches(&self, function: &FunctionFacts<'_>) -> bool {
        match self {
            Self::Predicate(predicate) => predicate.matches(function),
            other => other.matches_place(function) || other.matches_names(function.names()),
        }
    }

    /// Returns true if a function matches by its address, or by its symbols.
    pub(super) fn matches_place(&self, function: &FunctionFacts<'_>) -> bool {
        match self {
            Self::Symbol { symbol, .. } => function.symbols().contains(&&**symbol),
            Self::Address(address) => function.address() == *address,
            Self::Range(range) => range.contains(&function.address()),
            Self::Name(_) | Self::Glob(_) | Self::Predicate(_) | Self::SystemCalls => false,
        }
    }

    /// Returns true if a function matches by its names. A function without names has the empty
    /// name.
    pub(super) fn matches_names<'a>(&self, names: impl IntoIterator<Item = &'a &'a str>) -> bool {
        let mut names = names.into_iter().copied().peekable();
        match self {
            Self::Name(wanted) => names.any(|name| *name == **wanted),
            Self::Glob(glob) if names.peek().is_none() => glob.matches(""),
            Self::Glob(glob) => names.any(|name| glob.matches(name)),
            _ => false,
        }
    }

    /// Returns texts that one name of each matching function contains, where [`END`] stands for the
    /// start and the end of a name; `None` if the pattern says nothing about names.
    pub(super) fn texts(&self) -> Option<Vec<String>> {
        match self {
            Self::Name(name) | Self::Symbol { name, .. } => Some(vec![format!("{END}{name}{END}")]),
            Self::Glob(glob) => Some(glob.texts()),
            Self::Address(_) | Self::Range(_) | Self::Predicate(_) | Self::SystemCalls => None,
        }
    }
}

impl Pattern {
    /// Parses a word, without its `!`.
    pub(super) fn parse(text: &str, word: &str) -> Result<Self, FilterError> {
        let nothing_behind = |mark| FilterError::NothingBehind {
            mark,
            word: word.to_owned(),
        };
        let (what, module) = match split_module(text) {
            None if text.is_empty() => return Err(nothing_behind("!")),
            None => (text, None),
            Some((_, "")) => return Err(nothing_behind(MODULE_MARK)),
            Some((_, module)) if split_module(module).is_some() => {
                return Err(FilterError::TwoModules(word.to_owned()));
            }
            Some((what, module)) => (what, Some(module)),
        };
        Ok(Self {
            what: match what {
                "" => What::glob("*"),
                what => What::parse(what, word),
            }?,
            module: module.map(Glob::new).transpose()?,
        })
    }

    pub(super) fn matches(&self, function: &FunctionFacts<'_>) -> bool {
        self.matches_module(function.module()) && self.what.matches(function)
    }

    pub(super) fn matches_module(&self, path: &str) -> bool {
        self.module
            .as_ref()
            .is_none_or(|module| matches_path(module, path))
    }

    /// Makes the pattern that matches all functions.
    pub(super) fn everything() -> Self {
        let what = What::glob("*").expect("a star is a glob");
        Self { what, module: None }
    }

    /// Returns true if the pattern matches all functions of its modules.
    pub(super) fn matches_all_names(&self) -> bool {
        self.what.matches_everything()
    }

    /// Returns true if the pattern matches all functions.
    pub(super) fn is_everything(&self) -> bool {
        self.module.is_none() && self.matches_all_names()
    }

    /// Returns true if `text` parses as this pattern, whatever words are next to it.
    fn is_read_from(&self, text: &str) -> bool {
        let known = match (&self.what, &self.module) {
            (What::Name(name), None) => is_read_as_name(name),
            _ => None,
        };
        known.unwrap_or_else(|| self.is_parsed_from(text))
    }

    fn is_parsed_from(&self, text: &str) -> bool {
        let word = match words(text).as_deref() {
            Ok([Word { unquoted, .. }]) if !matches!(text, "+" | "-") => unquoted.clone(),
            _ => return false,
        };
        is_balanced(text) && !word.starts_with('!') && Self::parse(&word, text).as_ref() == Ok(self)
    }
}

/// Returns true if a module's path matches, or, if the glob has no `/`, its file name.
pub(super) fn matches_path(module: &Glob, path: &str) -> bool {
    if module.has_slash() {
        return module.matches(path);
    }
    module.matches(path.rsplit_once('/').map_or(path, |(_, file)| file))
}

/// Writes a word that parses as the same pattern.
impl Display for Pattern {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let module = self.module.as_ref().map_or(String::new(), |module| {
            format!("{MODULE_MARK}{}", module.text(false))
        });
        let bare = match &self.what {
            What::Name(name) | What::Symbol { symbol: name, .. } => format!("{name}{module}"),
            What::Glob(glob) if self.module.is_some() && glob.matches_everything() => {
                module.clone()
            }
            What::Glob(glob) => format!("{}{module}", glob.text(true)),
            What::Address(address) => return write!(f, "{address:#x}{module}"),
            What::Range(Range { start, end }) => return write!(f, "{start:#x}..{end:#x}{module}"),
            What::Predicate(_) => return write!(f, "{PREDICATE}{module}"),
            What::SystemCalls => return write!(f, "{SYSTEM_CALLS}{module}"),
        };
        if self.is_read_from(&bare) {
            return f.write_str(&bare);
        }
        match &self.what {
            What::Glob(glob) => write!(f, "{}{module}", glob.text(false)),
            What::Name(name) | What::Symbol { symbol: name, .. } => {
                let name = name.replace('\\', r"\\").replace('"', r#"\""#);
                write!(f, "\"{name}\"{module}")
            }
            _ => f.write_str(&bare),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks every text of up to `len` of some characters, and further ones that start with
    /// `start`.
    fn check(start: &str, len: usize, told: &mut usize) {
        let pattern = Pattern {
            what: What::Name(start.into()),
            module: None,
        };
        if let Some(known) = is_read_as_name(start) {
            assert_eq!(known, pattern.is_parsed_from(start), "{start}");
            *told += 1;
        }
        if len != 0 {
            for c in "a<>([)]-, \"*\\!+\t:".chars() {
                check(&format!("{start}{c}"), len - 1, told);
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes many minutes there")]
    fn checks_of_a_names_bytes_agree_with_parsing() {
        let mut told = 0;
        check("", 4, &mut told);
        for start in [
            "_Z1a",
            "_R",
            "0x",
            ":mod:",
            ":predicate:",
            "f(a->b",
            "\u{2003}",
            "a\r\u{b}",
        ] {
            check(start, 2, &mut told);
            check(&format!("({start}"), 1, &mut told);
        }
        assert!(told > 10_000, "{told}");
        for name in [
            "<a::B<T, U> as C>::d",
            "f(a->b)",
            "operator-",
            "{closure#0}",
        ] {
            assert_eq!(is_read_as_name(name), Some(true), "{name}");
        }
        assert_eq!(is_read_as_name("f(char const*)"), Some(false));
    }
}
