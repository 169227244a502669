//! The code of [return points](fgraph_core::points), and its unwind information.
//!
//! ```text
//!   T         call [r11 + ...]      the body: the trampoline has left the site in r11
//!   T+4       lea rcx, [rip - ...]  the frame
//!             jmp [page + 24]       the return code of the variant
//! ```
//!
//! In a variant that preserves every register:
//!
//! ```text
//!   T         call [rsp - 24]       the body, whose address the trampoline has left at S-16
//!   T+4       mov [rsp - 16], rcx   rcx as the body has left it
//!             lea rcx, [rip - ...]  the frame
//!             jmp [page + 24]       the return code of the variant
//! ```
//!
//! Points are 32 bytes apart. Each page has the address of the return code behind its first point,
//! so the bytes do not depend on where the page is.

use core::mem::offset_of;
use core::ops::Range;
use core::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use fgraph_core::frame::{FRAME_ALIGN, Frame};
use fgraph_core::points::SPANS;
use fgraph_core::site::Site;

use super::calls::{DISTANCES, FGRAPH};
use super::personality::personality;
use super::save::SaveSet;
use super::table::Trampolines;
use super::variant::Variant;

/// Bytes of a page of points.
pub const PAGE: usize = 4096;

// The operand of the call has one byte.
const _: () = assert!(offset_of!(Site, body) < 128);

/// Place in a page of the address of the return code.
const TARGET: usize = 24;

impl SaveSet {
    /// The kind of return points of the variant.
    pub(super) const fn kind(&self) -> usize {
        self.preserve as usize + self.beyond as usize
    }
}

/// Sets the distance of return points from frames, unless it was set before. Returns the one that
/// holds.
///
/// # Safety
///
/// The contract of [`Points::set_span`](fgraph_core::points::Points::set_span) holds, and three
/// spans must be less than 2 GiB.
pub unsafe fn set_span(span: usize) -> usize {
    // SAFETY: the caller keeps the same contract.
    let span = unsafe { FGRAPH.points.set_span(span) };
    for (kind, distance) in DISTANCES.iter().enumerate() {
        distance.store((kind + 1) * span, Ordering::Release);
    }
    span
}

/// Writes the return points of a kind into `bytes`, which are whole pages, for calls through
/// `trampolines`. [`set_span`] must have been called.
pub fn write(kind: usize, trampolines: &Trampolines, bytes: &mut [u8]) {
    const CALL: [u8; 4] = [0xff, 0x54, 0x24, 0xe8];
    const CALL_BODY: [u8; 4] = [0x41, 0xff, 0x53, offset_of!(Site, body) as u8];
    const SAVE: [u8; 5] = [0x48, 0x89, 0x4c, 0x24, 0xf0];
    const LEA: [u8; 3] = [0x48, 0x8d, 0x0d];
    const JMP: [u8; 2] = [0xff, 0x25];
    const INT3: u8 = 0xcc;
    let saves = Variant::CALLING[kind].save_set().preserve;
    let distance = DISTANCES[kind].load(Ordering::Acquire) as i32;
    bytes.fill(INT3);
    for page in bytes.chunks_exact_mut(PAGE) {
        for at in (0..PAGE).step_by(FRAME_ALIGN) {
            let mut end = at;
            let mut put = |code: &[u8]| {
                page[end..][..code.len()].copy_from_slice(code);
                end += code.len();
                end
            };
            if saves {
                put(&CALL);
                put(&SAVE);
            } else {
                put(&CALL_BODY);
            }
            // Relative to the end of the instruction, four bytes on.
            let operand = put(&LEA);
            put(&(-distance - (operand + 4 - at) as i32).to_le_bytes());
            let operand = put(&JMP);
            put(&(TARGET as i32 - (operand + 4) as i32).to_le_bytes());
            debug_assert!(end <= at + TARGET);
        }
        let target = trampolines.return_code[kind];
        page[TARGET..][..size_of::<usize>()].copy_from_slice(&target.to_le_bytes());
    }
}

/// Returns the addresses of the return points of an arena.
pub fn of(arena: usize) -> Range<usize> {
    let span = FGRAPH.points.span();
    arena + span..arena + SPANS * span
}

/// Offset in the bytes of [`unwind`] of the description of the points.
pub(super) const FDE: usize = size_of::<u32>() + CIE_LEN;

/// Bytes of the CIE behind its length.
const CIE_LEN: usize = 28;

/// The most bytes of unwind information.
pub(super) const MAX_UNWIND: usize = 256;

