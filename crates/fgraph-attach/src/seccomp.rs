//! Filters of system calls (seccomp), and whether a thread survives a call under them.
//!
//! The programs of filters only jump forward. One pass over the instructions therefore finds every
//! action that a call can lead to. Where two paths meet, a register is known if both leave the same
//! value in it. An argument that is not given may have any value.

/// Instruction in the layout of the kernel's `sock_filter`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Instruction {
    pub(crate) code: u16,
    pub(crate) if_true: u8,
    pub(crate) if_false: u8,
    pub(crate) value: u32,
}

/// Filters of a thread.
pub(crate) type Filters = Vec<Vec<Instruction>>;

/// System call with a known number, and perhaps a known first argument.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) number: i64,
    pub(crate) first: Option<u64>,
}

/// Effect of a call on the thread that makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fate {
    Allowed,
    /// The call ends with an error.
    Fails,
    /// The thread gets a signal, or waits for another process.
    Harmed,
}

/// The value `AUDIT_ARCH_X86_64`.
const ARCHITECTURE: u32 = 0xc000_003e;
/// Bytes of `seccomp_data`.
const DATA: u32 = 64;

/// Returns the worst effect that one of the filters may have on a thread that makes a call.
pub(crate) fn fate(filters: &[Vec<Instruction>], call: Call) -> Fate {
    let fates = filters.iter().map(|filter| Program(filter).run(call));
    fates.max().unwrap_or(Fate::Allowed)
}

impl Fate {
    fn of(action: u32) -> Self {
        match action & 0xffff_0000 {
            libc::SECCOMP_RET_ALLOW | libc::SECCOMP_RET_LOG => Self::Allowed,
            // `SECCOMP_RET_TRACE` makes the call fail because no tracer handles it.
            libc::SECCOMP_RET_ERRNO | libc::SECCOMP_RET_TRACE => Self::Fails,
            _ => Self::Harmed,
        }
    }
}

/// Contents of the registers, as far as they are known.
#[derive(Clone, Copy, Debug)]
struct State {
    accumulator: Option<u32>,
    index: Option<u32>,
    memory: [Option<u32>; 16],
}

impl State {
    fn merge(&mut self, other: &Self) {
        let merge = |own: &mut Option<u32>, other: Option<u32>| {
            if *own != other {
                *own = None;
            }
        };
        merge(&mut self.accumulator, other.accumulator);
        merge(&mut self.index, other.index);
        for (own, other) in self.memory.iter_mut().zip(other.memory) {
            merge(own, other);
        }
    }
}

struct Program<'a>(&'a [Instruction]);

impl Program<'_> {
    fn run(&self, call: Call) -> Fate {
        let mut reached: Vec<Option<State>> = vec![None; self.0.len()];
        let Some(first) = reached.first_mut() else {
            return Fate::Harmed;
        };
        *first = Some(State {
            accumulator: Some(0),
            index: Some(0),
            memory: [None; 16],
        });
        let mut worst = Fate::Allowed;
        for (at, instruction) in self.0.iter().enumerate() {
            let Some(mut state) = reached[at] else {
                continue;
            };
            let (ways, fate) = match step(instruction, &mut state, call) {
                Step::To(ways) => (ways, Fate::Allowed),
                Step::Return(action) => ([None; 2], action.map_or(Fate::Harmed, Fate::of)),
                Step::Unknown => ([None; 2], Fate::Harmed),
            };
            worst = worst.max(fate);
            for distance in ways.into_iter().flatten() {
                let next = at.checked_add(1 + distance as usize);
                match next.and_then(|next| reached.get_mut(next)) {
                    Some(Some(other)) => other.merge(&state),
                    Some(none) => *none = Some(state),
                    None => worst = Fate::Harmed,
                }
            }
        }
        worst
    }
}

enum Step {
    /// Continues behind this number of instructions, on one path or the other.
    To([Option<u32>; 2]),
    /// Ends with this action, if it is known.
    Return(Option<u32>),
    /// Is no instruction of such programs.
    Unknown,
}

/// Classes of instructions, in the lowest three bits.
mod class {
    pub(super) const LOAD: u16 = 0;
    pub(super) const LOAD_INDEX: u16 = 1;
    pub(super) const STORE: u16 = 2;
    pub(super) const STORE_INDEX: u16 = 3;
    pub(super) const COMPUTE: u16 = 4;
    pub(super) const JUMP: u16 = 5;
    pub(super) const RETURN: u16 = 6;
}

fn step(instruction: &Instruction, state: &mut State, call: Call) -> Step {
    let Instruction { code, value, .. } = *instruction;
    let place = value as usize % 16;
    let operand = match code & 8 {
        0 => Some(value),
        _ => state.index,
    };
    match code & 7 {
        to @ (class::LOAD | class::LOAD_INDEX) => {
            let loaded = match code & 0xe0 {
                0x00 => Some(value),
                0x20 => data(call, value),
                0x60 => state.memory[place],
                0x80 => Some(DATA),
                _ => return Step::Unknown,
            };
            match to {
                class::LOAD => state.accumulator = loaded,
                _ => state.index = loaded,
            }
        }
        class::STORE => state.memory[place] = state.accumulator,
        class::STORE_INDEX => state.memory[place] = state.index,
        class::COMPUTE => state.accumulator = computed(code, state.accumulator, operand),
        class::JUMP => return jump(instruction, state.accumulator, operand),
        class::RETURN => {
            return Step::Return(match code & 0x18 {
                0x00 => Some(value),
                0x08 => state.index,
                _ => state.accumulator,
            });
        }
        // One register is copied to the other.
        _ if code & 0x80 == 0 => state.index = state.accumulator,
        _ => state.accumulator = state.index,
    }
    Step::To([Some(0), None])
}

