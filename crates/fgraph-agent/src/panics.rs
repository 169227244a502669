//! Marks panics of Rust's standard library among the recorded calls, with their place and message.
//!
//! The function that all panics call is given the payload and the location, which is a
//! `core::panic::Location`: address and length of the path, line and column. Its place among the
//! arguments differs between versions of Rust, so each is looked at that may be it. The payload of
//! a panic with a literal is the address and the length of the text. A message with arguments is
//! formatted afterwards, for the hook, into a `String` in the payload, which the function that
//! begins to unwind is given: it gets a mark of its own there. Nothing is read before the kernel
//! has said that it is readable, and nothing is taken that is not text.

use std::io::{self, Write as _};
use std::sync::Arc;

use fgraph::{Entry, Error, FgraphOps, Filter, Handle, Options, untraced};
use fgraph_tracers::recorder::Recorder;

use crate::executed::peek;

/// The function that all panics call, in all versions.
const PANICS: &str = "std::panicking::*panic_with_hook";
/// Names of the function that begins to unwind, or aborts, in all versions.
const UNWINDS: [&str; 2] = ["rust_panic", "__rustc::rust_panic"];
/// Arguments that may be the location.
const LOCATIONS: [usize; 3] = [2, 3, 1];
/// The longest path, and the longest message, in bytes.
const LONGEST: usize = 512;
/// More than the length of any text that is read, and less than any address of one.
const MOST: u64 = 1 << 20;

/// Marks panics. Dropping it ends that.
#[derive(Debug)]
pub(crate) struct PanicMarks {
    places: Handle<Places>,
    messages: Handle<Messages>,
}

impl PanicMarks {
    /// Starts to write marks to the rings of a recorder.
    pub(crate) fn start(recorder: Arc<Recorder>) -> Result<Self, Error> {
        let options = Options::new().lazy_sites(true).allow_no_match();
        let panics = Filter::none().trace(PANICS).map_err(Error::Filter)?;
        let mut unwinds = Filter::none();
        for name in UNWINDS {
            unwinds = unwinds.trace(name).map_err(Error::Filter)?;
        }
        let messages = Messages(Arc::clone(&recorder));
        // SAFETY: the callback makes system calls and writes to its own memory.
        let places = unsafe { fgraph::register_with(Places(recorder), panics, &options) };
        // SAFETY: as above.
        let messages = unsafe { fgraph::register_with(messages, unwinds, &options) };
        Ok(Self {
            places: places.map_err(|failed| failed.error)?,
            messages: messages.map_err(|failed| failed.error)?,
        })
    }

    /// Stops until this is dropped.
    pub(crate) fn pause(&self) {
        self.places.set_enabled(false);
        self.messages.set_enabled(false);
    }
}

/// Marks the place of a panic, and a message that is a literal.
#[derive(Debug)]
struct Places(Arc<Recorder>);

impl FgraphOps for Places {
    type Data = ();

    fn entry(&self, call: &mut Entry<'_, ()>) -> Option<()> {
        untraced(|| {
            let locations = LOCATIONS.into_iter().filter_map(|index| call.arg(index));
            let location = locations.filter_map(Location::at).next();
            let message = call.arg(0).and_then(Text::at);
            mark(&self.0, |out| {
                write!(out, "panic")?;
                if let Some(place) = &location {
                    let path = place.path.as_str();
                    write!(out, " at {path}:{}:{}", place.line, place.column)?;
                }
                message.map_or(Ok(()), |message| write!(out, ": {}", message.as_str()))
            });
        });
        None
    }
}

/// Marks the message of a panic after it was formatted.
#[derive(Debug)]
struct Messages(Arc<Recorder>);

impl FgraphOps for Messages {
    type Data = ();

    fn entry(&self, call: &mut Entry<'_, ()>) -> Option<()> {
        untraced(|| {
            let payload = call.arg(0).zip(call.arg(1));
            let message = payload.and_then(|(data, vtable)| Text::formatted(data, vtable));
            if let Some(message) = message {
                mark(&self.0, |out| write!(out, "panic: {}", message.as_str()));
            }
        });
        None
    }
}

/// Marks a text.
fn mark(recorder: &Recorder, write: impl FnOnce(&mut &mut [u8]) -> io::Result<()>) {
    // The text of a path, a message and numbers fits.
    let mut room = [0; 3 * LONGEST];
    let mut rest = &mut room[..];
    let _ = write(&mut rest);
    let len = 3 * LONGEST - rest.len();
    if let Ok(text) = str::from_utf8(&room[..len]) {
        recorder.mark(text);
    }
}

/// The place of a panic.
struct Location {
    path: Text,
    line: u32,
    column: u32,
}

