//! Names as programmers know them.

// Long strings: mangled names.

use core::fmt::{self, Write};

use cpp_demangle::{BorrowedSymbol, DemangleOptions, DemangleWrite, ParseOptions};
use rustc_demangle::Demangle;

/// The deepest nesting of a C++ symbol's parts that is demangled.
///
/// A hostile symbol with nested expressions takes up to 284 KiB of stack at this depth, and 2.7 MiB
/// without optimisation; the symbols of LLVM take 30 KiB. A much lower limit would exclude real
/// symbols: of the symbols of libstdc++, four in five are nested deeper than 14, and of 29,055 of
/// LLVM, 317 deeper than 40 and 3 deeper than 64.
const MAX_DEPTH: u32 = 64;

/// The longest name, in bytes, that is made of a C++ symbol. A short symbol can stand for an
/// endless name, since it may refer back to its own parts.
const MAX_LEN: usize = 1 << 16;

/// Writes the name that a symbol has in the source.
///
/// Rust symbols are demangled, legacy and v0, and written without their hash and without the
/// optimiser's `.llvm.` suffix. A method of an inherent impl is written as its path in both
/// manglings: v0's `<app::Index>::build` becomes `app::Index::build`. This does not allocate.
///
/// C++ symbols are demangled and written without parameters and return type, so that all overloads
/// of `ns::Class::method` have that name. A compiler's suffix for a part of a function (`.part.0`)
/// stays. This allocates.
///
/// Any other symbol is written unchanged, and so is one with extreme nesting or length.
pub fn demangle_to(symbol: &str, out: &mut String) {
    // Writing to a string does not fail.
    let _ = match rust(symbol) {
        Some(name) => push_rust(symbol, &name, out),
        None => write_cpp(symbol, false, out),
    };
}

/// Writes like [`demangle_to`] for Rust symbols, and any other symbol unchanged.
///
/// # Errors
///
/// Fails with the errors of `out` only.
pub fn write_without_allocating(symbol: &str, out: &mut dyn Write) -> fmt::Result {
    match rust(symbol) {
        Some(name) => write_rust(symbol, &name, out),
        None => out.write_str(symbol),
    }
}

/// Parses a Rust symbol.
fn rust(symbol: &str) -> Option<Demangle<'_>> {
    // rustc_demangle also knows the prefixes of other systems, `R` and `ZN` among them. On Linux
    // such a symbol is a C function.
    let may_be_rust = symbol.starts_with("_R") || symbol.starts_with("_ZN");
    let name = may_be_rust.then(|| rustc_demangle::try_demangle(symbol));
    name?.ok()
}

/// Writes like [`write_rust`] in one pass, to a string whose end can be changed.
fn push_rust(symbol: &str, name: &Demangle<'_>, out: &mut String) -> fmt::Result {
    let start = out.len();
    write!(out, "{name:#}")?;
    let name = &out[start..];
    if name.is_empty() {
        return out.write_str(symbol);
    }
    let mut brackets = Brackets::default();
    // Fails on purpose, after enough has been written.
    let _ = brackets.write_str(name);
    if let Some(end) = brackets.inherent() {
        out.remove(start + end);
        out.remove(start);
    }
    Ok(())
}

