//! Lines of comments and pages taken at random, to be read without their context.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use super::prose;
use super::tree::Tree;

/// `count` lines of comments and pages, by file and line, each after its place. The same seed
/// gives the same lines as long as the files are the same.
pub(super) fn lines(tree: &Tree, count: usize, seed: u64) -> Vec<String> {
    let mut all: Vec<(&str, usize, &str)> = Vec::new();
    for file in tree.files.iter().filter(|file| file.path != "CHANGELOG.md") {
        let lines = prose::passages(file).into_iter().flatten();
        all.extend(lines.map(|(line, text)| (&*file.path, line, text)));
    }
    let mut taken = Vec::new();
    while taken.len() < count && !all.is_empty() {
        // The hasher has fixed keys.
        let mut hasher = DefaultHasher::new();
        (seed, taken.len()).hash(&mut hasher);
        let index = hasher.finish() % all.len() as u64;
        taken.push(all.swap_remove(index as usize));
    }
    taken.sort_unstable();
    let shown = |(path, line, text)| format!("{path}:{line}: {text}");
    taken.into_iter().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_each_line_at_most_once_and_depends_on_the_seed_alone() {
        let text: String = (0..100).map(|n| format!("/// Line {n}.\n")).collect();
        let tree = Tree::made(&[("a.rs", &text), ("CHANGELOG.md", "No.\n")]);
        let sample = lines(&tree, 20, 1);
        assert_eq!(sample.len(), 20);
        assert_eq!(sample, lines(&tree, 20, 1));
        assert_ne!(sample, lines(&tree, 20, 2));
        let mut all = lines(&tree, 1000, 1);
        all.dedup();
        assert_eq!(all.len(), 100);
    }
}
