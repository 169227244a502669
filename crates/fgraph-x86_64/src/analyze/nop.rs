//! Finds the single instruction of a function entry that may be replaced: a NOP of five bytes.
//!
//! ```text
//!   listed address                         what the compiler wrote
//!   |
//!   v
//!   +----+----+----+----+----+
//!   | 0f   1f   44   00   08 |  body ...   rustc, clang: one instruction
//!   +----+----+----+----+----+
//!   +----+----+----+----+----+----+----+----+----+
//!   | f3   0f   1e   fa | 0f   1f   44   00   08 |  body ...   -fcf-protection
//!   +----+----+----+----+----+----+----+----+----+
//!   +----+----+----+----+----+
//!   | 90 | 90 | 90 | 90 | 90 |  body ...   gcc: five instructions
//!   +----+----+----+----+----+
//! ```
//!
//! Only a *single* instruction can be replaced while threads run: a thread may be preempted at any
//! instruction boundary, and one that is inside gcc's pad would continue in the middle of the new
//! jump. So the bytes are decoded, not compared with a list of known NOPs: the CPU must take
//! exactly these five bytes for one instruction without effect.
//!
//! A NOP is, with its prefixes:
//!
//! ```text
//!   [66 67 26 2e 36 3e 64 65]* [40..4f]? 0f 1f /0   NOP r/m: ModRM, SIB and displacement as usual
//!   [66 67 26 2e 36 3e 64 65]* [40|42|44|46|48|4a|4c|4e]? 90
//! ```
//!
//! `f3 90` is PAUSE, `41 90` is XCHG, and LOCK makes any NOP an invalid instruction. `f2` and `f3`
//! change the meaning of `0f 1e` and may come to change `0f 1f`, so they do not count as padding.

use core::fmt;

use crate::stub::SITE_LEN;

/// `endbr64`, the landing pad that `-fcf-protection` puts before the NOP.
pub const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// The number of bytes that [`NopError::NotNop`] keeps for its message.
const SHOWN: usize = 8;

/// The reason that the bytes at a listed address cannot be a patch site.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NopError {
    /// The entry has fewer bytes than a site needs.
    TooShort {
        /// The number of bytes, excluding an `endbr64`.
        have: usize,
    },
    /// Several NOPs of one byte, as gcc writes them: a thread may be between two of them.
    Pad {
        /// The number of consecutive NOPs in the given bytes.
        count: usize,
    },
    /// A single NOP with a length other than five bytes.
    Length {
        /// The length of the NOP in bytes.
        length: usize,
    },
    /// An `int3`: a debugger has a breakpoint here.
    Breakpoint,
    /// A jump: another tool has patched the function.
    Jump {
        /// The first byte of its opcode: `e9`, `eb` or `ff`.
        opcode: u8,
    },
    /// An instruction other than a NOP.
    NotNop {
        /// The instruction's first bytes.
        bytes: [u8; SHOWN],
        /// The number of valid bytes in `bytes`.
        len: u8,
    },
}

impl fmt::Display for NopError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TooShort { have } => {
                write!(f, "holds {have} bytes, a site needs {SITE_LEN}")
            }
            Self::Pad { count } => write!(
                f,
                "holds {count} one-byte NOPs: a thread may stand between two of them"
            ),
            Self::Length { length } => {
                write!(f, "holds a NOP of {length} bytes, a site needs {SITE_LEN}")
            }
            Self::Breakpoint => f.write_str("holds an int3: a breakpoint of a debugger"),
            Self::Jump { opcode } => {
                write!(f, "holds a jump ({opcode:02x}): patched by something else")
            }
            Self::NotNop { bytes, len } => {
                f.write_str("holds")?;
                for byte in bytes.iter().take(usize::from(len)) {
                    write!(f, " {byte:02x}")?;
                }
                f.write_str(" …: not a NOP")
            }
        }
    }
}

impl core::error::Error for NopError {}

