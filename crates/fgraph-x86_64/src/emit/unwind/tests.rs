extern crate std;

use super::{CALLEE_SAVED, EH_FRAME_FDE, Row, Rows, Rule};
use crate::relocate::{Code, plan};
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};
use std::collections::{BTreeMap, BTreeSet};
use std::string::String;
use std::vec;
use std::vec::Vec;

/// Result of a program of call frame instructions from an address on: the CFA, when it is a
/// register and an offset, and the places of saved registers, as distances below the CFA.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct State {
    cfa: Option<(u64, i64)>,
    saved: BTreeMap<u64, i64>,
}

impl From<Rule> for State {
    fn from(rule: Rule) -> Self {
        let slots = CALLEE_SAVED.into_iter().zip(rule.saved);
        let saved = slots
            .filter(|(_, slot)| *slot != 0)
            .map(|(register, slot)| (register.into(), i64::from(slot) * 8));
        Self {
            cfa: Some((rule.register.into(), rule.offset.into())),
            saved: saved.chain([(16, 8)]).collect(),
        }
    }
}

/// Reads numbers off the front of a section.
struct Reader<'a> {
    bytes: &'a [u8],
    /// Address of the first of them.
    address: u64,
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.bytes.split_at(len);
        self.bytes = rest;
        self.address += len as u64;
        taken
    }

    fn unsigned(&mut self, len: usize) -> u64 {
        let bytes = self.take(len).iter().rev();
        bytes.fold(0, |value, byte| value << 8 | u64::from(*byte))
    }

    fn leb(&mut self, signed: bool) -> i64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = self.unsigned(1) as i64;
            value |= (byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                let negative = signed && byte & 0x40 != 0;
                return if negative { value | -1 << shift } else { value };
            }
        }
    }
}

/// The rows of one FDE.
struct Frame {
    start: u64,
    len: u64,
    rows: Vec<(u64, State)>,
}

impl Frame {
    fn at(&self, address: u64) -> &State {
        let row = self.rows.iter().rfind(|(from, _)| *from <= address);
        &row.unwrap().1
    }
}

/// Interprets an `.eh_frame` section: all that compilers write for x86-64, with pointers
/// relative to where they are. `None` stands for a CFA given by an expression.
fn frames(bytes: &[u8], address: u64) -> Vec<Frame> {
    let mut reader = Reader { bytes, address };
    // By address: the initial state, whether there is augmentation data.
    let mut cies = BTreeMap::new();
    let mut frames = Vec::new();
    while !reader.bytes.is_empty() {
        let at = reader.address;
        let len = reader.unsigned(4) as usize;
        if len == 0 {
            break;
        }
        let (field, bytes) = (reader.address, reader.take(len));
        let mut entry = Reader {
            bytes,
            address: field,
        };
        match entry.unsigned(4) {
            0 => {
                assert_eq!(entry.unsigned(1), 1, "version");
                let mut augmentation = String::new();
                while let byte @ 1.. = entry.unsigned(1) as u8 {
                    augmentation.push(byte.into());
                }
                let factors = [entry.leb(false), entry.leb(true), entry.leb(false)];
                assert_eq!(factors, [1, -8, 16]);
                let data = entry.leb(false) as usize;
                let data = entry.take(data);
                // R comes last, but for S, which has no data.
                assert!(augmentation.starts_with('z') && data.last() == Some(&0x1b));
                let mut rows = vec![(0, State::default())];
                run(&mut entry, &State::default(), &mut rows);
                cies.insert(at, rows.pop().unwrap().1);
            }
            back => {
                let initial = &cies[&(field - back)];
                let field = entry.address;
                let start = field.wrapping_add_signed(i64::from(entry.unsigned(4) as i32));
                let len = entry.unsigned(4);
                let data = entry.leb(false) as usize;
                entry.take(data);
                let mut rows = vec![(start, initial.clone())];
                run(&mut entry, initial, &mut rows);
                frames.push(Frame { start, len, rows });
            }
        }
    }
    frames
}

