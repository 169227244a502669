//! Which functions a recorder stops to record, and which it records again.

/// A function of a process: its index among those that are recorded, and the address where it
/// begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionPlace {
    /// The index, as events have it.
    pub index: u32,
    /// The address.
    pub address: u64,
}

/// Functions that are recorded no more, and functions that are recorded again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Switches {
    /// The functions that are recorded no more.
    pub off: Vec<FunctionPlace>,
    /// The functions that are recorded again.
    pub on: Vec<FunctionPlace>,
}

impl Switches {
    /// Words, one for each function: `-7@4096` for one that is switched off, `+7@4096` for on.
    pub(crate) fn to_words(&self) -> String {
        let off = self.off.iter().map(|it| ('-', it));
        let all = off.chain(self.on.iter().map(|it| ('+', it)));
        let words: Vec<String> = all
            .map(|(sign, it)| format!("{sign}{}@{}", it.index, it.address))
            .collect();
        words.join(" ")
    }

    /// The switches of such words; `None` if a word is none.
    pub(crate) fn parse(words: &str) -> Option<Self> {
        let mut switches = Self::default();
        for word in words.split_whitespace() {
            let (list, word) = match word.strip_prefix('-') {
                Some(word) => (&mut switches.off, word),
                None => (&mut switches.on, word.strip_prefix('+')?),
            };
            let (index, address) = word.split_once('@')?;
            list.push(FunctionPlace {
                index: index.parse().ok()?,
                address: address.parse().ok()?,
            });
        }
        Some(switches)
    }
}
