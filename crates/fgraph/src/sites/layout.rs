//! Places for the stub and the relocated prologue of each planned function.

use core::ops::Range;
use core::sync::atomic::AtomicBool;

use super::facts::ModuleFacts;
use super::function_plan::FunctionPlan;
use super::indices::Indices;
use super::module_plan::{LivePlan, Refused};
use crate::arch::relocate::Window;
use crate::arch::stub::{GUARDED_STUB_LEN, SITE_LEN};
use crate::arch::system_call;
use crate::arch::trampoline::Trampolines;
use crate::code::arena::{self, Arena, PrologueUnwind};
use crate::code::stub_blocks::StubBlocks;
use crate::code::text_writer::Text;
use crate::report::analysis::RelocateError;
use crate::report::error::RefusalReason;
use crate::unwinding::registry::Place;

/// The memory and the indices that sites of all modules share.
#[derive(Debug)]
pub(crate) struct BuildContext {
    pub(crate) trampolines: Trampolines,
    /// The headers of all arenas.
    pub(crate) headers: Vec<usize>,
    pub(crate) stub_blocks: StubBlocks,
    pub(crate) indices: Indices,
    /// For tests: ignores threads between two instructions of a site.
    pub(crate) ignore_inner: bool,
}

impl BuildContext {
    /// Sets the targets of stubs from now on, including existing ones.
    pub(super) fn set_trampolines(&mut self, trampolines: Trampolines) {
        if self.trampolines == trampolines {
            return;
        }
        self.trampolines = trampolines;
        let headers = self.headers.iter().copied();
        for header in headers.chain(self.stub_blocks.headers()) {
            arena::reroute(header, &trampolines);
        }
    }
}

/// Places for the stub and the relocated prologue of each function of a plan, and its index.
/// Neither the program nor an unwinder knows them yet.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) placed: Vec<Placed>,
    /// The memory of the prologues.
    pub(super) arena: Arena,
    /// The unwind rules of the relocated prologues.
    pub(super) unwind: PrologueUnwind,
    /// Writes outside of the arena.
    pub(super) text: Text,
}

/// A function, or a system call within one, that has its places.
#[derive(Debug)]
pub(super) struct Placed {
    pub(super) function: FunctionPlan,
    /// The index of the function.
    pub(super) index: u32,
    pub(super) stub: usize,
    /// The address at which its code continues after the jump: the relocated prologue, or the code
    /// after the NOP.
    pub(super) body: usize,
    /// The distances at which a thread continues that traps within the jump.
    pub(super) inner: [u8; 4],
    /// The number of patched bytes.
    pub(super) patched_len: usize,
}

