//! The names of a list of functions, arranged so that a name is found without looking at the
//! others, and a glob is compared with few of them.

use super::bits::Bits;
use super::glob::Glob;
use super::matcher::Catalog;
use super::ngrams::END;

/// From so many globs on it pays to compare each with the pieces of names first.
const MANY_GLOBS: usize = 4;

/// At most this many globs are remembered. Filters have the same ones again when a user comes back,
/// and when they are asked what they have come to.
const RECENT_GLOBS: usize = 16;

/// Which functions have which names; see the module documentation.
///
/// A list of `n` functions with one name each takes between 12 and 16 bytes a function for the
/// names, and, once there have been several globs, 8 bytes more for these. What the last globs
/// have matched takes 2 bytes a function at most.
#[derive(Debug, Default)]
pub struct NameIndex {
    by_name: Option<Hashes>,
    grams: Option<Box<[u128]>>,
    /// How many globs were compared with names.
    globs: usize,
    /// The last globs with the functions that they match; the one that was asked for last is last.
    recent: Vec<(Glob, Bits)>,
}

impl NameIndex {
    /// An index that is not made yet: it is when it is first needed.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            by_name: None,
            grams: None,
            globs: 0,
            recent: Vec::new(),
        }
    }

    /// How many bytes it takes.
    #[must_use]
    pub fn memory(&self) -> usize {
        let names = self.by_name.as_ref().map_or(0, Hashes::memory);
        let recent = self.recent.iter();
        let recent: usize = recent
            .map(|(glob, bits)| glob.memory() + bits.memory())
            .sum();
        names + self.grams.as_deref().map_or(0, size_of_val) + recent
    }

    /// Functions by the hashes of their names.
    pub(super) fn by_name(&mut self, functions: &impl Catalog) -> &Hashes {
        self.by_name.get_or_insert_with(|| {
            let indices = (0..functions.len()).flat_map(|index| {
                let names = functions.names(index);
                names.map(move |name| (hash(name), index as u32))
            });
            Hashes::new(indices.collect())
        })
    }

    /// The functions that a glob matches.
    pub(super) fn by_glob(&mut self, glob: &Glob, functions: &impl Catalog) -> &Bits {
        let known = self.recent.iter().position(|(known, _)| known == glob);
        let latest = match known {
            Some(at) => self.recent.remove(at),
            None => {
                let found = self.compare(glob, functions);
                if self.recent.len() == RECENT_GLOBS {
                    self.recent.remove(0);
                }
                (glob.clone(), found)
            }
        };
        self.recent.push(latest);
        let (_, found) = &self.recent[self.recent.len() - 1];
        found
    }

    /// Compares a glob with the names.
    fn compare(&mut self, glob: &Glob, functions: &impl Catalog) -> Bits {
        self.globs += 1;
        let texts = glob.texts();
        let wanted = texts.iter().fold(0, |all, text| all | grams_within(text));
        let grams = self.grams(functions, self.globs >= MANY_GLOBS && wanted != 0);
        let may_match = |&index: &usize| grams.is_none_or(|grams| grams[index] & wanted == wanted);
        let matches = |&index: &usize| {
            let mut names = functions.names(index).peekable();
            let is_nameless = names.peek().is_none();
            functions.is_function(index)
                && (is_nameless && glob.matches("") || names.any(|name| glob.matches(name)))
        };
        let mut found = Bits::new(functions.len());
        let all = (0..functions.len()).filter(may_match).filter(matches);
        all.for_each(|index| found.insert(index));
        found
    }

    /// Of each function, the bits of all short pieces of its names. With `make` they are made if
    /// they are not there.
    fn grams(&mut self, functions: &impl Catalog, make: bool) -> Option<&[u128]> {
        if make && self.grams.is_none() {
            let grams = (0..functions.len()).map(|index| {
                let names = functions.names(index);
                names.fold(0, |bits, name| bits | grams(name))
            });
            self.grams = Some(grams.collect());
        }
        self.grams.as_deref()
    }
}

/// Indices by hashes.
#[derive(Debug)]
pub(super) struct Hashes {
    /// Those of a bucket, then those of the next; with the upper half of the hash.
    entries: Box<[(u32, u32)]>,
    /// For each bucket, where its entries begin, and where those of the last one end.
    starts: Box<[u32]>,
}

impl Hashes {
    /// A table of hashes with an index each.
    pub(super) fn new(all: Vec<(u64, u32)>) -> Self {
        let buckets = all.len().next_power_of_two();
        let mut starts = vec![0_u32; buckets + 1];
        let bucket = |hash: u64| hash as usize & (buckets - 1);
        for &(hash, _) in &all {
            starts[bucket(hash) + 1] += 1;
        }
        for at in 0..buckets {
            starts[at + 1] += starts[at];
        }
        // Filled from behind, so that in the end each is where its bucket begins.
        let mut ends = starts[1..].to_vec();
        let mut entries = vec![(0, 0); all.len()];
        for &(hash, index) in all.iter().rev() {
            let end = &mut ends[bucket(hash)];
            *end -= 1;
            entries[*end as usize] = (tag(hash), index);
        }
        Self {
            entries: entries.into(),
            starts: starts.into(),
        }
    }

    /// The indices of a hash, in the order they were given, and seldom others.
    pub(super) fn of(&self, hash: u64) -> impl Iterator<Item = usize> {
        let bucket = hash as usize & (self.starts.len() - 2);
        let entries = self.starts[bucket] as usize..self.starts[bucket + 1] as usize;
        let same = move |&&(other, _): &&(u32, u32)| other == tag(hash);
        let indices = self.entries[entries].iter().filter(same);
        indices.map(|&(_, index)| index as usize)
    }

    fn memory(&self) -> usize {
        size_of_val(&*self.entries) + size_of_val(&*self.starts)
    }
}

fn tag(hash: u64) -> u32 {
    (hash >> 32) as u32
}

/// A number that depends on all of a name.
///
/// Names are many and short; this takes less time than the standard library's, and is not meant to
/// withstand names that were made to collide: those only make a filter slow.
pub(super) fn hash(name: &str) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |hash: u64, word: u64| {
        let product = u128::from(hash ^ word) * u128::from(FACTOR);
        (product as u64) ^ (product >> 64) as u64
    };
    let (words, rest) = name.as_bytes().as_chunks();
    let all = words.iter().map(|word| u64::from_le_bytes(*word));
    let hash = all.fold(name.len() as u64 ^ FACTOR.rotate_left(32), mix);
    let rest = rest
        .iter()
        .fold(1, |word, &byte| word << 8 | u64::from(byte));
    mix(mix(hash, rest), FACTOR)
}

/// The bits of all pieces of three bytes that a name has, its ends included.
fn grams(name: &str) -> u128 {
    let mut last = END as u32;
    let mut bits = 0;
    for byte in name.bytes().chain([END as u8]) {
        last = (last << 8 | u32::from(byte)) & 0xff_ffff;
        bits |= gram(last);
    }
    bits
}

/// The bits that a name must have to contain `text`, in which [`END`] stands for the ends of the
/// name.
fn grams_within(text: &str) -> u128 {
    let pieces = text.as_bytes().windows(3);
    pieces.fold(0, |bits, piece| {
        let piece = piece
            .iter()
            .fold(0, |all, &byte| all << 8 | u32::from(byte));
        bits | gram(piece)
    })
}

/// The bit of a piece of three bytes.
fn gram(piece: u32) -> u128 {
    1 << (piece.wrapping_mul(0x9e37_79b1) >> 25)
}
