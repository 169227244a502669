//! The instructions of code, decoded once.
//!
//! All facts about an instruction follow from its bytes, except its target. Code repeats the same
//! bytes often, so the registers that they read and write are computed once for most of them.

use alloc::{vec, vec::Vec};

use iced_x86::{
    Code as Opcode, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory,
    Mnemonic, OpKind, Register,
};

use super::effect::Access;

/// The number of bytes of an operand that encode only a relative address.
const OFFSET: usize = 4;

/// The effect of an instruction on the flow of control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// The next instruction follows.
    Falls,
    /// Continues at its target.
    Jumps,
    /// Continues at its target or at the next instruction.
    Branches,
    /// Calls its target.
    Calls,
    CallsUnknown,
    /// Calls the address in the register with this number.
    CallsRegister(u8),
    JumpsUnknown,
    /// Jumps to the address in the register with this number.
    JumpsRegister(u8),
    CallsResolver,
    JumpsByTable,
    Returns,
    Stops,
    Unclear,
}

impl Flow {
    fn of(instruction: &Instruction) -> Self {
        let is_direct = is_direct(instruction);
        match instruction.flow_control() {
            FlowControl::UnconditionalBranch if is_direct => Self::Jumps,
            FlowControl::Call if is_direct => Self::Calls,
            _ if is_direct => Self::Branches,
            FlowControl::IndirectBranch if instruction.op0_kind() == OpKind::Register => {
                Self::JumpsRegister(instruction.op0_register().number() as u8)
            }
            FlowControl::IndirectBranch => match instruction.memory_index() {
                Register::None => Self::JumpsUnknown,
                _ => Self::JumpsByTable,
            },
            FlowControl::IndirectCall if instruction.op0_kind() == OpKind::Register => {
                Self::CallsRegister(instruction.op0_register().number() as u8)
            }
            FlowControl::IndirectCall => {
                let is_resolver = instruction.op0_kind() == OpKind::Memory
                    && instruction.memory_base() == Register::RAX
                    && instruction.memory_index() == Register::None
                    && instruction.memory_displacement64() == 0;
                if is_resolver {
                    Self::CallsResolver
                } else {
                    Self::CallsUnknown
                }
            }
            FlowControl::Return => Self::Returns,
            FlowControl::Exception => Self::Stops,
            _ if instruction.mnemonic() == Mnemonic::Hlt => Self::Stops,
            FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => Self::Unclear,
            _ => Self::Falls,
        }
    }

    /// Returns true if it has a target.
    fn is_direct(self) -> bool {
        matches!(self, Self::Jumps | Self::Branches | Self::Calls)
    }
}

/// Returns true if an instruction is a direct branch.
fn is_direct(instruction: &Instruction) -> bool {
    match instruction.flow_control() {
        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
            matches!(instruction.op0_kind(), OpKind::NearBranch64)
        }
        FlowControl::Call => instruction.is_call_near(),
        FlowControl::XbeginXabortXend => instruction.mnemonic() == Mnemonic::Xbegin,
        _ => false,
    }
}

/// The facts that all instructions of the same bytes share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    pub(super) access: Access,
    pub(super) len: u8,
    /// True for `endbr64`.
    pub(super) is_pad: bool,
    pub(super) is_nop: bool,
    /// True if it tests the number of vector arguments.
    pub(super) asks_al: bool,
    pub(super) flow: Flow,
    /// True if the next kind is for the same instruction in the first block of a function.
    has_entry: bool,
}

/// A cached kind.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// The bytes of the instruction.
    key: u64,
    index: u32,
    is_pad: bool,
    loads_constant: bool,
    flow: Flow,
}

/// An instruction when it is first decoded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Met {
    pub(super) len: usize,
    /// True for `endbr64`.
    pub(super) is_pad: bool,
    /// True for a call with a target.
    pub(super) calls: bool,
    /// The target, if it has one.
    pub(super) target: Option<usize>,
    /// The constant that it loads into a register.
    pub(super) constant: Option<Constant>,
}

/// An instruction when it is read again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decoded<'a> {
    pub(super) kind: &'a Kind,
    /// The registers that it reads and writes in the first block of a function.
    pub(super) at_entry: &'a Access,
    /// The target, if it has one.
    pub(super) target: Option<usize>,
}

/// The instructions of pieces of code, in the order in which they were added.
pub(super) struct Instructions {
    /// The kind of each instruction.
    all: Vec<u32>,
    /// The targets of the instructions that have one.
    targets: Vec<usize>,
    kinds: Vec<Kind>,
    /// The cache, by hashes of keys.
    seen: Vec<Seen>,
    factory: InstructionInfoFactory,
}

impl Instructions {
    /// The kind of a byte that is no instruction.
    const NONE: u32 = u32::MAX;

    /// The size of the cache.
    const SEEN: usize = 1 << 13;

    /// A key that no instruction has.
    const NO_KEY: u64 = 0;

