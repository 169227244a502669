//! Finds out if code changes only general registers, flags, memory, and the lowest 128 bits of
//! vector registers.
//!
//! Callbacks are normally called with all state saved that they may change and the program may
//! need. Most change little of it. This module analyzes a callback's code, along every path,
//! through the functions that it calls. Code that cannot be followed, for example a call through a
//! pointer, may change anything.
//!
//! Compilers move data of 16 bytes in a vector register, mostly the first. SSE instructions do not
//! change the bits above the lowest 128; AVX instructions clear them, and are not allowed here.
//!
//! `errno` is in memory, at the same distance from the block of each thread. Only code that has
//! this distance from somewhere can change it: from a displacement or another constant, or from a
//! word that a linker has filled in. So code that mentions the distance is refused.
//!
//! A `ret` leads back to the caller only if the stack pointer is the same as at entry, and the
//! return address is unchanged. Retpolines return to an address that they have written. So the
//! stack pointer is tracked along each path. Code is refused if it moves the stack pointer other
//! than by a constant, `push`, `pop`, `call` or `leave`, or if it accesses its return address.

use alloc::collections::BTreeMap;

use iced_x86::{
    Code, CpuidFeature, Decoder, DecoderError, DecoderOptions, EncodingKind, FlowControl,
    Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};

use fgraph_core::regs::VECTORS_TOUCHED;

use super::frame::{Frame, RETURN_ADDRESS};

/// The most instructions that are analyzed: no callback that is called for every call is that long.
pub const MOST: usize = 4096;

/// The length of the longest instruction.
const LONGEST: usize = 15;

/// Access to code.
pub trait Memory {
    /// Fills `bytes` from an address on; returns true if they could be read.
    fn read(&mut self, address: usize, bytes: &mut [u8]) -> bool;

    /// Returns true if the word at an address is read-only, because a linker has filled it in.
    fn is_constant(&mut self, address: usize) -> bool;

    /// Returns the distance of a thread's `errno` from its block, to which fs points.
    fn errno_offset(&self) -> i64;

    /// Returns true if a known function begins at an address, which changes only general registers.
    fn is_known(&self, address: usize) -> bool {
        let _ = address;
        false
    }
}

/// The reason that code does more than a callback on the fast path may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IneligibleReason {
    /// Code that the callbacks may reach cannot be read, or is no code.
    Unreadable {
        /// The address of that code.
        address: usize,
    },
    /// An instruction changes or reads state that must be saved for it.
    Changes {
        /// The address of the instruction.
        address: usize,
    },
    /// The target of a call or a jump is unknown.
    Leads {
        /// The address of the instruction.
        address: usize,
    },
    /// An instruction moves the stack pointer to an unknown place, or may change a return address.
    Stack {
        /// The address of the instruction.
        address: usize,
    },
    /// An instruction has the distance of `errno` in it.
    Errno {
        /// The address of the instruction.
        address: usize,
    },
    /// The callbacks reach more than 4096 instructions.
    Long,
}