impl Layout {
    /// Lays out a plan. `is_taken` returns true if a range of addresses contains a site already.
    /// `has_indices` is the flag of the module's indices, known once it has any. A function without
    /// a place is refused. Returns `None` if no function has a place.
    pub(super) fn new(
        known: &ModuleFacts,
        plan: &mut LivePlan,
        context: &mut BuildContext,
        has_indices: &mut Option<&'static AtomicBool>,
        is_taken: impl Fn(&Range<usize>) -> bool,
    ) -> Option<Self> {
        let (first, last) = (plan.functions.first()?, plan.functions.last()?);
        let is_guarded = known.is_of_ocaml();
        let (stubs, prologues) = lengths(&plan.functions, is_guarded);
        let arena = Arena::reserve(first.address, last.address, stubs, prologues);
        let functions = core::mem::take(&mut plan.functions);
        let refused = &mut plan.refused;
        let mut refuse =
            |function: &FunctionPlan, reason| refused.push(Refused::new(function, reason));
        let mut arena = match arena {
            Ok(arena) => arena,
            Err(reason) => {
                for function in &functions {
                    refuse(function, reason.clone());
                }
                return None;
            }
        };
        let (mut next_stub, mut next_prologue) = (arena.stubs(), arena.prologues());
        let mut unwind = PrologueUnwind::new(Place::Apart);
        let mut text = Text::open_for(functions.len());
        let mut placed: Vec<Placed> = Vec::with_capacity(functions.len());
        let (mut indices, is_loaded) = context.indices.of(known.file.build_id(), *has_indices);
        *has_indices = is_loaded;
        let may_have_breakpoints = !known.blocks_signals();
        for mut function in functions {
            let entry = function.entry();
            // A padding jump is a site of its own, before the function.
            let end = placed.last().map_or(0, Placed::end);
            let has_no_place = |nop: usize| {
                let padding_jump = entry - nop..entry - nop + SITE_LEN;
                padding_jump.start < end || is_taken(&padding_jump)
            };
            if function.plan.padding_jump.is_some_and(has_no_place) {
                refuse(&function, RefusalReason::NoPlace);
                continue;
            }
            let window = function.plan.window.as_ref();
            let starts = match context.ignore_inner {
                true => 1,
                false => window.map_or(1, Window::boundaries),
            };
            let relocate =
                |window: &Window| window.relocate(next_prologue, arena.bytes(next_prologue));
            let prologue = window.map(relocate);
            let prologue = match prologue.transpose() {
                Ok(prologue) => prologue,
                Err(error) => {
                    refuse(
                        &function,
                        RefusalReason::Displace(RelocateError::new(error)),
                    );
                    continue;
                }
            };
            let address = function.address.wrapping_sub(known.bias) as u64;
            let Some(index) = indices.get(address) else {
                refuse(&function, RefusalReason::NoIndex);
                continue;
            };
            let len = stub_len(&function, is_guarded);
            let mut patched_len = function.plan.patched_len();
            let (mut body, mut inner, mut place) = (entry + SITE_LEN, [0; 4], None);
            if let Some(relocated) = &prologue {
                body = next_prologue;
                if starts != 1 {
                    let blocks = &mut context.stub_blocks;
                    place = blocks.take(entry, starts, len, &mut text, &context.trampolines);
                    if place.is_some() {
                        for at in (1..SITE_LEN).filter(|at| starts >> at & 1 != 0) {
                            inner[at - 1] = relocated.resume[at];
                        }
                    } else if may_have_breakpoints {
                        // The relocated prologue works for a breakpoint, too.
                        patched_len = 1;
                        function.plan.no_jump = Some(RefusalReason::NoPlace);
                    } else {
                        refuse(&function, RefusalReason::NoPlace);
                        continue;
                    }
                }
                unwind.add(next_prologue, relocated.len, &relocated.rows);
                next_prologue += relocated.len;
            }
            if function.subject.is_system_call() {
                unwind.add(next_prologue, system_call::LEN, &system_call::rows(entry));
                (place, body) = (Some(next_prologue), next_prologue + system_call::BODY);
                next_prologue += system_call::LEN;
            }
            let stub = place.unwrap_or_else(|| {
                next_stub += len;
                next_stub - len
            });
            placed.push(Placed {
                function,
                index,
                stub,
                body,
                inner,
                patched_len,
            });
        }
        Some(Self {
            placed,
            arena,
            unwind,
            text,
        })
    }
}

impl Placed {
    /// Returns the end of the patched bytes.
    fn end(&self) -> usize {
        self.function.entry() + self.patched_len
    }
}

/// Returns the length of a function's stub.
fn stub_len(function: &FunctionPlan, is_guarded: bool) -> usize {
    match is_guarded {
        true => GUARDED_STUB_LEN,
        false => function.plan.variant.stub().stub_len(),
    }
}

/// Returns the largest possible sizes of the stubs and of the relocated prologues of functions.
fn lengths(functions: &[FunctionPlan], are_guarded: bool) -> (usize, usize) {
    let (mut stubs, mut prologues) = (0, 0);
    for function in functions {
        match function.subject.is_system_call() {
            true => prologues += system_call::LEN,
            false => stubs += stub_len(function, are_guarded),
        }
        let window = function.plan.window.as_ref();
        prologues += window.map_or(0, Window::relocated_len);
    }
    (stubs, prologues)
}