/// Finds the five-byte NOP at a function entry.
///
/// `bytes` are the readable ones at an address listed in `__patchable_function_entries`; 16 are
/// enough. Returns the offset of the NOP: 0, or 4 after an `endbr64`.
///
/// # Errors
///
/// Fails with a [`NopError`] that describes the instruction at the entry.
pub fn find(bytes: &[u8]) -> Result<usize, NopError> {
    let offset = if bytes.starts_with(&ENDBR64) {
        ENDBR64.len()
    } else {
        0
    };
    let site = &bytes[offset..];
    if site.len() < SITE_LEN {
        return Err(NopError::TooShort { have: site.len() });
    }
    match (site[0], nop_len(site)) {
        (_, Some(SITE_LEN)) => Ok(offset),
        (0x90, _) if site[1] == 0x90 => Err(NopError::Pad {
            count: site.iter().take_while(|&&byte| byte == 0x90).count(),
        }),
        (_, Some(length)) => Err(NopError::Length { length }),
        (0xcc, None) => Err(NopError::Breakpoint),
        (opcode @ (0xe9 | 0xeb), None) => Err(NopError::Jump { opcode }),
        // ff /4 is the jump through memory or a register.
        (opcode @ 0xff, None) if (site[1] >> 3) & 7 == 4 => Err(NopError::Jump { opcode }),
        (_, None) => {
            let len = site.len().min(SHOWN);
            let mut shown = [0; SHOWN];
            shown[..len].copy_from_slice(&site[..len]);
            Err(NopError::NotNop {
                bytes: shown,
                // At most SHOWN.
                len: len as u8,
            })
        }
    }
}

/// Returns the length of the last NOP of `padding`; `None` unless all of it is NOPs.
#[must_use]
pub fn last_of(padding: &[u8]) -> Option<usize> {
    last_with_room(padding, 1)
}

/// Returns the distance from the end of `padding` to its last NOP of at least `len` bytes; `None`
/// if there is none, or unless all of it is NOPs.
#[must_use]
pub fn last_with_room(padding: &[u8], len: usize) -> Option<usize> {
    let mut rest = padding;
    let mut last = None;
    while !rest.is_empty() {
        let nop = nop_len(rest)?;
        if nop >= len {
            last = Some(rest.len());
        }
        rest = &rest[nop..];
    }
    last
}

/// Returns the length of the NOP at the start of `bytes`; `None` if they start with another
/// instruction or end within it.
fn nop_len(bytes: &[u8]) -> Option<usize> {
    let prefixes = bytes
        .iter()
        .take_while(|&&byte| matches!(byte, 0x66 | 0x67 | 0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65))
        .count();
    // A REX prefix counts only directly before the opcode.
    let rex = bytes.get(prefixes).filter(|&&byte| byte & 0xf0 == 0x40);
    let opcode = prefixes + usize::from(rex.is_some());
    match *bytes.get(opcode)? {
        // With REX.B it is `xchg r8, rax`.
        0x90 if rex.is_none_or(|rex| rex & 1 == 0) => Some(opcode + 1),
        0x0f if *bytes.get(opcode + 1)? == 0x1f => {
            let len = opcode + 2 + operand_len(&bytes[opcode + 2..])?;
            // The displacement is part of the instruction, so its bytes must be present.
            (len <= bytes.len()).then_some(len)
        }
        _ => None,
    }
}

