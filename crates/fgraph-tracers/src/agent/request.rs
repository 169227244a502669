//! What the command asks of the agent in a process that runs, and what that answers.

use super::Settings;
use crate::recorder::Switches;

/// Longer answers are refused.
const MAX_TEXT: usize = 64 << 20;

/// What the command asks of the agent in a process that runs already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// To record into the rings of this descriptor. `settings.rings` says nothing.
    Attach {
        /// The descriptor of the file with the rings.
        rings: u32,
        /// The process that reads them.
        reader: u32,
        /// What is recorded.
        settings: Box<Settings>,
    },
    /// To be there for the requests below, unless a process records this one.
    Control {
        /// The process with which control ends; 0 if it does with none.
        holder: u32,
        /// The descriptor of a file with rings that this process reads, which are used for nothing
        /// else; nothing where there is no such process.
        rings: u32,
    },
    /// To record functions no more, or again: see
    /// [`Recorder::switch`](crate::recorder::Recorder::switch).
    Switch(Switches),
    /// To end recording and control, and to put all functions back as they were.
    Detach {
        /// Only what this process has begun; 0 for all, which is refused while a process has it.
        holder: u32,
    },
    /// The names of the files of [`Control`](crate::control::Control), in lines.
    List,
    /// The text of a file.
    Read {
        /// Its name, which has no new line.
        file: String,
    },
    /// To write to a file.
    Write {
        /// Its name, which has no new line.
        file: String,
        /// What is written.
        text: String,
        /// Whether that is added to what is there.
        append: bool,
    },
    /// The text of `trace_pipe` as it comes. In the file, the [`Reply`] follows the
    /// [head](STREAM_HEAD); it grows until tracing ends or the command does, which has the file
    /// locked by `flock`.
    Stream,
}

/// Bytes before the reply to a [`Request::Stream`]: up to which byte of the file the command has
/// read, in the order of the machine, or [`STREAM_END`].
pub const STREAM_HEAD: u64 = 8;
/// Says that the command wants no more.
pub const STREAM_END: u64 = u64::MAX;

impl Request {
    /// The request as the agent is given it, with the descriptor of the file for the
    /// [`Reply`].
    ///
    /// ```
    /// use fgraph_tracers::agent::Request;
    ///
    /// let bytes = Request::List.to_bytes(5);
    /// assert_eq!(Request::parse(&bytes), Some((Request::List, 5)));
    /// ```
    #[must_use]
    pub fn to_bytes(&self, reply: u32) -> Vec<u8> {
        let text = match self {
            Self::Attach {
                rings,
                reader,
                settings,
            } => format!("attach {rings} {reader} {}", settings.to_value()),
            Self::Control { holder, rings } => format!("control {holder} {rings}"),
            Self::Switch(switches) => format!("switch {}", switches.to_words()),
            Self::Detach { holder } => format!("detach {holder}"),
            Self::List => "list ".to_owned(),
            Self::Read { file } => format!("read {}", line(file)),
            Self::Write { file, text, append } => {
                let word = if *append { "append" } else { "write" };
                format!("{word} {}\n{text}", line(file))
            }
            Self::Stream => "stream ".to_owned(),
        };
        format!("{reply} {text}").into_bytes()
    }

    /// The request, and the descriptor for the reply; `None` if it is of another version.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<(Self, u32)> {
        let text = str::from_utf8(bytes).ok()?;
        let (reply, text) = text.split_once(' ')?;
        let (word, text) = text.split_once(' ')?;
        let request = match word {
            "attach" => {
                let (rings, text) = text.split_once(' ')?;
                let (reader, settings) = text.split_once(' ')?;
                Self::Attach {
                    rings: rings.parse().ok()?,
                    reader: reader.parse().ok()?,
                    settings: Box::new(Settings::parse(settings)?),
                }
            }
            "control" => {
                let (holder, rings) = text.split_once(' ')?;
                Self::Control {
                    holder: holder.parse().ok()?,
                    rings: rings.parse().ok()?,
                }
            }
            "switch" => Self::Switch(Switches::parse(text)?),
            "detach" => Self::Detach {
                holder: text.parse().ok()?,
            },
            "list" => Self::List,
            "read" => Self::Read {
                file: text.to_owned(),
            },
            "write" | "append" => {
                let (file, text) = text.split_once('\n')?;
                Self::Write {
                    file: file.to_owned(),
                    text: text.to_owned(),
                    append: word == "append",
                }
            }
            "stream" => Self::Stream,
            _ => return None,
        };
        Some((request, reply.parse().ok()?))
    }
}

/// A file's name without what would end it.
fn line(file: &str) -> String {
    file.replace('\n', " ")
}

/// What the agent answers to a [`Request`], in a file: a text, or why there is none. The last byte
/// is a zero, and no other one is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply(pub Result<String, String>);

impl Reply {
    /// What the file begins with where there is a text.
    pub const DONE: u8 = b'+';
    /// What it begins with where there is none.
    pub const FAILED: u8 = b'-';
    /// The largest file, in bytes.
    pub const MAX: usize = MAX_TEXT + 2;

    /// The bytes of the file. A text of more than 64 MiB becomes an error.
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

    /// The answer, if all of it is in the file.
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
    use super::*;
    use crate::recorder::FunctionPlace;

    #[test]
    fn requests_come_back_as_they_were() {
        let attach = Request::Attach {
            rings: 7,
            reader: 99,
            settings: Box::new(Settings {
                trace: vec!["a b".to_owned()],
                ..Settings::default()
            }),
        };
        let file = "options/a b".to_owned();
        let write = |append| Request::Write {
            file: file.clone(),
            text: "two\nlines of\n".to_owned(),
            append,
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
            Request::List,
            Request::Read { file: file.clone() },
            write(false),
            write(true),
            Request::Stream,
        ] {
            assert_eq!(Request::parse(&request.to_bytes(3)), Some((request, 3)));
        }
        for bad in [
            &b""[..],
            b"1",
            b"1 2 3",
            b"1 attach 3",
            b"1 detach x",
            b"1 switch 1@2",
            b"1 switch -1",
            b"1 switch +-1@2",
            b"1 write a",
            b"-1 list ",
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
