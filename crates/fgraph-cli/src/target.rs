//! Functions and processes as command lines name them.

/// Parses the number of a process.
pub(crate) fn parse_pid(text: &str) -> Result<u32, &'static str> {
    text.parse().map_err(|_| "a process number is expected")
}

/// A function as `MODULE:NAME`, such as `libc:open*`, as words of a filter, each of which selects
/// some; what is no such thing stays as it is.
///
/// A module without `.so` is a program of that name, or a library of any version.
pub(crate) fn words(text: &str) -> Vec<String> {
    if let Some(text) = text.strip_prefix('!') {
        let words = words(text).into_iter();
        return words.map(|word| format!("!{word}")).collect();
    }
    match split(text) {
        None => vec![text.to_owned()],
        Some((module, name)) if module.contains(".so") => vec![format!("{name}:mod:{module}")],
        Some((module, name)) => ["", ".so*", "-*.so*"]
            .map(|version| format!("{name}:mod:{module}{version}"))
            .into(),
    }
}

/// Module and name, unless the text is a path of names, or has a module already.
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
            let filter: Filter = words(text).join(" ").parse().unwrap();
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
        ] {
            assert_eq!(
                selects(text, name, module),
                expected,
                "{text} {name} {module}"
            );
        }
    }
}
