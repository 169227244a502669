//! An index of the names of many functions: finds a name without reading the others, and compares a
//! glob with few of them.

use super::bits::Bits;
use super::glob::Glob;
use super::matcher::Catalog;
use super::ngrams::END;

/// The number of globs from which on n-grams of names are built and compared first.
const MANY_GLOBS: usize = 4;

/// The most globs that are remembered. Filters repeat globs when a user returns, and when their
/// effect is reported.
const RECENT_GLOBS: usize = 16;

/// The index from names to functions; see the module documentation.
///
/// A list of `n` functions with one name each takes between 12 and 16 bytes a function for the
/// names, and, after several globs, 8 bytes more for these. The results of the last globs take at
/// most 2 bytes a function.
#[derive(Debug, Default)]
pub struct NameIndex {
    by_name: Option<Hashes>,
    grams: Option<Box<[u128]>>,
    /// The number of globs that were compared with names.
    globs: usize,
    /// The last globs with the functions that they match; the most recent one is last.
    recent: Vec<(Glob, Bits)>,
}

impl NameIndex {
    /// Makes an empty index, which is built when it is first needed.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            by_name: None,
            grams: None,
            globs: 0,
            recent: Vec::new(),
        }
    }

    /// Returns the number of bytes it takes.
    #[must_use]
    pub fn memory(&self) -> usize {
        let names = self.by_name.as_ref().map_or(0, Hashes::memory);
        let recent = self.recent.iter();
        let recent: usize = recent
            .map(|(glob, bits)| glob.memory() + bits.memory())
            .sum();
        names + self.grams.as_deref().map_or(0, size_of_val) + recent
    }

    /// Returns the functions by the hashes of their names.
    pub(super) fn by_name(&mut self, functions: &impl Catalog) -> &Hashes {
        self.by_name.get_or_insert_with(|| {
            let indices = (0..functions.len()).flat_map(|index| {
                let names = functions.names(index);
                names.map(move |name| (hash(name), index as u32))
            });
            Hashes::new(indices.collect())
        })
    }

    /// Returns the functions that a glob matches.
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

    /// Returns, for each function, the bits of all short pieces of its names. With `make` they are
    /// built if necessary.
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
    /// The entries of each bucket in turn, with the upper half of the hash.
    entries: Box<[(u32, u32)]>,
    /// For each bucket, the start of its entries; and the end of the last bucket's.
    starts: Box<[u32]>,
}

impl Hashes {
    /// Makes a table of hashes with an index each.
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
        // Filled from the end, so that each finally is the start of its bucket.
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

    /// Returns the indices of a hash, in the order of insertion, and rarely others.
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

/// Returns a hash of the whole name.
///
/// Names are many and short. This is faster than the standard library's hash, and does not
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

/// Returns the bits of all pieces of three bytes of a name, including its ends.
fn grams(name: &str) -> u128 {
    let mut last = END as u32;
    let mut bits = 0;
    for byte in name.bytes().chain([END as u8]) {
        last = (last << 8 | u32::from(byte)) & 0xff_ffff;
        bits |= gram(last);
    }
    bits
}

/// Returns the bits that a name must have to contain `text`, in which [`END`] stands for the ends
/// of the name.
fn grams_within(text: &str) -> u128 {
    let pieces = text.as_bytes().windows(3);
    pieces.fold(0, |bits, piece| {
        let piece = piece
            .iter()
            .fold(0, |all, &byte| all << 8 | u32::from(byte));
        bits | gram(piece)
    })
}

/// Returns the bit of a piece of three bytes.
fn gram(piece: u32) -> u128 {
    1 << (piece.wrapping_mul(0x9e37_79b1) >> 25)
}
