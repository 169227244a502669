//! The plan of a module as bytes, so that one process makes it for many.
//!
//! ```text
//!   magic | checksum | key | functions | facts | decisions | names
//! ```
//!
//! The bytes hold results of analyzing the file: its functions in order and their names as
//! programmers know them, the registers on which callers rely, and the length of each window. They
//! hold no code. A process that uses them decodes the window again from the text of the file, and
//! compares it with memory.

use super::branch_targets::Entered;
use super::callee_preserved::CalleePreserved;
use super::candidate::Callers;
use super::hash::XxHash3_64;
use super::names::Names;

/// Begins the bytes of a plan.
const MAGIC: [u8; 8] = *b"FGPLAN\n\0";

/// The end of the checksum of the bytes after it.
const HEAD: usize = MAGIC.len() + 8;

/// A plan that was read.
#[derive(Debug)]
pub(super) struct SavedPlan {
    /// The bytes of [`Functions::save`](fgraph_symbols::functions::Functions::save).
    pub(super) functions: Vec<u8>,
    pub(super) facts: SavedFacts,
}

/// The facts about a file that are saved beside its functions.
#[derive(Debug)]
pub(super) struct SavedFacts {
    /// A hash of the memory that planning has read: the facts hold if it is equal.
    pub(super) context: u64,
    pub(super) callers: Callers,
    pub(super) entered: Entered,
    /// Empty until it is known.
    pub(super) callee_preserved: Option<CalleePreserved>,
    /// By index of the function; empty until they are made.
    pub(super) decisions: Vec<SavedDecision>,
    /// By index of the function; functions without a name in the symbol tables have none here.
    /// Empty until the decisions are made.
    pub(super) names: Names,
}

/// The way in which a function is traced, in one word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SavedDecision {
    /// `None` if it must be decided again: for refused functions, and those with a breakpoint.
    pub(super) plan: Option<SavedWindow>,
    /// True if the function makes system calls itself.
    pub(super) has_system_calls: bool,
}

/// The patched bytes of a function, and the trampoline for its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SavedWindow {
    /// The number of bytes before the patched ones.
    pub(super) lead: u8,
    /// The number of displaced bytes; 0 for a NOP.
    pub(super) len: u16,
    /// The distance back to the NOP that becomes the padding jump; 0 if there is none.
    pub(super) padding_jump: u8,
    /// The number of the trampoline for its calls.
    pub(super) variant: u8,
    pub(super) is_exchanged: bool,
}

impl SavedDecision {
    const PLANNED: u64 = 1;
    const EXCHANGED: u64 = 1 << 1;
    const CALLS: u64 = 1 << 2;

    fn to_word(self) -> u64 {
        let flag = |is: bool, flag: u64| if is { flag } else { 0 };
        let plan = self.plan.map_or(0, |plan| {
            Self::PLANNED
                | flag(plan.is_exchanged, Self::EXCHANGED)
                | u64::from(plan.variant) << 8
                | u64::from(plan.lead) << 16
                | u64::from(plan.padding_jump) << 24
                | u64::from(plan.len) << 32
        });
        plan | flag(self.has_system_calls, Self::CALLS)
    }

    fn of_word(word: u64) -> Self {
        let plan = SavedWindow {
            variant: (word >> 8) as u8,
            lead: (word >> 16) as u8,
            padding_jump: (word >> 24) as u8,
            len: (word >> 32) as u16,
            is_exchanged: word & Self::EXCHANGED != 0,
        };
        Self {
            plan: (word & Self::PLANNED != 0).then_some(plan),
            has_system_calls: word & Self::CALLS != 0,
        }
    }
}

/// Encodes the plan for a key.
pub(super) fn encode(key: u128, functions: &[u8], facts: &SavedFacts) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend([0; HEAD - MAGIC.len()]);
    out.extend(key.to_le_bytes());
    put_bytes(&mut out, functions);
    put(&mut out, facts.context);
    let callers = match facts.callers {
        Callers::Abi => 0,
        Callers::LowRegisters => 1,
        Callers::AllRegisters => 2,
    };
    put(&mut out, callers);
    let entered = facts.entered.masks().iter();
    put_all(
        &mut out,
        entered.map(|&(index, mask)| (index as u64) << 8 | u64::from(mask)),
    );
    put(&mut out, facts.callee_preserved.is_some().into());
    let callee_preserved = facts.callee_preserved.as_ref().map(CalleePreserved::parts);
    for part in callee_preserved.into_iter().flatten() {
        put(&mut out, part.is_some().into());
        let addresses = part.unwrap_or_default().iter();
        put_all(&mut out, addresses.map(|&address| address as u64));
    }
    let decisions = facts.decisions.iter();
    put_all(&mut out, decisions.map(|decision| decision.to_word()));
    let (text, ends, behind) = facts.names.parts();
    put_bytes(&mut out, text.as_bytes());
    for numbers in [ends, behind] {
        put(&mut out, numbers.len() as u64);
        numbers
            .iter()
            .for_each(|number| out.extend(number.to_le_bytes()));
    }
    let sum = XxHash3_64::oneshot(&out[HEAD..]);
    out[MAGIC.len()..HEAD].copy_from_slice(&sum.to_le_bytes());
    out
}

