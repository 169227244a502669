//! Detects functions whose callers expect more than the ABI says.
//!
//! The code of a function shows some of these conventions:
//!
//! | the function | it means |
//! |---|---|
//! | reads flags that it did not set | it takes an argument there |
//! | ends with `stc`, `clc` or `cmc` and `ret` | it returns a result in the carry flag |
//! | uses r11 or a vector register from 8 on before it writes it | see 1 |
//! | uses rcx before it writes it, but neither rdi nor rsi; or saves both of these | see 2 |
//!
//! 1. It takes an argument there (`regcall`, assembly), or saves the register for its caller
//!    (`ms_abi`, `preserve_all`).
//! 2. Its first argument is in rcx (`ms_abi`), and it preserves rdi, rsi and vector registers 6 to
//!    15.
//!
//! No compiler generates the first three in a function that keeps to the ABI, because these
//! registers have no defined content. The last may be a function that does not need its first two
//! arguments; then the mistake costs a little time.

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory,
    InstructionInfoOptions, Mnemonic, OpAccess, Register, RflagsBits,
};

use memchr::memchr_iter;

use super::window::{Code, is_end};

/// The number of instructions that are analyzed: a function soon saves or uses its inputs.
const LOOKED_AT: usize = 64;

/// The flags that instructions compute.
const FLAGS: u32 = RflagsBits::OF
    | RflagsBits::SF
    | RflagsBits::ZF
    | RflagsBits::AF
    | RflagsBits::CF
    | RflagsBits::PF;

/// The conventions between a function and its callers beyond the ABI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Convention {
    /// The function takes an argument in the flags.
    pub takes_flags: bool,
    /// The function gives a result in the carry flag.
    pub gives_flags: bool,
    /// It reads r11, or a vector register from 8 to 15, before it writes to it.
    pub reads_scratch: bool,
    /// It reads a vector register above 15 or an opmask before it writes to it.
    pub reads_high: bool,
    /// The first argument of the function is in rcx.
    pub starts_at_rcx: bool,
}

/// The first use of a register by a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum First {
    /// Not used yet.
    #[default]
    Nothing,
    /// The function saves the register.
    Push,
    Read,
    Write,
}

/// The first uses of the registers that show where the first argument is.
#[derive(Debug, Default)]
struct Arguments {
    rcx: First,
    rdi: First,
    rsi: First,
}

impl Arguments {
    fn of(&mut self, register: Register) -> Option<&mut First> {
        match register.full_register() {
            Register::RCX => Some(&mut self.rcx),
            Register::RDI => Some(&mut self.rdi),
            Register::RSI => Some(&mut self.rsi),
            _ => None,
        }
    }

    /// Returns true if the instruction mentions a register whose first use is still unknown.
    fn are_news(&mut self, instruction: &Instruction) -> bool {
        let mut is_news = |register| self.of(register) == Some(&mut First::Nothing);
        is_news(instruction.memory_base())
            || is_news(instruction.memory_index())
            || (0..instruction.op_count()).any(|at| is_news(instruction.op_register(at)))
    }

    fn note(&mut self, mnemonic: Mnemonic, register: Register, access: OpAccess) {
        let Some(first @ First::Nothing) = self.of(register) else {
            return;
        };
        *first = match access {
            OpAccess::None | OpAccess::NoMemAccess => First::Nothing,
            OpAccess::Write => First::Write,
            _ if mnemonic == Mnemonic::Push => First::Push,
            _ => First::Read,
        };
    }

    /// Returns true if the first argument is in rcx. `leads_away` says that other code may read
    /// registers that were not written.
    fn start_at_rcx(&self, leads_away: bool) -> bool {
        let is_used = |first| first == First::Read || first == First::Nothing && leads_away;
        let is_saved = |first| first == First::Push;
        self.rcx == First::Read && !is_used(self.rdi) && !is_used(self.rsi)
            || is_saved(self.rdi) && is_saved(self.rsi)
    }
}

