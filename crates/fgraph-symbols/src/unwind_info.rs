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

use crate::elf::ElfFile;

/// The number of rsp in unwind information, and that of the return address.
const RSP: u64 = 7;
const RETURN_ADDRESS: u64 = 16;

/// The most bytes of a CIE, the common part of stretches, that are read. Compilers write five.
const MAX_CIE: usize = 256;

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
    let mut all = Vec::new();
    let mut cie: Option<(usize, Option<Cie>)> = None;
    let mut rest = Reader::new(bytes);
    while let Some(mut record) = rest.record() {
        let id_at = record.at;
        let Some(id) = record.u32() else { continue };
        // The distance back to its CIE.
        if let Some(head) = id_at.checked_sub(id as usize).filter(|_| id != 0) {
            let known = cie.filter(|(known, _)| *known == head);
            let (_, head) = *cie.insert(known.unwrap_or_else(|| (head, Cie::at(bytes, head))));
            all.extend(head.and_then(|head| head.stretch(&mut record, address)));
        }
    }
    all.sort_unstable();
    all.dedup_by_key(|stretch| stretch.start);
    all
}

/// The common part of several stretches (a CIE).
#[derive(Clone, Copy, Debug)]
struct Cie {
    /// The encoding of addresses.
    encoding: u8,
    has_length: bool,
    is_signal: bool,
    code_unit: u64,
    data_unit: i64,
    state: State,
}

impl Cie {
    /// Reads the CIE at an offset in the section.
    fn at(bytes: &[u8], at: usize) -> Option<Self> {
        let mut record = Reader { bytes, at }.one_record()??;
        if record.u32()? != 0 {
            return None;
        }
        let version = record.u8()?;
        let mut letters = record.letters()?;
        let mut this = Self {
            encoding: 0,
            has_length: false,
            is_signal: false,
            code_unit: record.unsigned()?,
            data_unit: record.signed()?,
            state: State::default(),
        };
        let column = match version {
            1 => record.u8()?.into(),
            3 => record.unsigned()?,
            _ => return None,
        };
        if column != RETURN_ADDRESS {
            return None;
        }
        if let Some((b'z', others)) = letters.split_first() {
            this.has_length = true;
            letters = others;
            let len = usize::try_from(record.unsigned()?).ok()?;
            let behind = record.at.checked_add(len)?;
            for letter in letters {
                match letter {
                    b'R' => this.encoding = record.u8()?,
                    b'L' => drop(record.u8()?),
                    b'P' => {
                        let encoding = record.u8()?;
                        record.value(encoding & 0x0f)?;
                    }
                    b'S' => this.is_signal = true,
                    // The meaning of later letters is unknown.
                    _ => break,
                }
            }
            record.at = behind;
        } else if !letters.is_empty() {
            return None;
        }
        let len = record.bytes.len().min(record.at.saturating_add(MAX_CIE));
        record.bytes = &record.bytes[..len];
        let mut state = this.state;
        state.run(&mut record, &this)?;
        this.state = state;
        Some(this)
    }

    /// Reads a record that has this CIE.
    fn stretch(&self, record: &mut Reader<'_>, section: u64) -> Option<Stretch> {
        let base = match self.encoding & 0x70 {
            0 => 0,
            0x10 => section.wrapping_add(record.at as u64),
            _ => return None,
        };
        let start = base.wrapping_add(record.value(self.encoding & 0x0f)?);
        // A length is unsigned, with the same number of bytes.
        let len = record.value(self.encoding & 0x07)?;
        if self.has_length {
            let len = usize::try_from(record.unsigned()?).ok()?;
            record.at = record.at.checked_add(len)?;
        }
        let mut state = self.state;
        let is_known = state.run(record, self).is_some();
        Some(Stretch {
            start,
            len,
            is_entry: is_known && !self.is_signal && state.is_entry(),
        })
    }
}

/// The state of the caller's frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct State {
    /// The register from which the canonical frame address is computed, and the offset.
    frame: Option<(u64, i64)>,
    /// The location of the return address, relative to that address.
    return_address: Option<i64>,
    /// True if other registers are saved.
    has_saved: bool,
}

impl State {
    /// Returns true if it is the state that a call leaves.
    fn is_entry(&self) -> bool {
        self.frame == Some((RSP, 8)) && self.return_address == Some(-8) && !self.has_saved
    }

