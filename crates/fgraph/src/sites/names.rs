//! The names of a module's sites as programmers know them, kept because filters change often, and
//! demangling takes longer than matching.

use std::collections::HashSet;

/// The names of a list of functions; each may have several.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    text: String,
    /// Where in the text each name ends.
    ends: Vec<u32>,
    /// For each function, the index behind its last name.
    behind: Vec<u32>,
}

impl Names {
    /// Room for the names of so many functions, if these are like most.
    pub(crate) fn with_capacity(functions: usize) -> Self {
        /// Bytes of a name: those of Rust have about so many.
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

    /// Adds a function with its names, the best first, each of which is written behind a text.
    pub(crate) fn push_written(&mut self, names: impl Iterator<Item = impl FnOnce(&mut String)>) {
        /// This many are compared with all others, as nearly all functions have fewer.
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

    /// The names of several lists one behind the other, in no more memory than they need.
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

    /// All names of function `index`, the best first.
    pub(crate) fn of(&self, index: usize) -> impl Iterator<Item = &str> + Clone {
        let first = index.checked_sub(1).map_or(0, |before| self.behind[before]);
        (first as usize..self.behind[index] as usize).map(|name| self.name(name))
    }

    /// True if function `index` has a name.
    pub(crate) fn has(&self, index: usize) -> bool {
        self.of(index).next().is_some()
    }

    /// How many functions are in the list.
    pub(crate) fn len(&self) -> usize {
        self.behind.len()
    }

    /// All names behind each other; where in them each ends; and for each function, the index
    /// behind its last name.
    pub(crate) fn parts(&self) -> (&str, &[u32], &[u32]) {
        (&self.text, &self.ends, &self.behind)
    }

    /// The names of these [`parts`](Self::parts); `None` if they do not belong together.
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
