//! Guarded stubs, for code whose runtime survives an overflow of the stack only if the fault comes
//! in that code.
//!
//! ```text
//!    0  64 48 3b 24 25 nn nn nn nn      cmp rsp, fs:[near]
//!    9  72 18                           jb 35
//!   11  a stub that preserves r11
//!   35  4c 89 5c 24 f8                  mov [rsp - 8], r11
//!   40  49 89 e3                        mov r11, rsp
//!   43  64 4c 2b 1c 25 ll ll ll ll      sub r11, fs:[low]
//!   52  49 81 fb tt tt tt tt            cmp r11, TIGHT
//!   59  4c 8d 1d be ff ff ff            lea r11, [rip - 66]       the stub
//!   66  73 09                           jae 77
//!   68  64 4c 89 1c 25 ss ss ss ss      mov fs:[scratch], r11
//!   77  ff 25 dd dd dd dd               jmp qword ptr [rip + d]   d leads to the code for the end
//!   83  words that displaced instructions may use below the return address; 0 if there is room
//!   84  distance of a `ret` in the function's text
//!   88
//! ```
//!
//! The word at rsp-8 is on the page of the return address, because the caller has aligned its
//! stack. `trampoline/near_end.rs` has the code for the end of the stack.

use arrayvec::ArrayVec;

use super::{PRESERVING_STUB_LEN, StubKind, displacement};

/// The length of a guarded stub.
pub const GUARDED_STUB_LEN: usize = 88;

/// Offset of the stub that leads to the trampoline.
pub const STUB: usize = 11;
/// Offset of the address of the site's record.
pub const RECORD: usize = STUB + 5 + 2;
const TAIL: usize = STUB + PRESERVING_STUB_LEN;
/// Offset of the number of words that displaced instructions may use, one byte.
pub const DEPTH: usize = 83;
/// Offset of the distance from the stub to a `ret` in the function's text, 32 bits.
pub const FAULT: usize = 84;

/// Bytes from the end of a stack in which the kernel has no room for a signal handler's frame.
pub const TIGHT: u32 = 1024;

/// The parts of a guarded stub that are the same in all stubs of a header.
#[derive(Clone, Copy, Debug)]
pub struct Guard {
    /// The offsets from the thread pointer: of the address below which a thread is near the end of
    /// its stack, of that end, and of a word for the stub's address.
    pub storage: [i32; 3],
    /// The address of the word with the address of the code for the end of the stack.
    pub near_end_word: usize,
}

/// The fault that displaced instructions would cause at the end of the stack.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The number of words that they may use below the return address.
    pub depth: u8,
    /// The address of a `ret` in the function's text.
    pub at: usize,
}

/// The bytes of a guarded stub.
pub type GuardedStub = ArrayVec<u8, GUARDED_STUB_LEN>;

impl Guard {
    /// Encodes a guarded stub for any trampoline. The arguments are those of [`StubKind::encode`],
    /// and the fault, if the displaced instructions may cause one.
    #[must_use]
    pub fn encode(
        &self,
        stub_addr: usize,
        site_record: u64,
        trampoline_word: usize,
        fault: Option<Fault>,
    ) -> Option<GuardedStub> {
        let [near, low, scratch] = self.storage.map(i32::to_le_bytes);
        let mut stub = GuardedStub::new();
        stub.extend([0x64, 0x48, 0x3b, 0x24, 0x25]);
        stub.extend(near);
        stub.extend([0x72, (TAIL - STUB) as u8]);
        let preserving = StubKind::Preserving;
        stub.extend(preserving.encode(
            stub_addr.wrapping_add(STUB),
            site_record,
            trampoline_word,
        )?);
        stub.extend([0x4c, 0x89, 0x5c, 0x24, 0xf8, 0x49, 0x89, 0xe3]);
        stub.extend([0x64, 0x4c, 0x2b, 0x1c, 0x25]);
        stub.extend(low);
        stub.extend([0x49, 0x81, 0xfb]);
        stub.extend(TIGHT.to_le_bytes());
        let behind = stub_addr.wrapping_add(stub.len() + 7);
        stub.extend([0x4c, 0x8d, 0x1d]);
        stub.extend(displacement(behind, stub_addr)?.to_le_bytes());
        stub.extend([0x73, 0x09, 0x64, 0x4c, 0x89, 0x1c, 0x25]);
        stub.extend(scratch);
        let behind = stub_addr.wrapping_add(stub.len() + 6);
        stub.extend([0xff, 0x25]);
        stub.extend(displacement(behind, self.near_end_word)?.to_le_bytes());
        let distance = |fault: Fault| Some((fault.depth, displacement(stub_addr, fault.at)?));
        let (depth, distance) = fault.and_then(distance).unwrap_or_default();
        stub.push(depth);
        stub.extend(distance.to_le_bytes());
        Some(stub)
    }
}

#[cfg(test)]
mod tests {
    use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Register};

    use super::*;

    #[test]
    fn a_guarded_stub_leads_to_its_trampoline_or_to_the_end_of_the_stack() {
        const AT: usize = 0x7f12_3456_7000;
        let guard = Guard {
            storage: [-0x110, -0x108, -0x100],
            near_end_word: AT - 0x1000,
        };
        let fault = Fault {
            depth: 3,
            at: AT + 0x1234,
        };
        let stub = guard.encode(AT, 0x1234_5678, AT - 0x2000, Some(fault));
        let stub = stub.unwrap();
        let at = |offset: usize| -> Instruction {
            let ip = (AT + offset) as u64;
            Decoder::with_ip(64, &stub[offset..], ip, DecoderOptions::NONE).decode()
        };
        let storage = |instruction: &Instruction| {
            assert_eq!(instruction.memory_segment(), Register::FS);
            instruction.memory_displacement64() as i32
        };
        let [compare, branch] = [at(0), at(9)];
        assert_eq!(
            (compare.code(), storage(&compare)),
            (Code::Cmp_r64_rm64, -0x110)
        );
        assert_eq!(
            (branch.code(), branch.near_branch_target()),
            (Code::Jb_rel8_64, AT as u64 + 35)
        );
        let preserving = StubKind::Preserving.encode(AT + STUB, 0x1234_5678, AT - 0x2000);
        assert_eq!(stub[STUB..TAIL], preserving.unwrap()[..]);
        assert_eq!(stub[RECORD..][..8], 0x1234_5678u64.to_le_bytes());
        let mut offset = TAIL;
        let tail = [(); 8].map(|()| {
            let instruction = at(offset);
            offset += instruction.len();
            instruction
        });
        assert_eq!(offset, DEPTH);
        assert_eq!(
            (tail[2].code(), storage(&tail[2])),
            (Code::Sub_r64_rm64, -0x108)
        );
        assert_eq!(tail[3].immediate32to64(), TIGHT.into());
        assert_eq!(tail[4].ip_rel_memory_address(), AT as u64);
        assert_eq!(tail[5].near_branch_target(), tail[7].ip());
        assert_eq!(
            (tail[6].code(), storage(&tail[6])),
            (Code::Mov_rm64_r64, -0x100)
        );
        assert_eq!(tail[7].ip_rel_memory_address(), (AT - 0x1000) as u64);
        assert_eq!(stub[DEPTH], 3);
        assert_eq!(stub[FAULT..][..4], 0x1234i32.to_le_bytes());
        let without = guard.encode(AT, 0, AT - 0x2000, None).unwrap();
        assert_eq!(without[DEPTH], 0);
    }
}
