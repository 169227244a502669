//! Stripped and garbled files, text that others have patched or may write to, and libraries that
//! come and go. They are refused with the reason; nothing is written.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU64, Ordering};
use std::thread;

use fgraph::{Error, FilterError, FilterReport, Handle, RefusalReason};
use fgraph_core::site::{Site, SiteName, function_of};
use fgraph_needs::{CC, Missing, OBJCOPY, needs, skip};
use fgraph_scenario::{
    Count, Library, Log, bounded, build_library, code, is_patched, overwrite, patched, scenario,
    text, user,
};

fn count(filter: &str) -> Handle<Count> {
    fgraph_scenario::register(Count::default(), filter).unwrap()
}

const C: &str = "
    int library_one(int n) { return n * 2 + 1; }
    static __attribute__((noinline, noclone)) int hidden(int n) { return n * 3; }
    int library_two(int n) { return hidden(n) + hidden(n + 1) + 2; }
    int library_three(int n) { int r = 0; while (n > 0) r += n--; return r; }
";

type Int = extern "C" fn(i32) -> i32;

/// Compiles the library under a name of its own, and does not load it.
fn build(name: &str, options: &[&str]) -> Result<PathBuf, Missing> {
    build_library(&CC, &format!("{name}.c"), C, options)
}

/// Calls the functions of the library; what they do is right.
fn works(library: &Library) {
    // SAFETY: their type.
    let [one, two, three]: [Int; 3] =
        unsafe { ["library_one", "library_two", "library_three"].map(|name| library.get(name)) };
    assert_eq!((one(3), two(1), three(4)), (7, 11, 10));
}

/// Returns the reason why the report refuses a function.
fn reason(report: &FilterReport, function: &str) -> RefusalReason {
    let refused = report
        .refused
        .iter()
        .find(|refused| refused.name == function);
    refused
        .unwrap_or_else(|| panic!("{report:?}"))
        .reason
        .clone()
}

#[scenario]
fn a_stripped_library_is_traced_by_its_dynamic_symbols() {
    let path = needs!(build("stripped", &["-s"]));
    let library = Library::open(&path);
    // Exported functions are known; the hidden ones are not.
    let user = count("library_*:mod:libstripped.so hidden:mod:libstripped.so");
    assert_eq!(
        (
            user.report().unwrap().traced,
            &*user.report().unwrap().refused
        ),
        (3, &[][..])
    );
    works(&library);
    assert_eq!(user.user().both(), (3, 3));
    drop(user);
    let none = count("hidden:mod:libstripped.so");
    assert!(
        none.report().unwrap().matches_nothing(),
        "{:?}",
        none.report().unwrap()
    );
    works(&library);
    assert_eq!(none.user().both(), (0, 0));
}

/// Without any table of symbols, and without a table of sections.
#[scenario]
fn a_library_without_sections_is_traced_by_its_dynamic_symbols() {
    let path = needs!(build("sectionless", &["-s"]));
    // e_shoff, e_shnum and e_shstrndx of the ELF header.
    let mut bytes = fs::read(&path).unwrap();
    bytes[0x28..0x30].fill(0);
    bytes[0x3c..0x40].fill(0);
    fs::write(&path, bytes).unwrap();
    let library = Library::open(&path);
    let before = text("libsectionless");
    let user = count("library_*:mod:libsectionless.so");
    let report = user.report().unwrap();
    assert!(report.traced == 3 || report.traced == 0, "{report:?}");
    works(&library);
    assert_eq!(user.user().both().0, report.traced as u64);
    drop(user);
    assert!(text("libsectionless") == before);
}

/// Bytes of other programs at the start of a function.
const FOREIGN: [(&str, [u8; 5]); 5] = [
    ("a breakpoint", [0xcc, 0, 0, 0, 0]),
    ("a jump", [0xe9, 0x10, 0x20, 0x30, 0x00]),
    ("a call", [0xe8, 0x10, 0x20, 0x30, 0x00]),
    ("a jump through memory", [0xff, 0x25, 0, 0, 0]),
    ("other code", [0x48, 0x31, 0xc0, 0xc3, 0x90]),
];

