//! Functions that a recorder stops recording, and functions that it records again.

/// Function of a process: its index among the recorded functions, and its start address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionPlace {
    /// Index of the function in events.
    pub index: u32,
    /// Start address of the function.
    pub address: u64,
}

/// Functions that are switched off, and functions that are switched on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Switches {
    /// Functions that are no longer recorded.
    pub off: Vec<FunctionPlace>,
    /// Functions that are recorded again.
    pub on: Vec<FunctionPlace>,
}

impl Switches {
    /// Writes a word for each function: `-7@4096` if it is switched off, `+7@4096` if on.
    pub(crate) fn to_words(&self) -> String {
        let off = self.off.iter().map(|it| ('-', it));
        let all = off.chain(self.on.iter().map(|it| ('+', it)));
        let words: Vec<String> = all
            .map(|(sign, it)| format!("{sign}{}@{}", it.index, it.address))
            .collect();
        words.join(" ")
    }

    /// Parses such words; `None` if one of them is malformed.
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
