//! Lines of documentation taken at random, to be read without their context.

use super::doc_lines;
use super::tree::Tree;

/// `count` lines of doc comments and pages, by file and line, each after its place. The same seed
/// gives the same lines as long as the files are the same.
pub(super) fn lines(tree: &Tree, count: usize, seed: u64) -> Vec<String> {
    let mut all: Vec<(&str, usize, &str)> = Vec::new();
    for file in tree.files.iter().filter(|file| file.path != "CHANGELOG.md") {
        let lines = doc_lines::of(file);
        all.extend(lines.iter().map(|line| (&*file.path, line.line, line.text)));
    }
    let mut state = seed;
    let mut taken = Vec::new();
    while taken.len() < count && !all.is_empty() {
        let index = next(&mut state) % all.len() as u64;
        taken.push(all.swap_remove(index as usize));
    }
    taken.sort_unstable();
    let printed = taken.iter();
    printed
        .map(|(path, line, text)| format!("{path}:{line}: {text}"))
        .collect()
}

/// The next number of the `SplitMix64` generator with this state.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
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
