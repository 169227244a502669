//! Memory of another process.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

/// Memory of a process, while it runs the same program.
#[derive(Debug)]
pub(crate) struct Memory {
    file: File,
    /// Id of the process, if only memory is written that the process itself may write, as some
    /// kernels demand (`proc_mem.force_override=never`).
    #[cfg(test)]
    as_process: Option<u32>,
}

impl Memory {
    pub(crate) fn open(pid: u32) -> io::Result<Self> {
        let path = format!("/proc/{pid}/mem");
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Self::new(file))
    }

    fn new(file: File) -> Self {
        Self {
            file,
            #[cfg(test)]
            as_process: None,
        }
    }

    /// Same as [`open`](Self::open), with the rights of the process.
    #[cfg(test)]
    pub(crate) fn open_as_process(pid: u32) -> io::Result<Self> {
        let as_process = Some(pid);
        Ok(Self {
            as_process,
            ..Self::open(pid)?
        })
    }

    /// Uses the contents of a file in place of the memory of a process.
    #[cfg(any(test, fgraph_testing))]
    pub(crate) fn of_file(file: File) -> Self {
        Self::new(file)
    }

    /// Fills all of `into`, or fails.
    pub(crate) fn read(&self, address: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, address)
    }

    /// Writes memory, even if it is mapped read-only, if the kernel permits debuggers to do so.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        #[cfg(test)]
        if let Some(pid) = self.as_process
            && !crate::maps::is_writable(pid, address)?
        {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        self.file.write_all_at(bytes, address)
    }

    /// Returns at most `max` bytes from an address on; less if the rest is not mapped.
    pub(crate) fn some(&self, address: u64, max: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; max];
        let read = self.file.read_at(&mut bytes, address)?;
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

    /// Returns text that ends with a zero, of at most `max` bytes.
    pub(crate) fn text(&self, address: u64, max: usize) -> io::Result<String> {
        let text = self.some(address, max)?;
        let end = memchr::memchr(0, &text).unwrap_or(text.len());
        Ok(String::from_utf8_lossy(&text[..end]).into_owned())
    }
}