fn write_rust(symbol: &str, name: &Demangle<'_>, out: &mut dyn Write) -> fmt::Result {
    let mut brackets = Brackets::default();
    // Fails on purpose, after enough has been written.
    let _ = write!(brackets, "{name:#}");
    if brackets.is_empty() {
        return out.write_str(symbol);
    }
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

/// Returns the name that a symbol has in the source.
pub fn to_string(symbol: &str) -> String {
    let mut name = String::new();
    demangle_to(symbol, &mut name);
    name
}

/// Writes the name that a symbol has in the source, with everything that distinguishes it from
/// others.
///
/// A Rust symbol is written with its hash or the hashes of its crates, and with angle brackets
/// around its impl where it has them; a C++ symbol with parameters, but without the return type.
/// Any other symbol is written unchanged.
///
/// # Errors
///
/// Fails with the errors of `out` only.
pub fn write_full(symbol: &str, out: &mut dyn Write) -> fmt::Result {
    match rust(symbol) {
        Some(name) => write!(out, "{name}"),
        None => write_cpp(symbol, true, out),
    }
}

/// Writes the name that a C++ symbol has in the source, and any other symbol unchanged.
fn write_cpp(symbol: &str, parameters: bool, out: &mut dyn Write) -> fmt::Result {
    let (mangled, suffix) = symbol.split_at(symbol.find('.').unwrap_or(symbol.len()));
    match cpp(mangled, parameters) {
        Some(name) => out.write_str(&name).and_then(|()| out.write_str(suffix)),
        None => out.write_str(symbol),
    }
}

/// Returns the name that a C++ symbol has in the source.
fn cpp(symbol: &str, parameters: bool) -> Option<String> {
    struct Bounded(String);
    impl DemangleWrite for Bounded {
        fn write_string(&mut self, text: &str) -> fmt::Result {
            if text.len() > MAX_LEN - self.0.len() {
                return Err(fmt::Error);
            }
            self.0.push_str(text);
            Ok(())
        }
    }
    if !symbol.starts_with("_Z") || symbol.len() > MAX_LEN {
        return None;
    }
    let parse = ParseOptions::default().recursion_limit(MAX_DEPTH);
    let (parsed, rest) = BorrowedSymbol::with_tail_and_options(symbol.as_bytes(), &parse).ok()?;
    let options = DemangleOptions::new()
        .no_return_type()
        .recursion_limit(MAX_DEPTH);
    let options = if parameters {
        options
    } else {
        options.no_params()
    };
    let mut name = Bounded(String::new());
    parsed.structured_demangle(&mut name, &options).ok()?;
    let mut name = name.0;
    // The qualifiers of a method are removed together with its parameters.
    while !parameters
        && let Some((before, " const" | " volatile" | " &" | " &&")) = last_word(&name)
    {
        name.truncate(before);
    }
    (rest.is_empty() && !name.is_empty()).then_some(name)
}

/// Returns the last word of a name with the space before it, and its offset.
fn last_word(name: &str) -> Option<(usize, &str)> {
    let space = name.rfind(' ')?;
    Some((space, &name[space..]))
}

/// Finds the end of a type in angle brackets at the start of a name.
#[derive(Default)]
struct Brackets {
    /// The number of bytes written.
    len: usize,
    depth: usize,
    last: u8,
    /// The bytes since the last space at depth 1, as long as they may be ` as `.
    word: usize,
    is_trait: bool,
    closed: Option<usize>,
}

impl Brackets {
    /// Returns true if nothing was written.
    fn is_empty(&self) -> bool {
        self.last == 0
    }

    /// Returns the offset at which the bracket closes with which the name starts, unless it names a
    /// trait.
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
            self.last = byte;
            if self.depth == 0 {
                // The name does not start with a bracket, or the bracket has closed.
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
            self.len += 1;
        }
        Ok(())
    }
}

