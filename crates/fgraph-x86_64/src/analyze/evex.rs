//! Finds functions that keep values across calls in registers that exist only with AVX-512.
//!
//! A caller that knows which registers a function leaves unchanged may keep values there across the
//! call (gcc's `-fipa-ra`); it knows only functions of its own module. Preserving zmm16 to 31 and
//! the opmasks at each call costs more than everything else, and hardly any code uses them. So this
//! module checks if a module has a function that uses them and calls another function.
//!
//! ```text
//!   62 P0 P1 P2      the prefix of instructions with such registers, EVEX:
//!      |  |          bit 3 of P0 is clear, bit 2 of P1 set
//! ```

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Register};

use super::scan;

/// Returns true if a function uses a vector register above 15 or an opmask, and makes a call.
///
/// `bytes` are those of one function, or of several, at `address`.
#[must_use]
pub fn uses_evex_across_calls(bytes: &[u8], address: usize) -> bool {
    let mut instruction = Instruction::default();
    // Most functions have no byte sequence that looks like the prefix, and most sequences that do
    // are no instruction with such registers.
    let mut prefixes = scan::places(bytes, 1, |first, p0| first.is(0x62) & p0.is_like(0, 8));
    let mut may_use = |at: usize| {
        let is_prefix = bytes.get(at + 2).is_some_and(|p1| p1 & 4 != 0);
        is_prefix && {
            Decoder::new(64, &bytes[at..], DecoderOptions::NONE).decode_out(&mut instruction);
            !instruction.is_invalid() && uses_high(&instruction)
        }
    };
    if !prefixes.any(&mut may_use) {
        return false;
    }
    let (mut uses, mut calls) = (false, false);
    let mut decoder = Decoder::with_ip(64, bytes, address as u64, DecoderOptions::NONE);
    // After bytes that are no instruction, decoding soon returns to instruction boundaries.
    while decoder.can_decode() && !(uses && calls) {
        decoder.decode_out(&mut instruction);
        calls |= matches!(
            instruction.flow_control(),
            FlowControl::Call | FlowControl::IndirectCall
        );
        uses |= uses_high(&instruction);
    }
    uses && calls
}

fn uses_high(instruction: &Instruction) -> bool {
    let mut operands = 0..instruction.op_count();
    instruction.op_mask() != Register::None
        || operands.any(|at| is_high(instruction.op_register(at)))
        || is_high(instruction.memory_index())
}

fn is_high(register: Register) -> bool {
    register.is_k() || register.is_vector_register() && register.number() >= 16
}

#[cfg(test)]
mod tests {
    use super::uses_evex_across_calls;

    /// call $+5
    const CALL: [u8; 5] = [0xe8, 0, 0, 0, 0];

    #[test]
    fn a_function_that_uses_them_and_calls_may_keep_them() {
        for uses in [
            &[0x62, 0xa1, 0xfd, 0x48, 0x6f, 0xc1][..], // vmovdqa64 zmm16, zmm17
            &[0x62, 0xf1, 0x7d, 0x48, 0x76, 0xc9],     // vpcmpeqd k1, zmm0, zmm1
            &[0x62, 0xf1, 0xfd, 0xc9, 0x6f, 0xc1],     // vmovdqa64 zmm0 {k1}{z}, zmm1
        ] {
            let both = [uses, &CALL].concat();
            assert!(uses_evex_across_calls(&both, 0x1000), "{uses:x?}");
            assert!(!uses_evex_across_calls(uses, 0x1000), "without a call");
        }
    }

    #[test]
    fn a_function_with_other_registers_does_not() {
        for other in [
            &[0x62, 0xf1, 0x7d, 0x48, 0x6f, 0xc1][..], // vmovdqa32 zmm0, zmm1
            &[0xc5, 0xfd, 0x6f, 0xc1],                 // vmovdqa ymm0, ymm1
            // mov eax, imm32 whose bytes look like the prefix
            &[0xb8, 0x62, 0xa1, 0xfd, 0x48],
            &[],
        ] {
            let both = [other, &CALL].concat();
            assert!(!uses_evex_across_calls(&both, 0x1000), "{other:x?}");
        }
    }
}
