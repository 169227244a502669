//! Identifies the maker of a call: a thread, with its name, and the calls that led there.

use std::fmt;

use fgraph::Entry;

use super::kernel;

/// Call, with its thread and its callers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Caller {
    /// Kernel id of the thread.
    pub thread: u32,
    /// Name of the thread.
    pub thread_name: String,
    /// Addresses in the calls that led there, innermost first.
    pub callers: Vec<usize>,
}

/// Number of words with a thread's id and name.
pub(crate) const NAMED: usize = 3;

/// Encodes a call as `N` words for [`Caller::read`]: its thread with the name, and the return
/// addresses of the call and of those around it. Callbacks may call this. It takes a system call.
pub(crate) fn words<const N: usize, D>(call: &Entry<'_, D>) -> [usize; N] {
    let mut words = [0; N];
    if let Some((named, callers)) = words.split_at_mut_checked(NAMED) {
        let mut name = [0; 16];
        kernel::thread_name(&mut name);
        let halves = u128::from_ne_bytes(name);
        let (low, high) = (halves as usize, (halves >> 64) as usize);
        named.copy_from_slice(&[call.thread_id() as usize, low, high]);
        call.callers(callers);
    }
    words
}

impl Caller {
    /// Decodes the result of [`words`]; `None` if it holds no call.
    pub(crate) fn read(words: &[usize]) -> Option<Self> {
        let (&[thread, low, high], returns_to) = words.split_first_chunk()?;
        let name = [low, high].map(usize::to_ne_bytes).concat();
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        let callers = returns_to.iter().filter(|&&address| address != 0);
        (thread != 0).then(|| Self {
            thread: thread as u32,
            thread_name: String::from_utf8_lossy(name).into_owned(),
            callers: callers.map(|address| address.wrapping_sub(1)).collect(),
        })
    }
}

/// Writes `thread 77 "worker" at parse+0x12 < main+0x34`.
impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "thread {} {:?}", self.thread, self.thread_name)?;
        for (nth, &address) in self.callers.iter().enumerate() {
            f.write_str(if nth == 0 { " at " } else { " < " })?;
            write_place(f, address)?;
        }
        Ok(())
    }
}

/// Return address of a call: displays the name of the calling function, or the address if there is
/// no function.
pub(crate) struct ReturnsTo(pub(crate) usize);

impl fmt::Display for ReturnsTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The address behind the last instruction of a function belongs to another one.
        match fgraph::function_at(self.0.wrapping_sub(1)) {
            Some(function) => write!(f, "{}", function.name()),
            None => write!(f, "{:#x}", self.0),
        }
    }
}

/// Writes the name of the function at an address, or the address if there is no function.
pub(crate) fn write_function(f: &mut fmt::Formatter<'_>, address: usize) -> fmt::Result {
    match fgraph::function_at(address) {
        Some(function) => write!(f, "{}", function.name()),
        None => write!(f, "{address:#x}"),
    }
}

/// Writes an address as its function with an offset.
pub(crate) fn write_place(f: &mut fmt::Formatter<'_>, address: usize) -> fmt::Result {
    match fgraph::function_at(address) {
        Some(function) => {
            let offset = address - function.address();
            write!(f, "{}+{offset:#x}", function.name())
        }
        None => write!(f, "{address:#x}"),
    }
}
