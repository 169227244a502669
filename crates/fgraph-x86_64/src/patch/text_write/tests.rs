extern crate std;

use super::{Content, INT3, PAGE, Skip, Text, TextWrite, TextWriteError, apply, apply_with};
use crate::punned_jump::traps;
use crate::stub::SITE_LEN;
use std::collections::{BTreeMap, BTreeSet};
use std::string::ToString;
use std::vec::Vec;
use std::{format, vec};

const BASE: usize = 0x40_0000;
const NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x08];

/// The call of the text that fails, counted over reads, writes and syncs.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fail {
    Never,
    /// This one only; a write still writes so many eighths of its bytes.
    Once(usize, usize),
    /// This one and all after it.
    From(usize, usize),
    /// This one, and another one so many calls later.
    Twice(usize, usize, usize),
    /// This one, and about half of those after it, chosen by a seed.
    Often(usize, usize, u64),
    /// Every sync from this call on.
    Syncs(usize),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Read,
    /// A write of `int3`.
    Trap,
    /// Any other.
    Write,
    Sync,
}

/// Program text as it looks to a CPU that may have fetched any byte at any time since the last
/// sync.
#[derive(Clone)]
struct Model {
    bytes: Vec<u8>,
    /// All values that a byte had since the last sync, where it had more than one.
    seen: BTreeMap<usize, BTreeSet<u8>>,
    sites: Vec<TextWrite>,
    calls: usize,
    fail: Fail,
    /// The calls that failed.
    failed: Vec<(usize, Kind)>,
    /// Address and length of each write.
    writes: Vec<(usize, usize)>,
    syncs: usize,
    violations: Vec<std::string::String>,
    /// Where another patcher changes a byte behind each read.
    changed: Option<usize>,
    /// No other thread looks.
    is_alone: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Refused(usize);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "call {} refused", self.0)
    }
}

impl std::error::Error for Refused {}

impl Model {
    /// `pages` pages of noise with `old` at the address of each site.
    fn new(pages: usize, sites: &[TextWrite]) -> Self {
        let mut random = Random(pages as u64 + 1);
        let mut bytes: Vec<u8> = (0..pages * PAGE).map(|_| random.next() as u8).collect();
        for site in sites {
            bytes[site.address - BASE..][..site.len].copy_from_slice(bytes_of(site, &site.old));
        }
        Self {
            bytes,
            seen: BTreeMap::new(),
            sites: sites.to_vec(),
            calls: 0,
            fail: Fail::Never,
            failed: Vec::new(),
            writes: Vec::new(),
            syncs: 0,
            violations: Vec::new(),
            changed: None,
            is_alone: false,
        }
    }

    /// `Err` and how many eighths of a write happen all the same.
    fn call(&mut self, kind: Kind) -> Result<(), (Refused, usize)> {
        let call = self.calls;
        self.calls += 1;
        let (fails, part) = match self.fail {
            Fail::Never => (false, 0),
            Fail::Once(at, part) => (call == at, part),
            Fail::From(at, part) => (call >= at, part),
            Fail::Twice(at, later, part) => (call == at || call == at + later, part),
            Fail::Often(at, part, seed) => {
                let coin = Random(seed + call as u64 + 1).next() >> 20 & 1 != 0;
                (call == at || call > at && coin, part)
            }
            Fail::Syncs(at) => (call >= at && kind == Kind::Sync, 0),
        };
        if !fails {
            return Ok(());
        }
        self.failed.push((call, kind));
        Err((Refused(call), part))
    }

    fn site(&self, site: &TextWrite) -> &[u8] {
        &self.bytes[site.address - BASE..][..site.len]
    }

    fn values(&self, address: usize) -> Vec<u8> {
        let now = self.bytes[address - BASE];
        match self.seen.get(&address) {
            Some(values) => values.iter().copied().collect(),
            None => vec![now],
        }
    }