/// Makes the unwind information of an arena's return points, which may be at any address: a CIE, an
/// FDE and a terminator.
///
/// The frame is the address in the return point with some bits cleared. The rules are those of
/// `trampoline.rs`, third row, but all registers are the caller's.
pub(super) fn unwind(arena: usize) -> ArrayVec<u8, MAX_UNWIND> {
    const VERSION: u8 = 1;
    const RIP: u8 = 16;
    const ABSOLUTE: u8 = 0;
    const DEF_CFA: u8 = 0x0c;
    const DEF_CFA_EXPRESSION: u8 = 0x0f;
    const EXPRESSION: u8 = 0x10;
    const VAL_EXPRESSION: u8 = 0x16;
    const RSP: u8 = 7;
    const BREG0: u8 = 0x70;
    const CONST8S: u8 = 0x0f;
    const DEREF: u8 = 0x06;
    const PLUS_UCONST: u8 = 0x23;
    const LIT7: u8 = 0x37;
    let [and, minus, mul, plus, eq, ne] = [0x1a, 0x1c, 0x1e, 0x22, 0x29, 0x2e];

    let span = FGRAPH.points.span();
    let kept = !(((SPANS - 1) * span) | (FRAME_ALIGN - 1));
    let mut frame: ArrayVec<u8, 12> = [BREG0 + RIP, 0, CONST8S].into_iter().collect();
    frame.extend(kept.to_le_bytes());
    frame.push(and);
    // The stack pointer of the caller.
    let mut caller = frame_field(&frame, offset_of!(Frame, return_slot_addr));
    caller.extend([DEREF, PLUS_UCONST, 8]);
    let mut tail = frame_field(&frame, offset_of!(Frame, tail));
    tail.extend([DEREF, LIT7, and]);
    let return_address = frame_field(&frame, offset_of!(Frame, return_address));
    // As `cfi_frame` in `body.rs` has it.
    let mut cfa = Expression::new();
    for part in [
        &caller[..],
        &tail,
        &[plus, BREG0 + RSP, 0],
        &caller,
        &[ne],
        &tail,
        &[LIT7, eq, and, LIT7, mul, minus],
    ] {
        cfa.extend(part.iter().copied());
    }

    let mut bytes = ArrayVec::new();
    let put = |bytes: &mut ArrayVec<u8, MAX_UNWIND>, part: &[u8]| {
        bytes.extend(part.iter().copied());
    };
    // The CIE: version, augmentation, factors, column of the return address, the augmentation's
    // data: personality and encoding of addresses. Then the default rule.
    put(&mut bytes, &(CIE_LEN as u32).to_le_bytes());
    put(&mut bytes, &[0; 4]);
    put(
        &mut bytes,
        &[VERSION, b'z', b'P', b'R', 0, 1, 0x78, RIP, 10, ABSOLUTE],
    );
    put(
        &mut bytes,
        &(personality as *const () as usize).to_le_bytes(),
    );
    put(&mut bytes, &[ABSOLUTE, DEF_CFA, RSP, 0, 0, 0]);
    debug_assert_eq!(bytes.len(), FDE);
    put(&mut bytes, &[0; 4]);
    put(&mut bytes, &(FDE as u32 + 4).to_le_bytes());
    let points = of(arena);
    put(&mut bytes, &points.start.to_le_bytes());
    put(&mut bytes, &points.len().to_le_bytes());
    put(&mut bytes, &[0, DEF_CFA_EXPRESSION, cfa.len() as u8]);
    put(&mut bytes, &cfa);
    put(&mut bytes, &[EXPRESSION, RIP, return_address.len() as u8]);
    put(&mut bytes, &return_address);
    put(&mut bytes, &[VAL_EXPRESSION, RSP, caller.len() as u8]);
    put(&mut bytes, &caller);
    while !bytes.len().is_multiple_of(8) {
        bytes.push(0);
    }
    let len = bytes.len() - FDE - size_of::<u32>();
    bytes[FDE..][..4].copy_from_slice(&(len as u32).to_le_bytes());
    put(&mut bytes, &[0; 4]);
    return bytes;

    fn frame_field(frame: &[u8], offset: usize) -> Expression {
        let mut field = Expression::new();
        field.extend(frame.iter().copied());
        field.extend([PLUS_UCONST, offset as u8]);
        field
    }
}

/// An expression of unwind information; its length takes one byte.
type Expression = ArrayVec<u8, 127>;
