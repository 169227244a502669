//! Modules that were loaded when a recording began.

use std::fs;

use fgraph_trace::names::{DescriptionKind, process_number};
use fgraph_trace::ring::Rings;

/// Describes the modules of the process, from the list of its mappings. `executed` is the number of
/// programs that it has executed before.
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

/// Returns the files with mapped code, each with the first and the last address of its consecutive
/// mappings. A file that is mapped once more only to be read is no module there.
fn modules(maps: &str) -> Vec<(&str, (u64, u64))> {
    let mut found: Vec<(&str, (u64, u64))> = Vec::new();
    // True if the last module has code.
    let mut has_code = false;
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(range), Some(access), Some(offset)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        let path = line.find('/').map(|at| &line[at..]);
        // Memory without a file may be between the parts of a module.
        let Some(path) = path.filter(|path| !path.starts_with("/memfd:")) else {
            continue;
        };
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let range = range.split_once('-');
        let Some((start, end)) = range.and_then(|(start, end)| hex(start).zip(hex(end))) else {
            continue;
        };
        match found.last_mut() {
            Some((of, known)) if *of == path && hex(offset) != Some(0) => known.1 = end,
            _ => {
                if !has_code {
                    found.pop();
                }
                found.push((path, (start, end)));
                has_code = false;
            }
        }
        has_code |= access.contains('x');
    }
    if !has_code {
        found.pop();
    }
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
4800-4900 r-xs 00000000 00:01 99 /memfd:ours (deleted)
4900-5000 rw-p 00003000 fe:00 12 /bin/a program
5000-5800 r--p 00000000 fe:00 12 /bin/a program
5800-6000 r--p 00000000 fe:00 13 /usr/share/locale
6000-6800 r--p 00000000 fe:00 12 /bin/a program
7000-8000 r-xp 00000000 00:00 0 [vdso]
nonsense
";
        let found = modules(maps);
        assert_eq!(found, [("/bin/a program", (0x1000, 0x5000))]);
    }
}
