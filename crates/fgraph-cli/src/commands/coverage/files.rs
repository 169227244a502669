//! Coverage in the formats of other tools.

// Long strings: elements of XML.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::text::{escaped, file_name, in_markup};

/// A function that can be traced.
#[derive(Debug)]
pub(super) struct Function {
    pub(super) name: String,
    pub(super) module: String,
    pub(super) source: Option<(String, u32)>,
    /// The distance of its start from the start of its module, and its size.
    pub(super) place: u64,
    pub(super) size: usize,
    pub(super) is_called: bool,
}

/// Returns the functions of each source file, by line and name, and true for those that were
/// called. Instances of one function are one.
fn by_source(functions: &[Function]) -> BTreeMap<&str, BTreeMap<(u32, &str), bool>> {
    let mut files: BTreeMap<&str, BTreeMap<(u32, &str), bool>> = BTreeMap::new();
    for function in functions {
        if let Some((file, line)) = &function.source {
            let of_file = files.entry(file).or_default();
            *of_file.entry((*line, &function.name)).or_default() |= function.is_called;
        }
    }
    files
}

/// Returns the lines on which functions begin, and true if one of those was called.
fn lines(functions: &BTreeMap<(u32, &str), bool>) -> BTreeMap<u32, bool> {
    let mut lines = BTreeMap::new();
    for (&(line, _), &is_called) in functions {
        *lines.entry(line).or_default() |= is_called;
    }
    lines
}

fn count_called<K>(counts: &BTreeMap<K, bool>) -> usize {
    counts.values().filter(|&&is_called| is_called).count()
}

/// Returns a tracefile of lcov.
pub(super) fn lcov(functions: &[Function]) -> String {
    let mut text = String::from("TN:\n");
    for (file, functions) in by_source(functions) {
        let lines = lines(&functions);
        // Writing to a string does not fail.
        _ = writeln!(text, "SF:{}", escaped(file));
        for (line, name) in functions.keys() {
            _ = writeln!(text, "FN:{line},{}", escaped(name));
        }
        for ((_, name), &is_called) in &functions {
            _ = writeln!(text, "FNDA:{},{}", u8::from(is_called), escaped(name));
        }
        let (all, called) = (functions.len(), count_called(&functions));
        _ = writeln!(text, "FNF:{all}\nFNH:{called}");
        for (line, &is_called) in &lines {
            _ = writeln!(text, "DA:{line},{}", u8::from(is_called));
        }
        let (all, called) = (lines.len(), count_called(&lines));
        _ = writeln!(text, "LF:{all}\nLH:{called}\nend_of_record");
    }
    text
}

/// Returns Cobertura's XML, with one package for all source files.
pub(super) fn cobertura(functions: &[Function], now: SystemTime) -> String {
    let files = by_source(functions);
    let lines_of: Vec<_> = files.values().map(lines).collect();
    let valid = lines_of.iter().map(BTreeMap::len).sum();
    let covered = lines_of.iter().map(count_called).sum();
    let seconds = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let all = rate(covered, valid);
    let mut text = format!(
        r#"<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE coverage SYSTEM "http://cobertura.sourceforge.net/xml/coverage-04.dtd">
<coverage line-rate="{all}" branch-rate="0" lines-covered="{covered}" lines-valid="{valid}" branches-covered="0" branches-valid="0" complexity="0" version="fgraph {}" timestamp="{seconds}">
<sources><source>/</source></sources>
<packages><package name="functions" line-rate="{all}" branch-rate="0" complexity="0"><classes>
"#,
        env!("CARGO_PKG_VERSION"),
    );
    // Writing to a string does not fail.
    for ((file, functions), lines) in files.iter().zip(lines_of) {
        let rate_of = rate(count_called(&lines), lines.len());
        let path = file.trim_start_matches('/');
        let name = file_name(path);
        _ = writeln!(
            text,
            r#"<class name="{}" filename="{}" line-rate="{rate_of}" branch-rate="0" complexity="0"><methods>"#,
            in_markup(name),
            in_markup(path),
        );
        for (&(line, name), &is_called) in functions {
            let hits = u8::from(is_called);
            _ = writeln!(
                text,
                r#"<method name="{}" signature="" line-rate="{hits}" branch-rate="0" complexity="0"><lines><line number="{line}" hits="{hits}"/></lines></method>"#,
                in_markup(name),
            );
        }
        text.push_str("</methods><lines>\n");
        for (line, is_called) in lines {
            let hits = u8::from(is_called);
            _ = writeln!(text, r#"<line number="{line}" hits="{hits}"/>"#);
        }
        text.push_str("</lines></class>\n");
    }
    text.push_str("</classes></package></packages></coverage>\n");
    text
}

fn rate(part: usize, all: usize) -> f64 {
    part as f64 / all.max(1) as f64
}

/// Returns a drcov log: a block of one byte where each called function begins, because nothing is
/// known about the code after it.
pub(super) fn drcov(functions: &[Function]) -> Vec<u8> {
    let mut modules: BTreeMap<&str, Vec<&Function>> = BTreeMap::new();
    for function in functions {
        modules.entry(&function.module).or_default().push(function);
    }
    let mut text = format!(
        "DRCOV VERSION: 2\nDRCOV FLAVOR: fgraph\nModule Table: version 2, count {}\n\
         Columns: id, base, end, entry, path\n",
        modules.len()
    );
    let mut blocks: Vec<[u8; 8]> = Vec::new();
    for (id, (path, functions)) in modules.iter().enumerate() {
        let ends = functions.iter();
        let ends = ends.map(|function| function.place + function.size.max(1) as u64);
        let end = ends.max().unwrap_or(0);
        // Writing to a string does not fail.
        _ = writeln!(
            text,
            "{id}, {:#018x}, {end:#018x}, {:#018x}, {}",
            0,
            0,
            escaped(path)
        );
        for function in functions.iter().filter(|function| function.is_called) {
            // The format cannot express code beyond 4 GiB.
            let Ok(start) = u32::try_from(function.place) else {
                continue;
            };
            let [size, module] = [1, id as u16].map(u16::to_le_bytes);
            let mut block = [0; 8];
            block[..4].copy_from_slice(&start.to_le_bytes());
            block[4..6].copy_from_slice(&size);
            block[6..].copy_from_slice(&module);
            blocks.push(block);
        }
    }
    _ = writeln!(text, "BB Table: {} bbs", blocks.len());
    let mut bytes = text.into_bytes();
    bytes.extend(blocks.as_flattened());
    bytes
}
