//! The code that is analyzed.

/// A stretch of code.
#[derive(Clone, Copy, Debug)]
pub struct Code<'a> {
    /// Address of the code.
    pub address: usize,
    /// Bytes of the code.
    pub bytes: &'a [u8],
}