    /// Every mix of bytes that a CPU may have fetched, from any place at which a thread may go on,
    /// traps or is an instruction of the old or of the new content.
    fn check(&mut self) {
        let watched = (!self.is_alone).then(|| self.sites.clone());
        for site in watched.into_iter().flatten() {
            let len = site.len;
            let bytes: Vec<Vec<u8>> = (0..len).map(|i| self.values(site.address + i)).collect();
            let starts = site.old.starts | site.new.starts;
            for start in (0..len).filter(|&i| starts >> i & 1 != 0) {
                let whole = |content: &Content, first| {
                    let starts = |i: &usize| content.starts >> *i & 1 != 0;
                    let end = (start + 1..len).find(starts).unwrap_or(len);
                    starts(&start)
                        && content.bytes[start] == first
                        && (start + 1..end).all(|i| bytes[i] == [content.bytes[i]])
                };
                let fetched = |first: &&u8| match start {
                    0 => **first != INT3,
                    _ => !traps(start, **first),
                };
                for &first in bytes[start].iter().filter(fetched) {
                    if !whole(&site.old, first) && !whole(&site.new, first) {
                        self.violations
                            .push(format!("{site:x?} seen as {bytes:x?} from {start}"));
                    }
                }
            }
        }
    }
}

impl Text for Model {
    type Error = Refused;

    fn read(&mut self, address: usize, into: &mut [u8]) -> Result<(), Refused> {
        self.call(Kind::Read).map_err(|(error, _)| error)?;
        into.copy_from_slice(&self.bytes[address - BASE..][..into.len()]);
        if let Some(changed) = self.changed {
            self.bytes[changed - BASE] ^= 1;
        }
        Ok(())
    }

    fn write(&mut self, address: usize, bytes: &[u8]) -> Result<(), Refused> {
        let call = self.call(if bytes[0] == INT3 {
            Kind::Trap
        } else {
            Kind::Write
        });
        self.writes.push((address, bytes.len()));
        let len = match call {
            Ok(()) => bytes.len(),
            Err((_, part)) => bytes.len() * part / 8,
        };
        for (address, &byte) in (address..).zip(&bytes[..len]) {
            let old = std::mem::replace(&mut self.bytes[address - BASE], byte);
            if old != byte {
                self.seen.entry(address).or_default().extend([old, byte]);
            }
        }
        self.check();
        call.map_err(|(error, _)| error)
    }

    fn sync(&mut self) -> Result<(), Refused> {
        self.call(Kind::Sync).map_err(|(error, _)| error)?;
        self.syncs += 1;
        self.seen.clear();
        self.check();
        Ok(())
    }

    fn is_shared(&self) -> bool {
        self.changed.is_some()
    }

    fn is_alone(&self) -> bool {
        self.is_alone
    }
}

#[test]
fn bytes_of_another_patcher_between_two_sites_stay() {
    let writes = nops(&[0, 64, 128]);
    let mut model = Model::new(1, &writes);
    model.changed = Some(BASE + 32);
    let before = model.bytes[32];
    assert_eq!(apply(&mut model, &writes, |_, _| panic!()), Ok(3));
    let reads = model.calls - model.writes.len() - model.syncs;
    assert_eq!(model.bytes[32], before ^ (reads % 2) as u8);
    assert!(
        writes
            .iter()
            .all(|write| model.site(write) == write.new.bytes)
    );
    assert_eq!(model.violations, [""; 0]);
}

/// xorshift64
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

fn jump(target: u32) -> [u8; 5] {
    let [a, b, c, d] = target.to_le_bytes();
    [0xe9, a, b, c, d]
}

/// A NOP to patch at each offset.
fn nops(offsets: &[usize]) -> Vec<TextWrite> {
    offsets
        .iter()
        .map(|&offset| TextWrite {
            address: BASE + offset,
            len: SITE_LEN,
            old: Content::one(NOP),
            new: Content::one(jump(0x1122_3344 + offset as u32)),
        })
        .collect()
}