/// Runs a program from the state in the last of the rows.
fn run(program: &mut Reader<'_>, initial: &State, rows: &mut Vec<(u64, State)>) {
    let mut remembered = Vec::new();
    while !program.bytes.is_empty() {
        let opcode = program.unsigned(1);
        let (from, mut state) = rows.last().cloned().unwrap();
        let low = opcode & 0x3f;
        let mut advance = 0;
        match (opcode & 0xc0, low) {
            (0x40, by) => advance = by,
            (0x80, register) => {
                state.saved.insert(register, program.leb(false) * 8);
            }
            (0xc0, register) => {
                match initial.saved.get(&register) {
                    Some(slot) => state.saved.insert(register, *slot),
                    None => state.saved.remove(&register),
                };
            }
            (_, 0) => {}
            (_, 2) => advance = program.unsigned(1),
            (_, 3) => advance = program.unsigned(2),
            (_, 4) => advance = program.unsigned(4),
            (_, 0x05 | 0x11) => {
                let register = program.leb(false) as u64;
                state
                    .saved
                    .insert(register, program.leb(opcode == 0x11) * 8);
            }
            // Undefined: the outermost frame, or one that cannot be unwound.
            (_, 7) => {
                let register = program.leb(false) as u64;
                state.saved.remove(&register);
            }
            (_, 0x0a) => remembered.push(state.clone()),
            (_, 0x0b) => state = remembered.pop().unwrap(),
            (_, 0x0c) => {
                state.cfa = Some((program.leb(false) as u64, program.leb(false)));
            }
            (_, 0x0d) => {
                let register = program.leb(false) as u64;
                state.cfa = state.cfa.map(|(_, offset)| (register, offset));
            }
            (_, 0x0e) => {
                let offset = program.leb(false);
                state.cfa = state.cfa.map(|(register, _)| (register, offset));
            }
            (_, 0x0f) => {
                let len = program.leb(false) as usize;
                program.take(len);
                state.cfa = None;
            }
            (_, 0x12) => {
                state.cfa = Some((program.leb(false) as u64, program.leb(true) * -8));
            }
            // Expressions for registers, and registers saved in registers.
            (_, 0x10 | 0x16) => {
                let register = program.leb(false) as u64;
                let len = program.leb(false) as usize;
                program.take(len);
                state.saved.remove(&register);
            }
            (_, 0x09) => {
                program.leb(false);
                program.leb(false);
            }
            // The size of arguments.
            (_, 0x2e) => {
                program.leb(false);
            }
            _ => panic!("call frame instruction {opcode:#x}"),
        }
        if advance > 0 {
            rows.push((from + advance, state));
        } else {
            rows.last_mut().unwrap().1 = state;
        }
    }
}

const START: usize = 0x10_0000;
const AT: usize = 0x30_0000;

fn finish(rows: &Rows, len: usize) -> Frame {
    let bytes = rows.finish(START, len, AT);
    let mut frames = frames(&bytes, AT as u64);
    assert_eq!(frames.len(), 1);
    let frame = frames.pop().unwrap();
    assert_eq!((frame.start, frame.len), (START as u64, len as u64));
    frame
}

#[test]
fn a_stretch_without_rows_has_the_default_rule() {
    let frame = finish(&Rows::new(), 0x5000);
    assert_eq!(*frame.at(START as u64 + 0x4fff), Rule::DEFAULT.into());
    assert_eq!(frame.rows.len(), 1);
    // The FDE, for unwinders that want no CIE, points back to it; a zero ends the list.
    let bytes = Rows::new().finish(START, 1, AT);
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    assert_eq!(word(EH_FRAME_FDE + 4), EH_FRAME_FDE + 4);
    assert_eq!(word(bytes.len() - 4), 0);
    assert_eq!(EH_FRAME_FDE + 4 + word(EH_FRAME_FDE), bytes.len() - 4);
}

#[test]
fn an_address_that_is_known_takes_the_place_of_the_one_on_the_stack() {
    let known = Rule {
        offset: 136,
        returns_to: Some(0x1122_3344_5566_7788),
        ..Rule::DEFAULT
    };
    let row = |offset, rule| Row { offset, rule };
    let mut rows = Rows::new();
    rows.piece(0, 20, &[row(0, known), row(10, Rule::DEFAULT)]);
    let frame = finish(&rows, 20);
    let state = frame.at(START as u64);
    assert_eq!(
        (state.cfa, state.saved.get(&16)),
        (Some((7, 136)), None),
        "what an expression gives is not on the stack"
    );
    assert_eq!(*frame.at(START as u64 + 10), Rule::DEFAULT.into());
    let bytes = rows.finish(START, 20, AT);
    let expression = [
        0x16, 16, 9, 0x0e, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,
    ];
    assert!(
        bytes
            .windows(expression.len())
            .any(|part| part == expression)
    );
    // libgcc knows no initial rules: `DW_CFA_restore` of the return address would end the stack.
    assert!(!bytes[EH_FRAME_FDE..].contains(&0xd0));
}

