//! Retpolines and return thunks.
//!
//! Their targets must not be predicted. So they call code that discards the return address of this
//! call, and continues elsewhere:
//!
//! ```text
//!   __x86_indirect_thunk_rax        __x86_return_thunk
//!        call over                       call over
//!   trap: pause                     trap: pause
//!        lfence                          lfence
//!        jmp trap                        jmp trap
//!   over: mov [rsp], rax            over: lea rsp, [rsp + 8]
//!        ret                             ret
//!   = jmp rax                       = ret
//! ```

use alloc::vec::Vec;

use super::constants::Through;
use super::effect::Effect;
use super::graph::{End, Graph};

/// The meaning of a call that does not return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thunk {
    Returns,
    /// Jumps to the address in the register with this number.
    Jumps(u8),
}

impl Thunk {
    /// Returns the meaning of a call of this code; `None` for an ordinary call.
    fn of(code: &[u8]) -> Option<Self> {
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

impl Graph<'_> {
    /// Returns the meaning of a call of an address that is probably in this stretch.
    pub(super) fn thunk_at(&self, address: Option<usize>, stretch: usize) -> Option<Thunk> {
        let place = self.place_near(address?, stretch)?;
        Thunk::of(self.code_from(place, stretch)?.bytes)
    }

    /// Replaces calls of retpolines by calls through their registers, and calls of the functions at
    /// these addresses by returns.
    pub(super) fn end_by_thunks(&mut self, return_thunks: &[usize]) {
        for &thunk in return_thunks {
            if let Some(at) = self.block_at(thunk) {
                (self.blocks[at].effect, self.blocks[at].end) = (Effect::default(), End::Returns);
            }
        }
        // A retpoline consists of the call only.
        let is_retpoline = |one: &Through| {
            let effect = self.blocks[one.block as usize].effect;
            one.by_thunk && effect.reads | effect.kills | effect.writes == 0
        };
        let (retpolines, mut through): (Vec<Through>, Vec<Through>) =
            self.through.iter().copied().partition(is_retpoline);
        if retpolines.is_empty() {
            return;
        }
        for (at, block) in (0..).zip(&mut self.blocks) {
            let (to, end) = match block.end {
                End::Calls(to) => (to, End::CallsUnknown),
                End::Jumps(to) => (to, End::JumpsByTable),
                _ => continue,
            };
            if let Ok(found) = retpolines.binary_search_by_key(&to, |one| one.block) {
                block.end = end;
                through.push(Through {
                    block: at,
                    ..retpolines[found]
                });
            }
        }
        // No code arrives through them any more.
        for retpoline in &retpolines {
            self.blocks[retpoline.block as usize].end = End::JumpsUnknown;
        }
        through.sort_unstable_by_key(|one| one.block);
        self.through = through;
    }
}