/// Several instructions to patch at each offset: every pattern of starts in turn.
fn several(offsets: &[usize]) -> Vec<TextWrite> {
    let write = |(index, &offset): (usize, &usize)| {
        let starts = (index * 2 % 32) as u8 | 1;
        let mut operand = (0x1122_3344 + offset as u32).to_le_bytes();
        for at in (1..5).filter(|at| starts >> at & 1 != 0) {
            operand[at - 1] = match at {
                4 if index % 3 == 0 => 0x3f,
                _ => INT3,
            };
        }
        TextWrite {
            address: BASE + offset,
            len: SITE_LEN,
            old: Content {
                bytes: [0x55, 0x48, 0x89, 0xe5, 0x53],
                starts,
            },
            new: Content::one(jump(u32::from_le_bytes(operand))),
        }
    };
    offsets.iter().enumerate().map(write).collect()
}

/// Writes a breakpoint: only the first byte of the function can be patched.
fn breakpoint(address: usize) -> TextWrite {
    let bytes = |first| [first, 1, 2, 3, 4];
    TextWrite {
        address,
        len: 1,
        // Differs from site to site.
        old: Content::one(bytes(address as u8 % 64)),
        new: Content::one(bytes(INT3)),
    }
}

/// Makes breakpoints of some of the sites, and puts more of them before others and behind them, as
/// far as there is room: at every distance, and several in a row.
fn with_breakpoints(writes: Vec<TextWrite>) -> Vec<TextWrite> {
    let mut all: Vec<TextWrite> = vec![];
    for (index, write) in writes.into_iter().enumerate() {
        let end = all.last().map_or(BASE, |last| last.end().unwrap());
        for distance in (1..=4)
            .rev()
            .filter(|d| (index * 5 + 3) >> (d - 1) & 1 != 0)
        {
            if let Some(behind) = end.checked_add(distance)
                && behind <= write.address
            {
                all.push(breakpoint(write.address - distance));
            }
        }
        if index % 4 == 1 {
            all.push(breakpoint(write.address));
        } else {
            all.push(write);
        }
    }
    all
}

/// Batches with all kinds of sites at the offsets, and around them.
fn batches(offsets: &[usize]) -> [Vec<TextWrite>; 4] {
    [
        nops(offsets),
        several(offsets),
        with_breakpoints(nops(offsets)),
        with_breakpoints(several(offsets)),
    ]
}

/// The bytes of a site that count.
fn bytes_of<'a>(write: &TextWrite, content: &'a Content) -> &'a [u8] {
    &content.bytes[..write.len]
}

fn is_several(write: &TextWrite) -> bool {
    (write.old.starts | write.new.starts) != 1
}

fn back(writes: &[TextWrite]) -> Vec<TextWrite> {
    writes
        .iter()
        .map(|&write| TextWrite {
            old: write.new,
            new: write.old,
            ..write
        })
        .collect()
}

/// Sites at the ends of pages, across them, side by side, alone on a page, and an empty page.
const OFFSETS: [usize; 11] = [
    0,
    5,
    100,
    PAGE - 2,
    PAGE + 3,
    2 * PAGE - 5,
    2 * PAGE,
    3 * PAGE - 1,
    3 * PAGE + 4,
    6 * PAGE - 4,
    7 * PAGE - 5,
];
const PAGES: usize = 7;

fn never(index: usize, found: [u8; 5]) {
    panic!("site {index} refused: {found:x?}");
}

#[test]
fn patches_every_site_and_takes_it_back() {
    for writes in batches(&OFFSETS) {
        patches_and_takes_back(&writes);
    }
}

fn patches_and_takes_back(writes: &[TextWrite]) {
    let mut text = Model::new(PAGES, writes);
    let original = text.bytes.clone();

    assert_eq!(apply(&mut text, writes, never), Ok(writes.len()));
    for write in writes {
        assert_eq!(text.site(write), bytes_of(write, &write.new));
    }
    let mut outside = text.bytes.clone();
    for write in writes {
        outside[write.address - BASE..][..write.len].copy_from_slice(bytes_of(write, &write.old));
    }
    assert_eq!(outside, original, "bytes between the sites");

    assert_eq!(apply(&mut text, &back(writes), never), Ok(writes.len()));
    assert_eq!(text.bytes, original);
    assert_eq!(text.violations, [""; 0]);
}

