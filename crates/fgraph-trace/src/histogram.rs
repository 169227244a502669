//! Histograms with buckets that grow with the values, as HdrHistogram's do.
//!
//! With `BITS`, values below `2 << BITS` have a bucket each; from there on each power of two is cut
//! into `1 << BITS` buckets. With 4 bits, a bucket is at most a sixteenth of its values wide:
//!
//! ```text
//!   value    0  1 .. 31 | 32 34 .. 62 | 64 68 .. 124 | ...
//!   bucket   0  1 .. 31 | 32 33 .. 47 | 48 49 ..  63 | ...
//! ```

/// Returns the number of buckets for values of 64 bits.
#[must_use]
pub const fn buckets<const BITS: u32>() -> usize {
    ((64 - BITS as usize) + 1) << BITS
}

/// Returns the bucket of a value.
#[must_use]
#[inline]
pub const fn bucket<const BITS: u32>(value: u64) -> usize {
    let shift = (u64::BITS - value.leading_zeros()).saturating_sub(BITS + 1);
    ((shift as usize) << BITS) + (value >> shift) as usize
}

/// Returns the largest value of a bucket.
#[must_use]
pub const fn highest<const BITS: u32>(bucket: usize) -> u64 {
    let shift = ((bucket >> BITS) as u32).saturating_sub(1);
    let lowest = ((bucket - ((shift as usize) << BITS)) as u64) << shift;
    lowest + ((1 << shift) - 1)
}

/// Returns the value that `percent` (0 to 100) of all values do not exceed, rounded up to the
/// largest value of its bucket; `None` without values. `counts` has the number of values in each
/// bucket.
///
/// ```
/// use fgraph_trace::histogram::{bucket, buckets, percentile};
///
/// let mut counts = vec![0; buckets::<4>()];
/// for value in 1..=100 {
///     counts[bucket::<4>(value)] += 1;
/// }
/// assert_eq!(percentile::<4>(counts.iter().copied(), 50.0), Some(51));
/// ```
#[must_use]
pub fn percentile<const BITS: u32>(
    counts: impl Iterator<Item = u64> + Clone,
    percent: f64,
) -> Option<u64> {
    let all: u64 = counts.clone().sum();
    let rank = (percent.clamp(0.0, 100.0) / 100.0 * all as f64).ceil();
    let rank = (rank as u64).clamp(1, all.max(1));
    let mut seen = 0;
    let mut counts = counts;
    let found = counts.position(|count| {
        seen += count;
        seen >= rank
    });
    found.map(highest::<BITS>)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that values lie in their buckets, and that buckets are narrow.
    fn check<const BITS: u32>() {
        let powers = (0..64).flat_map(|power| {
            let value = 1_u64 << power;
            [value - 1, value, value + value / 3, value + (value - 1)]
        });
        for value in powers.chain(0..4000) {
            let bucket = bucket::<BITS>(value);
            assert!(bucket < buckets::<BITS>(), "{value}");
            assert!(highest::<BITS>(bucket) >= value, "{value}");
            assert!(
                bucket == 0 || highest::<BITS>(bucket - 1) < value,
                "{value}"
            );
            assert!(highest::<BITS>(bucket) - value <= value >> BITS, "{value}");
        }
        assert_eq!(bucket::<BITS>(u64::MAX), buckets::<BITS>() - 1);
        assert_eq!(highest::<BITS>(buckets::<BITS>() - 1), u64::MAX);
    }

    #[test]
    fn a_value_lies_in_its_bucket_and_buckets_are_narrow() {
        check::<4>();
        check::<5>();
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_values() {
        let mut counts = vec![0; buckets::<4>()];
        assert_eq!(percentile::<4>(counts.iter().copied(), 50.0), None);
        let mut values: Vec<u64> = (0..5000).map(|n| n * n % 7919 * n).collect();
        for &value in &values {
            counts[bucket::<4>(value)] += 1;
        }
        values.sort_unstable();
        for percent in [0.0, 1.0, 50.0, 90.0, 99.0, 99.9, 100.0] {
            let rank = (percent / 100.0 * values.len() as f64).ceil() as usize;
            let exact = values[rank.max(1) - 1];
            let found = percentile::<4>(counts.iter().copied(), percent).unwrap();
            assert!((exact..=exact + exact / 16).contains(&found), "{percent}");
        }
    }
}