fn computed(code: u16, left: Option<u32>, right: Option<u32>) -> Option<u32> {
    let left = left?;
    if code & 0xf0 == 0x80 {
        return Some(left.wrapping_neg());
    }
    let right = right?;
    match code & 0xf0 {
        0x00 => Some(left.wrapping_add(right)),
        0x10 => Some(left.wrapping_sub(right)),
        0x20 => Some(left.wrapping_mul(right)),
        0x30 => left.checked_div(right),
        0x40 => Some(left | right),
        0x50 => Some(left & right),
        0x60 => left.checked_shl(right),
        0x70 => left.checked_shr(right),
        0x90 => left.checked_rem(right),
        0xa0 => Some(left ^ right),
        _ => None,
    }
}

fn jump(instruction: &Instruction, left: Option<u32>, right: Option<u32>) -> Step {
    let Instruction {
        code,
        if_true,
        if_false,
        value,
    } = *instruction;
    let [if_true, if_false] = [if_true, if_false].map(|way| Some(u32::from(way)));
    let is_true = |compare: fn(u32, u32) -> bool| match (left, right) {
        (Some(left), Some(right)) if compare(left, right) => Step::To([if_true, None]),
        (Some(_), Some(_)) => Step::To([if_false, None]),
        _ => Step::To([if_true, if_false]),
    };
    match code & 0xf0 {
        0x00 => Step::To([Some(value), None]),
        0x10 => is_true(|left, right| left == right),
        0x20 => is_true(|left, right| left > right),
        0x30 => is_true(|left, right| left >= right),
        0x40 => is_true(|left, right| left & right != 0),
        _ => Step::Unknown,
    }
}

/// Returns a word of the `seccomp_data` that the kernel passes to the program for a call.
fn data(call: Call, offset: u32) -> Option<u32> {
    match offset {
        0 => Some(call.number as u32),
        4 => Some(ARCHITECTURE),
        16 => call.first.map(|first| first as u32),
        20 => call.first.map(|first| (first >> 32) as u32),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instruction(code: u16, if_true: u8, if_false: u8, value: u32) -> Instruction {
        Instruction {
            code,
            if_true,
            if_false,
            value,
        }
    }

    const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
    const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;

    fn load(offset: u32) -> Instruction {
        instruction(0x20, 0, 0, offset)
    }

    fn ret(action: u32) -> Instruction {
        instruction(0x06, 0, 0, action)
    }

    fn call(number: i64) -> Call {
        Call {
            number,
            first: None,
        }
    }

    #[test]
    fn a_call_is_judged_by_its_number() {
        let filter = vec![
            load(4),
            instruction(0x15, 0, 4, ARCHITECTURE),
            load(0),
            instruction(0x15, 2, 0, 9),
            instruction(0x15, 2, 0, 10),
            ret(ALLOW),
            ret(KILL),
            ret(libc::SECCOMP_RET_ERRNO | 1),
        ];
        let fate = |number| fate(std::slice::from_ref(&filter), call(number));
        assert_eq!(fate(0), Fate::Allowed);
        assert_eq!(fate(9), Fate::Harmed);
        assert_eq!(fate(10), Fate::Fails);
    }

    #[test]
    fn an_argument_that_is_not_known_may_be_anything() {
        let filter = [
            load(16),
            instruction(0x54, 0, 0, 0x10),
            instruction(0x45, 1, 0, 0x10),
            ret(ALLOW),
            ret(KILL),
        ];
        let with = |first| {
            let call = Call { number: 56, first };
            Program(&filter).run(call)
        };
        assert_eq!(with(None), Fate::Harmed);
        assert_eq!(with(Some(0x0f)), Fate::Allowed);
        assert_eq!(with(Some(0x1f)), Fate::Harmed);
    }

    #[test]
    fn values_equal_on_both_paths_are_known() {
        // An unknown word chooses between two paths to the same value, or to two values.
        let filter = |other| {
            vec![
                load(24),
                instruction(0x15, 2, 0, 1),
                instruction(0x00, 0, 0, 5),
                instruction(0x05, 0, 0, 1),
                instruction(0x00, 0, 0, other),
                instruction(0x15, 0, 1, 5),
                ret(ALLOW),
                ret(KILL),
            ]
        };
        assert_eq!(fate(&[filter(5)], call(1)), Fate::Allowed);
        assert_eq!(fate(&[filter(6)], call(1)), Fate::Harmed);
    }

    #[test]
    fn the_worst_of_several_filters_counts() {
        let all = vec![ret(ALLOW)];
        let none = vec![ret(libc::SECCOMP_RET_TRAP)];
        assert_eq!(fate(&[all.clone(), all.clone()], call(1)), Fate::Allowed);
        assert_eq!(fate(&[all, none], call(1)), Fate::Harmed);
        assert_eq!(fate(&[], call(1)), Fate::Allowed);
    }

    #[test]
    fn programs_that_lead_nowhere_are_feared() {
        for filter in [
            vec![],
            vec![load(0)],
            vec![instruction(0x05, 0, 0, u32::MAX), ret(ALLOW)],
            vec![instruction(0x40, 0, 0, 0), ret(ALLOW)],
            vec![instruction(0x16, 0, 0, 0)],
        ] {
            assert_eq!(
                fate(std::slice::from_ref(&filter), call(1)),
                Fate::Harmed,
                "{filter:?}"
            );
        }
    }
}
