//! Memory mappings of a process, as the kernel lists them in `/proc/PID/maps`.

use std::borrow::Cow;
use std::ops::Range;

/// Protection of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Protection {
    /// True if it is readable.
    pub readable: bool,
    /// True if it is writable.
    pub writable: bool,
    /// True if it is executable.
    pub executable: bool,
}

/// A line of `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping<'a> {
    /// Its addresses.
    pub range: Range<u64>,
    /// Its current protection.
    pub protection: Protection,
    /// True if other processes see what is written to it.
    pub is_shared: bool,
    /// Offset of its first byte in the file; 0 if it has none.
    pub offset: u64,
    /// Major and minor number of the file's device; 0 if it has none.
    pub device: (u32, u32),
    /// Inode number of its file; 0 if it has none.
    pub inode: u64,
    /// The path of the file, with ` (deleted)` after it if the file no longer has it; or a name
    /// such as `[stack]`, or empty.
    pub path: Cow<'a, [u8]>,
}

impl<'a> Mapping<'a> {
    /// Parses a line such as `55d0a000-55d0b000 r-xp 00001000 fe:01 1234     /usr/bin/true`.
    /// Returns `None` for anything else. It does not allocate.
    ///
    /// ```
    /// use fgraph_symbols::mapping::Mapping;
    ///
    /// let mapping = Mapping::parse(b"1000-2000 r-xp 00000000 fe:01 12   /a b").unwrap();
    /// assert_eq!((mapping.range, &*mapping.path), (0x1000..0x2000, &b"/a b"[..]));
    /// ```
    #[must_use]
    pub fn parse(line: &'a [u8]) -> Option<Self> {
        let mut words = line.splitn(6, |&byte| byte == b' ');
        let mut word = || str::from_utf8(words.next()?).ok();
        let (start, end) = word()?.split_once('-')?;
        let [read, write, execute, share] = *word()?.as_bytes().first_chunk()?;
        let offset = word()?;
        let (major, minor) = word()?.split_once(':')?;
        let inode = word()?.parse().ok()?;
        let hex = |digits| u64::from_str_radix(digits, 16).ok();
        let number = |digits| u32::from_str_radix(digits, 16).ok();
        Some(Self {
            range: hex(start)?..hex(end)?,
            protection: Protection {
                readable: read == b'r',
                writable: write == b'w',
                executable: execute == b'x',
            },
            is_shared: share == b's',
            offset: hex(offset)?,
            device: (number(major)?, number(minor)?),
            inode,
            path: words.next().unwrap_or_default().trim_ascii_start().into(),
        })
    }

    /// Returns the mappings in a file such as `/proc/self/maps`, in the order of their addresses.
    pub fn all(maps: &'a [u8]) -> impl Iterator<Item = Self> {
        maps.split(|&byte| byte == b'\n').filter_map(Self::parse)
    }

    /// Returns the same mapping with a copy of the path.
    #[must_use]
    pub fn into_owned(self) -> Mapping<'static> {
        let path = self.path.into_owned().into();
        Mapping { path, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_parsed_with_all_its_fields() {
        let line = b"7f0000001000-7f0000003000 r-xp 00005000 fe:1f 12      /a b\xff";
        let expected = Mapping {
            range: 0x7f00_0000_1000..0x7f00_0000_3000,
            protection: Protection {
                readable: true,
                writable: false,
                executable: true,
            },
            is_shared: false,
            offset: 0x5000,
            device: (0xfe, 0x1f),
            inode: 12,
            path: b"/a b\xff".into(),
        };
        assert_eq!(Mapping::parse(line), Some(expected.clone()));
        assert_eq!(expected.clone().into_owned(), expected);
        let anonymous = Mapping::parse(b"1000-2000 -w-s 00000000 00:00 0 ").unwrap();
        assert_eq!((&*anonymous.path, anonymous.inode), (&b""[..], 0));
        let Protection {
            readable,
            writable,
            executable,
        } = anonymous.protection;
        assert_eq!((readable, writable, executable), (false, true, false));
        assert!(anonymous.is_shared);
        let without_blank = Mapping::parse(b"1000-2000 rw-p 0 00:00 0").unwrap();
        assert_eq!(without_blank.range, 0x1000..0x2000);
    }

    #[test]
    fn malformed_lines_are_no_mappings() {
        for line in [
            "",
            " ",
            "1000",
            "1000-",
            "1000-2000",
            "1-2 r",
            "1-2 r-xp 0 0:0",
            "1-2 r-x 0 0:0 0",
            "1-2 r-xp 0 0 0",
            "x-y r-xp 0 0:0 0",
            "-1-2 r-xp 0 0:0 0",
            "11111111111111111-2 r-xp 0 0:0 0",
            "1-2 r-xp 0 0:0 12x",
        ] {
            assert_eq!(Mapping::parse(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn the_lines_of_a_file_are_its_mappings() {
        let maps = b"1000-3000 r-xp 0 fe:01 12 /a\nnonsense\n3000-4000 rw-p 0 0:0 0\n";
        let starts: Vec<_> = Mapping::all(maps).map(|it| it.range.start).collect();
        assert_eq!(starts, [0x1000, 0x3000]);
    }
}
