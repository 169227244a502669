//! The names of a module's sites as programmers know them, kept because filters change often, and
//! demangling takes longer than matching.

use std::collections::HashSet;

/// The names of a list of functions; each may have several.
#[derive(Debug, Default)]
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

    /// The best name of the last function; empty if it has none.
    pub(crate) fn last(&self) -> &str {
        self.behind
            .len()
            .checked_sub(1)
            .map_or("", |last| self.best(last))
    }

    /// The best name of function `index`; empty if it has none.
    pub(crate) fn best(&self, index: usize) -> &str {
        self.of(index).next().unwrap_or_default()
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
        assert_eq!([0, 1, 2].map(|index| names.best(index)), ["a", "", "a"]);
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
        assert_eq!(names.last(), "a");
        assert_eq!(Names::joined(Vec::new()).last(), "");
    }

    #[test]
    fn a_function_has_each_of_very_many_names_once() {
        let all: Vec<String> = (0..100).map(|number| number.to_string()).collect();
        let mut names = Names::default();
        names.push(all.iter().chain(&all).map(String::as_str));
        assert!(names.of(0).eq(&all));
    }
}