/// Returns how many vector registers, counted from the first, are changed in their lowest 128 bits
/// by the function at `entry` and all its callees. They must change nothing else except general
/// registers, flags and memory, and keep to the ABI's rules for stack and returns.
///
/// # Errors
///
/// Fails with the reason that they do something else, or that this is unknown.
pub fn vectors(entry: usize, memory: &mut dyn Memory) -> Result<usize, IneligibleReason> {
    let mut to_do = alloc::vec![(entry, Frame::AT_ENTRY)];
    let mut known: BTreeMap<usize, Frame> = BTreeMap::new();
    let mut factory = None;
    let errno = memory.errno_offset();
    let mut vectors = 0;
    while let Some((mut at, mut frame)) = to_do.pop() {
        loop {
            let address = at;
            let stack = IneligibleReason::Stack { address };
            if let Some(&known) = known.get(&address) {
                frame = known.meet(frame).ok_or(stack)?;
            } else if known.len() == MOST {
                return Err(IneligibleReason::Long);
            }
            if known.insert(address, frame) == Some(frame) {
                break;
            }
            if memory.is_known(address) {
                match frame.rsp {
                    Some(RETURN_ADDRESS) => break,
                    _ => return Err(stack),
                }
            }
            let instruction =
                decode(address, memory).ok_or(IneligibleReason::Unreadable { address })?;
            if mentions(errno, &instruction, memory) {
                return Err(IneligibleReason::Errno { address });
            }
            let last = vectors_of(&instruction, &mut factory);
            vectors = vectors.max(last.ok_or(IneligibleReason::Changes { address })?);
            let is_named = frame.names_return_address(&instruction);
            if is_named || !frame.step(&instruction, &mut factory) || is_too_high(&frame) {
                return Err(stack);
            }
            at = instruction.next_ip() as usize;
            let target = instruction.near_branch_target() as usize;
            match instruction.flow_control() {
                FlowControl::Next => {}
                FlowControl::UnconditionalBranch => at = target,
                FlowControl::ConditionalBranch => to_do.push((target, frame)),
                FlowControl::Call => to_do.push((target, Frame::AT_ENTRY)),
                FlowControl::IndirectCall => {
                    let target = linked(&instruction, memory);
                    let target = target.ok_or(IneligibleReason::Leads { address })?;
                    to_do.push((target, Frame::AT_ENTRY));
                }
                FlowControl::IndirectBranch => {
                    at = linked(&instruction, memory).ok_or(IneligibleReason::Leads { address })?;
                }
                FlowControl::Return if frame.rsp != Some(RETURN_ADDRESS) => return Err(stack),
                // `ud2`: the process ends.
                FlowControl::Return | FlowControl::Exception => break,
                FlowControl::Interrupt | FlowControl::XbeginXabortXend => {
                    return Err(IneligibleReason::Changes { address });
                }
            }
        }
    }
    Ok(vectors)
}

/// Returns true if the stack pointer may be above the return address, which a push would overwrite.
fn is_too_high(frame: &Frame) -> bool {
    frame.rsp.is_none_or(|below| below < RETURN_ADDRESS)
}

/// Returns the target of an indirect call or jump through a word that a linker has filled in:
/// compilers call functions of other object files this way, which may be in the same library.
fn linked(instruction: &Instruction, memory: &mut dyn Memory) -> Option<usize> {
    let is_word = instruction.op0_kind() == OpKind::Memory
        && instruction.is_ip_rel_memory_operand()
        && matches!(instruction.code(), Code::Call_rm64 | Code::Jmp_rm64);
    let at = instruction.ip_rel_memory_address() as usize;
    let mut word = [0; size_of::<usize>()];
    let is_read = is_word && memory.is_constant(at) && memory.read(at, &mut word);
    is_read.then(|| usize::from_le_bytes(word))
}

/// Decodes the instruction at an address; `None` if it cannot be read, or is none.
fn decode(at: usize, memory: &mut dyn Memory) -> Option<Instruction> {
    let mut bytes = [0; LONGEST];
    // The next page may be unmapped, and may not contain bytes of the instruction.
    let in_page = LONGEST.min(4096 - at % 4096);
    for len in [in_page, LONGEST] {
        if !memory.read(at, &mut bytes[..len]) {
            return None;
        }
        let mut decoder = Decoder::with_ip(64, &bytes[..len], at as u64, DecoderOptions::NONE);
        let instruction = decoder.decode();
        match decoder.last_error() {
            DecoderError::None => return Some(instruction),
            DecoderError::NoMoreBytes => {}
            _ => return None,
        }
    }
    None
}

