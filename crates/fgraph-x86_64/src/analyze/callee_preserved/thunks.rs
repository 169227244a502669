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

use super::decoded::Thunk;
use super::effect::Effect;
use super::graph::{End, Graph, Through};

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
