//! Requests of the command to the agent in a running process, and the agent's replies.

use fgraph_tracers::recorder::Switches;
use serde::{Deserialize, Serialize};

use crate::file_request::FileRequest;
use crate::message::{decode, encode};
use crate::settings::Settings;

/// Bytes of the longest answer that is accepted.
const MAX_TEXT: usize = 64 << 20;

/// Request of the command to the agent in a process that already runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Records into the rings of this descriptor. `settings.rings` is ignored.
    Attach {
        /// Descriptor of the file with the rings.
        rings: u32,
        /// Process that reads the rings.
        reader: u32,
        /// Calls that are recorded.
        settings: Box<Settings>,
    },
    /// Makes the agent serve the requests below, unless a process records this one.
    Control {
        /// Process with which control ends; 0 if it ends with none.
        holder: u32,
        /// Descriptor of a file with rings that the holder reads, used for nothing else. Ignored if
        /// there is no holder.
        rings: u32,
    },
    /// Stops or resumes recording of functions: see
    /// [`Recorder::switch`](fgraph_tracers::recorder::Recorder::switch).
    Switch(Switches),
    /// Ends recording and control, and restores all functions.
    Detach {
        /// Ends only the work of this process; 0 for all, which is refused while a process holds
        /// it.
        holder: u32,
    },
    /// Lists, reads or writes files of [`Control`](fgraph_tracers::control::Control).
    File(FileRequest),
    /// Streams the text of `trace_pipe`. In the file, the [`Reply`] follows the
    /// [head](STREAM_HEAD). The reply grows until tracing ends or the command exits, which holds an
    /// `flock` on the file.
    Stream,
}

/// Bytes of the head before the reply to a [`Request::Stream`]. The head is the offset in the file
/// up to which the command has read, in native byte order, or [`STREAM_END`].
pub const STREAM_HEAD: u64 = 8;
/// Value of the head that says that the command wants no more.
pub const STREAM_END: u64 = u64::MAX;

impl Request {
    /// Encodes the request for the agent, with the descriptor of the file for the [`Reply`].
    ///
    /// ```
    /// use fgraph_protocol::Request;
    ///
    /// let bytes = Request::Stream.to_bytes(5);
    /// assert_eq!(Request::parse(&bytes), Some((Request::Stream, 5)));
    /// ```
    #[must_use]
    pub fn to_bytes(&self, reply: u32) -> Vec<u8> {
        encode(&(reply, self)).into_bytes()
    }

    /// Decodes a request and the descriptor for the reply; `None` if it is of another version.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<(Self, u32)> {
        let (reply, request) = decode(str::from_utf8(bytes).ok()?)?;
        Some((request, reply))
    }
}

/// Reply of the agent to a [`Request`], in a file: a text, or the reason why there is none. The
/// last byte is zero, and no other byte is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply(pub Result<String, String>);

impl Reply {
    /// First byte of a file with a text.
    pub const DONE: u8 = b'+';
    /// First byte of a file without a text.
    pub const FAILED: u8 = b'-';
    /// Size of the largest file, in bytes.
    pub const MAX: usize = MAX_TEXT + 2;

    /// Encodes the reply. A text of more than 64 MiB becomes an error.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let long = "its text is longer than 64 MiB";
        let (kind, text) = match &self.0 {
            Ok(text) if text.len() > MAX_TEXT => (Self::FAILED, long),
            Ok(text) => (Self::DONE, text.as_str()),
            Err(error) => (Self::FAILED, error.as_str()),
        };
        let mut bytes = vec![kind];
        bytes.extend(text.bytes().map(|byte| if byte == 0 { b' ' } else { byte }));
        bytes.push(0);
        bytes
    }

    /// Decodes the reply, if the file has all of it.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let text = bytes.strip_suffix(&[0])?;
        let (kind, text) = text.split_first()?;
        let text = String::from_utf8_lossy(text).into_owned();
        Some(Self(match *kind {
            Self::DONE => Ok(text),
            _ => Err(text),
        }))
    }
}

#[cfg(test)]
mod tests {
    use fgraph_tracers::recorder::FunctionPlace;

    use super::*;

    #[test]
    fn requests_come_back_as_they_were() {
        let mut settings = Settings::default();
        settings.which.trace = vec!["a b".to_owned()];
        let attach = Request::Attach {
            rings: 7,
            reader: 99,
            settings: Box::new(settings),
        };
        let file = "options/a b".to_owned();
        let write = |append| {
            Request::File(FileRequest::Write {
                file: file.clone(),
                text: "two\nlines of\n".to_owned(),
                append,
            })
        };
        let place = |index, address| FunctionPlace { index, address };
        for request in [
            attach,
            Request::Control {
                holder: 3,
                rings: 8,
            },
            Request::Switch(Switches {
                off: vec![place(1, 4096), place(2, u64::MAX)],
                on: vec![place(3, 0)],
            }),
            Request::Switch(Switches::default()),
            Request::Detach { holder: 0 },
            Request::File(FileRequest::List),
            Request::File(FileRequest::Read { file: file.clone() }),
            write(false),
            write(true),
            Request::Stream,
        ] {
            assert_eq!(Request::parse(&request.to_bytes(3)), Some((request, 3)));
        }
        for bad in [
            &b""[..],
            b"fgraph 3 [1,\"Stop\"]",
            b"fgraph 3 [-1,\"Stream\"]",
            b"fgraph 3 [1,{\"Detach\":{}}]",
            b"fgraph 2 [1,\"Stream\"]",
            b"\xff",
        ] {
            assert_eq!(Request::parse(bad), None);
        }
    }

    #[test]
    fn replies_come_back_when_they_are_whole() {
        for reply in [Ok(""), Ok("a text\n"), Err(""), Err("no room")] {
            let reply = Reply(reply.map(str::to_owned).map_err(str::to_owned));
            let bytes = reply.to_bytes();
            assert_eq!(Reply::parse(&bytes[..bytes.len() - 1]), None);
            assert_eq!(Reply::parse(&bytes), Some(reply));
        }
        for bad in [&b""[..], b"\0", b"+a"] {
            assert_eq!(Reply::parse(bad), None);
        }
        let long = Reply(Ok("x".repeat(MAX_TEXT + 1))).to_bytes();
        assert!(Reply::parse(&long).unwrap().0.is_err());
    }
}