#[test]
fn writes_a_page_three_times_and_syncs_three_times() {
    let writes = nops(&OFFSETS);
    let mut text = Model::new(PAGES, &writes);
    apply(&mut text, &writes, never).unwrap();
    assert_eq!(text.syncs, 3);
    let mut pages = BTreeMap::new();
    for &(address, len) in &text.writes {
        assert!(len < PAGE + 5);
        *pages.entry(address / PAGE).or_insert(0) += 1;
    }
    assert_eq!(text.writes.len(), 3 * 6, "six pages have a first byte");
    assert!(pages.values().all(|&writes| writes <= 3), "{pages:?}");
}

/// As [`OFFSETS`], without sites on two pages.
const ON_PAGES: [usize; 6] = [0, 9, 100, PAGE - 5, PAGE + 50, 3 * PAGE];

#[test]
fn a_page_is_written_once_where_no_other_thread_runs() {
    for (offsets, phases) in [(&ON_PAGES[..], 1), (&[0, PAGE - 1], 3)] {
        for writes in batches(offsets) {
            let is_on_pages = writes.iter().all(TextWrite::is_on_page);
            let mut text = Model::new(PAGES, &writes);
            text.is_alone = true;
            apply(&mut text, &writes, never).unwrap();
            for write in &writes {
                assert_eq!(text.site(write), bytes_of(write, &write.new));
            }
            let phases = if is_on_pages { 1 } else { phases };
            assert_eq!(text.syncs, phases);
            let pages: BTreeSet<usize> = writes.iter().map(|write| write.address / PAGE).collect();
            assert!(text.writes.len() <= phases * pages.len());
        }
    }
}

#[test]
fn where_no_other_thread_runs_every_site_is_whole_after_any_failure() {
    let mut stuck = 0;
    for writes in batches(&ON_PAGES) {
        let mut original = Model::new(PAGES, &writes);
        original.is_alone = true;
        let mut text = original.clone();
        apply(&mut text, &writes, never).unwrap();
        // Bytes of a page are written or not.
        let fails = |call| [0, 8].map(|part| [Fail::Once(call, part), Fail::From(call, part)]);
        for fail in (0..text.calls).flat_map(fails).flatten() {
            let mut text = original.clone();
            text.fail = fail;
            let Err(TextWriteError::Stuck { address, .. }) = apply(&mut text, &writes, never)
            else {
                assert_eq!(text.bytes, original.bytes, "{fail:?}");
                continue;
            };
            stuck += 1;
            for site in &writes {
                let found = text.site(site);
                let is_old = found == bytes_of(site, &site.old);
                let is_new = found == bytes_of(site, &site.new);
                assert!(is_old || is_new && site.address >= address, "{fail:?}");
            }
        }
    }
    assert!(stuck > 0);
}

#[test]
fn does_nothing_for_nothing() {
    let mut text = Model::new(1, &[]);
    assert_eq!(apply(&mut text, &[], never), Ok(0));
    let same = TextWrite {
        address: BASE,
        len: SITE_LEN,
        old: Content::one(NOP),
        new: Content::one(NOP),
    };
    assert_eq!(apply(&mut text, &[same], never), Ok(0));
    assert_eq!(text.calls, 0);
}

#[test]
fn refuses_sites_that_hold_something_else_and_patches_the_others() {
    // Every pattern of: patch, refuse, nothing to do.
    for pattern in 0..3_usize.pow(6) {
        let offsets = [3, 60, PAGE - 3, PAGE + 2, PAGE + 7, 3 * PAGE];
        let mut writes = nops(&offsets);
        let mut text = Model::new(4, &writes);
        let mut expected = vec![];
        let mut patched = 0;
        for (index, write) in writes.iter_mut().enumerate() {
            match pattern / 3_usize.pow(index as u32) % 3 {
                0 => patched += 1,
                1 => {
                    let other = [0x48, 0x83, 0xec, 0x08, index as u8];
                    text.bytes[write.address - BASE..][..5].copy_from_slice(&other);
                    expected.push((index, other));
                }
                _ => write.new = write.old,
            }
        }
        text.sites = writes
            .iter()
            .copied()
            .enumerate()
            .filter(|&(index, _)| expected.iter().all(|&(refused, _)| refused != index))
            .map(|(_, write)| write)
            .collect();
        let mut wanted = text.bytes.clone();
        for site in &text.sites {
            wanted[site.address - BASE..][..5].copy_from_slice(&site.new.bytes);
        }

        let mut refused = vec![];
        let result = apply(&mut text, &writes, |index, found| {
            refused.push((index, found));
        });
        assert_eq!(result, Ok(patched));
        assert_eq!(refused, expected);
        assert_eq!(text.bytes, wanted);
        assert_eq!(text.violations, [""; 0]);
        if patched == 0 {
            assert_eq!(text.writes, []);
        }
    }
}

