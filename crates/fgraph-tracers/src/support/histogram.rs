//! Histograms with buckets that grow with the values, as HdrHistogram's do.
//!
//! Values up to 31 have a bucket each; from there on each power of two is cut into 16 buckets, so a
//! bucket is at most a sixteenth of its values wide:
//!
//! ```text
//!   value    0  1 .. 31 | 32 34 .. 62 | 64 68 .. 124 | ...
//!   bucket   0  1 .. 31 | 32 33 .. 47 | 48 49 ..  63 | ...
//! ```

/// Number of buckets of a power of two.
const PARTS: usize = 16;
/// Smallest power of two that has one bucket for each value, as its logarithm.
const FIRST: u32 = PARTS.ilog2();
/// Number of buckets for values of 64 bits.
pub(crate) const BUCKETS: usize = PARTS * (64 - FIRST as usize + 1);

/// Returns the bucket of a value.
pub(crate) const fn bucket(value: u64) -> usize {
    if value < PARTS as u64 {
        return value as usize;
    }
    let shift = value.ilog2() - FIRST;
    (shift as usize) * PARTS + (value >> shift) as usize
}

/// Returns the largest value of a bucket.
pub(crate) const fn highest(bucket: usize) -> u64 {
    if bucket < PARTS {
        return bucket as u64;
    }
    let shift = (bucket / PARTS - 1) as u32;
    let lowest = ((bucket % PARTS + PARTS) as u64) << shift;
    lowest + ((1 << shift) - 1)
}

/// Returns the value that `percent` (0 to 100) of all values do not exceed, to within a sixteenth;
/// `None` without values.
pub(crate) fn percentile(counts: &[u64], percent: f64) -> Option<u64> {
    let all: u64 = counts.iter().sum();
    let rank = (percent.clamp(0.0, 100.0) / 100.0 * all as f64).ceil();
    let rank = (rank as u64).clamp(1, all.max(1));
    let mut seen = 0;
    let found = counts.iter().position(|&count| {
        seen += count;
        seen >= rank
    });
    found.map(highest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_lies_in_its_bucket_and_buckets_are_narrow() {
        let powers = (0..64).flat_map(|power| {
            let value = 1_u64 << power;
            [value - 1, value, value + value / 3, value + (value - 1)]
        });
        for value in powers.chain(0..1000) {
            let bucket = bucket(value);
            assert!(bucket < BUCKETS, "{value}");
            assert!(highest(bucket) >= value, "{value}");
            assert!(bucket == 0 || highest(bucket - 1) < value, "{value}");
            assert!(highest(bucket) - value <= value / 16, "{value}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert_eq!(highest(BUCKETS - 1), u64::MAX);
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_values() {
        let mut counts = vec![0; BUCKETS];
        assert_eq!(percentile(&counts, 50.0), None);
        let mut values: Vec<u64> = (0..5000).map(|n| n * n % 7919 * n).collect();
        for &value in &values {
            counts[bucket(value)] += 1;
        }
        values.sort_unstable();
        for percent in [0.0, 1.0, 50.0, 90.0, 99.0, 99.9, 100.0] {
            let rank = (percent / 100.0 * values.len() as f64).ceil() as usize;
            let exact = values[rank.max(1) - 1];
            let found = percentile(&counts, percent).unwrap();
            assert!((exact..=exact + exact / 16).contains(&found), "{percent}");
        }
    }
}
