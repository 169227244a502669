//! The system calls that the functions of a module make themselves, and the plan for each.

use std::sync::OnceLock;

use fgraph_symbols::elf::ElfFile;

use super::candidate::{Candidate, first_bytes};
use super::classify::Plan;
use super::entries::Subject;
use super::function_plan::{Decision, FunctionPlan};
use crate::arch::cpu;
use crate::arch::stub::SITE_LEN;
use crate::arch::system_call;
use crate::arch::system_calls::find;
use crate::arch::trampoline::Variant;
use crate::os::PAGE;
use crate::report::analysis::SystemCallError;
use crate::report::error::RefusalReason;
use crate::report::functions::TraceMethod;

/// Returns true if the code of a file may contain any.
pub(super) fn may_be_in(file: &ElfFile<'_>) -> bool {
    file.text().into_iter().any(|text| {
        let len = usize::try_from(text.end - text.start).unwrap_or(0);
        let code = file.bytes_at(text.start, len).unwrap_or_default();
        code.windows(2).any(|pair| pair == [0x0f, 0x05])
    })
}

/// Returns the decisions about the system calls of a function.
/// `blocks_signals` is true if the module's functions run while all signals are blocked.
pub(super) fn of(
    index: usize,
    function: &Candidate<'static>,
    blocks_signals: bool,
) -> impl Iterator<Item = Decision> {
    let (function, subject) = (*function, Subject::SystemCall(index));
    let len = match function.size {
        0 => function.text.len(),
        size => size.min(function.text.len()),
    };
    let found = find(&function.text[..len]).into_iter();
    found.map(move |call| {
        let address = function.address + call.at;
        let refused = |error| RefusalReason::SystemCall(SystemCallError::new(error));
        let number = call.number.map_err(refused);
        let fit = number.and_then(|_| check(&function, call.at, blocks_signals));
        let plan = fit.map(|()| FunctionPlan {
            subject,
            address,
            // One instruction is patched in place, like a NOP. Registers that the system call
            // preserves must not change.
            plan: Plan {
                how: TraceMethod::Nop,
                lead: 0,
                window: None,
                padding_jump: None,
                variant: Variant::PreserveAll,
                no_jump: None,
                is_exchanged: false,
            },
            original: first_bytes(&function.text[call.at..]),
            padding_jump: [0; SITE_LEN],
        });
        let text = &function.text[call.at..];
        Decision {
            subject,
            address,
            constant: &text[..text.len().min(system_call::behind(0))],
            plan,
        }
    })
}

/// Checks if the instruction at `at` of a function, which a system call follows, can become a jump.
fn check(function: &Candidate<'_>, at: usize, blocks_signals: bool) -> Result<(), RefusalReason> {
    let refused = |error| Err(RefusalReason::SystemCall(error));
    let len = system_call::behind(0);
    let end = at + len;
    if let Some(rule) = function.notrace {
        return refused(SystemCallError::Notrace(rule.reason()));
    }
    if !has_lahf() {
        return refused(SystemCallError::Flags);
    }
    if function.relocated.is_some_and(|relocated| relocated < end) {
        return Err(RefusalReason::TextRelocation);
    }
    // Threads that block all signals run it: it is not patched if that needs a trap.
    if blocks_signals && (function.address + at) % PAGE + len > PAGE {
        return refused(SystemCallError::TwoPages);
    }
    Ok(())
}

/// Returns true if the processor can save the flags with `lahf`.
fn has_lahf() -> bool {
    // A hypervisor may emulate this query, which takes tens of microseconds.
    static HAS_LAHF: OnceLock<bool> = OnceLock::new();
    *HAS_LAHF.get_or_init(cpu::has_lahf)
}