/// Leaves two bytes out of the written text.
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
        for (symbol, name) in [
            (
                "_RNvMNtCs1234_7mycrate5indexNtB2_5Index5build",
                "mycrate::index::Index::build",
            ),
            (
                "_RNvXNtCs1234_7mycrate5indexNtB2_5IndexNtB2_5Trait5build",
                "<mycrate::index::Index as mycrate::index::Trait>::build",
            ),
        ] {
            let mut written = String::new();
            super::write_without_allocating(symbol, &mut written).unwrap();
            assert_eq!([&demangle(symbol), &written], [name; 2]);
        }
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
    fn cpp_symbols_are_demangled_without_parameters() {
        for (symbol, name) in [
            ("_ZN3foo3barEv", "foo::bar"),
            ("_ZNK2ns5Class6methodEi", "ns::Class::method"),
            ("_ZN2ns5ClassD0Ev", "ns::Class::~Class"),
            ("_ZN2ns5ClasscvbEv", "ns::Class::operator bool"),
            ("_ZN2ns5ClassanERKS0_", "ns::Class::operator&"),
            ("_ZNKR2ns5Class6methodEv", "ns::Class::method"),
            ("_ZZ4mainENKUlvE_clEv", "main::{lambda()#1}::operator()"),
            ("_Z1fIiEvT_", "f<int>"),
            ("_ZN12_GLOBAL__N_13fooEv", "(anonymous namespace)::foo"),
            ("_ZN2ns3absB5cxx11Ev", "ns::abs[abi:cxx11]"),
            ("_ZN2ns1fEi.part.0", "ns::f.part.0"),
            ("_ZN2ns1fEi.constprop.0.isra.0", "ns::f.constprop.0.isra.0"),
        ] {
            assert_eq!(demangle(symbol), name);
        }
    }

    #[test]
    #[cfg_attr(
        miri,
        ignore = "cpp_demangle compares the addresses of vtables, which Miri makes at random"
    )]
    fn full_names_tell_overloads_and_instances_apart() {
        let full = |symbol: &str| {
            let mut name = String::new();
            super::write_full(symbol, &mut name).unwrap();
            name
        };
        assert_eq!(
            full("_ZNK2ns5Class6methodEi"),
            "ns::Class::method(int) const"
        );
        assert_eq!(
            full("_ZNK2ns5Class6methodEd"),
            "ns::Class::method(double) const"
        );
        assert_eq!(full("_Z1fIiEvT_.part.0"), "f<int>(int).part.0");
        assert_eq!(
            full("_ZN3app4main17h0123456789abcdefE"),
            "app::main::h0123456789abcdef"
        );
        let [a, b] = ["_RINvCs1234_3app3runhEB2_", "_RINvCs1234_3app3runmEB2_"].map(full);
        assert_ne!(a, b);
        assert_eq!(full("main"), "main");
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes half an hour there")]
    fn hostile_symbols_are_left_as_they_are() {
        // Deeper than the stack, in the ways in which types and names nest.
        let deep = |open: &str, close: &str| {
            format!("_Z1f{}i{}", open.repeat(20_000), close.repeat(20_000))
        };
        // Twice as long with each letter.
        let mut long = "_Z1fI1aE1bIS_S_E".to_owned();
        for index in 0..30 {
            let last = char::from_digit(index, 36).unwrap().to_ascii_uppercase();
            long += &format!("1cIS{last}_S{last}_E");
        }
        let symbols = [
            deep("P", ""),
            deep("FvP", "E"),
            deep("1aI", "E"),
            deep("N1aI", "E1bE"),
            format!("_Z1fIX{}", "pl".repeat(20_000)),
            // The largest frames of the parser that were found, with and without optimisation.
            format!("_Z1fIX{}", "ixdldldldatr".repeat(200)),
            format!("_Z1fIX{}", "dl".repeat(200)),
            format!("_Z1fIi{}vT_", "DpT_".repeat(10_000)),
            format!("_ZN{}1aE", "1b".repeat(20_000)),
            long,
        ];
        // Without optimisation it takes many times as much.
        let stack = if cfg!(debug_assertions) {
            3 << 20
        } else {
            384 << 10
        };
        let small = std::thread::Builder::new().stack_size(stack);
        let thread = small.spawn(move || {
            for symbol in symbols {
                let name = demangle(&symbol);
                assert!(name == symbol || name.len() <= super::MAX_LEN);
            }
        });
        thread.unwrap().join().unwrap();
    }

    #[test]
    fn other_symbols_are_left_as_they_are() {
        for symbol in [
            "",
            "main",
            "_Z",
            "_ZNE",
            "_Zfoo",
            "_ZN3foo3barEv_",
            "__Z3foov",
            "foo.part.0",
            "_ZN3foo",
            "RC1_a",
            "ZN1aE",
            "_R",
            "_ZN",
        ] {
            assert_eq!(demangle(symbol), symbol);
        }
    }
}