/// Returns the length of ModRM, SIB and displacement of an instruction with the opcode extension
/// `/0`.
fn operand_len(bytes: &[u8]) -> Option<usize> {
    let modrm = *bytes.first()?;
    let (mode, extension, rm) = (modrm >> 6, (modrm >> 3) & 7, modrm & 7);
    if extension != 0 {
        // Reserved: a later CPU may give it a meaning.
        return None;
    }
    let sib = mode != 3 && rm == 4;
    // Base 5 without a displacement stands for a displacement of 32 bits (rip-relative if there is
    // no SIB).
    let base = if sib { *bytes.get(1)? & 7 } else { rm };
    let displacement = match mode {
        0 if base == 5 => 4,
        1 => 1,
        2 => 4,
        _ => 0,
    };
    Some(1 + usize::from(sib) + displacement)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::{NopError, SITE_LEN, find, last_of, last_with_room, nop_len};
    use std::string::ToString;
    use std::vec::Vec;

    /// The bytes as a function entry: with `ret` behind them up to 16 bytes.
    fn entry(bytes: &[u8]) -> Vec<u8> {
        let mut entry = bytes.to_vec();
        entry.resize(16, 0xc3);
        entry
    }

    #[test]
    fn finds_every_five_byte_nop() {
        let nops: &[[u8; SITE_LEN]] = &[
            [0x0f, 0x1f, 0x44, 0x00, 0x08], // LLVM
            [0x0f, 0x1f, 0x44, 0x00, 0x00], // the textbook's
            [0x0f, 0x1f, 0x44, 0x20, 0xcc], // any displacement, also one that looks like int3
            [0x66, 0x0f, 0x1f, 0x40, 0x00], // disp8 without SIB
            [0x2e, 0x0f, 0x1f, 0x45, 0x7f], // rbp needs no SIB
            [0x66, 0x0f, 0x1f, 0x04, 0x00], // SIB without displacement
            [0x66, 0x66, 0x0f, 0x1f, 0x00], // plain memory operand
            [0x66, 0x2e, 0x0f, 0x1f, 0xc0], // register operand
            [0x3e, 0x0f, 0x1f, 0x40, 0x00],
            [0x64, 0x0f, 0x1f, 0x40, 0x00],
            [0x65, 0x0f, 0x1f, 0x40, 0x00],
            [0x26, 0x36, 0x0f, 0x1f, 0x00],
            [0x67, 0x0f, 0x1f, 0x40, 0x00], // 32-bit address: ModRM has the same length
            [0x48, 0x0f, 0x1f, 0x40, 0x00], // REX.W
            [0x41, 0x0f, 0x1f, 0x04, 0x24], // REX.B does not change the need for SIB
            [0x66, 0x66, 0x66, 0x66, 0x90], // prefixed one-byte NOP
            [0x66, 0x66, 0x66, 0x48, 0x90],
        ];
        for nop in nops {
            assert_eq!(find(&entry(nop)), Ok(0), "{nop:02x?}");
            assert_eq!(find(nop), Ok(0), "{nop:02x?} at the end of the text");
        }
    }

    #[test]
    fn looks_behind_endbr64() {
        let bytes = [0xf3, 0x0f, 0x1e, 0xfa, 0x0f, 0x1f, 0x44, 0x00, 0x08];
        assert_eq!(find(&entry(&bytes)), Ok(4));
        assert_eq!(find(&bytes), Ok(4));
    }

    #[test]
    fn endbr32_is_not_skipped() {
        let bytes = [0xf3, 0x0f, 0x1e, 0xfb, 0x0f, 0x1f, 0x44, 0x00, 0x08];
        assert!(matches!(find(&bytes), Err(NopError::NotNop { .. })));
    }

    #[test]
    fn refuses_the_pad_of_gcc() {
        assert_eq!(find(&entry(&[0x90; 5])), Err(NopError::Pad { count: 5 }));
        assert_eq!(find(&[0x90; 16]), Err(NopError::Pad { count: 16 }));
        assert_eq!(find(&entry(&[0x90; 2])), Err(NopError::Pad { count: 2 }));
        let behind_endbr = [0xf3, 0x0f, 0x1e, 0xfa, 0x90, 0x90, 0x90, 0x90, 0x90, 0x55];
        assert_eq!(find(&behind_endbr), Err(NopError::Pad { count: 5 }));
        assert_eq!(
            NopError::Pad { count: 5 }.to_string(),
            "holds 5 one-byte NOPs: a thread may stand between two of them"
        );
    }

    #[test]
    fn refuses_nops_of_other_lengths() {
        let nops: &[&[u8]] = &[
            &[0x90],
            &[0x66, 0x90],
            &[0x0f, 0x1f, 0x00],
            &[0x0f, 0x1f, 0x40, 0x00],
            &[0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00],
            &[0x0f, 0x1f, 0x05, 0x00, 0x00, 0x00, 0x00], // rip-relative
            &[0x0f, 0x1f, 0x80, 0x00, 0x00, 0x00, 0x00],
            &[0x0f, 0x1f, 0x04, 0x25, 0x00, 0x00, 0x00, 0x00], // SIB without a base
            &[0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
            &[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
        ];
        for nop in nops {
            let length = nop.len();
            assert_eq!(
                find(&entry(nop)),
                Err(NopError::Length { length }),
                "{nop:02x?}"
            );
        }
        assert_eq!(
            NopError::Length { length: 9 }.to_string(),
            "holds a NOP of 9 bytes, a site needs 5"
        );
    }

    #[test]
    fn refuses_too_few_bytes() {
        for have in 0..SITE_LEN {
            let nop = [0x0f, 0x1f, 0x44, 0x00, 0x08];
            assert_eq!(find(&nop[..have]), Err(NopError::TooShort { have }));
            let mut behind_endbr = Vec::from([0xf3, 0x0f, 0x1e, 0xfa]);
            behind_endbr.extend(&nop[..have]);
            assert_eq!(find(&behind_endbr), Err(NopError::TooShort { have }));
        }
        assert_eq!(
            NopError::TooShort { have: 3 }.to_string(),
            "holds 3 bytes, a site needs 5"
        );
    }

    #[test]
    fn a_nop_cut_off_by_the_end_of_the_text_is_none() {
        let nop = [0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0];
        for len in 0..nop.len() {
            assert_eq!(nop_len(&nop[..len]), None, "{len}");
        }
        assert_eq!(nop_len(&nop), Some(9));
    }

    #[test]
    fn the_last_nop_of_padding_is_found_from_its_start() {
        let long = [0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0];
        // It ends as a shorter NOP would.
        let short = [0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00];
        assert_eq!(last_of(&[&long[..], &short].concat()), Some(6));
        assert_eq!(last_of(&long), Some(10));
        assert_eq!(last_of(&[]), None);
        assert_eq!(last_of(&[&[0xc3][..], &short].concat()), None);
        assert_eq!(last_of(&short[..5]), None);
        let both = [&long[..], &short].concat();
        assert_eq!(last_with_room(&both, 6), Some(6));
        assert_eq!(last_with_room(&both, 7), Some(16));
        assert_eq!(last_with_room(&both, 11), None);
    }

    #[test]
    fn tells_a_breakpoint_and_a_jump_apart() {
        assert_eq!(
            find(&entry(&[0xcc, 0x1f, 0x44, 0x00, 0x08])),
            Err(NopError::Breakpoint)
        );
        for jump in [
            [0xe9, 0x00, 0x10, 0x00, 0x00],
            [0xeb, 0x09, 0x0f, 0x1f, 0x84],
            [0xff, 0x25, 0x00, 0x00, 0x00],
            [0xff, 0xe0, 0x00, 0x00, 0x00],
        ] {
            let opcode = jump[0];
            assert_eq!(find(&entry(&jump)), Err(NopError::Jump { opcode }));
        }
        // ff /2 is a call, no jump.
        assert!(matches!(
            find(&entry(&[0xff, 0x15, 0, 0, 0])),
            Err(NopError::NotNop { .. })
        ));
        assert_eq!(
            NopError::Jump { opcode: 0xe9 }.to_string(),
            "holds a jump (e9): patched by something else"
        );
    }

    #[test]
    fn refuses_what_only_looks_like_a_nop() {
        let others: &[[u8; SITE_LEN]] = &[
            [0x48, 0x83, 0xec, 0x08, 0x90], // sub rsp, 8
            [0x0f, 0x1f, 0x4c, 0x00, 0x08], // 0f 1f /1: reserved
            [0x0f, 0x1e, 0x44, 0x00, 0x08], // reserved for control flow
            [0x0f, 0x18, 0x44, 0x00, 0x08], // prefetch
            [0xf0, 0x0f, 0x1f, 0x40, 0x00], // lock: invalid
            [0xf3, 0x0f, 0x1f, 0x40, 0x00],
            [0xf3, 0x90, 0x0f, 0x1f, 0x00], // pause
            [0x66, 0x66, 0x66, 0x41, 0x90], // xchg r8, rax
            [0x48, 0x66, 0x0f, 0x1f, 0x00], // REX not before the opcode
            [0x66, 0x66, 0x66, 0x66, 0x66], // prefixes only
            [0x00; SITE_LEN],               // add byte ptr [rax], al
            [0x66, 0x66, 0x66, 0x66, 0x0f], // runs into the ret behind
            [0x8d, 0x74, 0x26, 0x00, 0x90], // lea: no NOP in 64-bit mode
        ];
        for other in others {
            assert!(
                matches!(find(&entry(other)), Err(NopError::NotNop { .. })),
                "{other:02x?}"
            );
        }
    }

    #[test]
    fn shows_the_bytes_that_are_not_a_nop() {
        let found = find(&[0x48, 0x83, 0xec, 0x08, 0x31, 0xc0]).unwrap_err();
        assert_eq!(found.to_string(), "holds 48 83 ec 08 31 c0 …: not a NOP");
        let found = find(&[0x48; 16]).unwrap_err();
        assert_eq!(
            found.to_string(),
            "holds 48 48 48 48 48 48 48 48 …: not a NOP"
        );
    }

    #[test]
    fn any_bytes_give_an_answer() {
        // Every opcode and ModRM under every prefix that matters, at every length.
        for prefix in [&[][..], &[0x66], &[0x41], &[0x66, 0x48], &ENDBR] {
            for first in 0..=u8::MAX {
                for second in 0..=u8::MAX {
                    let mut bytes = prefix.to_vec();
                    bytes.extend([first, second, 0x44, 0x00, 0x08, 0x25, 0x90]);
                    for len in 0..=bytes.len() {
                        let found = find(&bytes[..len]);
                        if let Ok(offset) = found {
                            assert!(offset + SITE_LEN <= len);
                        }
                    }
                }
            }
        }
    }

    const ENDBR: [u8; 4] = super::ENDBR64;
}
