//! A hash that never changes and is the same on all machines: FNV-1a, 64 bits.
//!
//! It names directories and files after their content. Nobody attacks it, but builds must be
//! reproducible.

/// Returns the hash of `bytes`, as 16 hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for &byte in bytes {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_values_come_out() {
        assert_eq!(hex(b""), "cbf29ce484222325");
        assert_eq!(hex(b"foobar"), "85944171f73967e8");
    }
}
