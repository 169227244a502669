//! Functions and processes as command lines name them.

use fgraph_analysis::python::PYTHON;
use fgraph_symbols::filter;
use serde::{Deserialize, Serialize};

/// Parses the number of a process.
pub(crate) fn parse_pid(text: &str) -> Result<u32, &'static str> {
    text.parse().map_err(|_| match text.contains(',') {
        true => "this takes the number of one process",
        false => "a process number is expected",
    })
}

/// The functions that one word of a command line selects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pattern {
    /// The word.
    pub(crate) text: String,
    /// Words of a filter: each selects some of the functions.
    pub(crate) words: Vec<String>,
}

impl Pattern {
    /// Returns true if it selects functions of Python.
    pub(crate) fn is_of_python(&self) -> bool {
        let module = split(self.text.trim_start_matches('!'));
        module.is_some_and(|(module, _)| module == PYTHON)
    }
}

/// Parses words that each name functions.
pub(crate) fn parse_patterns(text: &str) -> Result<Patterns, String> {
    let words = filter::split(text).map_err(|error| error.to_string())?;
    if words.is_empty() {
        return Err("the name of a function is expected".to_owned());
    }
    let pattern = |word: &str| Pattern {
        text: word.to_owned(),
        words: expanded(word),
    };
    Ok(Patterns(words.into_iter().map(pattern).collect()))
}

/// An argument that selects functions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Patterns(pub(crate) Vec<Pattern>);

impl Patterns {
    /// Iterates over the words of a filter that select the functions.
    pub(crate) fn words(&self) -> impl Iterator<Item = String> {
        self.0.iter().flat_map(|pattern| pattern.words.clone())
    }
}

/// Converts `MODULE:NAME`, such as `libc:open*`, and `crate:NAME` to words of a filter; other text
/// stays unchanged.
///
/// A module without `.so` is a program of that name, or a library of any version. `crate:a|b` has
/// the functions, methods and implementations of traits of these Rust crates.
fn expanded(text: &str) -> Vec<String> {
    if let Some(text) = text.strip_prefix('!') {
        let words = expanded(text).into_iter();
        return words.map(|word| format!("!{word}")).collect();
    }
    if let Some(names) = text.strip_prefix("crate:") {
        let of_crate = |name: &str| {
            let name = name.replace('-', "_");
            ["", "<", r"<*\ as\ "].map(|before| format!("{before}{name}::*"))
        };
        return names.split('|').flat_map(of_crate).collect();
    }
    match split(text) {
        None => vec![text.to_owned()],
        Some((module, name)) if module.contains(".so") => vec![format!("{name}:mod:{module}")],
        Some((module, name)) => ["", ".so*", "-*.so*"]
            .map(|version| format!("{name}:mod:{module}{version}"))
            .into(),
    }
}

/// Returns module and name, unless the text is a path of names, or has a module already.
fn split(text: &str) -> Option<(&str, &str)> {
    let end = text.find(['<', '(', '[', '"', '\\', ' ']);
    let colon = text.find(':')?;
    let (module, name) = (&text[..colon], &text[colon + 1..]);
    let is_module = !module.is_empty() && end.is_none_or(|end| colon < end);
    let is_name = !name.is_empty() && !name.starts_with(':') && !text.contains(":mod:");
    (is_module && is_name).then_some((module, name))
}

#[cfg(test)]
mod tests {
    use fgraph_symbols::filter::{Filter, FunctionFacts};

    use super::*;

    #[test]
    fn a_function_may_have_its_module_before_it() {
        let selects = |text: &str, name, module| {
            let words: Vec<String> = parse_patterns(text).unwrap().words().collect();
            let filter: Filter = words.join(" ").parse().unwrap();
            filter.matches(&FunctionFacts::new(&[name], module))
        };
        let libc = "/lib/x86_64-linux-gnu/libc.so.6";
        for (text, name, module, expected) in [
            ("libc:open*", "open64", libc, true),
            ("libc:open*", "open64", "/usr/lib/libc-2.31.so", true),
            ("libc:open*", "open64", "/usr/lib/libcap.so.2", false),
            ("libc:open*", "close", libc, false),
            ("libc.so.6:open", "open", libc, true),
            ("libc.so.5:open", "open", libc, false),
            ("server:main", "main", "/opt/server", true),
            ("server:main", "main", "/opt/server2", false),
            ("server:a::b", "a::b", "/opt/server", true),
            ("malloc", "malloc", libc, true),
            ("a::b", "a::b", libc, true),
            ("a::b", "b", "/opt/a", false),
            ("<T as a:b>::c", "<T as a:b>::c", libc, true),
            ("open:mod:libc.so*", "open", libc, true),
            ("!libc:open", "open", libc, false),
            ("!libc:open", "open", "/opt/a", true),
            ("libc:open libc:close", "close", libc, true),
            ("a::b,libc:close", "close", libc, true),
            ("a::b,libc:close", "close", "/opt/a", false),
            ("crate:my-app", "my_app::main", "/opt/a", true),
            ("crate:my-app|b", "<b::T>::new", "/opt/a", true),
            ("crate:b", "<core::T<u8> as b::C>::c", "/opt/a", true),
            ("crate:b", "core::b::c", "/opt/a", false),
            ("!crate:b", "b::c", "/opt/a", false),
        ] {
            assert_eq!(
                selects(text, name, module),
                expected,
                "{text} {name} {module}"
            );
        }
    }
}