    pub(super) fn new() -> Self {
        let unseen = Seen {
            key: Self::NO_KEY,
            index: Self::NONE,
            is_pad: false,
            loads_constant: false,
            flow: Flow::Falls,
        };
        Self {
            all: Vec::new(),
            targets: Vec::new(),
            kinds: Vec::new(),
            seen: vec![unseen; Self::SEEN],
            factory: InstructionInfoFactory::new(),
        }
    }

    /// Adds a piece of code, and calls `each` with each of its instructions and the address.
    pub(super) fn add(
        &mut self,
        bytes: &[u8],
        address: usize,
        mut each: impl FnMut(usize, Option<Met>),
    ) {
        let mut decoder = Decoder::with_ip(64, bytes, address as u64, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        while decoder.can_decode() {
            let at = decoder.position();
            decoder.decode_out(&mut instruction);
            if instruction.is_invalid() {
                self.all.push(Self::NONE);
                each(at, None);
                if decoder.set_position(at + 1).is_err() {
                    break;
                }
                decoder.set_ip((address + at + 1) as u64);
                continue;
            }
            let seen = self.find(&bytes[at..], &instruction, &decoder);
            self.all.push(seen.index);
            let target = seen.flow.is_direct();
            let target = target.then(|| instruction.near_branch_target() as usize);
            self.targets.extend(target);
            let met = Met {
                len: instruction.len(),
                is_pad: seen.is_pad,
                calls: seen.flow == Flow::Calls,
                target,
                constant: seen
                    .loads_constant
                    .then(|| Constant::of(&instruction))
                    .flatten(),
            };
            each(at, Some(met));
        }
    }

    /// Returns the kind of the instruction at the start of `bytes`.
    fn find(&mut self, bytes: &[u8], instruction: &Instruction, decoder: &Decoder<'_>) -> Seen {
        let len = instruction.len();
        let offset = match bytes {
            // The targets of calls and jumps are stored separately.
            [0xe8 | 0xe9, ..] if len == 1 + OFFSET => Some(1),
            [0x0f, 0x80..=0x8f, ..] if len == 2 + OFFSET => Some(2),
            _ if instruction.is_ip_rel_memory_operand() => {
                let offsets = decoder.get_constant_offsets(instruction);
                let is_whole = offsets.displacement_size() == OFFSET;
                is_whole.then(|| offsets.displacement_offset())
            }
            _ => None,
        };
        let Some(key) = key(bytes, len, offset) else {
            return self.make(Self::NO_KEY, instruction);
        };
        let slot = slot(key) % Self::SEEN;
        let mut seen = self.seen[slot];
        if seen.key != key {
            seen = self.make(key, instruction);
            self.seen[slot] = seen;
        }
        seen
    }

    /// Makes the kind of an instruction.
    fn make(&mut self, key: u64, instruction: &Instruction) -> Seen {
        let has_entry = Access::depends_on_entry(instruction);
        let mut access = |is_entry| Access::of(instruction, is_entry, &mut self.factory);
        let kind = Kind {
            access: access(false),
            len: instruction.len() as u8,
            is_pad: instruction.mnemonic() == Mnemonic::Endbr64,
            is_nop: instruction.mnemonic() == Mnemonic::Nop,
            asks_al: instruction.mnemonic() == Mnemonic::Test
                && instruction.op0_register() == Register::AL
                && instruction.op1_kind() == OpKind::Register
                && instruction.op1_register() == Register::AL,
            flow: Flow::of(instruction),
            has_entry,
        };
        let entry = has_entry.then(|| access(true));
        let entry = entry.map(|access| Kind { access, ..kind });
        let index = self.kinds.len() as u32;
        self.kinds.push(kind);
        self.kinds.extend(entry);
        Seen {
            key,
            index,
            is_pad: kind.is_pad,
            loads_constant: Constant::of(instruction).is_some(),
            flow: kind.flow,
        }
    }

    /// Iterates over all instructions; `None` stands for bytes that are none.
    pub(super) fn iter(&self) -> impl Iterator<Item = Option<Decoded<'_>>> {
        let mut targets = self.targets.iter().copied();
        self.all.iter().map(move |&index| {
            let kind = self.kinds.get(index as usize)?;
            let has_target = kind.flow.is_direct();
            Some(Decoded {
                kind,
                at_entry: &self.kinds[index as usize + usize::from(kind.has_entry)].access,
                target: if has_target { targets.next() } else { None },
            })
        })
    }
}

/// Returns the first `len` bytes without those of an offset among them, combined with their number;
/// `None` if these are too many.
fn key(bytes: &[u8], len: usize, offset: Option<usize>) -> Option<u64> {
    const LONGEST: usize = size_of::<u64>() - 1;
    if len > LONGEST {
        return None;
    }
    let mut key = match bytes.first_chunk() {
        Some(bytes) => u64::from_le_bytes(*bytes),
        None => {
            let mut all = [0; LONGEST + 1];
            all[..len].copy_from_slice(&bytes[..len]);
            u64::from_le_bytes(all)
        }
    };
    key &= (1 << (8 * len)) - 1;
    if let Some(at) = offset {
        key &= !(0xffff_ffff << (8 * at));
    }
    Some(key | (len as u64) << (8 * LONGEST))
}

