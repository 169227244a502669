//! Untrusted names, and numbers, as text for people.

use std::cmp::Ordering;

use fgraph_trace::text::escaped;

/// Returns a name from a program as text or an attribute in HTML and XML.
pub fn in_markup(text: &str) -> String {
    let text = escaped(text);
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

/// Returns a function with its module, if that is known: `free [libc.so.6]`.
pub fn named(name: &str, module: &str) -> String {
    match module {
        "" => name.to_owned(),
        module => format!("{name} [{module}]"),
    }
}

/// Returns the last part of a path.
pub fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Formats a number and the noun that it counts, which ends in "s" for several.
pub fn counted(count: u64, noun: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{} {noun}{ending}", grouped(count))
}

/// Formats a number of calls.
pub fn calls(count: u64) -> String {
    counted(count, "call")
}

/// Formats a number of functions.
pub fn functions(count: u64) -> String {
    counted(count, "function")
}

/// Formats a number with commas between thousands.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (n, digit) in digits.chars().enumerate() {
        if n != 0 && (digits.len() - n).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats nanoseconds in the unit that fits: `12.345 us`.
pub fn time(nanoseconds: u64) -> String {
    let ns = nanoseconds as f64;
    match nanoseconds {
        0..1_000 => format!("{nanoseconds} ns"),
        1_000..1_000_000 => format!("{:.3} us", ns / 1e3),
        1_000_000..1_000_000_000 => format!("{:.3} ms", ns / 1e6),
        _ => format!("{:.3} s", ns / 1e9),
    }
}

/// Formats the change of a time: `+1.500 us`.
pub fn signed_time(old: u64, new: u64) -> String {
    match new.cmp(&old) {
        Ordering::Less => format!("-{}", time(old - new)),
        Ordering::Equal => "0".to_owned(),
        Ordering::Greater => format!("+{}", time(new - old)),
    }
}

/// Formats a part of a whole in percent.
pub fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => "0.0".to_owned(),
        _ => format!("{:.1}", part as f64 * 100.0 / whole as f64),
    }
}

/// Formats bytes in the unit that fits: `1.5 MiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut size = bytes as f64 / 1024.0;
    let mut unit = 0;
    while size >= 1024.0 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    format!("{size:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_text_in_markup() {
        let text = in_markup("a<b>&\"c\"\x1b");
        assert_eq!(text, r"a&lt;b&gt;&amp;&quot;c&quot;\x1b");
    }

    #[test]
    fn numbers_are_readable() {
        assert_eq!(grouped(7), "7");
        assert_eq!(grouped(123_456), "123,456");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(time(999), "999 ns");
        assert_eq!(time(12_345), "12.345 us");
        assert_eq!(time(61_500_000_000), "61.500 s");
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(u64::MAX), "16384.0 PiB");
    }
}
