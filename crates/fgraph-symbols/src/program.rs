//! Finds out how the kernel starts a file, from its first bytes.

use object::LittleEndian as Le;
use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader};

/// The number of bytes at a file's start that decide how it is started.
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
    /// Classifies the first bytes of a file: [`HEAD`] of them, or all if there are fewer. Does not
    /// allocate. The bytes of a program must be aligned to 8.
    ///
    /// ```
    /// use fgraph_symbols::program::Start;
    ///
    /// let script = b"#! /bin/sh -e\nexit";
    /// assert_eq!(Start::of(script), Start::Script(b"/bin/sh"));
    /// ```
    #[must_use]
    pub fn of(head: &'a [u8]) -> Self {
        if let Some(line) = head.strip_prefix(b"#!") {
            let line = line.split(|&byte| byte == b'\n').next().unwrap_or(line);
            let mut words = line.split(|byte| b" \t".contains(byte));
            let program = words.find(|word| !word.is_empty());
            return program.map_or(Self::Unknown, Self::Script);
        }
        Self::of_elf(head).unwrap_or(Self::Unknown)
    }

    fn of_elf(head: &'a [u8]) -> Option<Self> {
        head.starts_with(&elf::ELFMAG).then_some(())?;
        // These are at the same place in headers for 32 bits.
        let machine = u16::from_le_bytes(head.get(18..20)?.try_into().ok()?);
        let is_64_bit = *head.get(4)? == elf::ELFCLASS64.0;
        if !is_64_bit || machine != elf::EM_X86_64.0 {
            return Some(Self::OtherArchitecture { is_64_bit, machine });
        }
        let header = FileHeader64::<Le>::parse(head).ok()?;
        let is_program = matches!(header.e_type(Le), elf::ET_EXEC | elf::ET_DYN);
        let segments = is_program.then(|| header.program_headers(Le, head).ok())??;
        let is_linker = |segment: &&_| ProgramHeader::p_type(*segment, Le) == elf::PT_INTERP;
        let Some(segment) = segments.iter().find(is_linker) else {
            return Some(Self::Static);
        };
        let linker = segment.data(Le, head).ok()?;
        let linker = linker.split(|&byte| byte == 0).next().unwrap_or(linker);
        Some(match linker.ends_with(b"/ld-linux-x86-64.so.2") {
            true => Self::Dynamic,
            false => Self::OtherLinker(linker),
        })
    }
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

    #[test]
    fn the_linker_decides() {
        let start = |linker: Option<&[u8]>| format!("{:?}", Start::of(&program(linker)));
        let of = |start: Start<'_>| format!("{start:?}");
        let glibc = b"/lib64/ld-linux-x86-64.so.2";
        let musl = b"/lib/ld-musl-x86_64.so.1";
        assert_eq!(start(Some(glibc)), of(Start::Dynamic));
        assert_eq!(start(Some(musl)), of(Start::OtherLinker(musl)));
        assert_eq!(start(None), of(Start::Static));
    }

    #[test]
    fn other_architectures_are_named() {
        let mut head = program(None);
        head[18] = 183;
        let (is_64_bit, machine) = (true, elf::EM_AARCH64.0);
        let other = Start::OtherArchitecture { is_64_bit, machine };
        assert_eq!(Start::of(&head), other);
        let mut head = program(None);
        (head[4], head[18]) = (1, 3);
        let (is_64_bit, machine) = (false, elf::EM_386.0);
        let other = Start::OtherArchitecture { is_64_bit, machine };
        assert_eq!(Start::of(&head), other);
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
            assert_eq!(Start::of(head), expected);
        }
    }

    #[test]
    fn no_bytes_are_too_few() {
        let whole = program(Some(b"/lib64/ld-linux-x86-64.so.2"));
        for len in 0..whole.len() - 1 {
            assert_ne!(Start::of(&whole[..len]), Start::Dynamic, "{len} bytes");
        }
    }
}
