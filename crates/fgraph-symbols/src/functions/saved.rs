//! Functions as bytes, so that the symbol tables of a file are sorted only once.

use crate::elf::{ElfError, ElfFile};

use super::{Functions, NONE, NameRef, Rank, Start, Strings};

impl<'a> Functions<'a> {
    /// Appends the functions to `out`, in the form that [`restore`](Self::restore) reads. The names
    /// stay in the file: no names may have been [added](Self::add_names).
    pub fn save(&self, out: &mut Vec<u8>) {
        debug_assert!(self.added.is_empty(), "names that are in no file");
        let mut word = |word: u32| out.extend_from_slice(&word.to_le_bytes());
        let lens = [self.starts.len(), self.names.len(), self.others.len()];
        lens.into_iter().for_each(|len| word(len as u32));
        for start in &self.starts {
            let Start {
                offset,
                size,
                names,
                enclosing,
            } = *start;
            [offset, size, names, enclosing]
                .into_iter()
                .for_each(&mut word);
        }
        for name in &self.names {
            let strings = name.strings as u8;
            word(name.at);
            word(u32::from(name.version) | u32::from(strings) << 16 | u32::from(name.rank.0) << 24);
        }
        self.others.iter().copied().for_each(word);
    }

    /// Restores the functions from the bytes of [`save`](Self::save); `None` for other bytes.
    /// `file` and `debug` must be those from which the functions were [read](Self::read): otherwise
    /// the result is wrong.
    ///
    /// # Errors
    ///
    /// Fails like [`read`](Self::read).
    pub fn restore(
        file: &ElfFile<'a>,
        debug: Option<&ElfFile<'a>>,
        saved: &[u8],
    ) -> Result<Option<Self>, ElfError> {
        let (mut this, _) = Self::without_functions(file, debug)?;
        Ok(this.take_saved(saved).map(|()| this))
    }

    fn take_saved(&mut self, saved: &[u8]) -> Option<()> {
        let (words, []) = saved.as_chunks() else {
            return None;
        };
        let mut words = words.iter().map(|word| u32::from_le_bytes(*word));
        let mut len = || Some(words.next()? as usize);
        let (starts, names, others) = (len()?, len()?, len()?);
        let len = starts.checked_mul(4)?;
        let len = len
            .checked_add(names.checked_mul(2)?)?
            .checked_add(others)?;
        if words.len() != len {
            return None;
        }
        let mut last: Option<Start> = None;
        for index in 0..starts {
            let start = Start {
                offset: words.next()?,
                size: words.next()?,
                names: words.next()?,
                enclosing: words.next()?,
            };
            let is_behind =
                last.is_none_or(|last| last.offset < start.offset && last.names <= start.names);
            let is_enclosed = start.enclosing == NONE || (start.enclosing as usize) < index;
            if !is_behind || !is_enclosed || start.names as usize > names {
                return None;
            }
            last = Some(start);
            self.starts.push(start);
        }
        if self.starts.first().is_some_and(|first| first.names != 0) {
            return None;
        }
        for _ in 0..names {
            let (at, rest) = (words.next()?, words.next()?);
            let strings = match rest >> 16 & 0xff {
                0 => Strings::Symtab,
                1 => Strings::Dynsym,
                2 => Strings::Debug,
                _ => return None,
            };
            self.names.push(NameRef {
                at,
                version: rest as u16,
                strings,
                rank: Rank((rest >> 24) as u8),
            });
        }
        self.others = words.collect();
        self.others.is_sorted().then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::of_this_program;
    use super::*;

    fn saved(functions: &Functions<'_>) -> Vec<u8> {
        let mut saved = Vec::new();
        functions.save(&mut saved);
        saved
    }

    #[test]
    fn functions_that_were_saved_are_the_same_when_they_are_restored() {
        let (file, functions) = of_this_program();
        let restored = Functions::restore(&file, None, &saved(&functions));
        let restored = restored.unwrap().unwrap();
        assert_eq!(restored.len(), functions.len());
        assert_eq!(restored.is_stripped(), functions.is_stripped());
        for index in 0..functions.len() {
            assert_eq!(restored.get(index), functions.get(index));
            assert!(restored.names(index).eq(functions.names(index)));
            let address = functions.address(index);
            for address in [address, address + 1] {
                assert_eq!(restored.containing(address), functions.containing(address));
            }
        }
    }

    #[test]
    fn bytes_that_are_cut_or_changed_are_no_functions_or_others_but_do_no_harm() {
        let (file, functions) = of_this_program();
        let bytes = saved(&functions);
        for len in [0, 4, 11, 12, bytes.len() / 2, bytes.len() - 1] {
            let cut = Functions::restore(&file, None, &bytes[..len]);
            assert!(cut.unwrap().is_none(), "{len}");
        }
        let step = bytes.len() / 500;
        for at in (0..bytes.len()).step_by(step) {
            let mut changed = bytes.clone();
            changed[at] ^= 0x81;
            let changed = Functions::restore(&file, None, &changed).unwrap();
            let Some(functions) = changed else { continue };
            for index in 0..functions.len() {
                functions.names(index).for_each(drop);
                let around = functions.containing(functions.get(index).address);
                assert!(around.is_none_or(|around| around < functions.len()));
            }
        }
    }
}
