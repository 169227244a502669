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

    /// What a file holds, in place of a process's memory.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn of_file(file: File) -> Self {
        Self(file)
    }

    /// All of `into`, or an error.
    pub(crate) fn read(&self, address: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(into, address)
    }

    /// Also where it is mapped read-only.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, address)
    }

    /// Bytes from there on, at most so many: less where what follows is not mapped.
    pub(crate) fn some(&self, address: u64, max: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; max];
        let read = self.0.read_at(&mut bytes, address)?;
        bytes.truncate(read);
        Ok(bytes)
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
        let text = self.some(address, max)?;
        let end = memchr::memchr(0, &text).unwrap_or(text.len());
        Ok(String::from_utf8_lossy(&text[..end]).into_owned())
    }
}