    /// Executes the instructions for the first byte; `None` if they cannot be read.
    fn run(&mut self, record: &mut Reader<'_>, cie: &Cie) -> Option<()> {
        let scaled = |value: u64| (value as i64).wrapping_mul(cie.data_unit);
        while record.at < record.bytes.len() {
            let code = record.u8()?;
            let low = u64::from(code & 0x3f);
            match (code >> 6, code) {
                // DW_CFA_advance_loc and its longer forms; a step of zero is allowed.
                (1, _) if low.wrapping_mul(cie.code_unit) == 0 => {}
                (1, _) | (_, 0x01..=0x04) => return Some(()),
                // DW_CFA_offset.
                (2, _) => {
                    let offset = scaled(record.unsigned()?);
                    self.save(low, Some(offset));
                }
                // DW_CFA_restore: as at the start.
                (3, _) => self.restore(low, cie),
                // DW_CFA_nop, remember_state, restore_state.
                (_, 0x00 | 0x0a | 0x0b) => {}
                // DW_CFA_offset_extended.
                (_, 0x05) => {
                    let register = record.unsigned()?;
                    let offset = scaled(record.unsigned()?);
                    self.save(register, Some(offset));
                }
                (_, 0x06) => {
                    let register = record.unsigned()?;
                    self.restore(register, cie);
                }
                // DW_CFA_undefined, same_value.
                (_, 0x07 | 0x08) => {
                    let register = record.unsigned()?;
                    self.save(register, None);
                }
                // DW_CFA_register.
                (_, 0x09) => {
                    let register = record.unsigned()?;
                    record.unsigned()?;
                    self.save(register, None);
                }
                // DW_CFA_def_cfa, its register, its offset.
                (_, 0x0c) => {
                    let register = record.unsigned()?;
                    self.frame = Some((register, record.unsigned()? as i64));
                }
                (_, 0x0d) => {
                    let register = record.unsigned()?;
                    self.frame = self.frame.map(|(_, offset)| (register, offset));
                }
                (_, 0x0e) => {
                    let offset = record.unsigned()? as i64;
                    self.frame = self.frame.map(|(register, _)| (register, offset));
                }
                // DW_CFA_GNU_args_size.
                (_, 0x2e) => drop(record.unsigned()?),
                // Expressions, and instructions that no compiler writes at the start of a function.
                _ => return None,
            }
        }
        Some(())
    }

    fn save(&mut self, register: u64, offset: Option<i64>) {
        if register == RETURN_ADDRESS {
            self.return_address = offset;
        } else {
            self.has_saved |= offset.is_some();
        }
    }

    fn restore(&mut self, register: u64, cie: &Cie) {
        if register == RETURN_ADDRESS {
            self.return_address = cie.state.return_address;
        }
    }
}

/// Reads bytes from their start to their end.
#[derive(Clone, Copy, Debug)]
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Returns the next record.
    fn record(&mut self) -> Option<Self> {
        loop {
            // An empty one ends the records of one input file; more may follow.
            if let Some(record) = self.one_record()? {
                return Some(record);
            }
        }
    }

    /// Returns the record at this place, without its length; `None` within if it is empty. The
    /// bytes before it stay, so that offsets are those of the whole section.
    fn one_record(&mut self) -> Option<Option<Self>> {
        let len = match self.u32()? {
            0 => return Some(None),
            u32::MAX => usize::try_from(self.u64()?).ok()?,
            len => len as usize,
        };
        let end = self.at.checked_add(len)?;
        let record = Self {
            bytes: self.bytes.get(..end)?,
            at: self.at,
        };
        self.at = end;
        Some(Some(record))
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let bytes = *self.bytes.get(self.at..)?.first_chunk()?;
        self.at += N;
        Some(bytes)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    /// Reads letters that end with a zero.
    fn letters(&mut self) -> Option<&'a [u8]> {
        let rest = self.bytes.get(self.at..)?;
        let len = rest.iter().take(8).position(|&byte| byte == 0)?;
        self.at += len + 1;
        Some(&rest[..len])
    }

    /// Reads a number in LEB128.
    fn unsigned(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn signed(&mut self) -> Option<i64> {
        let start = self.at;
        let value = self.unsigned()?;
        let bits = 7 * (self.at - start);
        let is_negative = self.bytes[self.at - 1] & 0x40 != 0;
        Some(if is_negative && bits < 64 {
            (value | u64::MAX << bits) as i64
        } else {
            value as i64
        })
    }

    /// Reads a number in an address encoding.
    fn value(&mut self, form: u8) -> Option<u64> {
        Some(match form {
            0x00 | 0x04 | 0x0c => self.u64()?,
            0x01 => self.unsigned()?,
            0x02 => self.take().map(u16::from_le_bytes)?.into(),
            0x03 => self.u32()?.into(),
            0x09 => self.signed()? as u64,
            0x0a => i64::from(self.take().map(i16::from_le_bytes)?) as u64,
            0x0b => i64::from(self.u32()? as i32) as u64,
            _ => return None,
        })
    }
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
    fn numbers_are_as_long_as_they_need_to_be() {
        let unsigned = |bytes: &[u8]| Reader::new(bytes).unsigned();
        assert_eq!(unsigned(&[0x7f]), Some(127));
        assert_eq!(unsigned(&[0x80, 1]), Some(128));
        assert_eq!(unsigned(&[0x80; 20]), None);
        assert_eq!(unsigned(&[0x80]), None);
        let signed = |bytes: &[u8]| Reader::new(bytes).signed();
        assert_eq!(signed(&[0x78]), Some(-8));
        assert_eq!(signed(&[0x80, 0x7f]), Some(-128));
        assert_eq!(signed(&[0x3f]), Some(63));
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
