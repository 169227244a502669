//! The names of a module's sites as programmers know them, kept because filters change often, and
//! demangling takes longer than matching.

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
    /// Adds a function with its names, the best first.
    pub(crate) fn push<'a>(&mut self, names: impl Iterator<Item = &'a str>) {
        let first = self.ends.len();
        for name in names {
            // A symbol may be in several tables, and several symbols may have the same name.
            if !(first..self.ends.len()).any(|index| self.name(index) == name) {
                self.text.push_str(name);
                self.ends.push(self.text.len() as u32);
            }
        }
        self.behind.push(self.ends.len() as u32);
    }

    /// Gives back memory that is not needed; to be called when all names are there.
    pub(crate) fn shrink(&mut self) {
        self.text.shrink_to_fit();
        self.ends.shrink_to_fit();
        self.behind.shrink_to_fit();
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
}
