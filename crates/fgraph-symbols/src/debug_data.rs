//! Symbols of stripped files, from a compressed section.
//!
//! Fedora and its relatives strip programs, but leave a small ELF file in them, compressed with xz
//! in a section `.gnu_debugdata`. Its symbol table has the functions that are missing in the file's
//! own. It is called MiniDebuginfo.
//!
//! Sizes in a file are not trusted: both the dictionary and the output have limits.

use std::io::Read;

use lzma_rust2::XzReader;

use crate::elf::ElfFile;

/// The section with the compressed file.
const SECTION: &[u8] = b".gnu_debugdata";

/// The most bytes of the small file: several times those of the largest libraries.
const MAX_LEN: u64 = 128 << 20;

/// The most KiB that decompressing may take, excluding the output: xz needs 65 MiB at its best
/// level.
const MAX_MEMORY: u32 = 80 << 10;

/// Returns the small ELF file in a section of `file`, in words for its alignment, padded with
/// zeros. Returns `None` if there is no such section, or if it is damaged or too large.
#[must_use]
pub fn read(file: &ElfFile<'_>) -> Option<Vec<u64>> {
    decompress(file.section(SECTION)?, MAX_LEN, MAX_MEMORY)
}

fn decompress(bytes: &[u8], max_len: u64, max_memory: u32) -> Option<Vec<u64>> {
    let reader = XzReader::new_mem_limit(bytes, false, max_memory);
    let mut content = Vec::new();
    let len = reader.take(max_len + 1).read_to_end(&mut content).ok()?;
    if len as u64 > max_len {
        return None;
    }
    content.resize(len.next_multiple_of(8), 0);
    let (words, _) = content.as_chunks();
    Some(words.iter().map(|word| u64::from_ne_bytes(*word)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output of `printf hello | xz -C crc32`, with the size of the dictionary in its header.
    const fn hello([dictionary, crc @ ..]: [u8; 5]) -> [u8; 60] {
        let mut bytes = *b"\xfd7zXZ\0\0\x01\x69\x22\xde\x36\x02\0\x21\x01\0\0\0\0\0\0\0\0\
            \x01\0\x04hello\0\0\0\0\x86\xa6\x10\x36\0\x01\x19\x05\xbc\xe8\xec\xcb\
            \x90\x42\x99\x0d\x01\0\0\0\0\x01YZ";
        bytes[16] = dictionary;
        let mut at = 0;
        while at < crc.len() {
            bytes[20 + at] = crc[at];
            at += 1;
        }
        bytes
    }

    const HELLO: [u8; 60] = hello([0x16, 0x74, 0x2f, 0xe5, 0xa3]);
    /// With a dictionary of 1.5 GiB.
    const LARGE: [u8; 60] = hello([0x25, 0x3b, 0x78, 0x7b, 0x41]);

    #[test]
    fn compressed_data_is_restored_in_words() {
        let hello = u64::from_ne_bytes(*b"hello\0\0\0");
        assert_eq!(decompress(&HELLO, 5, MAX_MEMORY), Some(vec![hello]));
    }

    #[test]
    fn data_that_takes_too_much_memory_is_left_out() {
        assert_eq!(decompress(&HELLO, 4, MAX_MEMORY), None);
        assert_eq!(decompress(&LARGE, 5, MAX_MEMORY), None);
    }

    #[test]
    fn truncated_or_damaged_data_is_left_out() {
        for len in 0..HELLO.len() {
            assert_eq!(decompress(&HELLO[..len], 5, MAX_MEMORY), None, "{len}");
        }
        for at in 0..HELLO.len() {
            for bit in 0..8 {
                let mut bytes = HELLO;
                bytes[at] ^= 1 << bit;
                // Never panics, and returns nothing other than the compressed bytes.
                let found = decompress(&bytes, 5, MAX_MEMORY);
                assert!(found.is_none() || found == decompress(&HELLO, 5, MAX_MEMORY));
            }
        }
    }
}
