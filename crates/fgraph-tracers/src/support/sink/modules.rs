//! Which modules were loaded when a recording began.

use std::collections::BTreeMap;
use std::fs;

use fgraph_trace::names::{DescriptionKind, process_number};
use fgraph_trace::ring::Rings;

/// Describes the modules of the process, from the list of its mappings. It has executed so many
/// programs before.
pub(super) fn describe(rings: &Rings, executed: u32) {
    let Ok(maps) = fs::read_to_string("/proc/self/maps") else {
        return;
    };
    for (path, (start, end)) in modules(&maps) {
        let process = process_number(std::process::id(), executed);
        let fields = [process.into(), start, end, 0];
        rings.describe(DescriptionKind::Module, fields, [path, ""]);
    }
}

/// The files with mapped code, each from its first to its last address.
fn modules(maps: &str) -> BTreeMap<&str, (u64, u64)> {
    let mut found: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    let mut code = Vec::new();
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(range), Some(access)) = (words.next(), words.next()) else {
            continue;
        };
        let Some(path) = line.find('/').map(|at| &line[at..]) else {
            continue;
        };
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let range = range.split_once('-');
        let Some((start, end)) = range.and_then(|(start, end)| hex(start).zip(hex(end))) else {
            continue;
        };
        let known = found.entry(path).or_insert((start, end));
        *known = (known.0.min(start), known.1.max(end));
        if access.contains('x') {
            code.push(path);
        }
    }
    found.retain(|path, _| code.contains(path));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_with_code_are_modules() {
        let maps = "\
1000-2000 r--p 00000000 fe:00 12 /bin/a program
2000-3000 r-xp 00001000 fe:00 12 /bin/a program
4000-5000 rw-p 00000000 00:00 0
5000-6000 r--p 00000000 fe:00 13 /usr/share/locale
7000-8000 r-xp 00000000 00:00 0 [vdso]
nonsense
";
        let found = modules(maps);
        assert_eq!(
            found.into_iter().collect::<Vec<_>>(),
            [("/bin/a program", (0x1000, 0x3000))]
        );
    }
}