#[scenario]
fn text_that_others_have_patched_is_refused_and_left_alone() {
    let path = needs!(build("patched", &[]));
    let library = Library::open(&path);
    let address = library.address("library_one");
    for (what, foreign) in FOREIGN {
        let status = fgraph_scenario::forked(|| {
            let mut found: [u8; 5] = code(address);
            match foreign {
                // A breakpoint is one byte.
                [0xcc, ..] => found[0] = 0xcc,
                _ => found = foreign,
            }
            overwrite(address as usize, &found);
            let before = text("libpatched");
            let user = count("library_*:mod:libpatched.so");
            let report = user.report().unwrap();
            assert_eq!((report.traced, report.refused.len()), (2, 1), "{report:?}");
            assert_eq!(
                reason(&report, "library_one"),
                RefusalReason::Patched { found }
            );
            assert_eq!(code::<5>(address), found);
            drop(user);
            assert!(text("libpatched") == before);
            0
        });
        assert!(status.success(), "{what}: {status}");
    }
    // A breakpoint behind the first instruction counts as well.
    let status = fgraph_scenario::forked(|| {
        overwrite(address as usize + 4, &[0xcc]);
        let before = text("libpatched");
        let user = count("library_one:mod:libpatched.so");
        let report = user.report().unwrap();
        assert_eq!((report.traced, report.refused.len()), (0, 1), "{report:?}");
        drop(user);
        assert!(text("libpatched") == before);
        0
    });
    assert!(status.success(), "{status}");
    works(&library);
}

/// Another copy of fgraph in the same process, in a library, say: here it is what such a copy
/// leaves.
#[scenario]
fn functions_patched_later_are_refused_then() {
    let path = needs!(build("later", &[]));
    let library = Library::open(&path);
    let address = library.address("library_one");
    let original: [u8; 5] = code(address);
    // Known, but not patched.
    drop(count("library_two:mod:liblater.so"));
    let jump = [0xe9, 0x10, 0x20, 0x30, 0x00];
    overwrite(address as usize, &jump);
    let user = count("library_*:mod:liblater.so");
    let report = user.report().unwrap();
    assert_eq!((report.traced, report.refused.len()), (2, 1), "{report:?}");
    assert_eq!(
        reason(&report, "library_one"),
        RefusalReason::Changed { found: jump }
    );
    assert_eq!(code::<5>(address), jump);
    overwrite(address as usize, &original);
    works(&library);
    assert_eq!(user.user().both(), (4 - 2, 4 - 2));
    // And while it is ours.
    fgraph_scenario::set_filter(&user, "library_*:mod:liblater.so").unwrap();
    assert!(is_patched(address));
    overwrite(address as usize, &jump);
    drop(user);
    assert_eq!(code::<5>(address), jump, "it is the others' now");
    overwrite(address as usize, &original);
    works(&library);
    assert_eq!(patched(), 0);
}

/// Returns the offset in a file at which its loaded part ends.
fn loaded_len(path: &Path) -> u64 {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let path = path.to_str().unwrap();
    let end = |line: &str| {
        let mut words = line.split_whitespace();
        let (from, to) = words.next()?.split_once('-')?;
        let [from, to, offset] =
            [from, to, words.nth(1)?].map(|hex| u64::from_str_radix(hex, 16).unwrap());
        Some(offset + to - from)
    };
    let lines = maps.lines().filter(|line| line.ends_with(path));
    lines.filter_map(end).max().unwrap()
}

#[scenario]
fn a_file_may_be_changed_and_cut_off_while_it_is_traced() {
    let path = needs!(build("cut", &[]));
    let library = Library::open(&path);
    let functions = Log::new();
    let log = functions.clone();
    let notes = user(
        move |call| {
            log.push(call.function());
            None::<()>
        },
        |_, ()| (),
    );
    let user = fgraph_scenario::register(notes, "library_one:mod:libcut.so").unwrap();
    works(&library);
    let [function] = functions.take()[..] else {
        panic!("one call of one function");
    };
    assert_eq!(function.symbol(), "library_one");
    // The tables of symbols and sections, and their names, are behind what is loaded.
    let (loaded, len) = (loaded_len(&path), fs::metadata(&path).unwrap().len());
    assert!(loaded < len, "{loaded} {len}");
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&vec![0xff; (len - loaded) as usize], loaded)
        .unwrap();
    assert_eq!(function.symbol(), "library_one");
    file.set_len(loaded).unwrap();
    assert_eq!(function.symbol(), "library_one");
    let report = fgraph_scenario::set_filter(&user, "library_*:mod:libcut.so").unwrap();
    assert_eq!(report.traced, 3, "{report:?}");
    let sites = fgraph::sites().unwrap();
    assert!(sites.iter().any(|site| site.name == "library_three"));
    works(&library);
    assert_eq!(functions.take().len(), 3);
}

