//! Names as programmers know them.

use core::fmt::{self, Write};

/// Writes the name that a symbol has in the source.
///
/// Rust symbols are demangled, legacy and v0, and written without their hash and without the
/// `.llvm.` suffix that the optimiser leaves. A method of an inherent impl reads as its path
/// whatever the mangling is: v0's `<app::Index>::build` becomes `app::Index::build`. Any other
/// symbol is written as it is. Nothing is allocated.
///
/// # Errors
///
/// Only those of `out`.
pub(crate) fn demangle_to(symbol: &str, out: &mut dyn Write) -> fmt::Result {
    // rustc_demangle also knows the prefixes of other systems, `R` and `ZN` among them. Here such
    // a symbol is a C function.
    let may_be_rust = symbol.starts_with("_R") || symbol.starts_with("_ZN");
    let name = match rustc_demangle::try_demangle(symbol) {
        Ok(name) if may_be_rust => name,
        _ => return out.write_str(symbol),
    };
    let mut brackets = Brackets::default();
    // Fails on purpose, when it has seen enough.
    let _ = write!(brackets, "{name:#}");
    match brackets.inherent() {
        Some(end) => {
            let without = [0, end];
            write!(
                Without {
                    out,
                    at: 0,
                    without
                },
                "{name:#}"
            )
        }
        None => write!(out, "{name:#}"),
    }
}

/// The name that a symbol has in the source.
pub(crate) fn to_string(symbol: &str) -> String {
    let mut name = String::new();
    // Writing to a string does not fail.
    let _ = demangle_to(symbol, &mut name);
    name
}

/// Looks whether a name starts with a type in angle brackets, and where they close.
#[derive(Default)]
struct Brackets {
    /// Bytes seen.
    len: usize,
    depth: usize,
    last: u8,
    /// The bytes since the last space at depth 1, as far as they tell ` as `.
    word: usize,
    is_trait: bool,
    closed: Option<usize>,
}

impl Brackets {
    /// Where the bracket closes that the name starts with, unless it names a trait.
    fn inherent(&self) -> Option<usize> {
        self.closed.filter(|_| !self.is_trait)
    }
}

impl Write for Brackets {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            match byte {
                b'<' => self.depth += 1,
                // Not the arrow of a function pointer.
                b'>' if self.last != b'-' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        self.closed = Some(self.len);
                    }
                }
                _ => {}
            }
            if self.depth == 0 {
                // Either the name does not start with a bracket, or it has closed.
                return Err(fmt::Error);
            }
            let as_word = b" as ";
            self.word = match self.word {
                word if self.depth == 1 && byte == as_word[word] => word + 1,
                _ => usize::from(self.depth == 1 && byte == b' '),
            };
            if self.word == as_word.len() {
                self.is_trait = true;
                return Err(fmt::Error);
            }
            self.last = byte;
            self.len += 1;
        }
        Ok(())
    }
}

/// Leaves out two bytes of what is written.
struct Without<'a> {
    out: &'a mut dyn Write,
    at: usize,
    without: [usize; 2],
}

impl Write for Without<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        for place in self.without {
            if (self.at..self.at + rest.len()).contains(&place) {
                let (before, from) = rest.split_at(place - self.at);
                self.out.write_str(before)?;
                rest = &from[1..];
                self.at = place + 1;
            }
        }
        self.at += rest.len();
        self.out.write_str(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::to_string as demangle;

    #[test]
    fn inherent_methods_read_as_paths() {
        assert_eq!(
            demangle("_RNvMNtCs1234_7mycrate5indexNtB2_5Index5build"),
            "mycrate::index::Index::build"
        );
        assert_eq!(
            demangle("_RNvXNtCs1234_7mycrate5indexNtB2_5IndexNtB2_5Trait5build"),
            "<mycrate::index::Index as mycrate::index::Trait>::build"
        );
    }

    #[test]
    fn rust_symbols_are_demangled_without_hash() {
        assert_eq!(demangle("_ZN3app4main17h0123456789abcdefE"), "app::main");
        assert_eq!(
            demangle(
                "_ZN4core3fmt3num50_$LT$impl$u20$core..fmt..Debug$u20$for$u20$u32$GT$3fmt17h0123456789abcdefE.llvm.1234"
            ),
            "core::fmt::num::<impl core::fmt::Debug for u32>::fmt"
        );
        assert_eq!(demangle("_RNvCs1234_7mycrate3foo"), "mycrate::foo");
        assert_eq!(
            demangle("_RNvCs1234_7mycrate3foo.llvm.99AF"),
            "mycrate::foo"
        );
    }

    #[test]
    fn other_symbols_are_left_as_they_are() {
        for symbol in [
            "",
            "main",
            "_ZN3foo3barEv",
            "foo.part.0",
            "RC1_a",
            "ZN1aE",
            "_R",
            "_ZN",
        ] {
            assert_eq!(demangle(symbol), symbol);
        }
    }
}
