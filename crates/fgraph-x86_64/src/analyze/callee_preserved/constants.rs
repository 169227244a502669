//! Calls and jumps through registers that hold a function's address as a constant.
//!
//! gcc treats such a function like one that it calls directly, and uses its knowledge of the code.
//! Its large code model loads every address this way, and so does `-mforce-indirect-call`:
//!
//! ```text
//!   movabs rbp, offset f        lea rax, [rip + here]       lea rbp, [rip + f]
//!   call rbp                    movabs r11, GOT - here      call rbp
//!                               add rax, r11
//!                               movabs rcx, f - GOT
//!                               lea rbp, [rax + rcx]
//!                               call rbp
//! ```
//!
//! The values of registers are tracked within each function that loads such a constant.

use alloc::{vec, vec::Vec};
use core::ops::Range;

use iced_x86::{
    Code as Opcode, Decoder, DecoderOptions, Instruction, InstructionInfoFactory,
    InstructionInfoOptions, OpAccess, Register,
};

use super::code::Code;
use super::decoded::Constant;
use super::graph::{End, Graph};

/// The values of the general registers, by their numbers, where they are known.
type Values = [Option<u64>; 16];

impl Graph<'_> {
    /// Resolves calls and jumps through constants to their functions. Returns `false` if a call may
    /// come from the large code model, and its function is not found.
    pub(super) fn resolve(&mut self) -> bool {
        let through = core::mem::take(&mut self.through);
        let mut is_known = true;
        let mut ends: Vec<(usize, End)> = Vec::new();
        let mut factory = InstructionInfoFactory::new();
        for through in
            through.chunk_by(|a, b| self.around(a.block as usize).contains(&(b.block as usize)))
        {
            let function = self.around(through[0].block as usize);
            let constants = self.constants_of(&function);
            if constants.is_empty() {
                continue;
            }
            let values = self.values(&function, &mut factory);
            for one in through {
                let at = one.block as usize;
                let value =
                    values[at - function.start].and_then(|all| all[usize::from(one.register)]);
                let to = value.and_then(|value| self.block_at(value as usize));
                let to = to
                    .map(|to| to as u32)
                    .filter(|to| self.parts.binary_search(to).is_ok());
                match (to, self.blocks[at].end) {
                    (Some(to), End::CallsUnknown) => ends.push((at, End::Calls(to))),
                    (Some(to), _) => ends.push((at, End::Jumps(to))),
                    (None, _) => is_known &= !constants.iter().any(|&(_, is_wide)| is_wide),
                }
            }
        }
        if !ends.is_empty() {
            for (at, end) in ends {
                self.blocks[at].end = end;
            }
            self.link_sources();
        }
        is_known
    }

    /// Returns the constants that blocks load.
    fn constants_of(&self, blocks: &Range<usize>) -> &[(u32, bool)] {
        let start = self.blocks[blocks.start].place;
        let end = self
            .blocks
            .get(blocks.end)
            .map_or(u32::MAX, |block| block.place);
        let [first, behind] =
            [start, end].map(|place| self.constants.partition_point(|&(at, _)| at < place));
        &self.constants[first..behind]
    }

    /// Returns the values at the end of each block of a function; `None` for unreachable blocks.
    fn values(
        &self,
        function: &Range<usize>,
        factory: &mut InstructionInfoFactory,
    ) -> Vec<Option<Values>> {
        let mut at_start: Vec<Option<Values>> = vec![None; function.len()];
        let mut at_end = at_start.clone();
        let mut open: Vec<usize> = Vec::new();
        for at in function.clone().filter(|&at| self.is_entered(at, function)) {
            at_start[at - function.start] = Some(Values::default());
            open.push(at);
        }
        while let Some(at) = open.pop() {
            let Some(mut values) = at_start[at - function.start] else {
                continue;
            };
            self.execute(at, &mut values, factory);
            at_end[at - function.start] = Some(values);
            let mut hand = |to: usize, values: &Values| {
                if function.contains(&to) && join(&mut at_start[to - function.start], values) {
                    open.push(to);
                }
            };
            let end = self.blocks[at].end;
            if let Some(to) = end.target() {
                hand(to as usize, &values);
            }
            if end == End::JumpsByTable {
                function.clone().for_each(|to| hand(to, &values));
            }
            if end.leads_on() {
                if end.calls() {
                    // Results are changed. gcc may keep a constant in any other register that the
                    // function leaves unchanged.
                    for result in [Register::RAX, Register::RDX] {
                        values[result.number()] = None;
                    }
                }
                hand(at + 1, &values);
            }
        }
        at_end
    }

    /// Returns true if code other than the blocks of its function may lead to a block.
    fn is_entered(&self, at: usize, function: &Range<usize>) -> bool {
        let mut sources = self.sources_of(at).iter().map(|&source| source as usize);
        let follows = at > function.start && self.blocks[at - 1].end.leads_on();
        at == function.start
            || sources.any(|source| !function.contains(&source))
            || !follows && self.sources_of(at).is_empty()
    }

    /// Executes the instructions of a block.
    fn execute(&self, at: usize, values: &mut Values, factory: &mut InstructionInfoFactory) {
        let place = self.blocks[at].place;
        let Some(Code { address, bytes }) = self.code_from(place, 0) else {
            return;
        };
        let next = self
            .blocks
            .get(at + 1)
            .map(|next| (next.place - place) as usize);
        let bytes = &bytes[..next.unwrap_or(usize::MAX).min(bytes.len())];
        let mut decoder = Decoder::with_ip(64, bytes, address as u64, DecoderOptions::NONE);
        for instruction in &mut decoder {
            step(&instruction, values, factory);
        }
    }
}