#[test]
fn refuses_a_batch_out_of_order() {
    let writes = nops(&OFFSETS);
    for (batch, index) in [
        (vec![writes[1], writes[0]], 1),
        (vec![writes[0], writes[0]], 1),
        (nops(&[0, 10, 14]), 2),
        (vec![writes[0], breakpoint(BASE + 4)], 1),
        (vec![breakpoint(BASE), breakpoint(BASE)], 1),
        (
            vec![TextWrite {
                address: usize::MAX - 3,
                ..writes[0]
            }],
            0,
        ),
    ] {
        let mut text = Model::new(1, &[]);
        assert_eq!(
            apply(&mut text, &batch, never),
            Err(TextWriteError::Order { index })
        );
        assert_eq!(text.calls, 0);
    }
}

#[test]
fn a_breakpoint_is_one_byte_whatever_is_behind_it() {
    let site = breakpoint(BASE + PAGE - 1);
    for behind in 0..=255 {
        let mut text = Model::new(2, &[site]);
        text.bytes[PAGE..PAGE + 4].fill(behind);
        let original = text.bytes.clone();
        assert_eq!(apply(&mut text, &[site], never), Ok(1));
        assert_eq!(text.site(&site), [INT3]);
        assert_eq!(text.bytes[PAGE..], original[PAGE..]);
        assert_eq!(apply(&mut text, &back(&[site]), never), Ok(1));
        assert_eq!(text.bytes, original);
        assert!(text.writes.iter().all(|&(_, len)| len == 1));
        assert_eq!(text.writes.len(), 4, "it has no tail");
    }
}

#[test]
fn a_breakpoint_that_holds_something_else_is_refused() {
    let sites = [breakpoint(BASE), breakpoint(BASE + 1)];
    let mut text = Model::new(1, &sites);
    text.bytes[0] = 0x77;
    text.sites.remove(0);
    let mut refused = vec![];
    let patched = apply(&mut text, &sites, |index, found| {
        refused.push((index, found));
    });
    assert_eq!(patched, Ok(1));
    // The bytes behind it are not looked at.
    assert_eq!(refused, [(0, [0x77, 1, 2, 3, 4])]);
    assert_eq!(text.bytes[..2], [0x77, INT3]);
}

/// Neighbours are patched and taken back on their own, whatever the others are at the time.
#[test]
fn neighbours_come_and_go_in_any_order() {
    let jump = TextWrite {
        address: BASE + 4,
        ..several(&[0; 6])[5]
    };
    let [first, second, third, last] = [0, 1, 3, 9].map(|at| breakpoint(BASE + at));
    let all = [first, second, third, jump, last];
    let mut random = Random(77);
    let mut text = Model::new(1, &all);
    let original = text.bytes.clone();
    let mut on = vec![false; all.len()];
    for _ in 0..2000 {
        let chosen: Vec<usize> = (0..all.len()).filter(|_| random.below(2) == 0).collect();
        let change = |&index: &usize| match on[index] {
            true => back(&all[index..=index])[0],
            false => all[index],
        };
        let batch: Vec<TextWrite> = chosen.iter().map(change).collect();
        assert_eq!(apply(&mut text, &batch, never), Ok(batch.len()));
        for index in chosen {
            on[index] = !on[index];
        }
        let mut expected = original.clone();
        for (write, _) in all.iter().zip(&on).filter(|&(_, &on)| on) {
            expected[write.address - BASE..][..write.len]
                .copy_from_slice(bytes_of(write, &write.new));
        }
        assert_eq!(text.bytes, expected);
    }
    assert_eq!(text.violations, [""; 0]);
}