/// Changes the protection of the pages of a function.
fn protect(address: *const (), protection: i32) -> bool {
    let page = address as usize & !4095;
    // SAFETY: pages of a library of the test's own.
    unsafe { libc::mprotect(page as *mut libc::c_void, 4096, protection) == 0 }
}

#[scenario]
fn text_that_can_be_written_to_is_refused() {
    let path = needs!(build("writable", &[]));
    let library = Library::open(&path);
    let address = library.address("library_one");
    if !protect(
        address,
        libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
    ) {
        return skip!("no page may be writable and executable here");
    }
    let before: [u8; 16] = code(address);
    let user = count("library_*:mod:libwritable.so");
    let report = user.report().unwrap();
    assert_eq!((report.traced, report.refused.len()), (0, 3), "{report:?}");
    for refused in &report.refused {
        assert_eq!(refused.reason, RefusalReason::Writable, "{refused}");
    }
    works(&library);
    assert_eq!(user.unregister().unwrap().both(), (0, 0));
    assert_eq!(code::<16>(address), before);
}

#[scenario]
fn text_that_cannot_be_read_is_refused() {
    let path = needs!(build("unreadable", &[]));
    let library = Library::open(&path);
    let address = library.address("library_one");
    // Execute-only where the processor has protection keys, otherwise the kernel gives it as
    // asked for, and it can be read all the same.
    assert!(protect(address, libc::PROT_EXEC));
    let user = count("library_*:mod:libunreadable.so");
    let report = user.report().unwrap();
    assert_eq!((report.traced, report.refused.len()), (0, 3), "{report:?}");
    for refused in &report.refused {
        assert_eq!(refused.reason, RefusalReason::Unreadable, "{refused}");
    }
    works(&library);
    assert_eq!(user.user().both(), (0, 0));
}

/// While one thread loads, calls and unloads a library, others have filters for it come and go.
#[scenario]
fn a_library_may_be_unloaded_while_filters_change() {
    let path = needs!(build("comes", &[]));
    let steady = count("library_*:mod:libcomes.so");
    assert!(steady.report().unwrap().matches_nothing());
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::SeqCst) {
                    let user = count("library_*:mod:libcomes.so hidden:mod:libcomes.so");
                    fgraph_scenario::set_filter(&user, "library_one:mod:libcomes.so").unwrap();
                    fgraph_scenario::set_filter(&user, ":mod:libcomes.so").unwrap();
                    let (entries, returns) = user.unregister().unwrap().both();
                    assert!(entries >= returns);
                }
            });
        }
        let loader = scope.spawn(|| {
            for _ in 0..60 {
                let library = Library::open(&path);
                works(&library);
                thread::yield_now();
                works(&library);
                library.close();
            }
        });
        let result = loader.join();
        done.store(true, Ordering::SeqCst);
        result.unwrap();
    });
    let (entries, returns) = steady.unregister().unwrap().both();
    assert_eq!(entries, returns);
    assert_eq!(patched(), 0);
    // It is there to be traced still.
    let library = Library::open(&path);
    let user = count("library_*:mod:libcomes.so");
    assert_eq!(user.report().unwrap().traced, 3);
    works(&library);
    assert_eq!(user.unregister().unwrap().both(), (3, 3));
}

