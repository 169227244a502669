use super::*;
use crate::elf::ElfFile;
use crate::testing;

/// A symbol of a made-up file. Its address is in one of the sections below.
#[derive(Clone, Copy)]
struct Row {
    name: &'static str,
    address: u64,
    size: u64,
    binding: u8,
    kind: u8,
    section: u16,
}

const FUNC: u8 = 2;
const IFUNC: u8 = 10;
const LOCAL: u8 = 0;
const GLOBAL: u8 = 1;
const WEAK: u8 = 2;
const UNDEFINED: u16 = 0;
const ABSOLUTE: u16 = 0xfff1;

const TEXT: Range<u64> = 0x1000..0x2000;
const PLT: Range<u64> = 0x2000..0x2100;
const INIT: Range<u64> = 0x2100..0x2110;
/// Said to be executable, but loaded as data.
const DATA: Range<u64> = 0x3000..0x3100;

fn global(name: &'static str, address: u64, size: u64) -> Row {
    Row {
        name,
        address,
        size,
        binding: GLOBAL,
        kind: FUNC,
        section: 1,
    }
}

fn local(name: &'static str, address: u64, size: u64) -> Row {
    Row {
        binding: LOCAL,
        ..global(name, address, size)
    }
}

/// A file with a `.symtab` and a `.dynsym`, without those that are empty.
fn file(symtab: &[Row], dynsym: &[Row]) -> Vec<u8> {
    const HEADERS: usize = 64 + 56;
    let section_names = b"\0.text\0.plt\0.init\0".to_vec();
    let mut content = section_names.clone();
    // The name, type, flags, address, offset, size and link of each section.
    let mut sections: Vec<[u64; 7]> = Vec::new();
    let exec = 6; // SHF_ALLOC | SHF_EXECINSTR
    sections.push([0; 7]);
    for (name, range) in [(1, TEXT), (7, PLT), (12, INIT), (1, DATA)] {
        sections.push([name, 1, exec, range.start, 0, range.end - range.start, 0]);
    }
    let names_len = section_names.len() as u64;
    sections.push([0, 3, 0, 0, HEADERS as u64, names_len, 0]);
    for (kind, rows) in [(2, symtab), (11, dynsym)] {
        if rows.is_empty() {
            continue;
        }
        let mut strings = vec![0];
        content.resize(content.len().next_multiple_of(8), 0);
        let at = HEADERS + content.len();
        for row in rows {
            content.extend((strings.len() as u32).to_le_bytes());
            content.extend([row.binding << 4 | row.kind, 0]);
            content.extend(row.section.to_le_bytes());
            content.extend(row.address.to_le_bytes());
            content.extend(row.size.to_le_bytes());
            // So that a name can be made no text.
            strings.extend(row.name.chars().map(|c| c as u8).chain([0]));
        }
        let len = 24 * rows.len() as u64;
        let link = sections.len() as u64 + 1;
        sections.push([0, kind, 0, 0, at as u64, len, link]);
        let at = HEADERS + content.len();
        sections.push([0, 3, 0, 0, at as u64, strings.len() as u64, 0]);
        content.extend(strings);
    }
    content.resize(content.len().next_multiple_of(8), 0);

    let mut out = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0];
    out.extend([0; 8]);
    out.extend([3, 0, 62, 0, 1, 0, 0, 0]); // ET_DYN, EM_X86_64
    let tables = [0, 64, (HEADERS + content.len()) as u64];
    out.extend(tables.iter().flat_map(|word| word.to_le_bytes()));
    out.extend([0; 4]);
    for half in [64, 56, 1, 64, sections.len() as u16, 5] {
        out.extend(half.to_le_bytes());
    }
    // PT_LOAD, readable and executable.
    out.extend([1, 0, 0, 0, 5, 0, 0, 0]);
    for word in [0, TEXT.start, 0, 0, DATA.start - TEXT.start, 0x1000] {
        out.extend(word.to_le_bytes());
    }
    out.extend(content);
    for [name, kind, flags, address, offset, size, link] in sections {
        out.extend((name as u32).to_le_bytes());
        out.extend((kind as u32).to_le_bytes());
        for word in [flags, address, offset, size] {
            out.extend(word.to_le_bytes());
        }
        out.extend((link as u32).to_le_bytes());
        out.extend([0; 4]);
        out.extend(8u64.to_le_bytes());
        out.extend(24u64.to_le_bytes());
    }
    out
}

