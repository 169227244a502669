//! Selects the functions that get a NOP.

use std::borrow::Cow;

use fgraph::{Filter, FunctionFacts};

/// Crates of the tracer itself, by their names in Rust. Code on the way into and out of a traced
/// function is never traced.
const OWN_CRATES: [&str; 5] = [
    "fgraph",
    "fgraph_core",
    "fgraph_x86_64",
    "fgraph_tracers",
    "fgraph_preload",
];

/// True if the crate of this name is one of the tracer's own.
pub(crate) fn is_own_crate(name: &str) -> bool {
    OWN_CRATES.contains(&name)
}

/// True if the function with this symbol gets a NOP: it is selected, and is none of the tracer's
/// own generic functions, which are compiled in the crates that use them.
pub(crate) fn wants(filter: &Filter, symbol: &[u8]) -> bool {
    let symbol = String::from_utf8_lossy(symbol);
    let name = demangle(&symbol);
    !is_own_function(&name) && filter.matches(&FunctionFacts::new(&[&*name], ""))
}

fn is_own_function(name: &str) -> bool {
    let path = name.trim_start_matches('<');
    path.split_once("::")
        .is_some_and(|(first, _)| is_own_crate(first))
}

/// Returns the name that a symbol has in the source, in the tracer's notation: without the hash,
/// and with a method of an inherent impl as its path, whatever the mangling is.
fn demangle(symbol: &str) -> Cow<'_, str> {
    // rustc_demangle also knows the prefixes of other systems, `R` and `ZN` among them.
    let may_be_rust = symbol.starts_with("_R") || symbol.starts_with("_ZN");
    match rustc_demangle::try_demangle(symbol) {
        Ok(name) if may_be_rust => without_brackets(format!("{name:#}")).into(),
        _ => symbol.into(),
    }
}

/// Turns v0's `<app::Index>::build` into `app::Index::build`, and leaves traits alone.
fn without_brackets(name: String) -> String {
    let mut depth = 0_usize;
    for (at, char) in name.char_indices() {
        match char {
            '<' => depth += 1,
            // The arrow of a function pointer does not close a bracket.
            '>' if !name[..at].ends_with('-') => depth = depth.saturating_sub(1),
            ' ' if depth == 1 && name[at..].starts_with(" as ") => break,
            _ => {}
        }
        if depth == 0 {
            if at == 0 {
                break;
            }
            return [&name[1..at], &name[at + 1..]].concat();
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_source() {
        for (symbol, name) in [
            ("_ZN3app4main17h0123456789abcdefE", "app::main"),
            ("_RNvC3app4main", "app::main"),
            ("_RNvMC3appNtB2_5Index5build", "app::Index::build"),
            ("main", "main"),
            ("R", "R"),
        ] {
            assert_eq!(demangle(symbol), name, "{symbol}");
        }
    }

    #[test]
    fn only_the_brackets_of_an_inherent_impl_are_taken_off() {
        for (name, expected) in [
            ("<a::B>::c", "a::B::c"),
            ("<a::B<fn() -> c::D>>::e", "a::B<fn() -> c::D>::e"),
            ("<a::B as c::D>::e", "<a::B as c::D>::e"),
            ("<a::B<c as d>>::e", "a::B<c as d>::e"),
            ("a::b::<c>", "a::b::<c>"),
            ("", ""),
            ("<", "<"),
        ] {
            assert_eq!(without_brackets(name.into()), expected);
        }
    }

    #[test]
    fn the_filter_sees_demangled_names() {
        let filter = Filter::none()
            .trace("app::*")
            .and_then(|f| f.notrace("*::new"));
        let filter = filter.unwrap();
        assert!(wants(&filter, b"_ZN3app4main17h0123456789abcdefE"));
        assert!(!wants(&filter, b"_ZN3app3new17h0123456789abcdefE"));
        assert!(!wants(&filter, b"main"));
        assert!(wants(&Filter::all(), b"main"));
    }

    #[test]
    fn the_tracers_own_functions_are_left_out() {
        assert!(!wants(
            &Filter::all(),
            b"_ZN11fgraph_core4slot17h0123456789abcdefE"
        ));
        assert!(wants(
            &Filter::all(),
            b"_ZN11fgraph_user4slot17h0123456789abcdefE"
        ));
        assert!(is_own_function(
            "<fgraph::Handle<app::User> as core::ops::Drop>::drop"
        ));
        assert!(!is_own_function("<app::User as fgraph::FgraphOps>::entry"));
    }
}