/// A defect of a library's file, and the function that makes it.
type Lie = (&'static str, fn(&mut Vec<u8>));

const LIES: &[Lie] = &[
    ("is empty", |bytes| bytes.clear()),
    ("ends in its header", |bytes| bytes.truncate(40)),
    ("ends behind its header", |bytes| bytes.truncate(64)),
    ("ends in the middle", |bytes| {
        bytes.truncate(bytes.len() / 2)
    }),
    ("ends in its tables", |bytes| {
        bytes.truncate(bytes.len() - 100)
    }),
    ("is not ELF", |bytes| bytes[..4].copy_from_slice(b"text")),
    ("is all zeros", |bytes| bytes.fill(0)),
    ("is of another machine", |bytes| bytes[0x12] = 0xb7),
    ("is of 32 bits", |bytes| bytes[4] = 1),
    ("is of the other byte order", |bytes| bytes[5] = 2),
    ("has its sections elsewhere", |bytes| {
        bytes[0x28..0x30].fill(0xff)
    }),
    ("has its segments elsewhere", |bytes| {
        bytes[0x20..0x28].fill(0xff)
    }),
    ("has more sections than it has", |bytes| {
        bytes[0x3c..0x3e].fill(0xff)
    }),
    ("has more segments than it has", |bytes| {
        bytes[0x38..0x3a].fill(0xff)
    }),
    ("has sections of no size", |bytes| bytes[0x3a..0x3c].fill(0)),
    ("has other symbols", |bytes| {
        garble_symbols(bytes, |symbol| symbol[8..24].fill(0xff))
    }),
    ("has symbols between functions", |bytes| {
        garble_symbols(bytes, |symbol| symbol[8] = symbol[8].wrapping_add(2))
    }),
    ("has symbols without names", |bytes| {
        garble_symbols(bytes, |symbol| symbol[..4].fill(0xff))
    }),
    ("has symbols of all sizes", |bytes| {
        garble_symbols(bytes, |symbol| symbol[16..24].fill(0x7f))
    }),
    ("has all symbols in one place", |bytes| {
        garble_symbols(bytes, |symbol| {
            symbol[8..16].copy_from_slice(&0x1000_u64.to_le_bytes())
        })
    }),
    ("says that its data is code", |bytes| {
        garble_symbols(bytes, |symbol| symbol[4] = 0x12)
    }),
];

/// Changes the entries of all tables of symbols.
fn garble_symbols(bytes: &mut [u8], change: impl Fn(&mut [u8])) {
    let word = |bytes: &[u8], at: usize| {
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize
    };
    let (sections, count) = (word(bytes, 0x28), usize::from(bytes[0x3c]));
    for section in 0..count {
        let header = sections + section * 64;
        let kind = bytes[header + 4];
        // SHT_SYMTAB and SHT_DYNSYM.
        if kind == 2 || kind == 11 {
            let (offset, size) = (word(bytes, header + 24), word(bytes, header + 32));
            bytes[offset..offset + size]
                .chunks_exact_mut(24)
                .for_each(&change);
        }
    }
}

/// The file of a loaded library is replaced by one that lies.
#[scenario]
fn files_that_lie_do_no_harm() {
    let path = needs!(build("lies", &[]));
    let honest = fs::read(&path).unwrap();
    let mut problems = Vec::new();
    for (what, lie) in LIES {
        let status = fgraph_scenario::forked(|| {
            let library = std::mem::ManuallyDrop::new(Library::open(&path));
            let before = text("liblies");
            assert_eq!(before.len(), 1);
            let mut bytes = honest.clone();
            lie(&mut bytes);
            // Another file by the same name; the loaded one stays what it is.
            fs::remove_file(&path).unwrap();
            fs::write(&path, bytes).unwrap();
            let user = count(":mod:liblies.so");
            let report = user.report().unwrap();
            // Its text is not what this file is of: not a byte of it is touched.
            let now = text("liblies");
            assert!(
                now.iter()
                    .map(|(_, bytes)| bytes)
                    .eq(before.iter().map(|(_, bytes)| bytes)),
                "{report:?}"
            );
            assert_eq!(report.traced, 0, "{report:?}");
            assert!(!report.matches_nothing(), "nothing is said");
            for refused in &report.refused {
                assert!(!refused.to_string().is_empty());
            }
            works(&library);
            assert_eq!(user.unregister().unwrap().both(), (0, 0));
            0
        });
        fs::remove_file(&path).unwrap();
        fs::write(&path, &honest).unwrap();
        if !status.success() {
            problems.push(format!("a file that {what}: {status}"));
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");
    let library = Library::open(&path);
    assert_eq!(
        count("library_*:mod:liblies.so").report().unwrap().traced,
        3
    );
    works(&library);
}

/// The file itself, not one in its place, is garbled before it is loaded: the loader takes no
/// notice of tables that it does not need.
#[scenario]
fn libraries_with_garbled_tables_do_no_harm() {
    let path = needs!(build("garbled", &[]));
    let honest = fs::read(&path).unwrap();
    for (what, lie) in LIES {
        let mut bytes = honest.clone();
        lie(&mut bytes);
        fs::remove_file(&path).unwrap();
        fs::write(&path, bytes).unwrap();
        let status = fgraph_scenario::forked(|| {
            // A child finds out if the loader accepts the file and gives its functions: a crash
            // does no harm there.
            let loads = fgraph_scenario::forked(|| {
                std::panic::set_hook(Box::new(|_| ()));
                works(&std::mem::ManuallyDrop::new(Library::open(&path)));
                0
            });
            if !loads.success() {
                return 0;
            }
            let library = std::mem::ManuallyDrop::new(Library::open(&path));
            let before = text("libgarbled");
            let user = count(":mod:libgarbled.so");
            drop(user);
            let after = text("libgarbled");
            assert!(
                after
                    .iter()
                    .map(|(_, bytes)| bytes)
                    .eq(before.iter().map(|(_, bytes)| bytes))
            );
            works(&library);
            0
        });
        assert!(status.success(), "a library that {what}: {status}");
    }
}

/// A function that says to be as long as it is not, and symbols of data within it.
#[scenario]
fn symbols_that_overlap_do_no_harm() {
    const ASSEMBLY: &str = "
        .text
        .globl library_one, library_two, library_three, inside, data, beyond
        .type library_one,@function
        .type library_two,@function
        .type library_three,@function
        .type inside,@function
        .type data,@object
        .type beyond,@function
        .p2align 4
    library_one:
        lea 1(%rdi,%rdi), %eax
        ret
        .size library_one, 1000
        .p2align 4
    library_two:
        lea (%rdi,%rdi,2), %eax
    inside:
        lea 5(%rax,%rdi,2), %eax
        lea (%rax,%rdi), %eax
        ret
        .size library_two, . - library_two
        .size inside, 1
    data:
        .quad 0x1122334455667788
        .size data, 8
        .p2align 4
    library_three:
        xor %eax, %eax
    1:  add %edi, %eax
        dec %edi
        jnz 1b
        ret
        .size library_three, 0
        .section .note.GNU-stack,\"\",@progbits
        .set beyond, library_three + 0x100000
    ";
    let path = needs!(build_library(&CC, "overlap.s", ASSEMBLY, &[]));
    let library = Library::open(&path);
    let answers = || {
        // SAFETY: their type.
        let [one, two, three]: [Int; 3] = unsafe {
            ["library_one", "library_two", "library_three"].map(|name| library.get(name))
        };
        [one(3), two(1), three(4)]
    };
    let untraced = answers();
    let data = library.address("data");
    let before = text("liboverlap");
    for filter in [
        ":mod:liboverlap.so",
        "inside:mod:liboverlap.so",
        "data",
        "beyond",
        "library_*",
    ] {
        let user = count(filter);
        println!("{filter}: {}", user.report().unwrap());
        for refused in &user.report().unwrap().refused {
            println!("  {refused}");
        }
        assert_eq!(answers(), untraced, "{filter}");
        assert_eq!(
            code::<8>(data),
            0x1122_3344_5566_7788_u64.to_le_bytes(),
            "{filter}"
        );
        drop(user);
        assert!(text("liboverlap") == before, "{filter}");
    }
    // A function can be traced if no other one begins inside it.
    let user = count("library_one:mod:liboverlap.so");
    assert_eq!(
        user.report().unwrap().traced,
        1,
        "{:?}",
        user.report().unwrap()
    );
}

/// Attaches a debugger, which does no more, to the calling thread. Returns true if that is allowed.
fn attach_debugger() -> bool {
    // SAFETY: the child makes system calls only, with memory of its own.
    unsafe {
        libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY);
        let thread = libc::gettid();
        let mut ends = [0; 2];
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        let child = libc::fork();
        if child == 0 {
            let refused = libc::ptrace(libc::PTRACE_SEIZE, thread, 0, 0) != 0;
            libc::write(ends[1], [u8::from(refused)].as_ptr().cast(), 1);
            let mut status = 0;
            while libc::waitpid(thread, &mut status, libc::__WALL) == thread
                && libc::WIFSTOPPED(status)
            {
                libc::ptrace(libc::PTRACE_CONT, thread, 0, libc::WSTOPSIG(status));
            }
            libc::_exit(0);
        }
        libc::close(ends[1]);
        let mut refused = [1_u8];
        libc::read(ends[0], refused.as_mut_ptr().cast(), 1);
        libc::close(ends[0]);
        refused == [0]
    }
}

/// A debugger's breakpoints come and go while functions are traced.
#[scenario]
fn breakpoints_of_a_debugger_are_left_alone() {
    let path = needs!(build("debugged", &[]));
    if !attach_debugger() {
        return skip!("processes may not be traced here");
    }
    let library = Library::open(&path);
    let [one, two] = ["library_one", "library_two"].map(|name| library.address(name));
    let originals: [[u8; 1]; 2] = [code(one), code(two)];
    drop(count("library_*:mod:libdebugged.so"));
    overwrite(one as usize, &[0xcc]);
    let user = count("library_*:mod:libdebugged.so");
    assert_eq!(
        (
            user.report().unwrap().traced,
            user.report().unwrap().refused.len()
        ),
        (2, 1)
    );
    // And one more where a jump of ours is.
    let ours: [u8; 5] = code(two);
    overwrite(two as usize, &[0xcc]);
    fgraph_scenario::set_filter(&user, "library_three:mod:libdebugged.so").unwrap();
    assert_eq!([code::<1>(one), code(two)], [[0xcc]; 2]);
    // The debugger takes its own back, and leaves what was there when it came.
    overwrite(one as usize, &originals[0]);
    overwrite(two as usize, &ours[..1]);
    works(&library);
    fgraph_scenario::set_filter(&user, "library_*:mod:libdebugged.so").unwrap();
    works(&library);
    drop(user);
    works(&library);
    assert_eq!([code::<1>(one), code(two)], originals);
}

#[scenario]
fn a_library_whose_symbols_are_in_another_file_is_traced() {
    let objcopy = needs!(OBJCOPY.find());
    let path = needs!(build("apart", &["-g", "-Wl,--build-id"]));
    let debug = path.with_extension("debug");
    let run = |arguments: &[&str], files: &[&Path]| {
        let mut command = Command::new(&objcopy);
        command.args(arguments).args(files);
        let output = bounded(&mut command);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    run(&["--only-keep-debug"], &[&path, &debug]);
    run(&["--strip-all"], &[&path]);
    // Only a file of the administrator's is looked for: this one is none of them.
    let library = Library::open(&path);
    let user = count("hidden:mod:libapart.so");
    assert!(user.report().unwrap().matches_nothing());
    drop(user);
    let user = count("library_*:mod:libapart.so");
    assert_eq!(user.report().unwrap().traced, 3);
    works(&library);
    assert_eq!(user.user().both(), (3, 3));
}

#[scenario]
fn a_record_that_fgraph_has_not_made_is_none_of_its_functions() {
    let user = count("getppid:mod:libc.so*");
    let [real] = user.functions().unwrap()[..] else {
        panic!("{:?}", user.functions());
    };
    for entry in [0, real.address() + 1, usize::MAX] {
        // In a module that there is.
        let made_up = function_of(Box::leak(Box::new(Site {
            entry,
            body: 0,
            interest: AtomicU16::new(0),
            lead: 0,
            state: AtomicU8::new(0),
            inner: [0; 4],
            name: SiteName::new("made up"),
            index: real.index(),
            module: real.module(),
            stub: 0,
            runtime: AtomicU64::new(0),
        })));
        assert_ne!(made_up, real);
        assert_eq!((made_up.symbol(), made_up.size()), ("", 0));
        let _ = made_up.source();
        assert_eq!(made_up.names().next(), None);
        assert_eq!(made_up.full_name().to_string(), "made up");
        let expected = FilterError::NoFunction { address: entry };
        let error = fgraph::sites_of(made_up).unwrap_err();
        assert_eq!(error, Error::Filter(expected.clone()));
        // SAFETY: as in `fgraph_scenario::register`.
        let error = unsafe { user.add_filter([real, made_up]) }.unwrap_err();
        assert_eq!(error, Error::Filter(expected));
    }
    assert_eq!(user.functions().unwrap(), [real]);
}