/// Returns the number of the last vector register that an instruction uses, counted from 1, or 0 if
/// it uses none; `None` if it changes anything other than general registers, flags and memory.
fn vectors_of(
    instruction: &Instruction,
    factory: &mut Option<InstructionInfoFactory>,
) -> Option<usize> {
    let is_near = match instruction.flow_control() {
        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch | FlowControl::Call => {
            instruction.op0_kind() == OpKind::NearBranch64
        }
        FlowControl::Return => instruction.code() == Code::Retnq,
        FlowControl::Exception => instruction.mnemonic() == Mnemonic::Ud2,
        _ => true,
    };
    let is_general = |register: Register| {
        register.is_gpr() || register.is_segment_register() || register.is_ip()
    };
    let is_harmless = is_near
        && !touches_vectors(instruction)
        && instruction.cpuid_features().iter().all(is_known)
        && !is_forbidden(instruction.mnemonic());
    let is_sse = instruction.encoding() == EncodingKind::Legacy;
    let mut last = is_harmless.then_some(0);
    let factory = factory.get_or_insert_with(InstructionInfoFactory::new);
    for used in factory.info(instruction).used_registers() {
        let register = used.register();
        let is_read = matches!(used.access(), OpAccess::Read | OpAccess::CondRead);
        if register.is_segment_register() && !is_read {
            return None;
        }
        if register.is_xmm() && is_sse {
            last = last.map(|last: usize| last.max(register.number() + 1));
        } else if !is_general(register) {
            return None;
        }
    }
    last
}

/// Returns true if an instruction contains the distance `offset` from the thread's block.
fn mentions(offset: i64, instruction: &Instruction, memory: &mut dyn Memory) -> bool {
    let mut kinds = instruction.op_kinds().enumerate();
    kinds.any(|(operand, kind)| match kind {
        OpKind::Memory if instruction.is_ip_rel_memory_operand() => {
            let mut word = [0; size_of::<i64>()];
            memory.read(instruction.ip_rel_memory_address() as usize, &mut word)
                && i64::from_le_bytes(word) == offset
        }
        // rsp points to no thread's block.
        OpKind::Memory => {
            instruction.memory_base() != Register::RSP
                && instruction.memory_displacement64().cast_signed() == offset
        }
        _ => instruction
            .try_immediate(operand as u32)
            .is_ok_and(|value| {
                let value = value.cast_signed();
                match instruction.mnemonic() {
                    Mnemonic::Sub => value == -offset,
                    _ => value == offset,
                }
            }),
    })
}

/// Returns true for the NOP that marks an access to saved vector registers.
fn touches_vectors(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Nop
        && instruction.memory_displacement64() == u64::from(VECTORS_TOUCHED)
}

/// Returns true if instructions of a feature may be harmless. Their effects beyond SSE's vector
/// registers show in their registers.
fn is_known(feature: &CpuidFeature) -> bool {
    matches!(
        feature,
        CpuidFeature::INTEL8086
            | CpuidFeature::INTEL186
            | CpuidFeature::INTEL286
            | CpuidFeature::INTEL386
            | CpuidFeature::INTEL486
            | CpuidFeature::X64
            | CpuidFeature::CMOV
            | CpuidFeature::CMPXCHG16B
            | CpuidFeature::POPCNT
            | CpuidFeature::LZCNT
            | CpuidFeature::BMI1
            | CpuidFeature::BMI2
            | CpuidFeature::MOVBE
            | CpuidFeature::ADX
            | CpuidFeature::MULTIBYTENOP
            | CpuidFeature::PAUSE
            | CpuidFeature::CET_IBT
            | CpuidFeature::TSC
            | CpuidFeature::RDTSCP
            | CpuidFeature::RDPID
            | CpuidFeature::SSE
            | CpuidFeature::SSE2
            | CpuidFeature::SSE3
            | CpuidFeature::SSSE3
            | CpuidFeature::SSE4_1
            | CpuidFeature::SSE4_2
            | CpuidFeature::PREFETCHW
    )
}