#[test]
fn random_batches_never_show_a_mix() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for _ in 0..50 {
        let pages = 1 + random.below(6);
        let mut offsets = vec![];
        let mut next = random.below(30);
        while next + 5 <= pages * PAGE {
            offsets.push(next);
            let gap = if random.below(4) == 0 { 3000 } else { 60 };
            next += 5 + random.below(gap);
        }
        for writes in batches(&offsets) {
            let mut text = Model::new(pages, &writes);
            let original = text.bytes.clone();
            assert_eq!(apply(&mut text, &writes, never), Ok(writes.len()));
            assert_eq!(apply(&mut text, &back(&writes), never), Ok(writes.len()));
            assert_eq!(text.bytes, original);
            assert_eq!(text.violations, [""; 0]);
        }
    }
}

#[test]
fn the_model_notices_a_step_left_out() {
    let all = batches(&OFFSETS);
    let skips = [Skip::TRAP, Skip::SYNC, Skip::TRAP | Skip::SYNC];
    for (writes, skip) in all
        .iter()
        .flat_map(|writes| skips.map(|skip| (writes, skip)))
    {
        let mut text = Model::new(PAGES, writes);
        assert_eq!(apply_with(&mut text, writes, never, skip), Ok(writes.len()));
        assert_ne!(text.violations, [""; 0], "{skip:?}");
        assert_eq!(text.syncs == 0, skip.contains(Skip::SYNC));
    }
}

#[test]
fn refuses_a_jump_that_does_not_trap_where_an_instruction_starts() {
    let [mut write] = several(&[0])[..] else {
        unreachable!()
    };
    write.old.starts = 0b00101;
    for writes in [vec![write], back(&[write])] {
        let mut text = Model::new(1, &writes);
        assert_eq!(
            apply(&mut text, &writes, never),
            Err(TextWriteError::Unsafe { index: 0 })
        );
        assert_eq!(text.calls, 0);
    }
}

/// Patches and takes back with the failures that `fail` makes of each call, and checks what is
/// true after any failure. Returns how often something was stuck.
fn with_failures(
    offsets: &[usize],
    fails: impl Fn(usize) -> Vec<Fail>,
    check: impl Fn(&Model),
) -> usize {
    let mut stuck = 0;
    let there = batches(offsets);
    let back = there.each_ref().map(|writes| back(writes));
    for writes in there.into_iter().chain(back) {
        let original = Model::new(PAGES, &writes);
        let mut text = original.clone();
        apply(&mut text, &writes, never).unwrap();
        for fail in (0..text.calls).flat_map(&fails) {
            let mut text = original.clone();
            text.fail = fail;
            match apply(&mut text, &writes, never) {
                Ok(patched) => {
                    assert_eq!(patched, writes.len());
                    assert_eq!(text.failed, [], "{fail:?}");
                }
                Err(TextWriteError::Stuck { address, error }) => {
                    stuck += 1;
                    assert_eq!(error, Refused(text.failed[0].0), "{fail:?}");
                    // That site may be as it was or not: it depends on what the failed writes
                    // wrote.
                    assert!(text.sites.iter().any(|site| site.address == address));
                    for site in &text.sites {
                        let found = text.site(site);
                        let [old, new] =
                            [&site.old, &site.new].map(|content| bytes_of(site, content));
                        let whole = found == old || found == new;
                        // Each of several instructions is whole or an int3: see `check`.
                        assert!(
                            whole || found[0] == INT3 || is_several(site),
                            "{fail:?}: {found:x?}"
                        );
                        if site.address < address {
                            assert_eq!(found, old, "{fail:?}");
                        }
                    }
                }
                Err(
                    TextWriteError::Read { error, .. }
                    | TextWriteError::Write { error, .. }
                    | TextWriteError::Sync { error },
                ) => {
                    assert_eq!(error, Refused(text.failed[0].0), "{fail:?}");
                    assert_eq!(text.bytes, original.bytes, "{fail:?}");
                }
                Err(order) => panic!("{fail:?}: {order}"),
            }
            assert_eq!(text.violations, [""; 0], "{fail:?}");
            check(&text);
        }
    }
    stuck
}