/// Merges the values of another path to a block; returns `true` if fewer are known then.
fn join(known: &mut Option<Values>, values: &Values) -> bool {
    let all = match known {
        None => *values,
        Some(known) => core::array::from_fn(|at| known[at].filter(|_| known[at] == values[at])),
    };
    known.replace(all) != Some(all)
}

/// Executes an instruction.
fn step(instruction: &Instruction, values: &mut Values, factory: &mut InstructionInfoFactory) {
    let value = |register: Register| match register {
        Register::None => Some(0),
        _ if register.is_gpr64() => values[register.number()],
        _ => None,
    };
    let [to, from] = [instruction.op0_register(), instruction.op1_register()];
    let constant = Constant::of(instruction).map(|constant| constant.value);
    let result = constant.or_else(|| match instruction.code() {
        Opcode::Mov_r64_rm64 | Opcode::Mov_rm64_r64 if from != Register::None => value(from),
        Opcode::Add_r64_rm64 | Opcode::Add_rm64_r64 if from != Register::None => {
            let (a, b) = (value(to), value(from));
            a.zip(b).map(|(a, b)| a.wrapping_add(b))
        }
        Opcode::Lea_r64_m => {
            let base = value(instruction.memory_base());
            let index = value(instruction.memory_index());
            let scale = u64::from(instruction.memory_index_scale());
            let displacement = instruction.memory_displacement64();
            base.zip(index).map(|(base, index)| {
                let sum = base.wrapping_add(index.wrapping_mul(scale));
                sum.wrapping_add(displacement)
            })
        }
        _ => None,
    });
    let info = factory.info_options(instruction, InstructionInfoOptions::NO_MEMORY_USAGE);
    for used in info.used_registers() {
        let register = used.register().full_register();
        let is_read = matches!(
            used.access(),
            OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess | OpAccess::None
        );
        if register.is_gpr64() && !is_read {
            values[register.number()] = result.filter(|_| register == to.full_register());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constant_is_wide_if_it_needs_no_more_than_32_bits() {
        let constant = |bytes: &[u8]| {
            let mut decoder = Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE);
            let constant = Constant::of(&decoder.decode())?;
            Some((constant.value, constant.is_wide))
        };
        // movabs rbp, 0x401000; movabs rcx, -0x2000; movabs rax, 1 << 40
        assert_eq!(
            constant(b"\x48\xbd\x00\x10\x40\0\0\0\0\0"),
            Some((0x40_1000, true))
        );
        let negative = (-0x2000_i64).cast_unsigned();
        assert_eq!(
            constant(b"\x48\xb9\x00\xe0\xff\xff\xff\xff\xff\xff"),
            Some((negative, true))
        );
        assert_eq!(
            constant(b"\x48\xb8\0\0\0\0\0\x01\0\0"),
            Some((1 << 40, false))
        );
        // mov ebp, 0x401000; mov rbp, -1; lea rbp, [rip + 9]; mov rbp, rax
        assert_eq!(constant(b"\xbd\x00\x10\x40\x00"), Some((0x40_1000, false)));
        assert_eq!(
            constant(b"\x48\xc7\xc5\xff\xff\xff\xff"),
            Some((u64::MAX, false))
        );
        assert_eq!(constant(b"\x48\x8d\x2d\x09\0\0\0"), Some((0x1010, false)));
        assert_eq!(constant(b"\x48\x89\xc5"), None);
    }

    #[test]
    fn values_are_added_and_copied_and_lost() {
        let mut values = Values::default();
        let mut factory = InstructionInfoFactory::new();
        let mut run = |bytes: &[u8], values: &mut Values| {
            let mut decoder = Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE);
            for instruction in &mut decoder {
                step(&instruction, values, &mut factory);
            }
            [Register::RAX, Register::RBP, Register::R11].map(|at| values[at.number()])
        };
        // lea rax, [rip - 7]; movabs r11, 0x3000; add rax, r11; movabs rcx, -0x2000;
        // lea rbp, [rax + rcx]
        let large = b"\x48\x8d\x05\xf9\xff\xff\xff\x49\xbb\x00\x30\0\0\0\0\0\0\x4c\x01\xd8\
                      \x48\xb9\x00\xe0\xff\xff\xff\xff\xff\xff\x48\x8d\x2c\x08";
        let known = run(large, &mut values);
        assert_eq!(known, [Some(0x4000), Some(0x2000), Some(0x3000)]);
        // mov rax, rbp; xor ebp, ebp; mov r11, [rax]
        let known = run(b"\x48\x89\xe8\x31\xed\x4c\x8b\x18", &mut values);
        assert_eq!(known, [Some(0x2000), None, None]);
    }

    #[test]
    fn values_known_on_all_paths_are_known_where_they_meet() {
        let [mut one, mut other] = [Values::default(); 2];
        (one[0], one[1], other[0], other[1]) = (Some(7), Some(8), Some(7), Some(9));
        let mut known = None;
        assert!(join(&mut known, &one) && join(&mut known, &other));
        assert!(!join(&mut known, &one));
        assert_eq!(known.unwrap()[..2], [Some(7), None]);
    }
}
