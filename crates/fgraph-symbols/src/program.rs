//! Finds out how the kernel starts a file.

use std::io;
use std::ops::Range;

use object::elf;

/// The number of bytes of a file that are read at once: its first bytes, or its program headers.
pub const HEAD: usize = 4096;

/// The way in which the kernel starts a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Start<'a> {
    /// A program for x86-64 that glibc's dynamic linker starts: libraries can be preloaded.
    Dynamic,
    /// A program for x86-64 that another dynamic linker starts, for example musl's.
    OtherLinker(&'a [u8]),
    /// A program for x86-64 without a dynamic linker.
    Static,
    /// A program for another architecture.
    OtherArchitecture {
        /// True if its addresses have 64 bits.
        is_64_bit: bool,
        /// Its machine number in ELF files.
        machine: u16,
    },
    /// A script, with the program that runs it.
    Script(&'a [u8]),
    /// None of these: the kernel does not start it.
    Unknown,
}

impl<'a> Start<'a> {
    /// Classifies a file by its first bytes. The program headers of a program, and the path of its
    /// dynamic linker, may be anywhere in the file. `read` reads bytes from an offset on, and
    /// returns their number. Does not allocate.
    ///
    /// # Errors
    ///
    /// Fails if `read` does.
    ///
    /// ```
    /// use fgraph_symbols::program::{HEAD, Start};
    ///
    /// let script = b"#! /bin/sh -e\nexit";
    /// let mut buffer = [0; HEAD];
    /// let start = Start::of(&mut buffer, |offset, into| {
    ///     let rest = script.get(offset as usize..).unwrap_or_default();
    ///     let len = rest.len().min(into.len());
    ///     into[..len].copy_from_slice(&rest[..len]);
    ///     Ok(len)
    /// });
    /// assert_eq!(start?, Start::Script(b"/bin/sh"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn of(
        buffer: &'a mut [u8; HEAD],
        mut read: impl FnMut(u64, &mut [u8]) -> io::Result<usize>,
    ) -> io::Result<Self> {
        let len = read(0, buffer)?.min(HEAD);
        if buffer[..len].starts_with(b"#!") {
            let line = buffer[2..len].split(|&byte| byte == b'\n');
            let line = line.into_iter().next().unwrap_or_default();
            let mut words = line.split(|byte| b" \t".contains(byte));
            let program = words.find(|word| !word.is_empty());
            return Ok(program.map_or(Self::Unknown, Self::Script));
        }
        let Some(header) = Header::of(&buffer[..len]) else {
            return Ok(Self::Unknown);
        };
        let (is_64_bit, machine) = (header.is_64_bit, header.machine);
        if !is_64_bit || machine != elf::EM_X86_64.0 {
            return Ok(Self::OtherArchitecture { is_64_bit, machine });
        }
        let Some(table) = header.table else {
            return Ok(Self::Unknown);
        };
        let Some(headers) = part(buffer, len, table, &mut read)? else {
            return Ok(Self::Unknown);
        };
        let table_start = headers.start;
        let field = |header: &[u8], at: usize| u64::from_le_bytes(array(header, at));
        let is_linker = |header: &&[u8]| u32::from_le_bytes(array(header, 0)) == elf::PT_INTERP.0;
        let linker = buffer[headers].chunks_exact(SEGMENT).find(is_linker);
        let Some(path) = linker.map(|header| (field(header, 8), field(header, 32))) else {
            return Ok(Self::Static);
        };
        // A table that was read has taken the place of the file's first bytes.
        let len = if table_start == 0 { 0 } else { len };
        let Some(path) = part(buffer, len, path, &mut read)? else {
            return Ok(Self::Unknown);
        };
        let path = &buffer[path];
        let linker = path.split(|&byte| byte == 0).next().unwrap_or(path);
        Ok(match linker.ends_with(b"/ld-linux-x86-64.so.2") {
            true => Self::Dynamic,
            false => Self::OtherLinker(linker),
        })
    }
}

/// The size of a program header.
const SEGMENT: usize = 56;

/// Offset and length of bytes of a file.
type Place = (u64, u64);

/// The fields of an ELF header that decide.
struct Header {
    is_64_bit: bool,
    machine: u16,
    /// The program headers, of a program for 64 bits.
    table: Option<Place>,
}

impl Header {
    fn of(head: &[u8]) -> Option<Self> {
        let half = |at: usize| Some(u16::from_le_bytes(head.get(at..at + 2)?.try_into().ok()?));
        let word = |at: usize| Some(u64::from_le_bytes(head.get(at..at + 8)?.try_into().ok()?));
        head.starts_with(&elf::ELFMAG).then_some(())?;
        // These are at the same place in headers for 32 bits.
        let machine = half(18)?;
        let is_64_bit = *head.get(4)? == elf::ELFCLASS64.0;
        let is_program = [elf::ET_EXEC.0, elf::ET_DYN.0].contains(&half(16)?);
        let table = || {
            let len = u64::from(half(56)?) * SEGMENT as u64;
            let is_known = usize::from(half(54)?) == SEGMENT;
            (is_program && is_known).then_some((word(32)?, len))
        };
        Some(Self {
            is_64_bit,
            machine,
            table: table(),
        })
    }
}