#[test]
fn each_piece_has_its_rows_and_the_default_holds_between_them() {
    let rule = |register, offset, saved| Rule {
        register,
        offset,
        saved,
        returns_to: None,
    };
    let pieces = [
        // Offset, length, and offset and rule of each row.
        (
            0,
            10,
            vec![
                (1, rule(7, 16, [0, 2, 0, 0, 0, 0])),
                (4, rule(6, 16, [0, 2, 0, 0, 0, 0])),
            ],
        ),
        (10, 5, vec![]),
        (15, 5, vec![(0, rule(7, 16, [0; 6]))]),
        // Far away, with offsets that take several bytes.
        (
            0x90,
            100,
            vec![(70, rule(7, 0x12348, [300, 0, 0, 0, 0, 9]))],
        ),
        (
            0x300,
            9,
            vec![(1, rule(7, 0, [0; 6])), (2, rule(7, -1024, [0; 6]))],
        ),
        (0x2_0000, 9, vec![(8, rule(10, 8, [0; 6]))]),
    ];
    let len = 0x2_0020;
    let mut rows = Rows::new();
    let mut expected = vec![Rule::DEFAULT; len];
    for (offset, piece_len, piece) in &pieces {
        let piece: Vec<Row> = piece
            .iter()
            .map(|&(offset, rule)| Row { offset, rule })
            .collect();
        rows.piece(*offset, *piece_len, &piece);
        for row in &piece {
            expected[offset + row.offset..offset + piece_len].fill(row.rule);
        }
    }
    let frame = finish(&rows, len);
    for (offset, rule) in expected.into_iter().enumerate() {
        let address = (START + offset) as u64;
        assert_eq!(*frame.at(address), rule.into(), "{offset:#x}");
    }
}

#[test]
#[should_panic(expected = "pieces in order")]
fn pieces_are_added_in_the_order_of_addresses() {
    let row = Row {
        offset: 1,
        rule: Rule::DEFAULT.pushed(),
    };
    let mut rows = Rows::new();
    rows.piece(16, 4, &[row]);
    rows.piece(0, 4, &[row]);
}

/// The rows of every function of the C library against those that its own `.eh_frame` has for
/// the original instructions.
#[test]
fn the_rows_of_displaced_instructions_agree_with_the_compilers() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps
        .split_whitespace()
        .find(|word| word.contains("/libc.so") || word.contains("/libc-"))
        .expect("the tests are linked with the C library");
    let data = std::fs::read(path).unwrap();
    let file = object::File::parse(&*data).unwrap();
    let section = |name| {
        let section = file.section_by_name(name).unwrap();
        (section.data().unwrap(), section.address())
    };
    let (text, text_at) = section(".text");
    let (bytes, at) = section(".eh_frame");
    let compilers = frames(bytes, at);

    let mut sizes: BTreeMap<u64, u64> = BTreeMap::new();
    for symbol in file.dynamic_symbols().chain(file.symbols()) {
        let within = symbol.address().wrapping_sub(text_at) < text.len() as u64;
        if symbol.kind() == SymbolKind::Text && symbol.is_definition() && within {
            let size = sizes.entry(symbol.address()).or_default();
            *size = symbol.size().max(*size);
        }
    }
    let starts: BTreeSet<u64> = sizes.keys().copied().collect();
    // Pieces as long as their copies, one behind the other.
    let mut rows = Rows::new();
    let mut end = 0;
    let mut pieces = Vec::new();
    for (&start, &size) in &sizes {
        let from = (start - text_at) as usize;
        let next = starts.range(start + 1..).next();
        let to = next.map_or(text.len(), |next| (next - text_at) as usize);
        let endbr = if text[from..].starts_with(&[0xf3, 0x0f, 0x1e, 0xfa]) {
            4
        } else {
            0
        };
        let code = Code {
            bytes: &text[from + endbr..to],
            address: start as usize + endbr,
            size: (size as usize).saturating_sub(endbr),
        };
        let Ok(window) = plan(&code) else {
            continue;
        };
        let mut out = vec![0; window.relocated_len()];
        let relocated = window.relocate(START + end, &mut out).unwrap();
        rows.piece(end, relocated.len, &relocated.rows);
        pieces.push((code.address, end, window, relocated));
        end += out.len();
    }
    assert!(pieces.len() > 1000, "only {} functions", pieces.len());
    let ours = finish(&rows, end);

    let (mut compared, mut by_other_registers) = (0, 0);
    for (address, offset, window, relocated) in &pieces {
        let Some(theirs) = compilers
            .iter()
            .find(|frame| (*address as u64).wrapping_sub(frame.start) < frame.len)
        else {
            continue;
        };
        for k in (0..5).filter(|k| window.boundaries() & 1 << k != 0) {
            let theirs = theirs.at((address + k) as u64);
            let copy = START + offset + usize::from(relocated.resume[k]);
            let ours = ours.at(copy as u64);
            compared += 1;
            match (ours.cfa, theirs.cfa) {
                (Some(ours), Some(theirs)) if ours.0 == theirs.0 => {
                    assert_eq!(ours, theirs, "{address:#x}+{k}");
                }
                _ => by_other_registers += 1,
            }
            for (register, slot) in &theirs.saved {
                assert_eq!(
                    ours.saved.get(register),
                    Some(slot),
                    "{address:#x}+{k} {register}"
                );
            }
        }
    }
    assert!(compared > 2000, "{compared}");
    assert!(
        by_other_registers * 10 < compared,
        "{by_other_registers} of {compared}"
    );
}
