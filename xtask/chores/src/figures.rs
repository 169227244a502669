//! Numbers: how they are shown, the median of several, and numbers that look random.

use std::hash::{DefaultHasher, Hash, Hasher};

/// A number with its digits in groups of three.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place != 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// The median, of an even number the larger one; none of nothing.
pub fn median<T: Copy + PartialOrd>(values: impl IntoIterator<Item = T>) -> Option<T> {
    let mut values: Vec<T> = values.into_iter().collect();
    values.sort_unstable_by(|a, b| a.partial_cmp(b).expect("figures are numbers"));
    values.get(values.len() / 2).copied()
}

/// A number below `end` that depends on the others alone.
pub fn chosen(seed: u64, number: u64, end: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    (seed, number).hash(&mut hasher);
    hasher.finish() % end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_grouped() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
    }
}
