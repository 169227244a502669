//! The names of a module's sites as programmers know them. They are kept because filters change
//! often, and demangling takes longer than matching.

use std::collections::HashSet;

/// The names of a list of functions; each may have several.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    text: String,
    /// The end of each name in the text.
    ends: Vec<u32>,
    /// For each function, the index after its last name.
    behind: Vec<u32>,
}

impl Names {
    /// Reserves room for the names of `functions` functions of the usual length.
    pub(crate) fn with_capacity(functions: usize) -> Self {
        /// The number of bytes reserved for a name, about that of Rust names.
        const NAME: usize = 96;
        Self {
            text: String::with_capacity(functions * NAME),
            ends: Vec::with_capacity(functions),
            behind: Vec::with_capacity(functions),
        }
    }

    /// Adds a function with its names, the best first.
    pub(crate) fn push<'a>(&mut self, names: impl Iterator<Item = &'a str>) {
        self.push_written(names.map(|name| |text: &mut String| text.push_str(name)));
    }

    /// Adds a function with its names, the best first; each is written by a function that appends
    /// it to a text.
    pub(crate) fn push_written(&mut self, names: impl Iterator<Item = impl FnOnce(&mut String)>) {
        /// The number of names that are compared with all others: nearly all functions have fewer.
        const FEW: usize = 8;
        let first = self.ends.len();
        let mut others = HashSet::new();
        for write in names {
            let start = self.text.len();
            write(&mut self.text);
            let name = &self.text[start..];
            // A symbol may be in several tables, and several symbols may have the same name.
            let mut few = first..self.ends.len().min(first + FEW);
            let is_new = !few.any(|index| self.name(index) == name)
                && (self.ends.len() < first + FEW || others.insert(name.to_owned()));
            if is_new {
                self.ends.push(self.text.len() as u32);
            } else {
                self.text.truncate(start);
            }
        }
        self.behind.push(self.ends.len() as u32);
    }

    /// Joins several lists, in no more memory than they need.
    pub(crate) fn joined(lists: Vec<Self>) -> Self {
        let mut lists = lists.into_iter();
        let mut all = lists.next().unwrap_or_default();
        for list in lists {
            let (text, names) = (all.text.len() as u32, all.ends.len() as u32);
            all.text.push_str(&list.text);
            all.ends.extend(list.ends.iter().map(|end| text + end));
            all.behind
                .extend(list.behind.iter().map(|last| names + last));
        }
        all.text.shrink_to_fit();
        all.ends.shrink_to_fit();
        all.behind.shrink_to_fit();
        all
    }

    fn name(&self, index: usize) -> &str {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.text[start as usize..self.ends[index] as usize]
    }

    /// Returns all names of function `index`, the best first.
    pub(crate) fn of(&self, index: usize) -> impl Iterator<Item = &str> + Clone {
        let first = index.checked_sub(1).map_or(0, |before| self.behind[before]);
        (first as usize..self.behind[index] as usize).map(|name| self.name(name))
    }

    /// Returns true if function `index` has a name.
    pub(crate) fn has(&self, index: usize) -> bool {
        self.of(index).next().is_some()
    }

    /// Returns the number of functions in the list.
    pub(crate) fn len(&self) -> usize {
        self.behind.len()
    }

    /// Returns the text of all names, the end of each name in it, and for each function the index
    /// after its last name.
    pub(crate) fn parts(&self) -> (&str, &[u32], &[u32]) {
        (&self.text, &self.ends, &self.behind)
    }

    /// Makes names from these [`parts`](Self::parts); `None` if they are inconsistent.
    pub(crate) fn of_parts(text: String, ends: Vec<u32>, behind: Vec<u32>) -> Option<Self> {
        let is_char = |&end: &u32| text.is_char_boundary(end as usize);
        let are_names = ends.is_sorted() && ends.iter().all(is_char);
        let last = behind.last().map_or(0, |&last| last as usize);
        let are_functions = behind.is_sorted() && last <= ends.len();
        (are_names && are_functions).then_some(Self { text, ends, behind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_have_their_own_names_each_once() {
        let mut names = Names::default();
        names.push(["a", "b", "a"].into_iter());
        names.push([].into_iter());
        names.push(["a"].into_iter());
        let all: Vec<Vec<&str>> = (0..3).map(|index| names.of(index).collect()).collect();
        assert_eq!(all, [vec!["a", "b"], vec![], vec!["a"]]);
        assert_eq!([0, 1, 2].map(|index| names.has(index)), [true, false, true]);
    }

    #[test]
    fn lists_are_joined_in_their_order() {
        let list = |functions: &[&[&str]]| {
            let mut names = Names::default();
            for function in functions {
                names.push(function.iter().copied());
            }
            names
        };
        let lists = [&[&["a", "b"][..], &[]][..], &[], &[&["c"], &["a"]]];
        let names = Names::joined(lists.iter().map(|functions| list(functions)).collect());
        let all: Vec<Vec<&str>> = (0..4).map(|index| names.of(index).collect()).collect();
        assert_eq!(all, lists.concat());
        assert_eq!(Names::joined(Vec::new()).len(), 0);
    }

    #[test]
    fn parts_are_names_where_they_belong_together() {
        let of_parts = |text: &str, ends: &[u32], behind: &[u32]| {
            Names::of_parts(text.to_owned(), ends.to_vec(), behind.to_vec())
        };
        let names = of_parts("aéb", &[1, 3, 4], &[1, 1, 3]).unwrap();
        let all: Vec<Vec<&str>> = (0..3).map(|index| names.of(index).collect()).collect();
        assert_eq!(all, [vec!["a"], vec![], vec!["é", "b"]]);
        for (ends, behind) in [
            (&[1, 2, 4][..], &[1, 1, 3][..]),
            (&[1, 3, 5], &[1, 1, 3]),
            (&[3, 1, 4], &[1, 1, 3]),
            (&[1, 3, 4], &[1, 1, 4]),
            (&[1, 3, 4], &[1, 3, 1]),
        ] {
            assert!(
                of_parts("aéb", ends, behind).is_none(),
                "{ends:?} {behind:?}"
            );
        }
    }

    #[test]
    fn a_function_has_each_of_very_many_names_once() {
        let all: Vec<String> = (0..100).map(|number| number.to_string()).collect();
        let mut names = Names::default();
        names.push(all.iter().chain(&all).map(String::as_str));
        assert!(names.of(0).eq(&all));
    }
}
