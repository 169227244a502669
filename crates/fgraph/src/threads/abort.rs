//! Ends the process when a return address is in doubt.
//!
//! # Safety
//!
//! The unsafe code writes a line from a live buffer, and ends the process.

// Long strings: a message.

use core::fmt::{self, Write};

use fgraph_core::frame::Frame;

/// Called when a body has returned, but rbp does not lead to its frame. The return address is
/// unknown then.
pub(crate) extern "C" fn on_stray_return(frame: *const Frame, stack_pointer: usize) -> ! {
    let mut line = Line {
        bytes: [0; 160],
        len: 0,
    };
    // A line that is too long is cut off.
    let _ = writeln!(
        line,
        "fgraph: a traced function came back with rbp {frame:p} and rsp {stack_pointer:#x}, which is \
         not a call of ours; its return address is lost"
    );
    // SAFETY: writes the filled part of a live buffer, then ends the process.
    unsafe {
        libc::write(2, line.bytes.as_ptr().cast(), line.len);
        libc::abort()
    }
}

/// A line of text on the stack: nothing can be allocated here.
struct Line {
    bytes: [u8; 160],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = &mut self.bytes[self.len..];
        let len = text.len().min(room.len());
        room[..len].copy_from_slice(&text.as_bytes()[..len]);
        self.len += len;
        Ok(())
    }
}