fn put(out: &mut Vec<u8>, word: u64) {
    out.extend(word.to_le_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn put_all(out: &mut Vec<u8>, words: impl ExactSizeIterator<Item = u64>) {
    put(out, words.len() as u64);
    words.for_each(|word| put(out, word));
}

/// Decodes a plan; `None` if the bytes are cut, changed, or not for this key.
pub(super) fn decode(key: u128, bytes: &[u8]) -> Option<SavedPlan> {
    let rest = bytes.strip_prefix(&MAGIC)?;
    let (sum, rest) = rest.split_first_chunk()?;
    if u64::from_le_bytes(*sum) != XxHash3_64::oneshot(rest) {
        return None;
    }
    let mut rest = Rest(rest.strip_prefix(&key.to_le_bytes())?);
    let functions = rest.bytes()?.to_vec();
    let context = rest.word()?;
    let callers = match rest.word()? {
        0 => Callers::Abi,
        1 => Callers::LowRegisters,
        2 => Callers::AllRegisters,
        _ => return None,
    };
    let entered = rest.words()?;
    let entered = entered.map(|word| (word as usize >> 8, word as u8));
    let entered = Entered::new(entered.collect());
    let mut callee_preserved = None;
    if rest.word()? != 0 {
        let mut part = || {
            let is_known = rest.word()? != 0;
            let addresses = rest.words()?.map(|address| address as usize).collect();
            Some(is_known.then_some(addresses))
        };
        callee_preserved = Some(CalleePreserved::new([part()?, part()?]));
    }
    let decisions = rest.words()?.map(SavedDecision::of_word).collect();
    let text = str::from_utf8(rest.bytes()?).ok()?.to_owned();
    let names = Names::of_parts(text, rest.halves()?, rest.halves()?)?;
    let facts = SavedFacts {
        context,
        callers,
        entered,
        callee_preserved,
        decisions,
        names,
    };
    rest.0.is_empty().then_some(SavedPlan { functions, facts })
}

/// Bytes that are not read yet.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }

    fn take(&mut self, len: u64) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(usize::try_from(len).ok()?)?;
        self.0 = rest;
        Some(bytes)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.word()?;
        self.take(len)
    }

    fn words(&mut self) -> Option<impl Iterator<Item = u64> + use<'a>> {
        let len = self.word()?;
        let (words, _) = self.take(len.checked_mul(8)?)?.as_chunks();
        Some(words.iter().map(|word| u64::from_le_bytes(*word)))
    }

    fn halves(&mut self) -> Option<Vec<u32>> {
        let len = self.word()?;
        let (halves, _) = self.take(len.checked_mul(4)?)?.as_chunks();
        Some(
            halves
                .iter()
                .map(|half| u32::from_le_bytes(*half))
                .collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: u128 = 0xfedc_ba98_7654_3210_0123_4567_89ab_cdef;

    fn facts() -> SavedFacts {
        let mut names = Names::default();
        names.push(["malloc", "malloc@@GLIBC_2.2.5"].into_iter());
        names.push([].into_iter());
        SavedFacts {
            context: 0x0123_4567_89ab_cdef,
            callers: Callers::LowRegisters,
            entered: Entered::new(vec![(3, 0b10), (70_000, 0b1_0000)]),
            callee_preserved: Some(CalleePreserved::new([None, Some(vec![0x1000, 0x2000])])),
            decisions: vec![
                SavedDecision::default(),
                SavedDecision {
                    plan: Some(SavedWindow {
                        lead: 4,
                        len: 256,
                        padding_jump: 126,
                        variant: 4,
                        is_exchanged: true,
                    }),
                    has_system_calls: true,
                },
                SavedDecision {
                    plan: None,
                    has_system_calls: true,
                },
            ],
            names,
        }
    }

    #[test]
    fn a_plan_is_the_same_after_it_was_saved() {
        let bytes = encode(KEY, b"functions", &facts());
        let plan = decode(KEY, &bytes).unwrap();
        assert_eq!(plan.functions, b"functions");
        let read = plan.facts;
        assert_eq!(format!("{read:?}"), format!("{:?}", facts()));
    }

    #[test]
    fn bytes_that_are_cut_or_changed_or_of_another_file_are_no_plan() {
        let bytes = encode(KEY, b"functions", &facts());
        for len in 0..bytes.len() {
            assert!(decode(KEY, &bytes[..len]).is_none(), "{len}");
        }
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << (at % 8);
            assert!(decode(KEY, &changed).is_none(), "{at}");
        }
        let longer = [&bytes[..], &[0; 8]].concat();
        assert!(decode(KEY, &longer).is_none());
        assert!(decode(KEY + 1, &bytes).is_none());
    }
}
