//! The decisions about all functions of libraries that others have built, from their files alone,
//! are those of `plans.txt`.
//!
//! A row holds for the file of its build id. Another version of a library is left out, and said so.
//! `FGRAPH_WRITE_PLANS=1 cargo test -p fgraph --test it plans::` writes the rows of this machine.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

use fgraph::TraceMethod;
use fgraph_needs::{CC, needs, skip};
use fgraph_symbols::elf::ElfFile;

/// Files of Debian's packages: most are on any machine that builds fgraph.
const FILES: [&str; 28] = [
    "/usr/bin/bash",
    "/usr/bin/dash",
    "/usr/bin/find",
    "/usr/bin/gdb",
    "/usr/bin/git",
    "/usr/bin/openssl",
    "/usr/bin/perl",
    "/usr/bin/strace",
    "/usr/bin/tar",
    "/usr/bin/tmux",
    "/usr/bin/xz",
    "/usr/lib/gcc/x86_64-linux-gnu/12/cc1plus",
    "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
    "/usr/lib/x86_64-linux-gnu/libbz2.so.1.0",
    "/usr/lib/x86_64-linux-gnu/libc.so.6",
    "/usr/lib/x86_64-linux-gnu/libcrypto.so.3",
    "/usr/lib/x86_64-linux-gnu/libcurl.so.4",
    "/usr/lib/x86_64-linux-gnu/libexpat.so.1",
    "/usr/lib/x86_64-linux-gnu/libgcc_s.so.1",
    "/usr/lib/x86_64-linux-gnu/libgmp.so.10",
    "/usr/lib/x86_64-linux-gnu/liblzma.so.5",
    "/usr/lib/x86_64-linux-gnu/libm.so.6",
    "/usr/lib/x86_64-linux-gnu/libreadline.so.8",
    "/usr/lib/x86_64-linux-gnu/libsqlite3.so.0",
    "/usr/lib/x86_64-linux-gnu/libssl.so.3",
    "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
    "/usr/lib/x86_64-linux-gnu/libxml2.so.2",
    "/usr/lib/x86_64-linux-gnu/libz.so.1",
];

const TEST: &str = "decisions_about_files_are_unchanged";

const HEAD: &str = "file, build id: functions, NOP, relocated, breakpoint, refused, entry only, \
                    hash of all decisions";

