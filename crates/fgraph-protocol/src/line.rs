//! Lines of the protocol on the socket of a recorder.

use std::fmt;
use std::io::{self, BufRead, Read as _};

use crate::file_request::FileRequest;

/// Line that a recorder understands.
///
/// | line | asks for |
/// |---|---|
/// | `status` | calls, lost events, calls a second, bytes of the recording |
/// | `stop` | the end of recording |
/// | `snapshot` | the content of the rings, to the recording, even if only the newest is kept |
/// | `ls` | the names of the files of [`Control`](fgraph_tracers::control::Control) |
/// | `cat FILE` | the text of a file |
/// | `write FILE TEXT` | writing a text, the rest of the line, to a file |
/// | `append FILE TEXT` | appending it to the text of the file |
///
/// The answer is a line `ok N` and N more lines, or one line that begins with `error `.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// Asks for the progress of recording.
    Status,
    /// Ends recording.
    Stop,
    /// Writes the content of the rings to the recording.
    Snapshot,
    /// Lists, reads or writes files, whose names have no white space; a text is one line.
    File(FileRequest),
}

/// Reasons why a line is not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LineError {
    /// The line is longer than [`Line::MAX`].
    #[error("a line is longer than {} bytes", Line::MAX)]
    Long,
    /// The line is not UTF-8, or contains control characters.
    #[error("a line is not text")]
    NotText,
    /// The line does not begin with a known word.
    #[error("a line begins with none of status, stop, snapshot, ls, cat, write and append")]
    Unknown,
    /// The name of a file is missing.
    #[error("the name of a file is missing")]
    NoFile,
    /// Text follows where nothing should.
    #[error("a line has more words than it should")]
    TooMuch,
}

impl Line {
    /// Bytes of the longest line, without its newline.
    pub const MAX: usize = 32 << 10;

    /// Parses a line without its newline.
    ///
    /// # Errors
    ///
    /// Says what is wrong with the line.
    pub fn parse(line: &[u8]) -> Result<Self, LineError> {
        if line.len() > Self::MAX {
            return Err(LineError::Long);
        }
        let line = str::from_utf8(line).map_err(|_| LineError::NotText)?;
        if line.contains(|c: char| c.is_control() && c != '\t') {
            return Err(LineError::NotText);
        }
        let (word, rest) = split(line.trim_start());
        let alone = |known| match rest.trim() {
            "" => Ok(known),
            _ => Err(LineError::TooMuch),
        };
        let (file, text) = split(rest);
        let named = || match file {
            "" => Err(LineError::NoFile),
            file => Ok(file.to_owned()),
        };
        match word {
            "status" => alone(Self::Status),
            "stop" => alone(Self::Stop),
            "snapshot" => alone(Self::Snapshot),
            "ls" => alone(Self::File(FileRequest::List)),
            "cat" if !text.trim().is_empty() => Err(LineError::TooMuch),
            "cat" => Ok(Self::File(FileRequest::Read { file: named()? })),
            "write" | "append" => Ok(Self::File(FileRequest::Write {
                file: named()?,
                text: text.to_owned(),
                append: word == "append",
            })),
            _ => Err(LineError::Unknown),
        }
    }
}

impl Line {
    /// Reads the next line that a client sends. `None` at the end of the input, even if that is in
    /// the middle of a line. The rest of a line that is too long stays in the input.
    ///
    /// # Errors
    ///
    /// Fails if the input cannot be read.
    pub fn read(input: &mut impl BufRead) -> io::Result<Option<Result<Self, LineError>>> {
        let mut line = Vec::new();
        input
            .take(Self::MAX as u64 + 1)
            .read_until(b'\n', &mut line)?;
        let is_whole = line.pop_if(|byte| *byte == b'\n').is_some();
        let is_line = is_whole || line.len() > Self::MAX;
        Ok(is_line.then(|| Self::parse(&line)))
    }
}

/// A recorder's answer to a [`Line`]: a text of whole lines, or the reason why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer(pub Result<String, String>);

impl Answer {
    /// Bytes of the longest answer.
    const MAX: u64 = 65 << 20;

