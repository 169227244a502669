//! Flags that a program has set for its text are those of the exchanged text as well.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::ptr;
use std::sync::mpsc;
use std::thread;

use fgraph::RefusalReason;
use fgraph_needs::skip;
use fgraph_scenario::{Count, scenario};

const C_LIBRARY: &str = ":mod:libc.so*";
const PAGE: usize = 4096;

/// A mapping of the C library's text.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mapping {
    range: Range<usize>,
    /// Protection, offset and file.
    what: String,
    flags: BTreeSet<String>,
    key: String,
    /// Kilobytes that are this process's own.
    private: u64,
}

impl Mapping {
    fn start(&self) -> *mut libc::c_void {
        ptr::without_provenance_mut(self.range.start)
    }

    /// Returns the mapping without the size of its private memory.
    fn without_size(&self) -> Self {
        Self {
            private: 0,
            ..self.clone()
        }
    }

    /// Returns the mapping as it is while its text is exchanged: core files do not have it.
    fn exchanged(&self) -> Self {
        let mut flags = self.flags.clone();
        flags.insert("dd".to_owned());
        Self {
            flags,
            ..self.without_size()
        }
    }
}

/// Returns the mappings of the C library's text.
fn text() -> Vec<Mapping> {
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut mappings: Vec<Mapping> = Vec::new();
    let mut is_text = false;
    for line in smaps.lines() {
        let (name, value) = line.split_once(' ').unwrap();
        let value = value.trim();
        if let Some((start, end)) = name.split_once('-') {
            is_text = line.contains("/libc.so") && line.contains(" r-xp ");
            if is_text {
                let [start, end] = [start, end].map(|hex| usize::from_str_radix(hex, 16).unwrap());
                mappings.push(Mapping {
                    range: start..end,
                    what: value.to_owned(),
                    flags: BTreeSet::new(),
                    key: String::new(),
                    private: 0,
                });
            }
            continue;
        }
        let Some(mapping) = mappings.last_mut().filter(|_| is_text) else {
            continue;
        };
        match name {
            "VmFlags:" => mapping.flags = value.split(' ').map(String::from).collect(),
            "ProtectionKey:" => mapping.key = value.to_owned(),
            "Anonymous:" => {
                let number = value.strip_suffix(" kB").unwrap();
                mapping.private = number.parse().unwrap();
            }
            _ => {}
        }
    }
    assert!(!mappings.is_empty());
    mappings
}

/// Runs `work` beside another thread: the text of a process with one thread is never exchanged.
fn beside_a_thread(work: impl FnOnce()) {
    thread::scope(|scope| {
        let (end, ended) = mpsc::channel::<()>();
        scope.spawn(move || ended.recv());
        work();
        drop(end);
    });
}

/// Traces all of the C library, and a part of it, and compares what `smaps` says of its text.
fn is_kept_while_traced() {
    beside_a_thread(|| {
        let before = text();
        let exchanged = || before.iter().map(Mapping::exchanged).collect::<Vec<_>>();
        for _ in 0..2 {
            let user = fgraph_scenario::register(Count::default(), C_LIBRARY).unwrap();
            let during = text();
            assert!(during.iter().map(|text| text.private).sum::<u64>() > 1000);
            let during: Vec<_> = during.iter().map(Mapping::without_size).collect();
            assert_eq!(during, exchanged());
            let report = user.report().unwrap();
            assert!(report.traced > 1000);
            let mut reasons = report.refused.iter().map(|refused| &refused.reason);
            assert!(!reasons.any(|reason| *reason == RefusalReason::NotExchanged));
            // Now all pages that have a site are private.
            fgraph_scenario::set_filter(&user, "getpagesize").unwrap();
            let during: Vec<_> = text().iter().map(Mapping::without_size).collect();
            assert_eq!(during, exchanged());
            drop(user);
            assert_eq!(text(), before);
        }
    });
}

/// Gives advice for all text of the C library, which `smaps` shows as `flag`.
fn keeps(advice: i32, flag: &str) {
    let [mapping] = &text()[..] else {
        panic!("the text is in several mappings");
    };
    // SAFETY: no advice that is given here changes what is in the memory.
    if unsafe { libc::madvise(mapping.start(), mapping.range.len(), advice) } != 0 {
        return skip!(
            "the kernel takes no such advice: {}",
            io::Error::last_os_error()
        );
    }
    assert!(has_flag(flag), "{flag}");
    is_kept_while_traced();
    assert!(has_flag(flag), "{flag}");
}

macro_rules! advice_is_kept {
    ($($name:ident: $advice:ident, $flag:literal;)*) => {$(
        #[scenario]
        fn $name() {
            keeps(libc::$advice, $flag);
        }
    )*};
}

advice_is_kept! {
    text_that_is_not_dumped_stays_so: MADV_DONTDUMP, "dd";
    text_that_children_do_not_get_stays_so: MADV_DONTFORK, "dc";
    text_that_may_have_huge_pages_stays_so: MADV_HUGEPAGE, "hg";
    text_that_has_no_huge_pages_stays_so: MADV_NOHUGEPAGE, "nh";
    text_that_is_read_at_random_stays_so: MADV_RANDOM, "rr";
    text_that_is_read_in_sequence_stays_so: MADV_SEQUENTIAL, "sr";
    text_that_may_be_merged_stays_so: MADV_MERGEABLE, "mg";
}

