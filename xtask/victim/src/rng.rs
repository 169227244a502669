//! Random numbers: fast, reproducible, and without any call that could be traced.

/// Marsaglia's xorshift.
#[derive(Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    /// The sequence number `stream` that belongs to `seed`.
    #[inline(always)]
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let mixed = crate::formula::mix(seed ^ crate::formula::mix(stream.wrapping_add(1)));
        // A state of zero would stay zero.
        Self(mixed | 1)
    }

    /// Goes on from an earlier `state`.
    #[inline(always)]
    pub(crate) fn from_state(state: u64) -> Self {
        Self(state | 1)
    }

    /// Any number.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `bound`, which must not be zero.
    #[inline(always)]
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        // The upper bits are the better ones.
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    /// `true` once in `times`.
    #[inline(always)]
    pub(crate) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}