    /// Reads the answer that a recorder sends. `None` if the recorder has ended, or sends something
    /// else.
    ///
    /// # Errors
    ///
    /// Fails if the input cannot be read, or the answer is cut off.
    pub fn read(input: impl BufRead) -> io::Result<Self> {
        let mut input = input.take(Self::MAX);
        let mut head = String::new();
        input.read_line(&mut head)?;
        let head = head.trim_end();
        let lines = head
            .strip_prefix("ok ")
            .and_then(|it| it.parse::<u64>().ok());
        let Some(lines) = lines else {
            let error = head.strip_prefix("error ");
            let silent = "it has ended, or does not answer";
            return Ok(Self(Err(error.unwrap_or(silent).to_owned())));
        };
        let mut text = String::new();
        for _ in 0..lines {
            if input.read_line(&mut text)? == 0 || !text.ends_with('\n') {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(Self(Ok(text)))
    }
}

/// Writes the bytes that a recorder sends.
impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Ok(text) => {
                let is_whole = text.is_empty() || text.ends_with('\n');
                let end = if is_whole { "" } else { "\n" };
                write!(f, "ok {}\n{text}{end}", text.lines().count())
            }
            Err(error) => writeln!(f, "error {error}"),
        }
    }
}

/// Splits a text into its first word and the text behind the white space after it.
fn split(text: &str) -> (&str, &str) {
    let end = text.find(char::is_whitespace).unwrap_or(text.len());
    let (word, rest) = text.split_at(end);
    (word, rest.trim_start())
}

/// Writes the line without its newline.
impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status => f.write_str("status"),
            Self::Stop => f.write_str("stop"),
            Self::Snapshot => f.write_str("snapshot"),
            Self::File(FileRequest::List) => f.write_str("ls"),
            Self::File(FileRequest::Read { file }) => write!(f, "cat {file}"),
            Self::File(FileRequest::Write { file, text, append }) => {
                let word = if *append { "append" } else { "write" };
                write!(f, "{word} {file} {text}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_back_as_they_were() {
        let write = |append| {
            Line::File(FileRequest::Write {
                file: "set_ftrace_filter".to_owned(),
                text: "a  <b as c>::d ".to_owned(),
                append,
            })
        };
        let file = "options/fgraph-tail".to_owned();
        for line in [
            Line::Status,
            Line::Stop,
            Line::Snapshot,
            Line::File(FileRequest::List),
            Line::File(FileRequest::Read { file }),
            write(false),
            write(true),
        ] {
            assert_eq!(Line::parse(line.to_string().as_bytes()), Ok(line));
        }
    }

    #[test]
    fn lines_are_read_one_after_the_other() {
        let mut long = vec![b'x'; Line::MAX + 2];
        long.push(b'\n');
        let input = [b"ls\n\nstop\n", &long[..], b"status"].concat();
        let mut input = &input[..];
        let mut next = || Line::read(&mut input).unwrap();
        assert_eq!(next(), Some(Ok(Line::File(FileRequest::List))));
        assert_eq!(next(), Some(Err(LineError::Unknown)));
        assert_eq!(next(), Some(Ok(Line::Stop)));
        assert_eq!(next(), Some(Err(LineError::Long)));
        // The rest of the line that was too long.
        assert_eq!(next(), Some(Err(LineError::Unknown)));
        assert_eq!((next(), next()), (None, None));
    }

    #[test]
    fn answers_come_back_as_they_were() {
        for (answer, bytes) in [
            (Ok(""), "ok 0\n"),
            (Ok("a\n\nb\n"), "ok 3\na\n\nb\n"),
            (Err("there is none"), "error there is none\n"),
        ] {
            let answer = Answer(answer.map(str::to_owned).map_err(str::to_owned));
            assert_eq!(answer.to_string(), bytes);
            assert_eq!(Answer::read(bytes.as_bytes()).unwrap(), answer);
        }
        assert_eq!(Answer(Ok("a".to_owned())).to_string(), "ok 1\na\n");
        let silent = Answer(Err("it has ended, or does not answer".to_owned()));
        for bad in ["", "ok\n", "ok -1\n", "\x00"] {
            assert_eq!(Answer::read(bad.as_bytes()).unwrap(), silent, "{bad:?}");
        }
        for bad in [
            &b"ok 2\na\n"[..],
            b"ok 2\na\nb",
            b"ok 18446744073709551615\n",
            b"ok 1\n\xff\n",
        ] {
            assert!(Answer::read(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn errors_of_a_line_are_reported() {
        let long = vec![b'x'; Line::MAX + 1];
        for (line, error) in [
            (&b""[..], LineError::Unknown),
            (b"jump", LineError::Unknown),
            (b"STATUS", LineError::Unknown),
            (b"status now", LineError::TooMuch),
            (b"cat", LineError::NoFile),
            (b"cat  ", LineError::NoFile),
            (b"cat a b", LineError::TooMuch),
            (b"write", LineError::NoFile),
            (b"status\x00", LineError::NotText),
            (b"\xff", LineError::NotText),
            (&long, LineError::Long),
        ] {
            assert_eq!(Line::parse(line), Err(error), "{line:?}");
        }
    }
}
