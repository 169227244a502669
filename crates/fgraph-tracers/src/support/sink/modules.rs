//! Modules that were loaded when a recording began.

use std::borrow::Cow;
use std::fs;
use std::ops::Range;

use fgraph_symbols::mapping::Mapping;
use fgraph_trace::names::{DescriptionKind, process_number};
use fgraph_trace::ring::Rings;

/// Describes the modules of the process, from the list of its mappings. `executed` is the number of
/// programs that it has executed before.
pub(super) fn describe(rings: &Rings, executed: u32) {
    let Ok(maps) = fs::read("/proc/self/maps") else {
        return;
    };
    for (path, (start, end)) in modules(&maps) {
        let process = process_number(std::process::id(), executed);
        let fields = [process.into(), start, end, 0];
        let path = String::from_utf8_lossy(&path);
        rings.describe(DescriptionKind::Module, fields, [&path, ""]);
    }
}

/// The path of a file, and its first and last address.
pub(crate) type Module<'a> = (Cow<'a, [u8]>, (u64, u64));

/// Returns the files with mapped code, each with the first and the last address of its consecutive
/// mappings. A file that is mapped once more only to be read is no module there.
pub(crate) fn modules(maps: &[u8]) -> Vec<Module<'_>> {
    let mut found: Vec<Module<'_>> = Vec::new();
    // True if the last module has code.
    let mut has_code = false;
    // Memory without a file may be between the parts of a module.
    let is_file = |path: &[u8]| path.starts_with(b"/") && !path.starts_with(b"/memfd:");
    for mapping in Mapping::all(maps).filter(|mapping| is_file(&mapping.path)) {
        let Range { start, end } = mapping.range;
        match found.last_mut() {
            Some((of, known)) if *of == mapping.path && mapping.offset != 0 => known.1 = end,
            _ => {
                if !has_code {
                    found.pop();
                }
                found.push((mapping.path, (start, end)));
                has_code = false;
            }
        }
        has_code |= mapping.protection.executable;
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
        let maps = b"\
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
        assert_eq!(found, [(b"/bin/a program".into(), (0x1000, 0x5000))]);
    }
}