impl Convention {
    /// Analyzes the code of a function.
    ///
    /// Analyzes the first instructions up to the first one that leaves the function or makes a
    /// call, as if no conditional branch was taken.
    #[must_use]
    pub fn of(code: &Code<'_>) -> Self {
        let body = code.body();
        let mut found = Self {
            gives_flags: gives_carry(body),
            ..Self::default()
        };
        let mut factory = None;
        let mut instruction = Instruction::default();
        let mut decoder = Decoder::new(64, body, DecoderOptions::NONE);
        let (mut written, mut flags) = (0_u64, 0);
        let mut arguments = Arguments::default();
        let mut leads_away = true;
        for _ in 0..LOOKED_AT {
            if !decoder.can_decode() {
                break;
            }
            decoder.decode_out(&mut instruction);
            if instruction.is_invalid() {
                break;
            }
            // System calls save the flags, and a call changes them.
            if !matches!(
                instruction.flow_control(),
                FlowControl::Next | FlowControl::ConditionalBranch
            ) {
                leads_away = instruction.flow_control() != FlowControl::Return;
                break;
            }
            // Flags that are pushed are restored later, or are flags of the system.
            let saves_flags = matches!(
                instruction.mnemonic(),
                Mnemonic::Pushf | Mnemonic::Pushfd | Mnemonic::Pushfq
            );
            let read = instruction.rflags_read() & FLAGS & !flags;
            found.takes_flags |= read != 0 && !saves_flags;
            flags |= instruction.rflags_modified();
            if !mentions(&instruction) && !arguments.are_news(&instruction) {
                continue;
            }
            let factory = factory.get_or_insert_with(InstructionInfoFactory::new);
            let info = factory.info_options(&instruction, InstructionInfoOptions::NO_MEMORY_USAGE);
            let mut writes = 0;
            for used in info.used_registers() {
                arguments.note(instruction.mnemonic(), used.register(), used.access());
                let Some(bit) = bit(used.register()) else {
                    continue;
                };
                match used.access() {
                    OpAccess::None | OpAccess::NoMemAccess => {}
                    OpAccess::Write => writes |= bit,
                    // The part of the register that is not replaced stays unchanged.
                    OpAccess::CondWrite => {}
                    _ if written & bit == 0 && bit & HIGH != 0 => found.reads_high = true,
                    _ if written & bit == 0 => found.reads_scratch = true,
                    _ => {}
                }
            }
            written |= writes;
        }
        found.starts_at_rcx = arguments.start_at_rcx(leads_away);
        found
    }
}

/// The bits of registers that exist only with AVX-512.
const HIGH: u64 = !0xffff;

/// Returns the bit of a register: r11 is bit 0, vector registers have the bits 8 to 31 and opmasks
/// 32 to 39.
fn bit(register: Register) -> Option<u64> {
    if register.full_register() == Register::R11 {
        Some(1)
    } else if register.is_vector_register() && register.number() >= 8 {
        Some(1 << register.number())
    } else if register.is_k() && register != Register::K0 {
        Some(1 << (32 + register.number()))
    } else {
        None
    }
}

/// Returns true if an operand is such a register. Costs less than computing the instruction's full
/// effect.
fn mentions(instruction: &Instruction) -> bool {
    let is_one = |register| bit(register).is_some();
    is_one(instruction.memory_base())
        || is_one(instruction.memory_index())
        || is_one(instruction.op_mask())
        || (0..instruction.op_count()).any(|at| is_one(instruction.op_register(at)))
}

