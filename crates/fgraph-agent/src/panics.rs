//! Marks panics of Rust's standard library among the recorded calls, with their place, and with
//! their message if that is a literal.
//!
//! The function that all panics call is given the payload and the location, which is a
//! `core::panic::Location`: address and length of the path, line and column. Its place among the
//! arguments differs between versions of Rust, so each is looked at that may be it. The payload of
//! a panic with a literal is the address and the length of the text. Nothing is read before the
//! kernel has said that it is readable, and nothing is taken that is not text.

use std::io::Write as _;
use std::sync::Arc;

use fgraph::{Entry, Error, FgraphOps, Filter, Handle, Options, untraced};
use fgraph_tracers::recorder::Recorder;

use crate::executed::peek;

/// The function, in all versions.
const FUNCTION: &str = "std::panicking::*panic_with_hook";
/// Arguments that may be the location.
const LOCATIONS: [usize; 3] = [2, 3, 1];
/// The longest path, and the longest message, in bytes.
const LONGEST: usize = 512;

/// Marks panics. Dropping it ends that.
#[derive(Debug)]
pub(crate) struct PanicMarks {
    user: Handle<Marks>,
}

impl PanicMarks {
    /// Starts to write marks to the rings of a recorder.
    pub(crate) fn start(recorder: Arc<Recorder>) -> Result<Self, Error> {
        let filter = Filter::none().trace(FUNCTION).map_err(Error::Filter)?;
        let options = Options::new().lazy_sites(true);
        // SAFETY: the callback makes system calls and writes to its own memory.
        let user = unsafe { fgraph::register_with(Marks { recorder }, filter, &options) }
            .map_err(|failed| failed.error)?;
        Ok(Self { user })
    }

    /// Stops until this is dropped.
    pub(crate) fn pause(&self) {
        self.user.set_enabled(false);
    }
}

#[derive(Debug)]
struct Marks {
    recorder: Arc<Recorder>,
}

impl FgraphOps for Marks {
    type Data = ();

    fn entry(&self, call: &mut Entry<'_, ()>) -> Option<()> {
        untraced(|| {
            let locations = LOCATIONS.into_iter().filter_map(|index| call.arg(index));
            let location = locations.filter_map(Location::at).next();
            let mut room = [0; 3 * LONGEST];
            let mut rest = &mut room[..];
            // The text fits, whatever the numbers are.
            match &location {
                Some(place) => {
                    let path = place.path.as_str();
                    _ = write!(rest, "panic at {path}:{}:{}", place.line, place.column);
                }
                None => _ = write!(rest, "panic"),
            }
            if let Some(message) = call.arg(0).and_then(Text::at) {
                _ = write!(rest, ": {}", message.as_str());
            }
            let len = 3 * LONGEST - rest.len();
            if let Ok(text) = str::from_utf8(&room[..len]) {
                self.recorder.mark(text);
            }
        });
        None
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
        let [line, column] = words_at(address.checked_add(16)?)?;
        (line > 0).then_some(Self { path, line, column })
    }
}

/// A text of the program.
struct Text {
    bytes: [u8; LONGEST],
    len: usize,
}

impl Text {
    /// Reads the text whose address and length are at an address; `None` if there is none. A longer
    /// one is cut.
    fn at(address: u64) -> Option<Self> {
        const MOST: u64 = 1 << 20;
        let [low, high, len, zero] = words_at(address)?;
        let (start, len) = (u64::from(low) | u64::from(high) << 32, u64::from(len));
        ((1..MOST).contains(&len) && zero == 0).then_some(())?;
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

/// Reads words of 32 bits of the program's memory.
fn words_at<const N: usize>(address: u64) -> Option<[u32; N]> {
    let mut bytes = [[0; 4]; N];
    let known = peek(usize::try_from(address).ok()?, bytes.as_flattened_mut());
    (known == 4 * N).then(|| bytes.map(u32::from_ne_bytes))
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