fn slot(key: u64) -> usize {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize
}

/// A constant that an instruction loads into a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Constant {
    pub(super) value: u64,
    /// True for 64 bits where 32 would suffice: the linker has filled the constant in.
    pub(super) is_wide: bool,
}

impl Constant {
    /// Returns the constant that an instruction loads.
    pub(super) fn of(instruction: &Instruction) -> Option<Self> {
        let (value, is_wide) = match instruction.code() {
            Opcode::Mov_r64_imm64 => {
                let value = instruction.immediate(1);
                let is_narrow = |value: u64| {
                    u32::try_from(value).is_ok() || i32::try_from(value.cast_signed()).is_ok()
                };
                (value, is_narrow(value))
            }
            Opcode::Mov_r32_imm32 | Opcode::Mov_rm64_imm32
                if instruction.op0_kind() == OpKind::Register =>
            {
                (instruction.immediate(1), false)
            }
            Opcode::Lea_r64_m if instruction.is_ip_rel_memory_operand() => {
                (instruction.ip_rel_memory_address(), false)
            }
            _ => return None,
        };
        Some(Self { value, is_wide })
    }
}

/// The meaning of a call that does not return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thunk {
    Returns,
    /// Jumps to the address in the register with this number.
    Jumps(u8),
}

impl Thunk {
    /// Returns the meaning of a call of this code; `None` for an ordinary call.
    pub(super) fn of(code: &[u8]) -> Option<Self> {
        match *code {
            // lea rsp, [rsp + 8]; ret, and add rsp, 8; ret
            [0x48, 0x8d, 0x64, 0x24, 0x08, 0xc3, ..] | [0x48, 0x83, 0xc4, 0x08, 0xc3, ..] => {
                Some(Self::Returns)
            }
            // mov [rsp], r64; ret
            [rex @ (0x48 | 0x4c), 0x89, modrm, 0x24, 0xc3, ..] if modrm & 0xc7 == 0x04 => {
                Some(Self::Jumps((rex & 4) << 1 | modrm >> 3 & 7))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of many kinds of instructions: prefixes, opcodes of moves and branches, and relative
    /// operands.
    const BYTES: [u8; 24] = [
        0x48, 0x41, 0x66, 0x0f, 0xc5, 0x62, 0x89, 0x8b, 0x8d, 0x05, 0x25, 0x84, 0xe8, 0xe9, 0x74,
        0xff, 0x83, 0x31, 0x6f, 0x45, 0x24, 0xc0, 0xf8, 0xc3,
    ];

    #[test]
    fn an_instruction_is_what_it_would_be_alone() {
        const ADDRESS: usize = 0x40_0000;
        let mut random = 0x1234_5678_9abc_def1_u64;
        let mut next = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            BYTES[(random >> 32) as usize % BYTES.len()]
        };
        let bytes: Vec<u8> = (0..if cfg!(miri) { 1_000 } else { 200_000 })
            .map(|_| next())
            .collect();
        let mut instructions = Instructions::new();
        let mut places = Vec::new();
        instructions.add(&bytes, ADDRESS, |at, met| {
            places.push((at, met.map(|met| (met.len, met.is_pad, met.target))));
        });
        assert!(instructions.kinds.len() < places.len() / 2);
        let mut factory = InstructionInfoFactory::new();
        let mut end = 0;
        for (decoded, (at, met)) in instructions.iter().zip(&places) {
            assert_eq!(*at, end);
            let ip = (ADDRESS + at) as u64;
            let mut decoder = Decoder::with_ip(64, &bytes[*at..], ip, DecoderOptions::NONE);
            let alone = decoder.decode();
            assert_eq!(decoded.is_none(), alone.is_invalid(), "{at}");
            let Some(decoded) = decoded else {
                assert_eq!(*met, None);
                end += 1;
                continue;
            };
            end += alone.len();
            let target = is_direct(&alone).then(|| alone.near_branch_target() as usize);
            let is_pad = alone.mnemonic() == Mnemonic::Endbr64;
            assert_eq!(*met, Some((alone.len(), is_pad, target)), "{at}");
            let kind = decoded.kind;
            assert_eq!(
                (kind.len.into(), kind.flow),
                (alone.len(), Flow::of(&alone))
            );
            assert_eq!((kind.is_pad, decoded.target), (is_pad, target), "{at}");
            assert_eq!(kind.is_nop, alone.mnemonic() == Mnemonic::Nop, "{at}");
            for (access, is_entry) in [(&kind.access, false), (decoded.at_entry, true)] {
                assert_eq!(*access, Access::of(&alone, is_entry, &mut factory), "{at}");
            }
        }
        assert_eq!(end, bytes.len());
    }
}