/// Returns true if the code has `stc`, `clc` or `cmc` followed by a `ret`.
fn gives_carry(body: &[u8]) -> bool {
    const CMC: u8 = 0xf5;
    const CLC: u8 = 0xf8;
    const STC: u8 = 0xf9;
    const RET: u8 = 0xc3;
    // Few functions have these bytes, most of them inside other instructions.
    let is_like = |at: usize| at > 0 && matches!(body[at - 1], CMC | CLC | STC);
    if !memchr_iter(RET, body).any(is_like) {
        return false;
    }
    let mut decoder = Decoder::new(64, body, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    let mut before = Mnemonic::INVALID;
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        if is_end(&instruction)
            && instruction.flow_control() == FlowControl::Return
            && matches!(before, Mnemonic::Stc | Mnemonic::Clc | Mnemonic::Cmc)
        {
            return true;
        }
        before = instruction.mnemonic();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: &[u8]) -> Convention {
        Convention::of(&Code {
            bytes,
            address: 0x1000,
            size: bytes.len(),
        })
    }

    #[test]
    fn a_function_that_uses_the_flags_it_finds_takes_them() {
        // mov eax, 0; adc eax, 7; ret
        assert!(of(&[0xb8, 0, 0, 0, 0, 0x83, 0xd0, 7, 0xc3]).takes_flags);
        // jc $+2; ret
        assert!(of(&[0x72, 0, 0xc3]).takes_flags);
        // sub rsp, 8; adc eax, 7; ret
        assert!(!of(&[0x48, 0x83, 0xec, 8, 0x83, 0xd0, 7, 0xc3]).takes_flags);
        // inc eax leaves the carry flag: adc eax, 7
        assert!(of(&[0xff, 0xc0, 0x83, 0xd0, 7, 0xc3]).takes_flags);
        // call $+5; adc eax, 7: of the function that is called
        assert!(!of(&[0xe8, 0, 0, 0, 0, 0x83, 0xd0, 7, 0xc3]).takes_flags);
        // pushfq; pop rax; ret
        assert_eq!(of(&[0x9c, 0x58, 0xc3]), Convention::default());
    }

    #[test]
    fn a_function_that_sets_the_carry_flag_last_gives_it() {
        // xor eax, eax; stc; ret
        assert!(of(&[0x31, 0xc0, 0xf9, 0xc3]).gives_flags);
        // ret; clc; ret
        assert!(of(&[0xc3, 0xf8, 0xc3]).gives_flags);
        // mov eax, edi; ret
        assert!(!of(&[0x89, 0xf8, 0xc3]).gives_flags);
    }

    #[test]
    fn a_function_that_uses_a_scratch_register_as_it_finds_it_is_not_by_the_abi() {
        // lea rax, [rdi + r11]; ret
        assert!(of(&[0x4a, 0x8d, 0x04, 0x1f, 0xc3]).reads_scratch);
        // mov r11, rdi; lea rax, [rdi + r11]; ret
        assert!(!of(&[0x49, 0x89, 0xfb, 0x4a, 0x8d, 0x04, 0x1f, 0xc3]).reads_scratch);
        // movaps [rsp + 16], xmm8; ret
        assert!(of(&[0x44, 0x0f, 0x29, 0x44, 0x24, 0x10, 0xc3]).reads_scratch);
        // movaps [rsp + 16], xmm7; ret
        assert!(!of(&[0x0f, 0x29, 0x7c, 0x24, 0x10, 0xc3]).reads_scratch);
        // pxor xmm8, xmm8; addpd xmm0, xmm8; ret
        let zero = [
            0x66, 0x45, 0x0f, 0xef, 0xc0, 0x66, 0x41, 0x0f, 0x58, 0xc0, 0xc3,
        ];
        assert!(!of(&zero).reads_scratch);
        // vmovdqa64 zmm0, zmm17; ret
        let high = of(&[0x62, 0xb1, 0xfd, 0x48, 0x6f, 0xc1, 0xc3]);
        assert!(high.reads_high && !high.reads_scratch);
    }

    #[test]
    fn a_function_whose_first_argument_is_in_rcx_is_not_by_the_abi() {
        // lea rax, [rcx + rdx]; ret
        assert!(of(&[0x48, 0x8d, 0x04, 0x11, 0xc3]).starts_at_rcx);
        // push rbp; mov rbp, rsp; mov [rbp - 8], rcx; pop rbp; ret
        let unoptimised = [0x55, 0x48, 0x89, 0xe5, 0x48, 0x89, 0x4d, 0xf8, 0x5d, 0xc3];
        assert!(of(&unoptimised).starts_at_rcx);
        // push rdi; push rsi; mov edi, 1; call $+5
        assert!(of(&[0x57, 0x56, 0xbf, 1, 0, 0, 0, 0xe8, 0, 0, 0, 0]).starts_at_rcx);
        // mov edi, ecx; mov esi, edx; call $+5
        assert!(of(&[0x89, 0xcf, 0x89, 0xd6, 0xe8, 0, 0, 0, 0]).starts_at_rcx);
        // add rcx, rdi; mov rax, rcx; ret
        assert!(!of(&[0x48, 0x01, 0xf9, 0x48, 0x89, 0xc8, 0xc3]).starts_at_rcx);
        // mov rbx, rcx; call $+5: which may take rdi and rsi as they are
        assert!(!of(&[0x48, 0x89, 0xcb, 0xe8, 0, 0, 0, 0]).starts_at_rcx);
        // xor ecx, ecx; mov eax, ecx; ret
        assert!(!of(&[0x31, 0xc9, 0x89, 0xc8, 0xc3]).starts_at_rcx);
        // lea rax, [rdi + rsi]; ret
        assert!(!of(&[0x48, 0x8d, 0x04, 0x37, 0xc3]).starts_at_rcx);
    }
}
