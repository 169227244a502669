//! Unpacks chunks of events before they are taken, in a thread.
//!
//! At most one chunk of each lane is requested, and all of them together have at most
//! [`MOST_WORDS`]. The thread starts with the first request and ends with the reader. Without it, a
//! reader unpacks each chunk itself, with the same result.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use super::block::{Header, Unpacker};
use super::columns;

/// The most words of all requested chunks: 32 MiB.
const MOST_WORDS: usize = 4 << 20;

/// A block of events as it stands in the file, and memory for its words.
#[derive(Debug)]
struct Request {
    lane: usize,
    header: Header,
    stored: Vec<u8>,
    /// The number of words according to the block's head.
    count: usize,
    words: Vec<u64>,
}

/// A block of events that was unpacked.
#[derive(Debug)]
pub(super) struct Unpacked {
    pub(super) header: Header,
    pub(super) stored: Vec<u8>,
    pub(super) count: usize,
    /// True if the bytes match their checksum.
    pub(super) is_whole: bool,
    /// True if the block's body has exactly `count` words.
    pub(super) is_well: bool,
    pub(super) words: Vec<u64>,
}

impl Unpacked {
    fn of(request: Request, unpacker: &mut Unpacker) -> (usize, Self) {
        let Request {
            lane,
            header,
            stored,
            count,
            mut words,
        } = request;
        let is_whole = header.is_whole(&stored);
        let is_well = is_whole
            && header.len <= columns::longest_body(count)
            && unpacker
                .body(&header, &stored)
                .and_then(|body| columns::pull_words(body, count, &mut words))
                .is_some();
        let unpacked = Self {
            header,
            stored,
            count,
            is_whole,
            is_well,
            words,
        };
        (lane, unpacked)
    }
}

/// The chunk of a lane that is unpacked ahead.
#[derive(Debug)]
enum Place {
    /// It is requested, with this number of words.
    Requested(usize),
    Done(Box<Unpacked>),
}

/// The thread that unpacks chunks, and its results.
#[derive(Debug)]
pub(super) struct Ahead {
    requests: Sender<Request>,
    /// Only `get_mut` is used: the mutex lets threads share the reader.
    results: Mutex<Receiver<(usize, Unpacked)>>,
    places: Vec<Option<Place>>,
    /// The number of words that are requested or unpacked.
    words: usize,
}

impl Ahead {
    /// Starts the thread; `None` if the system has no room for one.
    pub(super) fn start() -> Option<Self> {
        let (requests, requested) = channel::<Request>();
        let (send, results) = channel();
        let work = move || {
            let mut unpacker = Unpacker::default();
            for request in requested {
                if send.send(Unpacked::of(request, &mut unpacker)).is_err() {
                    break;
                }
            }
        };
        let thread = thread::Builder::new().name("fgraph-unpack".to_owned());
        thread.spawn(work).ok()?;
        Some(Self {
            requests,
            results: Mutex::new(results),
            places: Vec::new(),
            words: 0,
        })
    }

    /// Returns true if a chunk of a lane may be requested.
    pub(super) fn has_room(&self, lane: usize, count: usize) -> bool {
        let place = self.places.get(lane);
        !matches!(place, Some(Some(_))) && self.words + count <= MOST_WORDS
    }

    /// Requests a chunk of a lane. `words` is memory that may be used.
    pub(super) fn request(
        &mut self,
        lane: usize,
        (header, count): (Header, usize),
        stored: Vec<u8>,
        words: Vec<u64>,
    ) {
        let request = Request {
            lane,
            header,
            stored,
            count,
            words,
        };
        if self.requests.send(request).is_err() {
            return;
        }
        if self.places.len() <= lane {
            self.places.resize_with(lane + 1, || None);
        }
        self.places[lane] = Some(Place::Requested(count));
        self.words += count;
    }

    /// Takes the chunk of a lane that was requested, and waits until it is unpacked; `None` if none
    /// was requested.
    pub(super) fn take(&mut self, lane: usize) -> Option<Unpacked> {
        let place = self.places.get_mut(lane)?.take()?;
        match place {
            Place::Done(unpacked) => {
                self.words -= unpacked.count;
                Some(*unpacked)
            }
            Place::Requested(count) => {
                self.words -= count;
                loop {
                    let results = self.results.get_mut().ok()?;
                    let (of, unpacked) = results.recv().ok()?;
                    if of == lane {
                        return Some(unpacked);
                    }
                    self.places[of] = Some(Place::Done(Box::new(unpacked)));
                }
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::block::{HEADER, Kind, Packer};
    use super::*;
    use crate::event::{Kind as EventKind, call, delta};
    use crate::ring::Chunk;

    #[test]
    fn chunks_of_several_lanes_come_back_in_any_order() {
        let mut ahead = Ahead::start().unwrap();
        let words = |lane: usize| {
            let entry = call(EventKind::Entry, lane as u32) | delta(7);
            vec![entry; 100 + lane]
        };
        for lane in 0..3 {
            let (mut head, mut body, mut block) = (Vec::new(), Vec::new(), Vec::new());
            let words = words(lane);
            columns::push_head(
                &mut head,
                &Chunk {
                    words: words.clone(),
                    ..Chunk::default()
                },
            );
            columns::push_words(&mut body, &words, &mut columns::Tally::default());
            let mut packer = Packer::default();
            packer
                .append(&mut block, Kind::Events, &head, &body)
                .unwrap();
            // The second block is damaged.
            let last = block.len() - 1;
            block[last] ^= u8::from(lane == 1);
            let header = Header::read(&block).unwrap();
            let stored = block[HEADER..].to_vec();
            assert!(ahead.has_room(lane, words.len()));
            ahead.request(lane, (header, words.len()), stored, Vec::new());
            assert!(!ahead.has_room(lane, words.len()));
        }
        assert!(!ahead.has_room(3, MOST_WORDS));
        for lane in [2, 0, 1] {
            let found = ahead.take(lane).unwrap();
            let is_well = lane != 1;
            assert_eq!((found.is_whole, found.is_well), (is_well, is_well));
            if is_well {
                assert_eq!(found.words, words(lane));
            }
            assert!(ahead.take(lane).is_none());
        }
        assert!(ahead.has_room(3, MOST_WORDS));
    }
}