fn read(bytes: &[u8]) -> Functions<'_> {
    Functions::read(&ElfFile::parse(bytes).unwrap(), None).unwrap()
}

/// All names of the function at an address.
fn names(functions: &Functions<'_>, address: u64) -> Vec<String> {
    let index = functions.index_at(address).unwrap();
    functions
        .names(index)
        .map(|name| name.to_string())
        .collect()
}

fn limit(functions: &Functions<'_>, address: u64) -> u64 {
    functions.get(functions.index_at(address).unwrap()).limit
}

#[test]
fn several_names_of_one_address_are_one_function() {
    let weak = Row {
        binding: WEAK,
        ..global("weak", 0x1010, 4)
    };
    let symtab = [
        local("local", 0x1010, 4),
        weak,
        global("later", 0x1020, 4),
        global("small", 0x1010, 2),
        global("_b", 0x1010, 4),
        global("c", 0x1010, 4),
    ];
    let bytes = file(&symtab, &[global("exported", 0x1010, 9)]);
    let functions = read(&bytes);
    assert_eq!(functions.len(), 2);
    assert_eq!(functions.get(0).size, 9);
    let expected = ["exported", "c", "small", "weak", "local", "_b"];
    assert_eq!(names(&functions, 0x1010), expected);
}

#[test]
fn a_name_in_several_tables_counts_once() {
    let symtab = [
        local("f", 0x1010, 4),
        local("g@@V2", 0x1020, 4),
        local("g@V1", 0x1020, 4),
    ];
    let dynsym = [global("f", 0x1010, 4), global("g", 0x1020, 4)];
    let bytes = file(&symtab, &dynsym);
    let functions = read(&bytes);
    assert_eq!(names(&functions, 0x1010), ["f"]);
    let mut found = names(&functions, 0x1020);
    found.sort_unstable();
    assert_eq!(found, ["g@@V2", "g@V1"]);
}

#[test]
fn the_tables_of_both_files_are_taken_together() {
    let stripped = file(&[], &[global("f", 0x1010, 4)]);
    let debug = file(
        &[local("hidden", 0x1020, 4), local("alias", 0x1010, 4)],
        &[],
    );
    assert!(read(&stripped).is_stripped());
    assert!(!read(&debug).is_stripped());
    let [stripped, debug] = [&stripped, &debug].map(|bytes| ElfFile::parse(bytes).unwrap());
    let functions = Functions::read(&stripped, Some(&debug)).unwrap();
    assert!(!functions.is_stripped());
    assert_eq!(names(&functions, 0x1010), ["f", "alias"]);
    assert_eq!(names(&functions, 0x1020), ["hidden"]);
}

#[test]
fn parts_that_are_jumped_to_are_no_functions() {
    let part = |name| [local("f", 0x1010, 4), local(name, 0x1800, 4)];
    for name in [
        "f.cold",
        "f.cold.1",
        "f.part.0.cold",
        "f.cold.llvm.1",
        "f.__part.1",
    ] {
        let bytes = file(&part(name), &[]);
        assert_eq!(read(&bytes).len(), 1, "{name}");
    }
    for name in [
        "f.part.0",
        "f.isra.0",
        "f.constprop.0",
        "f.lto_priv.0",
        "cold",
        ".cold",
        "f.colder",
        "_ZN1a4b..cold17h0123456789abcdefE",
        "_ZN1a8b..cold..c17h0123456789abcdefE",
    ] {
        let bytes = file(&part(name), &[]);
        assert_eq!(names(&read(&bytes), 0x1800), [name]);
    }
}

#[test]
fn names_come_without_what_makes_them_unique() {
    for (text, symbol) in [
        ("f.llvm.123", "f"),
        ("f.llvm.12AF@@V1", "f"),
        ("f.part.0.llvm.1", "f.part.0"),
        (".llvm.1", ".llvm.1"),
        ("f.llvm.x", "f.llvm.x"),
        ("@f", "@f"),
        ("f@", "f"),
        ("f@@", "f"),
    ] {
        assert_eq!(Name::new(text).unwrap().symbol, symbol);
    }
    assert_eq!(Name::new(""), None);
}