#[scenario]
fn advice_for_a_part_of_the_text_is_kept() {
    let all = text()[0].clone();
    let part = all.range.start + 16 * PAGE;
    // SAFETY: the advice changes no memory.
    let failed = unsafe {
        let part = ptr::without_provenance_mut(part);
        libc::madvise(part, 32 * PAGE, libc::MADV_DONTDUMP)
    };
    assert_eq!(failed, 0);
    assert_eq!(text().len(), 3);
    is_kept_while_traced();
    assert_eq!(text().len(), 3);
}

#[scenario]
fn text_without_advice_gets_none() {
    is_kept_while_traced();
}

#[scenario]
fn text_written_in_place_is_left_out_of_core_files_until_it_is_the_files_again() {
    let before = text();
    let user = fgraph_scenario::register(Count::default(), "sched_getcpu").unwrap();
    assert!(has_flag("dd"));
    drop(user);
    assert_eq!(text(), before);
}

#[scenario]
fn text_that_a_program_has_changed_stays_in_core_files() {
    let page = text()[0].range.start as u64;
    let mut options = OpenOptions::new();
    let memory = options.read(true).write(true).open("/proc/self/mem");
    let memory = memory.unwrap();
    let mut byte = [0];
    memory.read_exact_at(&mut byte, page).unwrap();
    memory.write_all_at(&byte, page).unwrap();
    let is_in_core_files_while_traced = || {
        let user = fgraph_scenario::register(Count::default(), "sched_getcpu").unwrap();
        assert!(!has_flag("dd"));
        drop(user);
        assert!(!has_flag("dd"));
    };
    is_in_core_files_while_traced();
    memory.write_all_at(&byte, page).unwrap();
    beside_a_thread(is_in_core_files_while_traced);
}

/// Locks the text of the C library. Returns false if it may not.
fn lock(flags: u32) -> bool {
    let mapping = &text()[0];
    // SAFETY: locking changes no memory.
    let failed = unsafe { libc::mlock2(mapping.start(), mapping.range.len(), flags) } != 0;
    if failed {
        skip!(
            "memory cannot be locked here: {}",
            io::Error::last_os_error()
        );
    }
    !failed
}

fn has_flag(flag: &str) -> bool {
    text()[0].flags.contains(flag)
}

#[scenario]
fn locked_text_stays_locked() {
    if lock(0) {
        assert!(has_flag("lo"));
        is_kept_while_traced();
        assert!(has_flag("lo"));
    }
}

#[scenario]
fn text_that_is_locked_on_fault_stays_so() {
    if lock(libc::MLOCK_ONFAULT) {
        assert!(has_flag("lf"));
        is_kept_while_traced();
        assert!(has_flag("lf"));
    }
}

#[scenario]
fn text_is_not_locked_where_new_memory_is() {
    // SAFETY: locking changes no memory.
    if unsafe { libc::mlockall(libc::MCL_FUTURE) } != 0 {
        return skip!(
            "memory cannot be locked here: {}",
            io::Error::last_os_error()
        );
    }
    is_kept_while_traced();
    assert!(!has_flag("lo"));
}

/// Checks that the text is written in place, and that the report says so.
fn is_written_in_place() {
    let before = text();
    let user = fgraph_scenario::register(Count::default(), "getpagesize sched_getcpu").unwrap();
    let report = user.report().unwrap();
    assert_eq!(report.traced, 1);
    assert_eq!(report.refused[0].name, "getpagesize");
    assert_eq!(report.refused[0].reason, RefusalReason::NotExchanged);
    drop(user);
    let flags = |text: &[Mapping]| text.iter().map(Mapping::without_size).collect::<Vec<_>>();
    assert_eq!(flags(&text()), flags(&before));
}

#[scenario]
fn locked_text_is_written_in_place_where_no_more_memory_can_be_locked() {
    fgraph_scenario::limit_locks(text()[0].range.len() + PAGE);
    if lock(0) {
        beside_a_thread(|| {
            is_written_in_place();
            assert!(has_flag("lo"));
            // SAFETY: locking changes no memory.
            unsafe { libc::munlockall() };
            // The next user that goes makes it the file's again.
            drop(fgraph_scenario::register(Count::default(), "getpagesize").unwrap());
            assert_eq!(text()[0].private, 0);
            is_kept_while_traced();
        });
    }
}

#[scenario]
fn sealed_text_is_written_in_place() {
    const SYS_MSEAL: i64 = 462;
    let mapping = &text()[0];
    // SAFETY: sealed memory stays as it is.
    let failed = unsafe { libc::syscall(SYS_MSEAL, mapping.start(), mapping.range.len(), 0) } != 0;
    if failed {
        return skip!(
            "memory cannot be sealed here: {}",
            io::Error::last_os_error()
        );
    }
    beside_a_thread(is_written_in_place);
}

#[scenario]
fn text_with_a_protection_key_keeps_it() {
    // SAFETY: a new key, which forbids nothing.
    let key = unsafe { libc::syscall(libc::SYS_pkey_alloc, 0, 0) };
    if key < 0 {
        return skip!("no protection keys: {}", io::Error::last_os_error());
    }
    let mapping = &text()[0];
    let rights = libc::PROT_READ | libc::PROT_EXEC;
    // SAFETY: the rights stay as they are.
    let failed = unsafe {
        let len = mapping.range.len();
        libc::syscall(libc::SYS_pkey_mprotect, mapping.start(), len, rights, key)
    };
    assert_eq!(failed, 0);
    assert_eq!(text()[0].key, key.to_string());
    is_kept_while_traced();
}