/// Returns true for instructions of those features that do more than their registers show.
fn is_forbidden(mnemonic: Mnemonic) -> bool {
    matches!(
        mnemonic,
        Mnemonic::Ldmxcsr
            | Mnemonic::Std
            | Mnemonic::Popf
            | Mnemonic::Popfq
            | Mnemonic::Enter
            | Mnemonic::Hlt
            | Mnemonic::Wait
            | Mnemonic::Syscall
            | Mnemonic::Sysret
            | Mnemonic::Sysenter
            | Mnemonic::Swapgs
            | Mnemonic::Clts
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: usize = 0x1ff0;
    /// The address of code that is known to qualify.
    const KNOWN: usize = 0x5000;

    /// Code from an address on; the rest of its page can be read, too.
    struct Bytes<'a>(&'a [u8]);

    impl Memory for Bytes<'_> {
        fn read(&mut self, address: usize, bytes: &mut [u8]) -> bool {
            let Some(from) = address.checked_sub(AT).filter(|&from| from < self.0.len()) else {
                return false;
            };
            let known = &self.0[from..];
            if known.len() < bytes.len() && address + bytes.len() > 0x2000 {
                return false;
            }
            let known = &known[..known.len().min(bytes.len())];
            bytes.fill(0xcc);
            bytes[..known.len()].copy_from_slice(known);
            true
        }

        fn is_constant(&mut self, address: usize) -> bool {
            address < 0x2000
        }

        fn errno_offset(&self) -> i64 {
            -120
        }

        fn is_known(&self, address: usize) -> bool {
            address == KNOWN
        }
    }

    /// Returns how many vector registers code changes, if nothing else can be read.
    fn changed(code: &[u8]) -> Option<usize> {
        vectors(AT, &mut Bytes(code)).ok()
    }

    /// Returns true if code qualifies and changes no vector register.
    fn is(code: &[u8]) -> bool {
        changed(code) == Some(0)
    }

    #[test]
    fn code_with_general_registers_and_memory_alone_is_eligible() {
        // mov rax, [rdi]; add rax, rsi; lock inc qword ptr [rdx]; ret
        assert!(is(b"\x48\x8b\x07\x48\x01\xf0\xf0\x48\xff\x02\xc3"));
        // rdtsc; shl rdx, 32; or rax, rdx; ret
        assert!(is(b"\x0f\x31\x48\xc1\xe2\x20\x48\x09\xd0\xc3"));
        // mov rax, fs:[0]; mov ecx, [rax-119]; ret
        assert!(is(b"\x64\x48\x8b\x04\x25\x00\x00\x00\x00\x8b\x48\x89\xc3"));
        // mov rax, fs:[0x10]; ret
        assert!(is(b"\x64\x48\x8b\x04\x25\x10\x00\x00\x00\xc3"));
        // nop dword ptr [rax + 0x100]; ret
        assert!(is(b"\x0f\x1f\x80\x00\x01\x00\x00\xc3"));
        // lfence; mfence; ret
        assert!(is(b"\x0f\xae\xe8\x0f\xae\xf0\xc3"));
    }

    #[test]
    fn a_function_that_is_known_is_not_read() {
        // call KNOWN; ret
        assert!(is(b"\xe8\x0b\x30\x00\x00\xc3"));
        // jmp KNOWN
        assert!(is(b"\xe9\x0b\x30\x00\x00"));
        // push rax; jmp KNOWN, which would return to rax
        assert!(!is(b"\x50\xe9\x0a\x30\x00\x00"));
        // call KNOWN + 1; ret
        assert!(!is(b"\xe8\x0c\x30\x00\x00\xc3"));
    }

    #[test]
    fn every_path_and_every_function_that_is_called_is_read() {
        // test edi, edi; je +1; ret; xorps xmm0, xmm0; ret
        assert_eq!(changed(b"\x85\xff\x74\x01\xc3\x0f\x57\xc0\xc3"), Some(1));
        // test edi, edi; je +1; ret; xor eax, eax; ret
        assert!(is(b"\x85\xff\x74\x01\xc3\x31\xc0\xc3"));
        // call +1; ret; xorps xmm0, xmm0; ret
        assert_eq!(
            changed(b"\xe8\x01\x00\x00\x00\xc3\x0f\x57\xc0\xc3"),
            Some(1)
        );
        // call +1; ret; ud2
        assert!(is(b"\xe8\x01\x00\x00\x00\xc3\x0f\x0b"));
        // call [rip+1]; ret; the address of the ret
        assert!(is(b"\xff\x15\x01\x00\x00\x00\xc3\xf6\x1f\0\0\0\0\0\0"));
        // jmp [rip]; where nothing can be read
        assert!(!is(b"\xff\x25\x00\x00\x00\x00\0\0\0\0\0\0\0\0"));
        // A loop: dec edi; jne -4; ret
        assert!(is(b"\xff\xcf\x75\xfc\xc3"));
    }

    #[test]
    fn vector_registers_count_from_the_first_to_the_last_that_is_used() {
        for (code, last) in [
            (&b"\x0f\x10\x07\x0f\x11\x06\xc3"[..], 1), // movups xmm0, [rdi]; movups [rsi], xmm0
            (b"\x0f\x28\xc1\xc3", 2),                  // movaps xmm0, xmm1
            (b"\xf2\x0f\x58\xdf\xc3", 8),              // addsd xmm3, xmm7
            (b"\x66\x45\x0f\xef\xff\xc3", 16),         // pxor xmm15, xmm15
            (b"\x66\x0f\x38\x00\xca\xc3", 3),          // pshufb xmm1, xmm2
            (b"\x66\x48\x0f\x7e\xc8\xc3", 2),          // movq rax, xmm1
        ] {
            assert_eq!(changed(code), Some(last), "{code:02x?}");
        }
        // andn eax, ecx, edx; ret
        assert!(is(b"\xc4\xe2\x70\xf2\xc2\xc3"));
    }

    #[test]
    fn code_that_changes_unsaved_state_or_cannot_be_followed_is_not_eligible() {
        for code in [
            &b"\xc5\xf8\x28\xc1\xc3"[..],            // vmovaps xmm0, xmm1
            b"\xc5\xf8\x77\xc3",                     // vzeroupper
            b"\x62\xf1\x7c\x08\x28\xc1\xc3",         // vmovaps xmm0, xmm1 by EVEX
            b"\x66\x0f\xef\xc0\xc5\xfd\xef\xc0\xc3", // pxor xmm0, xmm0; vpxor ymm0, ymm0, ymm0
            b"\xf2\x0f\xd6\xc0\xc3",                 // movdq2q mm0, xmm0
            b"\x0f\x1f\x80\x54\x43\x45\x56\xc3",     // the NOP of `touch_vectors`
            b"\xc5\xf9\x90\xc1\xc3",                 // kmovb k0, k1
            b"\xd9\xe8\xc3",                         // fld1
            b"\x0f\x77\xc3",                         // emms
            b"\x0f\x6f\xc1\xc3",                     // movq mm0, mm1
            b"\x0f\xae\x10\xc3",                     // ldmxcsr [rax]
            b"\xd9\x28\xc3",                         // fldcw [rax]
            b"\x0f\xae\x08\xc3",                     // fxrstor [rax]
            b"\x0f\xae\x28\xc3",                     // xrstor [rax]
            b"\xff\xd0\xc3",                         // call rax
            b"\xff\xe0",                             // jmp rax
            b"\xff\x15\x00\x10\x00\x00\xc3",         // call [rip+0x1000], which may change
            b"\x0f\x05\xc3",                         // syscall
            b"\xcd\x80\xc3",                         // int 0x80
            b"\xcc",                                 // int3
            b"\xfd\xc3",                             // std
            b"\x9d\xc3",                             // popfq
            b"\xc2\x08\x00",                         // ret 8
            b"\x64\xc7\x04\x25\x88\xff\xff\xff\x07\x00\x00\x00\xc3", // mov dword ptr fs:[-120], 7
            b"\xc7\x40\x88\x07\x00\x00\x00\xc3",     // mov dword ptr [rax-120], 7
            b"\x48\x83\xc0\x88\xc3",                 // add rax, -120
            b"\x48\x83\xe8\x78\xc3",                 // sub rax, 120
            b"\x48\xc7\xc0\x88\xff\xff\xff\xc3",     // mov rax, -120
            // mov rax, [rip+1]; ret; -120
            b"\x48\x8b\x05\x01\x00\x00\x00\xc3\x88\xff\xff\xff\xff\xff\xff\xff",
            b"\xf3\x48\x0f\xae\xd0\xc3", // wrfsbase rax
            b"\xf3\x48\x0f\xae\xc0\xc3", // rdfsbase rax
            b"\x8e\xe8\xc3",             // mov gs, eax
            b"\x0f\xa9\xc3",             // pop gs
            b"\x48\x0f\xb5\x00\xc3",     // lgs rax, [rax]
            b"\x48\xcf",                 // iretq
            b"\xcb",                     // retf
            b"\xe9\x00\x10\x00\x00",     // jmp to what cannot be read
            b"\x06",                     // no instruction
        ] {
            assert!(!is(code), "{code:02x?}");
        }
    }

    #[test]
    fn a_ret_counts_only_at_entry_depth_with_the_return_address_unwritten() {
        for code in [
            // call +4; pause; jmp -4; mov [rsp], rax; ret: a retpoline
            &b"\xe8\x04\x00\x00\x00\xf3\x90\xeb\xfc\x48\x89\x04\x24\xc3"[..],
            // call +4; pause; jmp -4; lea rsp, [rsp + 8]; ret: a return thunk
            b"\xe8\x04\x00\x00\x00\xf3\x90\xeb\xfc\x48\x8d\x64\x24\x08\xc3",
            // call +4; pause; jmp -4; add rsp, 8; ret: another one
            b"\xe8\x04\x00\x00\x00\xf3\x90\xeb\xfc\x48\x83\xc4\x08\xc3",
            b"\x50\xc3",                                 // push rax; ret
            b"\x6a\x00\xc3",                             // push 0; ret
            b"\x59\x50\xc3",                             // pop rcx; push rax; ret
            b"\x58\xff\xe0",                             // pop rax; jmp rax
            b"\xff\x24\x24",                             // jmp [rsp]
            b"\xff\x64\x24\x08",                         // jmp [rsp + 8]
            b"\x55\x48\x89\xe5\x48\x89\xc5\xc9\xc3", // push rbp; mov rbp, rsp; mov rbp, rax; ...
            b"\x55\x48\x89\xe5\x66\x5d\x66\x50\xc9\xc3", // ...; pop bp; push ax; leave; ret
            b"\x55\x48\x89\xe5\x66\xc9\xc3",         // ...; leave with a word; ret
            b"\x48\x89\xfd\xc3",                     // mov rbp, rdi; ret
            b"\x48\x94\x48\x94\xc3",                 // xchg rsp, rax; twice; ret
            b"\x48\x87\xec\xc3",                     // xchg rsp, rbp; ret
            b"\x48\x89\xfc\xc3",                     // mov rsp, rdi; ret
            b"\x48\x8b\x27\xc3",                     // mov rsp, [rdi]; ret
            b"\x48\x01\xc4\xc3",                     // add rsp, rax; ret
            b"\x5c\xc3",                             // pop rsp; ret
            b"\x48\x83\xe4\xf0\xc3",                 // and rsp, -16; ret
            b"\x48\x83\xec\x08\xc3",                 // sub rsp, 8; ret
            b"\x48\x83\xc4\x08\x50\xc3",             // add rsp, 8; push rax; ret
            b"\x48\x89\x04\x24\xc3",                 // mov [rsp], rax; ret
            b"\xc7\x44\x24\x04\x00\x00\x00\x00\xc3", // mov dword ptr [rsp + 4], 0; ret
            b"\x0f\x11\x44\x24\xf8\xc3",             // movups [rsp - 8], xmm0; ret
            b"\x48\x8d\x04\x24\x48\x89\x08\xc3",     // lea rax, [rsp]; mov [rax], rcx; ret
            b"\x48\x89\xe0\x48\x89\x08\xc3",         // mov rax, rsp; mov [rax], rcx; ret
            b"\x54\x58\x48\x89\x08\xc3",             // push rsp; pop rax; mov [rax], rcx; ret
            b"\xf0\x48\x83\x04\x24\x10\xc3",         // lock add qword ptr [rsp], 16; ret
            // push rbp; mov rbp, rsp; mov [rbp + 8], rax; pop rbp; ret
            b"\x55\x48\x89\xe5\x48\x89\x45\x08\x5d\xc3",
            // test edi, edi; je +1; push rax; ret: two depths at one place
            b"\x85\xff\x74\x01\x50\xc3",
        ] {
            let code = &[code, &[0xcc; LONGEST]].concat();
            let error = vectors(AT, &mut Bytes(code)).unwrap_err();
            let is_jump = matches!(error, IneligibleReason::Leads { .. });
            assert!(
                is_jump || matches!(error, IneligibleReason::Stack { .. }),
                "{code:02x?} {error:?}"
            );
        }
        for code in [
            // push rbp; mov rbp, rsp; sub rsp, 16; mov [rbp - 8], rdi; leave; ret
            &b"\x55\x48\x89\xe5\x48\x83\xec\x10\x48\x89\x7d\xf8\xc9\xc3"[..],
            // push rbx; sub rsp, 16; movups [rsp], xmm0; lea rax, [rsp]; add rsp, 16; pop rbx; ret
            b"\x53\x48\x83\xec\x10\x0f\x11\x04\x24\x48\x8d\x04\x24\x48\x83\xc4\x10\x5b\xc3",
            // lock or qword ptr [rsp], 0; mov rax, [rsp + 8]; ret
            b"\xf0\x48\x83\x0c\x24\x00\x48\x8b\x44\x24\x08\xc3",
            // test edi, edi; je +4; push rbp; mov ebp, edi; pop rbp; ret
            b"\x85\xff\x74\x04\x55\x89\xfd\x5d\xc3",
            // push rbp; test edi, edi; je +2; mov ebp, edi; pop rbp; ret
            b"\x55\x85\xff\x74\x02\x89\xfd\x5d\xc3",
            b"\x8c\xe8\xc3", // mov eax, gs; ret
        ] {
            let code = &[code, &[0xcc; LONGEST]].concat();
            let found = vectors(AT, &mut Bytes(code));
            assert!(found.is_ok(), "{code:02x?} {found:?}");
        }
    }

    #[test]
    fn why_code_is_not_eligible_is_said() {
        for (code, why) in [
            // xor eax, eax; emms
            (
                &b"\x31\xc0\x0f\x77"[..],
                IneligibleReason::Changes { address: AT + 2 },
            ),
            // xor eax, eax; int 0x80
            (
                b"\x31\xc0\xcd\x80",
                IneligibleReason::Changes { address: AT + 2 },
            ),
            (
                b"\x31\xc0\xff\xd0",
                IneligibleReason::Leads { address: AT + 2 },
            ), // xor eax, eax; call rax
            (
                b"\x31\xc0\x06",
                IneligibleReason::Unreadable { address: AT + 2 },
            ), // xor eax, eax
            (b"\x50\xc3", IneligibleReason::Stack { address: AT + 1 }), // push rax; ret
            (
                b"\x48\x83\xc0\x88\xc3",
                IneligibleReason::Errno { address: AT },
            ), // add rax, -120
            (&[0x90; MOST + LONGEST], IneligibleReason::Long),
        ] {
            assert_eq!(vectors(AT, &mut Bytes(code)), Err(why), "{code:02x?}");
        }
    }

    #[test]
    fn code_on_the_next_page_is_read_if_execution_continues_there() {
        let nops = [0x90; 15];
        assert!(is(&[&nops[..], b"\xc3"].concat()));
        // mov eax, imm32 across the page; ret
        assert!(is(
            &[&nops[..14], b"\xb8\x01\x00\x00\x00\xc3", &[0xcc; 15]].concat()
        ));
        // The page ends.
        assert!(!is(&[&nops[..15], b"\x90"].concat()));
    }
}
