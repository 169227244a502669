//! Memory mappings of another process.

use std::fs::File;
use std::io::{self, Read as _};
use std::ops::Range;

/// Limit on the bytes of a process's maps that are read: some hundred thousand mappings, except
/// with very long names.
const MAX_MAPS: u64 = 64 << 20;

/// Mapping in `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) range: Range<u64>,
    pub(crate) executable: bool,
    pub(crate) offset: u64,
    /// Path; empty for memory without a file or another name.
    pub(crate) path: String,
}

/// Returns all mappings of a process, in the order of their addresses.
pub(crate) fn of(pid: u32) -> io::Result<Vec<Mapping>> {
    let mut maps = Vec::new();
    let file = File::open(format!("/proc/{pid}/maps"))?;
    file.take(MAX_MAPS).read_to_end(&mut maps)?;
    let lines = maps.split(|&byte| byte == b'\n');
    Ok(lines
        .filter_map(|line| parse(&String::from_utf8_lossy(line)))
        .collect())
}

/// Returns true if a process may write to its memory at an address.
#[cfg(test)]
pub(crate) fn is_writable(pid: u32, address: u64) -> io::Result<bool> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let is_there = |line: &&str| parse(line).is_some_and(|it| it.range.contains(&address));
    let line = maps.lines().find(is_there);
    Ok(line.is_some_and(|line| line.contains(" rw")))
}

/// Parses `55d0a000-55d0b000 r-xp 00001000 fe:01 1234     /usr/bin/true`.
pub(crate) fn parse(line: &str) -> Option<Mapping> {
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let rights = words.next()?;
    let offset = words.next()?;
    let (_device, _inode) = (words.next()?, words.next()?);
    let path = words.next().unwrap_or("").trim_start();
    let hex = |text| u64::from_str_radix(text, 16).ok();
    Some(Mapping {
        range: hex(start)?..hex(end)?,
        executable: rights.contains('x'),
        offset: hex(offset)?,
        path: path.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_maps_says_where_and_what() {
        let line = "7f0000001000-7f0000003000 r-xp 00001000 fe:01 12      /a b";
        let expected = Mapping {
            range: 0x7f00_0000_1000..0x7f00_0000_3000,
            executable: true,
            offset: 0x1000,
            path: "/a b".into(),
        };
        assert_eq!(parse(line), Some(expected));
        let anonymous = parse("1000-2000 rw-p 00000000 00:00 0 ").unwrap();
        assert_eq!((anonymous.path.as_str(), anonymous.executable), ("", false));
    }

    #[test]
    fn other_lines_say_nothing() {
        for line in [
            "",
            "1000",
            "1000-",
            "1-2 r",
            "x-y r-xp 0 0:0 0",
            "1-2 r 0 0:0",
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
    }
}