#[test]
fn addresses_that_are_no_function_are_dropped() {
    let at = |address, section| Row {
        section,
        ..global("f", address, 4)
    };
    let rows = [
        at(TEXT.start, 1),
        at(TEXT.end - 1, 1),
        at(INIT.start, 3),
        // These are not defined here.
        at(TEXT.start + 8, UNDEFINED),
        at(TEXT.start + 16, ABSOLUTE),
        // These are, but not where functions are.
        at(TEXT.start - 1, 1),
        at(PLT.start, 2),
        at(PLT.end - 1, 2),
        at(INIT.end, 3),
        at(DATA.start, 4),
        at(u64::MAX, 1),
    ];
    let bytes = file(&rows, &[]);
    let functions = read(&bytes);
    let addresses = (0..functions.len()).map(|index| functions.get(index).address);
    let expected = [TEXT.start, TEXT.end - 1, INIT.start];
    assert_eq!(addresses.collect::<Vec<_>>(), expected);
}

#[test]
fn no_function_goes_beyond_its_section() {
    let rows = [
        global("a", TEXT.end - 8, u64::MAX),
        global("b", INIT.start, 0x100),
        global("c", INIT.end - 1, 0),
    ];
    let bytes = file(&rows, &[]);
    let functions = read(&bytes);
    let [a, b, c] = [0, 1, 2].map(|index| functions.get(index));
    assert_eq!((a.size, a.limit), (8, TEXT.end));
    assert_eq!((b.size, b.limit), (0x10, INIT.end - 1));
    assert_eq!((c.size, c.limit), (0, INIT.end));
}

#[test]
fn a_function_is_limited_by_whatever_comes_next() {
    let label = |name, address, size| Row {
        kind: 0,
        ..local(name, address, size)
    };
    let rows = [
        global("sized", 0x1010, 8),
        // Inside, and so a part of it.
        label("inner", 0x1014, 0),
        label("behind", 0x1019, 0),
        global("before_cold", 0x1020, 3),
        local("other.cold", 0x1023, 9),
        global("bare", 0x1030, 0),
        label("label", 0x1034, 0),
        global("outer", 0x1040, 0x20),
        global("nested", 0x1048, 4),
        label("hidden", 0x1050, 0),
    ];
    let bytes = file(&rows, &[]);
    let functions = read(&bytes);
    assert_eq!(functions.len(), 5);
    assert_eq!(limit(&functions, 0x1010), 0x1019);
    assert_eq!(limit(&functions, 0x1020), 0x1023);
    assert_eq!(limit(&functions, 0x1030), 0x1034);
    assert_eq!(limit(&functions, 0x1040), 0x1048);
    assert_eq!(limit(&functions, 0x1048), TEXT.end);
}

#[test]
fn functions_without_a_name_stay() {
    // The last is no text in UTF-8.
    let rows = [local("", 0x1010, 4), local("f\u{ff}", 0x1020, 4)];
    let bytes = file(&rows, &[]);
    let mut functions = read(&bytes);
    assert!(names(&functions, 0x1010).is_empty());
    assert!(names(&functions, 0x1020).is_empty());
    let name = Name::new("named").unwrap();
    functions.add_names([(0x1020, name)]);
    assert!(names(&functions, 0x1010).is_empty());
    assert_eq!(names(&functions, 0x1020), ["named"]);
    assert_eq!(functions.get(1).size, 4);
}

#[test]
fn a_function_goes_by_the_name_that_programmers_know() {
    // As in the C library of Debian, and mangled.
    let weak = |name, address| Row {
        binding: WEAK,
        ..global(name, address, 4)
    };
    let rows = [
        global("cfree@V1", 0x1010, 4),
        global("__libc_free@@V1", 0x1010, 4),
        weak("free@@V1", 0x1010),
        global("__close@@V1", 0x1020, 4),
        weak("close@@V1", 0x1020),
        local("_fini_array", 0x1020, 4),
        global("__aliased", 0x1030, 4),
        weak("_ZN1a1fEv", 0x1030),
        weak("_RNvC1a1f", 0x1040),
        global("_Report", 0x1040, 4),
    ];
    let bytes = file(&rows, &[]);
    let functions = read(&bytes);
    let best = [0, 1, 2, 3].map(|index| functions.names(index).next().unwrap().symbol);
    assert_eq!(best, ["free", "close", "_ZN1a1fEv", "_RNvC1a1f"]);
}

