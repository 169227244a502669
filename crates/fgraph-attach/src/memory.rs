//! The memory of another process.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

/// The memory of a process, for as long as it runs the same program.
#[derive(Debug)]
pub(crate) struct Memory(File);

impl Memory {
    pub(crate) fn open(pid: u32) -> io::Result<Self> {
        let path = format!("/proc/{pid}/mem");
        Ok(Self(OpenOptions::new().read(true).write(true).open(path)?))
    }

    /// All of `into`, or an error.
    pub(crate) fn read(&self, address: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(into, address)
    }

    /// Also where it is mapped read-only.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, address)
    }

    pub(crate) fn bytes(&self, address: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.read(address, &mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn word(&self, address: u64) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Text that ends with a zero, of at most `max` bytes.
    pub(crate) fn text(&self, address: u64, max: usize) -> io::Result<String> {
        let mut text = vec![0; max];
        // It may end right before a page that is not mapped.
        let read = self.0.read_at(&mut text, address)?;
        text.truncate(read);
        let end = memchr::memchr(0, &text).unwrap_or(text.len());
        Ok(String::from_utf8_lossy(&text[..end]).into_owned())
    }
}