/// The build id of a file; `None` if it is not there.
fn build_id(path: &str) -> Option<String> {
    let bytes = fs::read(path).ok()?;
    // The file is read as words.
    let mut words = vec![0_u64; bytes.len().div_ceil(8)];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks(8)) {
        let mut whole = [0; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_ne_bytes(whole);
    }
    // SAFETY: words are bytes.
    let (_, bytes, _) = unsafe { words.align_to::<u8>() };
    let file = ElfFile::parse(bytes).expect("an ELF file");
    let id = file.build_id().expect("Debian's files have one");
    Some(id.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The decisions about the functions of a file.
fn summary(path: &str) -> String {
    let sites = fgraph::sites_of_file(Path::new(path), true).unwrap();
    let (mut counts, mut entry_only, mut hash) = ([0_usize; 5], 0, 0xcbf2_9ce4_8422_2325_u64);
    for site in &sites {
        counts[0] += 1;
        counts[match site.how {
            Ok(TraceMethod::Nop) => 1,
            Ok(TraceMethod::Relocated) => 2,
            Ok(_) => 3,
            Err(_) => 4,
        }] += 1;
        entry_only += usize::from(site.how.is_ok() && !site.returns);
        let line = format!("{:x} {:?} {}\n", site.address, site.how, site.returns);
        for byte in line.bytes() {
            // FNV-1a.
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    let [all, nop, relocated, breakpoint, refused] = counts;
    format!("{all} {nop} {relocated} {breakpoint} {refused} {entry_only} {hash:016x}")
}

#[test]
fn decisions_about_files_are_unchanged() {
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plans.txt");
    let written = fs::read_to_string(&list).unwrap_or_default();
    let mut rows: BTreeMap<&str, &str> = written
        .lines()
        .filter_map(|line| line.split_once(": "))
        .collect();
    let (mut lines, mut differ) = (vec![HEAD.to_owned()], Vec::new());
    let leave_out = |path: &str, why: &str| skip(TEST, format_args!("{path}: {why}"));
    let is_writing = env::var_os("FGRAPH_WRITE_PLANS").is_some();
    for path in FILES {
        let Some(id) = build_id(path) else {
            leave_out(path, "not on this machine");
            continue;
        };
        let key = format!("{path} {id}");
        let row = rows.remove(key.as_str());
        if row.is_none() && !is_writing {
            leave_out(path, "another version than that of plans.txt");
            continue;
        }
        let now = summary(path);
        if row.is_some_and(|row| row != now) {
            differ.push(format!(
                "{path}\n  was {}\n  now {now}",
                row.unwrap_or_default()
            ));
        }
        lines.push(format!("{key}: {now}"));
    }
    if is_writing {
        fs::write(&list, lines.join("\n") + "\n").unwrap();
        return;
    }
    assert!(
        differ.is_empty(),
        "{HEAD}\n{}\n`cargo xtask coverage --all FILE` says why each is refused; where this is on \
         purpose, write the rows anew",
        differ.join("\n")
    );
}

/// Functions that jump to others at `-O2`: those called `leads_...` to one that looks at its return
/// address, those called `stays_...` to none.
const JUMPS: &str = r#"
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <stdlib.h>
    #define FUNCTION __attribute__((noinline, visibility("hidden")))
    volatile int sink;
    FUNCTION void *leads_itself(int n) { sink = n; return __builtin_return_address(0); }
    FUNCTION int other(int n) { sink = n; sink++; return sink; }
    void *leads_direct(int n) { sink++; return leads_itself(n + 1); }
    void *leads_sometimes(int n) { sink++; return n > 3 ? leads_itself(n) : 0; }
    FUNCTION void *leads_between(int n) { sink--; return leads_itself(n + 2); }
    void *leads_twice(int n) { sink += 2; return leads_between(n); }
    void *leads_by_dlsym(const char *name) { sink++; return dlsym(RTLD_NEXT, name); }
    void *leads_by_dlopen(const char *name) { sink++; return dlopen(name, RTLD_NOW); }
    static void *(*const volatile pointer)(int) = leads_itself;
    void *leads_by_pointer(int n) { sink++; return pointer(n); }
    void *leads_by_switch(int n, const char *name) {
        sink++;
        switch (n) {
        case 0: return malloc(1);
        case 1: sink = 7; return 0;
        case 2: return calloc(1, 2);
        case 3: return dlsym(RTLD_DEFAULT, name);
        case 4: sink = 9; return &sink;
        case 5: return leads_itself(n);
        }
        return 0;
    }
    int stays_here(int n) { sink++; return other(n); }
    void stays_with_free(void *block) { sink++; free(block); }
    int stays_as_caller(int n) { return leads_itself(n) != 0; }
    void *stays_beside(const char *name) { void *it = dlsym(RTLD_NEXT, name); sink++; return it; }
    int stays_by_switch(int n) {
        switch (n) {
        case 0: return other(3);
        case 1: sink = 7; return 0;
        case 2: return other(n);
        case 3: sink = 11; return 5;
        case 4: sink = 9; return 8;
        }
        return 0;
    }
"#;

#[test]
fn functions_that_jump_to_readers_of_their_caller_get_entries_only() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let source = directory.join("jumps.c");
    fs::write(&source, JUMPS).unwrap();
    let compilers = [needs!(CC.find())];
    for compiler in compilers {
        for options in [&["-O2"][..], &["-Os"], &["-O2", "-fno-plt"]] {
            let library = directory.join("jumps.so");
            let mut build = Command::new(&compiler);
            build
                .args(["-shared", "-fPIC", "-w", "-o"])
                .arg(&library)
                .arg(&source);
            assert!(build.args(options).status().unwrap().success());
            let sites = fgraph::sites_of_file(&library, true).unwrap();
            let (mut leading, mut staying) = (0, 0);
            for site in sites.iter().filter(|site| site.how.is_ok()) {
                leading += usize::from(site.name.starts_with("leads_"));
                staying += usize::from(site.name.starts_with("stays_"));
                if site.name.starts_with("leads_") {
                    assert!(!site.returns, "{}: {compiler:?} {options:?}", site.name);
                } else if site.name.starts_with("stays_") {
                    assert!(site.returns, "{}: {compiler:?} {options:?}", site.name);
                }
            }
            assert!(
                leading >= 7 && staying >= 4,
                "{leading} {staying} {options:?}"
            );
        }
    }
}
