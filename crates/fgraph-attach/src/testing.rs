//! Entry points for tests with arbitrary bytes, read as the data of another process.

use std::os::unix::fs::FileExt as _;

use fgraph_symbols::mapping::{Mapping, Protection};

use crate::memory::Memory;
use crate::seccomp::{Call, Instruction, fate};
use crate::{WANTED, auxiliary_value, file_name, modules, place, process, sharing};

/// Most bytes that may be read of tables.
const MAX_TABLES: usize = 4 << 20;

/// Reads bytes as the memory of a process with modules in it, and as the text of its `/proc` files.
/// It must not panic, and must not take long. The bytes are:
///
/// ```text
///   byte 0       how many modules, modulo 16
///   2 bytes each where one begins, in units of 16 bytes
///   the rest     the memory from address 0 on; also the texts
/// ```
///
/// # Panics
///
/// Panics if a memory file cannot be made, and for errors that it searches for.
pub fn read_process(bytes: &[u8]) {
    let Some((count, bytes)) = bytes.split_first() else {
        return;
    };
    let Some((starts, bytes)) = bytes.split_at_checked(2 * usize::from(count % 16)) else {
        return;
    };
    let file = sharing::memory_file(c"process", false).expect("there is memory");
    file.write_all_at(bytes, 0).expect("there is memory");
    let memory = Memory::of_file(file);
    let (starts, _) = starts.as_chunks::<2>();
    let starts = starts
        .iter()
        .map(|&it| u64::from(u16::from_le_bytes(it)) * 16);
    let mappings: Vec<Mapping<'_>> = starts.map(mapping).collect();
    let mut left = MAX_TABLES;
    let modules = modules::of(&mappings, &memory);
    let linked = modules::linked(&modules, 0, &memory);
    assert!(linked.iter().all(|&at| at < modules.len()));
    for module in modules {
        let exports = module.exports(&memory, WANTED, &mut left);
        assert!(exports.len() <= 2 * WANTED.len());
        for name in WANTED {
            let found = exports.find(name);
            let _ = found.is_some_and(|found| module.is_text(found));
        }
    }

    let (words, _) = bytes.as_chunks::<8>();
    let words: Vec<u64> = words.iter().map(|&it| u64::from_le_bytes(it)).collect();
    let _ = place::may_be_context(&words);
    let _ = auxiliary_value(bytes, libc::AT_BASE);
    let filter: Vec<Instruction> = words.iter().map(|&word| instruction(word)).collect();
    for number in [0, libc::SYS_mmap] {
        let first = Some(bytes.len() as u64);
        let _ = fate(std::slice::from_ref(&filter), Call { number, first });
    }
    let text = String::from_utf8_lossy(bytes);
    process::read_texts(&text);
    for mapping in Mapping::all(bytes) {
        let _ = file_name(&String::from_utf8_lossy(&mapping.path));
    }
}

fn mapping(start: u64) -> Mapping<'static> {
    Mapping {
        range: start..u64::MAX,
        protection: Protection {
            executable: true,
            ..Protection::default()
        },
        is_shared: false,
        offset: 0,
        device: (0, 0),
        inode: 0,
        path: b"/lib".into(),
    }
}

fn instruction(word: u64) -> Instruction {
    Instruction {
        code: word as u16,
        if_true: (word >> 16) as u8,
        if_false: (word >> 24) as u8,
        value: (word >> 32) as u32,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Changes some bytes of all inputs of the fuzzer, by fixed pseudorandom numbers.
    #[test]
    fn no_bytes_of_a_process_are_too_much() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/attach");
        let inputs = fs::read_dir(corpus).unwrap();
        let inputs: Vec<_> = inputs
            .map(|it| fs::read(it.unwrap().path()).unwrap())
            .collect();
        assert!(!inputs.is_empty());
        let mut state = 1_u64;
        let mut random = |below: usize| {
            // Knuth's constants.
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as usize % below
        };
        for input in inputs {
            read_process(&input);
            for _ in 0..200 {
                let mut changed = input.clone();
                for _ in 0..=random(8) {
                    let at = random(changed.len());
                    changed[at] = [0, 1, 0x7f, 0xff, random(256) as u8][random(5)];
                }
                changed.truncate(changed.len() - random(2) * random(input.len()));
                read_process(&changed);
            }
        }
    }
}