/// Returns the place in the buffer of a part of the file, whose first bytes it has; another part is
/// read into it. `None` if the file does not have it, or if there is no room.
fn part(
    buffer: &mut [u8; HEAD],
    len: usize,
    (offset, wanted): Place,
    read: &mut impl FnMut(u64, &mut [u8]) -> io::Result<usize>,
) -> io::Result<Option<Range<usize>>> {
    let Some(wanted) = usize::try_from(wanted).ok().filter(|it| *it <= HEAD) else {
        return Ok(None);
    };
    if let Some(start) = usize::try_from(offset).ok().filter(|it| *it <= len)
        && wanted <= len - start
    {
        return Ok(Some(start..start + wanted));
    }
    let found = read(offset, &mut buffer[..wanted])?;
    Ok((found == wanted).then_some(0..wanted))
}

/// Returns bytes of a program header.
fn array<const N: usize>(header: &[u8], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&header[at..at + N]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes the head of a program for x86-64 with this dynamic linker.
    fn program(linker: Option<&[u8]>) -> Vec<u8> {
        let mut head = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        for half in [elf::ET_DYN.0.to_le_bytes(), elf::EM_X86_64.0.to_le_bytes()] {
            head.extend(half);
        }
        head.extend(1_u32.to_le_bytes());
        // Entry, program headers, section headers.
        for word in [0, 64, 0_u64] {
            head.extend(word.to_le_bytes());
        }
        head.extend(0_u32.to_le_bytes());
        for half in [64, 56, u16::from(linker.is_some()), 64, 0, 0] {
            head.extend(half.to_le_bytes());
        }
        let linker = linker.unwrap_or_default();
        head.extend(elf::PT_INTERP.0.to_le_bytes());
        head.extend(4_u32.to_le_bytes());
        let len = linker.len() as u64 + 1;
        for word in [120, 0, 0, len, len, 1_u64] {
            head.extend(word.to_le_bytes());
        }
        head.extend(linker);
        head.push(0);
        head
    }

    /// Classifies the content of a file.
    fn start_of<'a>(file: &[u8], buffer: &'a mut [u8; HEAD]) -> Start<'a> {
        let start = Start::of(buffer, |offset, into| {
            let rest = usize::try_from(offset).ok().and_then(|at| file.get(at..));
            let rest = rest.unwrap_or_default();
            let len = rest.len().min(into.len());
            into[..len].copy_from_slice(&rest[..len]);
            Ok(len)
        });
        start.unwrap()
    }

    #[test]
    fn headers_and_the_linkers_path_may_be_anywhere() {
        let linker = b"/opt/lib/ld-linux-x86-64.so.2\0";
        for (headers, path) in [(64, 9_000), (20_000, 9_000), (20_000, 120), (64, 4_090)] {
            let mut file = program(Some(linker));
            file.resize(30_000, 0);
            file.copy_within(64..120, headers);
            file[32..40].copy_from_slice(&(headers as u64).to_le_bytes());
            file[headers + 8..headers + 16].copy_from_slice(&(path as u64).to_le_bytes());
            file[path..path + linker.len()].copy_from_slice(linker);
            let mut buffer = [0; HEAD];
            assert_eq!(
                start_of(&file, &mut buffer),
                Start::Dynamic,
                "{headers} {path}"
            );
            file.truncate(path.max(headers));
            assert_eq!(start_of(&file, &mut buffer), Start::Unknown);
        }
        let mut file = program(Some(linker));
        // A path, and headers, without an end.
        for at in [64 + 32, 56] {
            let whole = file.clone();
            file[at..at + 2].fill(0xff);
            let mut buffer = [0; HEAD];
            assert_eq!(start_of(&file, &mut buffer), Start::Unknown);
            file = whole;
        }
    }

    #[test]
    fn the_linker_decides() {
        let mut buffer = [0; HEAD];
        let mut start =
            |linker: Option<&[u8]>| format!("{:?}", start_of(&program(linker), &mut buffer));
        let of = |start: Start<'_>| format!("{start:?}");
        let glibc = b"/lib64/ld-linux-x86-64.so.2";
        let musl = b"/lib/ld-musl-x86_64.so.1";
        assert_eq!(start(Some(glibc)), of(Start::Dynamic));
        assert_eq!(start(Some(musl)), of(Start::OtherLinker(musl)));
        assert_eq!(start(None), of(Start::Static));
    }

    #[test]
    fn other_architectures_are_named() {
        let mut buffer = [0; HEAD];
        let mut head = program(None);
        head[18] = 183;
        let (is_64_bit, machine) = (true, elf::EM_AARCH64.0);
        let other = Start::OtherArchitecture { is_64_bit, machine };
        assert_eq!(start_of(&head, &mut buffer), other);
        let mut head = program(None);
        (head[4], head[18]) = (1, 3);
        let (is_64_bit, machine) = (false, elf::EM_386.0);
        let other = Start::OtherArchitecture { is_64_bit, machine };
        assert_eq!(start_of(&head, &mut buffer), other);
    }

    #[test]
    fn scripts_have_a_program_that_runs_them() {
        for (head, expected) in [
            (&b"#!/bin/sh"[..], Start::Script(b"/bin/sh")),
            (
                b"#!\t/usr/bin/env python3\nx",
                Start::Script(b"/usr/bin/env"),
            ),
            (b"#! \n/bin/sh", Start::Unknown),
            (b"", Start::Unknown),
            (b"\x7fELF", Start::Unknown),
        ] {
            let mut buffer = [0; HEAD];
            assert_eq!(start_of(head, &mut buffer), expected);
        }
    }

    #[test]
    fn no_bytes_are_too_few() {
        let whole = program(Some(b"/lib64/ld-linux-x86-64.so.2"));
        for len in 0..whole.len() - 1 {
            let mut buffer = [0; HEAD];
            let start = start_of(&whole[..len], &mut buffer);
            assert_ne!(start, Start::Dynamic, "{len} bytes");
        }
    }
}
