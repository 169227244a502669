//! Prefixes and operands of instructions, from their bytes.

/// Returns the 32 bits at `offset` of an instruction, sign-extended.
pub(super) fn displacement(bytes: &[u8], offset: usize) -> isize {
    let bytes = &bytes[offset..offset + 4];
    i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as isize
}

/// The prefixes of an instruction.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prefixes {
    /// The number of prefix bytes.
    pub(super) len: usize,
    /// True for 66 without a REX.W that overrides it.
    pub(super) operand16: bool,
    /// True for 67.
    pub(super) address32: bool,
}

impl Prefixes {
    pub(super) fn of(bytes: &[u8]) -> Self {
        let is_prefix = |byte: &u8| {
            matches!(
                byte,
                0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3
            )
        };
        let len = bytes.iter().take_while(|byte| is_prefix(byte)).count();
        let prefixes = &bytes[..len];
        // REX counts only directly before the opcode; W is its bit 3.
        let wide = prefixes.last().is_some_and(|byte| byte & 0xf8 == 0x48);
        Self {
            len,
            operand16: prefixes.contains(&0x66) && !wide,
            address32: prefixes.contains(&0x67),
        }
    }
}

/// The operand of an indirect call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operand {
    Register { rsp: bool },
    RipRelative,
    Rsp { displacement: i32, index: bool },
    Memory,
}

impl Operand {
    /// Reads the ModRM byte at `offset` of an instruction; the opcode is before it.
    pub(super) fn of(bytes: &[u8], offset: usize) -> Option<Self> {
        let modrm = *bytes.get(offset)?;
        let (mode, rm) = (modrm >> 6, modrm & 7);
        // A REX prefix is directly before the opcode.
        let rex = offset
            .checked_sub(2)
            .map_or(0, |at| bytes[at])
            .wrapping_sub(0x40);
        let [base, index] = [1, 2].map(|bit| if rex < 16 && rex & bit != 0 { 8 } else { 0 });
        Some(match (mode, rm) {
            (3, _) => Self::Register {
                rsp: rm | base == 4,
            },
            (0, 5) => Self::RipRelative,
            (_, 4) => {
                let sib = *bytes.get(offset + 1)?;
                if (sib & 7) | base != 4 {
                    return Some(Self::Memory);
                }
                let displacement = match mode {
                    0 => 0,
                    1 => i32::from(bytes.get(offset + 2)?.cast_signed()),
                    _ => i32::try_from(displacement(bytes.get(..offset + 6)?, offset + 2)).ok()?,
                };
                Self::Rsp {
                    displacement,
                    index: ((sib >> 3) & 7) | index != 4,
                }
            }
            _ => Self::Memory,
        })
    }
}
