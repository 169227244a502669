//! Hashes for plans that are kept.

#[cfg(feature = "plans")]
pub(super) use twox_hash::{XxHash3_64, XxHash3_128};

#[cfg(not(feature = "plans"))]
pub(super) use absent::{XxHash3_64, XxHash3_128};

/// Hashes that are never computed, because no store can be set.
#[cfg(not(feature = "plans"))]
mod absent {
    use core::hash::Hasher;

    pub(in super::super) struct XxHash3_64;

    impl XxHash3_64 {
        pub(in super::super) const fn new() -> Self {
            Self
        }

        pub(in super::super) const fn oneshot(_bytes: &[u8]) -> u64 {
            0
        }
    }

    pub(in super::super) struct XxHash3_128;

    impl XxHash3_128 {
        pub(in super::super) const fn new() -> Self {
            Self
        }

        pub(in super::super) const fn finish_128(&self) -> u128 {
            0
        }
    }

    impl Hasher for XxHash3_64 {
        fn write(&mut self, _bytes: &[u8]) {}

        fn finish(&self) -> u64 {
            0
        }
    }

    impl Hasher for XxHash3_128 {
        fn write(&mut self, _bytes: &[u8]) {}

        fn finish(&self) -> u64 {
            0
        }
    }
}
