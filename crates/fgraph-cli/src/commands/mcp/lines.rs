//! Lines of standard input, of a limited length.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;

use memchr::memchr;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The longest line, in bytes.
pub(super) const LONGEST: usize = 4 << 20;

/// The time between two looks for signals.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000_000,
};

/// The next thing that was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Line(Vec<u8>),
    /// A line that is longer than [`LONGEST`], which was left out.
    TooLong,
    End,
}

/// Reads lines.
#[derive(Debug)]
pub(super) struct Lines<R> {
    input: R,
    read: Vec<u8>,
    /// True inside a line that is too long.
    leaves_out: bool,
    is_over: bool,
}

impl Lines<File> {
    /// Makes the reader of standard input.
    pub(super) fn of_input() -> io::Result<Self> {
        let input = io::stdin().as_fd().try_clone_to_owned()?;
        Ok(Self::new(input.into()))
    }

    /// Waits for the next line. It is the end, too, once `is_ended` returns true.
    pub(super) fn next(&mut self, is_ended: impl Fn() -> bool) -> io::Result<Next> {
        loop {
            if let Some(next) = self.take() {
                return Ok(next);
            }
            loop {
                if is_ended() {
                    return Ok(Next::End);
                }
                let mut fds = [PollFd::new(&self.input, PollFlags::IN)];
                match poll(&mut fds, Some(&LOOK)) {
                    Ok(0) | Err(rustix::io::Errno::INTR) => {}
                    Ok(_) => break,
                    Err(error) => return Err(error.into()),
                }
            }
            self.fill()?;
        }
    }
}

impl<R: Read> Lines<R> {
    fn new(input: R) -> Self {
        Self {
            input,
            read: Vec::new(),
            leaves_out: false,
            is_over: false,
        }
    }

    fn fill(&mut self) -> io::Result<()> {
        let mut block = [0; 1 << 16];
        match self.input.read(&mut block) {
            Ok(0) => self.is_over = true,
            Ok(len) => self.read.extend_from_slice(&block[..len]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Returns what the bytes so far have; `None` if more are needed.
    fn take(&mut self) -> Option<Next> {
        loop {
            let Some(end) = memchr(b'\n', &self.read) else {
                if self.is_over {
                    return Some(self.rest());
                }
                if self.leaves_out || self.read.len() > LONGEST {
                    self.leaves_out = true;
                    self.read.clear();
                }
                return None;
            };
            let mut line: Vec<u8> = self.read.drain(..=end).collect();
            line.pop();
            if std::mem::take(&mut self.leaves_out) || line.len() > LONGEST {
                return Some(Next::TooLong);
            }
            if !line.trim_ascii().is_empty() {
                return Some(Next::Line(line));
            }
        }
    }

    /// Returns the last line, which has no end.
    fn rest(&mut self) -> Next {
        let line = std::mem::take(&mut self.read);
        match std::mem::take(&mut self.leaves_out) || line.len() > LONGEST {
            true => Next::TooLong,
            false if line.trim_ascii().is_empty() => Next::End,
            false => Next::Line(line),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(input: &[u8]) -> Vec<Next> {
        let mut lines = Lines::new(input);
        let mut all = Vec::new();
        while all.last() != Some(&Next::End) {
            match lines.take() {
                Some(next) => all.push(next),
                None => lines.fill().unwrap(),
            }
        }
        all
    }

    #[test]
    fn a_line_that_is_too_long_is_left_out_alone() {
        let line = |text: &str| Next::Line(text.into());
        let expected = [line("a"), line("b"), Next::End];
        assert_eq!(all(b"a\n\n \nb"), expected);
        let mut long = b"a\n".to_vec();
        long.resize(LONGEST + 3, b'x');
        assert_eq!(all(&long), [line("a"), Next::TooLong, Next::End]);
        long.extend_from_slice(b"\nb\n");
        assert_eq!(all(&long), [line("a"), Next::TooLong, line("b"), Next::End]);
    }
}