#[test]
fn added_names_go_before_those_of_its_own() {
    let resolver = Row {
        kind: IFUNC,
        ..global("f@@V1", 0x1010, 4)
    };
    let bytes = file(&[resolver, local("f_avx", 0x1020, 4)], &[]);
    let mut functions = read(&bytes);
    let name = functions.names(0).next().unwrap();
    functions.add_names([
        (0x1020, name),
        (0x1030, name),
        (0x1020, name),
        (PLT.start, name),
    ]);
    assert_eq!(functions.len(), 3);
    assert_eq!(names(&functions, 0x1010), ["f@@V1"]);
    assert_eq!(names(&functions, 0x1020), ["f@@V1", "f_avx"]);
    assert_eq!(names(&functions, 0x1030), ["f@@V1"]);
    let resolvers = [0, 1, 2].map(|index| functions.get(index).is_resolver);
    assert_eq!(resolvers, [true, false, false]);
    assert_eq!(functions.ifuncs().collect::<Vec<_>>(), [(0, name)]);
}

#[test]
fn lookup_agrees_with_a_linear_search() {
    // Some two hundred overlapping functions from a little generator.
    let mut state = 1u32;
    let mut next = |below: u64| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        u64::from(state >> 16) % below
    };
    let rows: Vec<_> = (0..200)
        .map(|_| local("f", TEXT.start + 2 * next(150), next(20)))
        .collect();
    let bytes = file(&rows, &[]);
    let functions = read(&bytes);
    let all: Vec<_> = (0..functions.len())
        .map(|index| functions.get(index))
        .collect();
    assert!(all.is_sorted_by(|a, b| a.address < b.address));
    for address in TEXT.start - 1..TEXT.start + 330 {
        let holds = |f: &FunctionSymbol| (f.address..f.address + f.size.max(1)).contains(&address);
        assert_eq!(functions.containing(address), all.iter().rposition(holds));
        let starts = all.iter().position(|f| f.address == address);
        assert_eq!(functions.index_at(address), starts);
    }
}

#[test]
fn a_function_takes_24_bytes() {
    let rows: Vec<_> = (0..1000)
        .map(|index| global("f", TEXT.start + 4 * index, 4))
        .collect();
    let bytes = file(&rows, &rows);
    let functions = read(&bytes);
    assert_eq!(functions.len(), 1000);
    let ranges = functions.text.capacity() * size_of::<Range<u64>>();
    assert_eq!(functions.memory() - ranges, 24_000);
}

#[test]
fn damaged_files_never_panic() {
    let rows = [
        global("f@@V", 0x1010, 4),
        local("f.cold", 0x1018, 4),
        local("g", 0x1010, u64::MAX),
    ];
    let good = file(&rows, &rows[..1]);
    testing::read_damaged(&good);
}

/// The file of the program that runs, and its many functions.
pub(super) fn of_this_program() -> (ElfFile<'static>, Functions<'static>) {
    let program = std::fs::read("/proc/self/exe").unwrap();
    let words: Vec<u64> = program
        .chunks(8)
        .map(|bytes| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_ne_bytes(word)
        })
        .collect();
    let bytes = object::pod::bytes_of_slice(words.leak());
    let file = ElfFile::parse(&bytes[..program.len()]).unwrap();
    let functions = Functions::read(&file, None).unwrap();
    assert!(functions.len() > 100);
    (file, functions)
}

#[test]
fn names_that_are_added_leave_other_functions_as_they_are() {
    let (_, before) = of_this_program();
    let mut after = before.clone();
    let name = Name {
        symbol: "added",
        version: None,
    };
    // In the middle of functions as well.
    let places = (0..before.len()).step_by(7);
    let places = places.map(|index| before.address(index) + index as u64 % 2);
    let places: Vec<u64> = places.collect();
    after.add_names(places.iter().map(|&at| (at, name)));
    for index in 0..before.len() {
        let now = after.index_at(before.address(index)).unwrap();
        let is_named = places.contains(&before.address(index));
        let names = after.names(now).skip(usize::from(is_named));
        assert!(names.eq(before.names(index)));
        assert_eq!(after.get(now).size, before.get(index).size);
    }
    for &place in &places {
        let index = after.index_at(place).unwrap();
        assert_eq!(after.names(index).next(), Some(name));
        assert_eq!(after.containing(place), Some(index));
    }
}
