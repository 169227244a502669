//! The same functions in two recordings.

use std::collections::{BTreeSet, HashMap};

/// A function's name and its module.
pub type Key = (String, String);

/// Functions of two recordings, by their index in each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pairs {
    /// Functions in both recordings.
    pub both: Vec<[usize; 2]>,
    /// Functions in the old recording alone, and in the new one alone.
    pub alone: [BTreeSet<usize>; 2],
}

impl Pairs {
    /// Pairs functions by name and module, and those without a partner by each of `ways` in turn:
    /// two of them are a pair if no other one in their recording has the same key.
    ///
    /// ```
    /// use fgraph_analysis::pairs::{Pairs, by_name};
    ///
    /// let key = |name: &str, module: &str| (name.to_owned(), module.to_owned());
    /// let old = [key("main", "v1"), key("gone", "v1")];
    /// let new = [key("main", "v2")];
    /// let pairs = Pairs::of([&old, &new], &[by_name]);
    /// assert_eq!(pairs.both, [[0, 0]]);
    /// assert_eq!(pairs.alone.map(|it| it.len()), [1, 0]);
    /// ```
    #[must_use]
    pub fn of(keys: [&[Key]; 2], ways: &[fn(&Key) -> Key]) -> Self {
        let mut pairs = Self {
            both: Vec::new(),
            alone: keys.map(|keys| (0..keys.len()).collect()),
        };
        pairs.add(keys, Key::clone);
        ways.iter().for_each(|&way| pairs.add(keys, way));
        pairs
    }

    fn add(&mut self, keys: [&[Key]; 2], way: fn(&Key) -> Key) {
        let [old, new] = [0, 1].map(|at| unique(keys[at], &self.alone[at], way));
        let mut found: Vec<_> = old
            .into_iter()
            .filter_map(|(key, before)| Some([before, *new.get(&key)?]))
            .collect();
        found.sort_unstable();
        for pair in found {
            self.pair(pair);
        }
    }

    /// Makes a pair of two functions that are alone.
    pub fn pair(&mut self, pair: [usize; 2]) {
        for (alone, index) in self.alone.iter_mut().zip(pair) {
            alone.remove(&index);
        }
        self.both.push(pair);
    }
}

/// Returns the name alone: two builds of a program may have different file names.
#[must_use]
pub fn by_name((name, _): &Key) -> Key {
    (name.clone(), String::new())
}

/// Returns those functions which no other function has the same key as.
fn unique(keys: &[Key], among: &BTreeSet<usize>, way: fn(&Key) -> Key) -> HashMap<Key, usize> {
    let mut found: HashMap<Key, Option<usize>> = HashMap::new();
    for &index in among {
        found
            .entry(way(&keys[index]))
            .and_modify(|it| *it = None)
            .or_insert(Some(index));
    }
    let only = found.into_iter();
    only.filter_map(|(key, index)| Some((key, index?)))
        .collect()
}
