//! Function starts from unwind information (`.eh_frame`).
//!
//! Compilers describe every stretch of code for unwinders, including functions without a symbol. A
//! stretch is a function, or a part of one that is elsewhere (`.cold`), which is jumped to and not
//! called. The state at its first byte distinguishes most of them:
//!
//! ```text
//!   a function    return address on top of the stack    CFA = rsp + 8, nothing is saved yet
//!   its part      on the frame of the function          CFA = rsp + 48, rbx at CFA - 16
//! ```
//!
//! A part of a function without a frame looks like a function. So a stretch counts as a function
//! only if there is a call of it, or if its address is stored or computed somewhere.

use core::ops::Range;

use gimli::{
    BaseAddresses, CfaRule, CommonInformationEntry, EhFrame, EhFrameOffset, EndianSlice,
    FrameDescriptionEntry, LittleEndian, RegisterRule, UnwindContext, UnwindSection, X86_64,
};

use crate::elf::ElfFile;
use crate::unwind_rows::Room;

type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// A piece of code with one description.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stretch {
    /// The start, relative to the load bias.
    pub(crate) start: u64,
    /// The size in bytes.
    pub(crate) len: u64,
    /// True if it starts like a function.
    pub(crate) is_entry: bool,
}

/// Returns all code with unwind information, by address. Unreadable records are left out.
pub(crate) fn stretches(file: &ElfFile<'_>) -> Vec<Stretch> {
    let Some((address, bytes)) = file.unwind_entries() else {
        return Vec::new();
    };
    let frames = EhFrame::new(bytes, LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame(address);
    let mut context = UnwindContext::new_in();
    let mut all = Vec::new();
    // Consecutive records have the same CIE, the common part of several stretches.
    let mut cie: Option<(usize, CommonInformationEntry<Bytes<'_>>)> = None;
    let mut at = 0;
    while let Some((is_cie, end)) = record(bytes, at) {
        if !is_cie {
            let known =
                |frames: &EhFrame<_>, bases: &BaseAddresses, offset: EhFrameOffset| match &cie {
                    Some((at, known)) if *at == offset.0 => Ok(known.clone()),
                    _ => {
                        let read = frames.cie_from_offset(bases, offset)?;
                        Ok(cie.insert((offset.0, read)).1.clone())
                    }
                };
            let fde = frames.fde_from_offset(&bases, at.into(), known);
            all.extend(fde.map(|fde| {
                let is_entry = is_entry(&fde, &frames, &bases, &mut context);
                Stretch {
                    start: fde.initial_address(),
                    len: fde.len(),
                    is_entry: is_entry == Some(true),
                }
            }));
        }
        at = end;
    }
    all.sort_unstable();
    all.dedup_by_key(|stretch| stretch.start);
    all
}

/// Returns true if the record at an offset is a CIE, and the offset of the next record. An empty
/// record ends those of one input file; it counts as a CIE.
fn record(bytes: &[u8], at: usize) -> Option<(bool, usize)> {
    let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let (len, start) = match word(at)? {
        u32::MAX => {
            let len = u64::from_le_bytes(*bytes.get(at + 4..)?.first_chunk()?);
            (usize::try_from(len).ok()?, at + 12)
        }
        len => (len as usize, at + 4),
    };
    let end = start.checked_add(len)?;
    Some((len == 0 || word(start)? == 0, end))
}

/// Returns true if the state at the first byte is the one that a call leaves; `None` if the record
/// cannot be read.
fn is_entry<'a>(
    fde: &FrameDescriptionEntry<Bytes<'a>>,
    frames: &EhFrame<Bytes<'a>>,
    bases: &BaseAddresses,
    context: &mut UnwindContext<usize, Room>,
) -> Option<bool> {
    let mut rows = fde.rows(frames, bases, context).ok()?;
    let row = rows.next_row().ok()??;
    let is_saved =
        |rule: &RegisterRule<_>| !matches!(rule, RegisterRule::Undefined | RegisterRule::SameValue);
    let on_top = CfaRule::RegisterAndOffset {
        register: X86_64::RSP,
        offset: 8,
    };
    let mut others = row
        .registers()
        .filter(|(register, _)| *register != X86_64::RA);
    Some(
        !fde.is_signal_trampoline()
            && *row.cfa() == on_top
            && row.register(X86_64::RA) == Some(RegisterRule::Offset(-8))
            && !others.any(|(_, rule)| is_saved(rule)),
    )
}

/// Returns, for each of `starts`, which are in order, true if it is called, or if its address is
/// stored or computed.
pub(crate) fn referred_to(file: &ElfFile<'_>, text: &[Range<u64>], starts: &[u64]) -> Vec<bool> {
    let mut found = vec![false; starts.len()];
    let (Some(&first), Some(&last)) = (starts.first(), starts.last()) else {
        return found;
    };
    let mut note = |address: u64| {
        if (first..=last).contains(&address)
            && let Ok(index) = starts.binary_search(&address)
        {
            found[index] = true;
        }
    };
    for range in text {
        let len = usize::try_from(range.end - range.start).unwrap_or(0);
        let code = file.bytes_at(range.start, len).unwrap_or_default();
        for (at, four) in code.windows(4).enumerate() {
            let four = u32::from_le_bytes([four[0], four[1], four[2], four[3]]);
            if !file.is_movable() {
                note(four.into());
            }
            // Relative to the next instruction: the target of a call, or an operand relative to
            // rip.
            let before = at.checked_sub(1).map_or(0, |before| code[before]);
            if before == 0xe8 || before & 0xc7 == 0x05 {
                let next = range.start + at as u64 + 4;
                note(next.wrapping_add_signed((four as i32).into()));
            }
        }
    }
    for (address, bytes) in file.loaded() {
        let aligned = address.next_multiple_of(8).wrapping_sub(address) as usize;
        let (words, _) = bytes.get(aligned..).unwrap_or_default().as_chunks();
        words
            .iter()
            .for_each(|word| note(u64::from_le_bytes(*word)));
    }
    found
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;
    use crate::functions::Functions;
    use fgraph_needs::{GCC, Missing, needs};

    /// Source for gcc to split: `visible` has a frame and a part that is rarely run, `leaf` has no
    /// frame and such a part.
    const SOURCE: &str = r#"
        #include <stdio.h>
        #include <stdlib.h>
        #define NEVER_INLINE static __attribute__((noinline, noclone))
        NEVER_INLINE int called(int n) { return printf("%d\n", n); }
        NEVER_INLINE int stored(int n) { return n * 3; }
        NEVER_INLINE int computed(int n) { return n * 5; }
        int (*volatile table[])(int) = { stored };
        __attribute__((noinline, cold)) int fail(char *text) { return puts(text); }
        __attribute__((noinline)) void by_address(int (*function)(int)) { table[0] = function; }
        NEVER_INLINE void leaf(int n) { if (__builtin_expect(n == 7, 0)) abort(); table[0] = 0; }
        __attribute__((noinline)) int visible(int n) {
            char buffer[64];
            sprintf(buffer, "%d", n);
            by_address(computed);
            leaf(n);
            while (n == 3) n += fail(buffer);
            return called(n) + table[0](n) + buffer[0];
        }
        int main(int argc, char **argv) { return visible(argc) + visible(-argc); }
    "#;

    /// Returns the file made of [`SOURCE`], before and after stripping.
    fn compiled(name: &str, options: &[&str]) -> Result<[Vec<u8>; 2], Missing> {
        let gcc = GCC.find()?;
        let directory = std::env::temp_dir().join(format!("fgraph-{name}-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("code.c"), SOURCE).unwrap();
        // With the symbol table, and without.
        let files = [&[][..], &["-s"]].map(|strip| {
            let mut gcc = Command::new(&gcc);
            gcc.args(["-O2", "-ffunction-sections", "-o", "code", "code.c"]);
            let gcc = gcc.args(options).args(strip).current_dir(&directory);
            assert!(gcc.status().unwrap().success());
            fs::read(directory.join("code")).unwrap()
        });
        fs::remove_dir_all(&directory).unwrap();
        Ok(files)
    }

    #[test]
    fn functions_of_a_stripped_file_are_found_and_their_parts_are_not() {
        for options in [
            &["-fPIE", "-pie"][..],
            &["-fno-pie", "-no-pie"],
            &["-fPIC", "-shared"],
        ] {
            let [whole, stripped] = needs!(compiled("unwind", options));
            let whole = Functions::read(&ElfFile::parse(&whole).unwrap(), None).unwrap();
            let file = ElfFile::parse(&stripped).unwrap();
            let found = Functions::read(&file, None).unwrap();
            assert!(found.is_stripped());
            let at = |name: &str| {
                let is_it = |&index: &usize| whole.names(index).any(|known| known.symbol == name);
                whole.get((0..whole.len()).find(is_it).expect(name))
            };
            for name in [
                "called",
                "stored",
                "computed",
                "leaf",
                "visible",
                "by_address",
            ] {
                let function = at(name);
                let index = found.index_at(function.address);
                let index = index.unwrap_or_else(|| panic!("{name} with {options:?}"));
                assert_eq!(found.get(index).size, function.size, "{name}");
            }
            for index in 0..found.len() {
                let address = found.get(index).address;
                assert!(
                    whole.index_at(address).is_some(),
                    "{address:#x} with {options:?}"
                );
            }
            // There are parts, and both marks distinguish them.
            let all = stretches(&file);
            let is_part = |stretch: &&Stretch| {
                let is_text = file
                    .text()
                    .iter()
                    .any(|range| range.contains(&stretch.start));
                is_text && whole.index_at(stretch.start).is_none()
            };
            let parts: Vec<_> = all.iter().filter(is_part).collect();
            assert!(parts.iter().any(|part| !part.is_entry), "{options:?}");
            assert!(parts.iter().any(|part| part.is_entry), "{options:?}");
        }
    }

    #[test]
    fn damaged_unwind_information_never_panics() {
        let [_, mut bytes] = needs!(compiled("damaged", &["-fPIC", "-shared"]));
        let range = {
            let file = ElfFile::parse(&bytes).unwrap();
            let (_, content) = file.unwind_entries().unwrap();
            let start = content.as_ptr().addr() - bytes.as_ptr().addr();
            start..start + content.len()
        };
        for at in range {
            let good = bytes[at];
            for value in [0, 1, 0x0f, 0x7f, 0x80, 0xff, good ^ 1, good ^ 0x40] {
                bytes[at] = value;
                stretches(&ElfFile::parse(&bytes).unwrap());
            }
            bytes[at] = good;
        }
    }
}
