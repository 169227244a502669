//! The mirror that apt is configured with.

use std::fs;
use std::path::{Path, PathBuf};

/// Address of the mirror that this machine has its own release from.
pub(super) fn find() -> Option<String> {
    let release = fs::read_to_string("/etc/os-release").ok()?;
    let mut lines = release.lines();
    let suite = lines.find_map(|line| line.strip_prefix("VERSION_CODENAME="))?;
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    let parts = fs::read_dir("/etc/apt/sources.list.d").ok();
    files.extend(
        parts
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path()),
    );
    let address_in = |path: PathBuf| address(&path, &fs::read_to_string(&path).ok()?, suite);
    files.into_iter().find_map(address_in)
}

/// The first address in a file of apt's that has packages of `suite`.
fn address(path: &Path, text: &str, suite: &str) -> Option<String> {
    match path.extension()?.to_str()? {
        "list" => text.lines().find_map(|line| of_line(line, suite)),
        "sources" => text.split("\n\n").find_map(|part| of_part(part, suite)),
        _ => None,
    }
}

/// `deb [options] address suite component...`
fn of_line(line: &str, suite: &str) -> Option<String> {
    let rest = line.strip_prefix("deb ")?.trim_start();
    let rest = match rest.strip_prefix('[') {
        Some(options) => options.split_once(']')?.1,
        None => rest,
    };
    let mut words = rest.split_whitespace();
    let address = words.next()?;
    (words.next()? == suite).then(|| address.to_owned())
}

/// Fields in lines, `URIs: address...` and `Suites: suite...` among them.
fn of_part(part: &str, suite: &str) -> Option<String> {
    let words = |field: &str| {
        let mut lines = part.lines();
        let text = lines.find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        text.unwrap_or_default().split_whitespace()
    };
    let has = |field, word| words(field).any(|other| other == word);
    let address = words("URIs").next()?;
    (has("Types", "deb") && has("Suites", suite)).then(|| address.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_of_the_release_is_found_in_both_forms() {
        let list = "# a comment\ndeb m:/other stable main\n\
            deb [arch=amd64 signed-by=/k] m:/debian bookworm main contrib\n";
        let found = address(Path::new("sources.list"), list, "bookworm");
        assert_eq!(found.as_deref(), Some("m:/debian"));
        let sources = "Types: deb\nURIs: m:/security\nSuites: bookworm-security\n\n\
            Types: deb deb-src\n# a comment\nURIs: m:/debian m:/2\nSuites: bookworm b-updates\n";
        let path = Path::new("debian.sources");
        let found = address(path, sources, "bookworm");
        assert_eq!(found.as_deref(), Some("m:/debian"));
        assert_eq!(address(path, sources, "trixie"), None);
        assert_eq!(
            address(Path::new("debian.sources.bak"), sources, "bookworm"),
            None
        );
    }
}