impl Location {
    /// Reads the location at an address; `None` if there is none.
    fn at(address: u64) -> Option<Self> {
        let path = Text::at(address)?;
        path.as_str().ends_with(".rs").then_some(())?;
        let [place] = words_at(address.checked_add(16)?)?;
        let (line, column) = (place as u32, (place >> 32) as u32);
        (line > 0).then_some(Self { path, line, column })
    }
}

/// A text of the program.
struct Text {
    bytes: [u8; LONGEST],
    len: usize,
}

impl Text {
    /// Reads the text whose address and length are at an address; `None` if there is none.
    fn at(address: u64) -> Option<Self> {
        let [start, len] = words_at(address)?;
        Self::of(start, len)
    }

    /// Reads the text that was formatted for the payload of a panic, with the table of its type;
    /// `None` if there is none.
    fn formatted(data: u64, vtable: u64) -> Option<Self> {
        // A `String` alone, or beside the address of what it was formatted from. The compiler
        // chooses the order, also of the words of a `String`.
        const STRING: u64 = 24;
        const BESIDE: u64 = 32;
        let [_drop, size] = words_at(vtable)?;
        let offsets = match size {
            STRING => 0..1,
            BESIDE => 0..2,
            _ => return None,
        };
        offsets.into_iter().find_map(|offset| {
            let mut words: [u64; 3] = words_at(data.checked_add(8 * offset)?)?;
            words.sort_unstable();
            let [len, capacity, start] = words;
            (capacity < MOST).then_some(())?;
            Self::of(start, len)
        })
    }

    /// Reads a text; `None` if it is none. A longer one than there is room for is cut.
    fn of(start: u64, len: u64) -> Option<Self> {
        ((1..MOST).contains(&len) && start >= MOST).then_some(())?;
        let mut bytes = [0; LONGEST];
        let wanted = (len as usize).min(LONGEST);
        let known = peek(usize::try_from(start).ok()?, &mut bytes[..wanted]);
        (known == wanted).then_some(())?;
        let whole = match str::from_utf8(&bytes[..wanted]) {
            Ok(text) => text.len(),
            // It was cut within a character.
            Err(error) if wanted == LONGEST && error.error_len().is_none() => error.valid_up_to(),
            Err(_) => return None,
        };
        Some(Self { bytes, len: whole })
    }

    fn as_str(&self) -> &str {
        str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }
}

/// Reads words of the program's memory.
fn words_at<const N: usize>(address: u64) -> Option<[u64; N]> {
    let mut bytes = [[0; 8]; N];
    let known = peek(usize::try_from(address).ok()?, bytes.as_flattened_mut());
    (known == 8 * N).then(|| bytes.map(u64::from_ne_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address<T>(value: &T) -> u64 {
        (&raw const *value).expose_provenance() as u64
    }

    #[test]
    fn a_location_is_read() {
        let here = std::panic::Location::caller();
        let found = Location::at(address(here)).unwrap();
        assert_eq!(found.path.as_str(), here.file());
        assert_eq!((found.line, found.column), (here.line(), here.column()));
    }

    #[test]
    fn formatted_text_is_read_from_payloads_of_all_layouts() {
        let text = "a message";
        let [start, len] = [text.as_ptr().expose_provenance() as u64, text.len() as u64];
        let other = address(&text);
        let read = |data: &[u64; 4], size: u64| {
            let vtable = [0, size, 8];
            Text::formatted(address(data), address(&vtable)).map(|text| text.as_str().to_owned())
        };
        for string in [[16, start, len], [start, 16, len], [start, len, len]] {
            let [a, b, c] = string;
            for data in [[a, b, c, other], [other, a, b, c]] {
                assert_eq!(read(&data, 32).as_deref(), Some(text), "{data:x?}");
            }
            assert_eq!(read(&[a, b, c, 1], 24).as_deref(), Some(text));
        }
        // None was formatted, and the payload is a literal.
        assert_eq!(read(&[1 << 63, 0, 0, other], 32), None);
        assert_eq!(read(&[start, len, len, len], 16), None);
    }

    #[test]
    fn only_text_is_taken_for_text() {
        let literal = "a message";
        assert_eq!(Text::at(address(&literal)).unwrap().as_str(), literal);
        let long = "é".repeat(LONGEST);
        let long = long.as_str();
        assert_eq!(Text::at(address(&long)).unwrap().len, LONGEST);
        let bytes: &[u8] = b"\xff\xfe";
        for wrong in [address(&bytes), address(&""), 0, 8, u64::MAX] {
            assert!(Text::at(wrong).is_none());
        }
        assert!(Location::at(address(&literal)).is_none());
    }
}