/// Numbers of bytes that a failing write writes all the same.
const PARTS: [usize; 5] = [0, 1, 4, 7, 8];

#[test]
fn one_failure_anywhere_leaves_everything_as_it_was() {
    let fails = |call| PARTS.map(|part| Fail::Once(call, part)).to_vec();
    let stuck = with_failures(&OFFSETS, fails, |_| ());
    assert_eq!(stuck, 0);
}

#[test]
fn failures_that_go_on_leave_int3_or_whole_instructions_and_say_where() {
    let fails = |call| PARTS.map(|part| Fail::From(call, part)).to_vec();
    let stuck = with_failures(&OFFSETS, fails, |_| ());
    assert!(stuck > 0);
}

#[test]
fn failures_that_come_and_go_leave_int3_or_whole_instructions_and_say_where() {
    let fails = |call| {
        (0..50)
            .map(|seed| Fail::Often(call, PARTS[seed % PARTS.len()], seed as u64 * 1000))
            .collect()
    };
    let stuck = with_failures(&[0, 100, PAGE - 1, PAGE + 50, 3 * PAGE], fails, |_| ());
    assert!(stuck > 0);
}

#[test]
fn a_second_failure_while_undoing_the_first_leaves_no_int3_that_can_be_helped() {
    let fails = |call| {
        PARTS
            .iter()
            .flat_map(|&part| (1..30).map(move |later| Fail::Twice(call, later, part)))
            .collect()
    };
    let stuck = with_failures(&[0, 100, PAGE - 1, 3 * PAGE], fails, |text| {
        // Where `int3` could not be written, the new instruction stays.
        if let [_, (_, Kind::Trap)] = text.failed[..]
            && !text.sites.iter().any(is_several)
        {
            let trapping = |site: &TextWrite| site.len != 1 && text.site(site)[0] == INT3;
            assert!(!text.sites.iter().any(trapping), "{:?}", text.fail);
        }
    });
    assert!(stuck > 0);
}

#[test]
fn without_sync_every_site_is_left_whole_that_can_be() {
    let stuck = with_failures(
        &OFFSETS,
        |call| vec![Fail::Syncs(call)],
        |text| {
            if text.sites.iter().any(is_several) {
                return;
            }
            // Only the sync between tail and head needs an int3 to stay: until the tails are
            // known to all, neither instruction can be let through.
            let synced = text.syncs;
            for site in &text.sites {
                let found = text.site(site);
                let old = bytes_of(site, &site.old);
                match synced {
                    0 => assert_eq!(found, old),
                    1 => assert_eq!((found[0], &found[1..]), (INT3, &old[1..])),
                    _ => assert_eq!(found, bytes_of(site, &site.new)),
                }
            }
        },
    );
    assert!(stuck > 0);
}

#[test]
fn errors_say_what_failed_and_where() {
    let error = Refused(7);
    for (found, message) in [
        (
            TextWriteError::Order { index: 3 },
            "site 3 of the batch is out of order or overlaps",
        ),
        (
            TextWriteError::Unsafe { index: 3 },
            "site 3 of the batch has an instruction within that would not trap",
        ),
        (
            TextWriteError::Read {
                address: 4096,
                error,
            },
            "cannot read text at 0x1000: call 7 refused",
        ),
        (
            TextWriteError::Write {
                address: 4096,
                error,
            },
            "cannot write text at 0x1000: call 7 refused",
        ),
        (
            TextWriteError::Sync { error },
            "cannot synchronize the other CPUs: call 7 refused",
        ),
        (
            TextWriteError::Stuck {
                address: 4096,
                error,
            },
            "patching failed (call 7 refused) and could not be undone from 0x1000 on",
        ),
    ] {
        assert_eq!(found.to_string(), message);
        let source = std::error::Error::source(&found).map(ToString::to_string);
        let order = matches!(
            found,
            TextWriteError::Order { .. } | TextWriteError::Unsafe { .. }
        );
        assert_eq!(source, (!order).then(|| error.to_string()));
    }
}
