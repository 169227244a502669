//! Functions of a crate before LLVM optimizes them.
//!
//! Pass one writes the crate as LLVM IR, in text, and does not optimize it. A function begins on
//! a line of its own:
//!
//! ```text
//!   define internal noundef i32 @_RNvC3app4main(ptr noundef %x) unnamed_addr #0 {
//!   define void @"_ZN4core3ptr...$LT$...E"(ptr %0) unnamed_addr #1 {
//!                ^ quoted if it holds more than letters, digits and `-$._`; `\2C` is a byte
//! ```
//!
//! The list for LLVM has a line for each, `SYMBOL,ATTRIBUTE=VALUE`, and knows no quotes.

use std::collections::BTreeSet;
use std::io::{self, BufRead};

/// Attribute that makes LLVM leave room for a jump at the entry of each function in a list.
const ATTRIBUTE: &[u8] = b",patchable-function-entry=5\n";

/// Reads the symbols of all functions that a text of LLVM IR defines.
///
/// # Errors
///
/// Errors of reading.
pub(crate) fn defined(mut ir: impl BufRead) -> io::Result<BTreeSet<Vec<u8>>> {
    let mut symbols = BTreeSet::new();
    let mut line = Vec::new();
    while ir.read_until(b'\n', &mut line)? > 0 {
        symbols.extend(symbol(&line));
        line.clear();
    }
    Ok(symbols)
}

/// Returns the symbol of the function that starts on this line, if one does.
fn symbol(line: &[u8]) -> Option<Vec<u8>> {
    let line = line.strip_prefix(b"define ")?;
    // Types and attributes before the name contain no `@`.
    let at = line.iter().position(|&byte| byte == b'@')?;
    match &line[at + 1..] {
        [b'"', quoted @ ..] => unquote(quoted),
        plain => {
            let end = plain.iter().position(|&byte| byte == b'(')?;
            Some(plain[..end].to_vec())
        }
    }
}

/// Returns the name that ends at the next quotation mark.
fn unquote(mut text: &[u8]) -> Option<Vec<u8>> {
    let mut name = Vec::new();
    loop {
        text = match *text {
            [b'"', ..] => return Some(name),
            [b'\\', high, low, ref rest @ ..] => {
                let digits = [high, low].map(|digit| char::from(digit).to_digit(16));
                let [Some(high), Some(low)] = digits else {
                    return None;
                };
                // Two digits fit into a byte.
                name.push((high << 4 | low) as u8);
                rest
            }
            [byte, ref rest @ ..] => {
                name.push(byte);
                rest
            }
            [] => return None,
        }
    }
}

/// Returns the list for LLVM, in the order of the symbols.
///
/// Symbols that the list cannot express are left out: it cannot quote a comma or a newline.
pub(crate) fn list(symbols: &BTreeSet<Vec<u8>>, wants: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut list = Vec::new();
    for symbol in symbols {
        let fits = !symbol.iter().any(|byte| b",\r\n".contains(byte));
        if fits && wants(symbol) {
            list.extend_from_slice(symbol);
            list.extend_from_slice(ATTRIBUTE);
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbols(ir: &str) -> Vec<String> {
        let symbols = defined(ir.as_bytes()).unwrap();
        let text = |symbol| String::from_utf8(symbol).unwrap();
        symbols.into_iter().map(text).collect()
    }

    #[test]
    fn definitions_are_found_and_declarations_are_not() {
        let ir = "\
; ModuleID = 'x'
@text = constant [10 x i8] c\"define @x(\"
declare void @elsewhere(ptr)
define internal noundef range(i8 0, 2) i8 @b(ptr align 8 dereferenceable(8) %x) #0 {
  call void @elsewhere(ptr @c)
}
define void @\"_ZN4$LT$u8$GT$E\"() unnamed_addr #1 personality ptr @rust_eh_personality {
define void @a() {
define void @a() {
";
        assert_eq!(symbols(ir), ["_ZN4$LT$u8$GT$E", "a", "b"]);
    }

    #[test]
    fn escapes_become_bytes() {
        assert_eq!(
            symbols("define void @\"\\01f\\2c\\5C\\22\"() {"),
            ["\u{1}f,\\\""]
        );
    }

    #[test]
    fn garbage_is_no_function() {
        for line in [
            "define ",
            "define @",
            "define @f",
            "define @\"f",
            "define @\"\\0",
            "define @\"\\xy\"",
        ] {
            assert_eq!(symbols(line), [""; 0], "{line}");
        }
    }

    #[test]
    fn the_list_is_sorted_and_can_be_read_back() {
        let symbols = ["b", "a", "a,b", "not"].map(|s| s.as_bytes().to_vec());
        let list = list(&symbols.into(), |symbol| symbol != b"not");
        let expected = "a,patchable-function-entry=5\nb,patchable-function-entry=5\n";
        assert_eq!(String::from_utf8(list).unwrap(), expected);
    }
}
