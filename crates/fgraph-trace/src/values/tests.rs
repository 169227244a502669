//! Layouts as text, and values of words that are right or not.

use proptest::prelude::*;

use super::*;

fn field(offset: u16, name: &str, shape: Shape) -> ShapeField {
    ShapeField {
        name: name.into(),
        offset,
        shape,
    }
}

fn recorded(shape: Shape, in_memory: bool) -> Option<Recorded> {
    Some(Recorded { shape, in_memory })
}

/// A layout with a shape of each kind.
fn layout() -> Layout {
    let variant = |name: &str, tag, fields| ShapeVariant {
        name: name.into(),
        tag,
        fields,
    };
    let text = || Shape::Str {
        size: 16,
        data: 0,
        len: 8,
    };
    let structure = Shape::Struct {
        size: 32,
        name: "a, b: {}".into(),
        fields: vec![
            field(0, "flag", Shape::Bool),
            field(4, "char", Shape::Char),
            field(8, "text", Shape::CString),
            field(16, "floats", Shape::Array(Box::new(Shape::Float(4)), 2)),
            field(24, "bytes", Shape::Opaque(3)),
        ],
    };
    let slice = Shape::Slice {
        size: 16,
        data: 0,
        len: 8,
        element: Box::new(Shape::Signed(2)),
    };
    let option = Shape::Variants {
        size: 16,
        tag: (0, 8),
        variants: vec![
            variant("None", Some(0), vec![]),
            variant("Some", None, vec![field(0, "__0", text())]),
        ],
    };
    let names = vec![(1, "ONE".into()), (0xff, "MINUS".into())];
    let argument = |name: &str, value| Argument {
        name: name.into(),
        value,
    };
    Layout {
        arguments: vec![
            argument("n", recorded(Shape::Unsigned(4), false)),
            argument("", None),
            argument("s", recorded(structure, false)),
            argument("row", recorded(slice, true)),
            argument("o", recorded(option, false)),
            argument("r", recorded(Shape::Reference(Box::new(text())), false)),
            argument(
                "naïve",
                recorded(Shape::Enumeration { size: 1, names }, false),
            ),
        ],
        result: recorded(Shape::Pointer, false),
    }
}

fn word(bytes: &[u8]) -> u64 {
    let mut whole = [0; 8];
    whole[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(whole)
}

/// Words for that layout.
fn words() -> Vec<u64> {
    let floats = u64::from(1.5_f32.to_bits()) | u64::from((-2.0_f32).to_bits()) << 32;
    let row = [16, 0x1000, 5, MORE | 4, word(&[1, 0, 0xff, 0xff])];
    let option = [0x2000, 3, 3, word(b"\"a\n")];
    let reference = [0x3000, 16, 0x4000, 7, 7, word(b"text \xffz")];
    [7, 1 | u64::from('ß') << 32, 0x1234, floats, 0x03_02_01]
        .into_iter()
        .chain([2 | FAULT, word(b"zz")])
        .chain(row)
        .chain(option)
        .chain(reference)
        .chain([0xff])
        .collect()
}

#[test]
fn a_layout_is_read_as_it_was_written() {
    let layout = layout();
    assert_eq!(Layout::parse(&layout.to_string()), Some(layout));
    assert_eq!(Layout::parse("0,-"), Some(Layout::default()));
}

#[test]
fn values_are_written_as_their_types_say() {
    let expected = "n=7, =?, s=a, b: {} { flag: true, char: 'ß', text: \"zz\"..., \
                    floats: [1.5, -2.0], bytes: 0x030201 }, row=[1, -1, ...], \
                    o=Some(\"\\\"a\\n\"), r=&\"text \\xffz\", naïve=MINUS";
    assert_eq!(layout().arguments(&words()).to_string(), expected);
    let result = layout();
    assert_eq!(result.result(&[16]).unwrap().to_string(), "0x10");
    assert!(result.result(&[]).is_none());
}

#[test]
fn unreadable_values_are_addresses() {
    let one = |shape: Shape, words: &[u64]| {
        let layout = Layout {
            arguments: Vec::new(),
            result: recorded(shape, false),
        };
        layout.result(words).unwrap().to_string()
    };
    let text = Shape::Reference(Box::new(Shape::Unsigned(8)));
    assert_eq!(one(Shape::CString, &[0, FAULT]), "NULL");
    assert_eq!(one(Shape::CString, &[1, FAULT]), "0x1(fault)");
    assert_eq!(one(text, &[1, FAULT, 0]), "0x1(fault)");
    assert_eq!(one(Shape::Bool, &[7]), "7");
    assert_eq!(one(Shape::Char, &[0xd800]), "0xd800");
}

#[test]
fn words_that_end_too_early_end_the_values() {
    let (layout, words) = (layout(), words());
    for len in 0..words.len() {
        let text = layout.arguments(&words[..len]).to_string();
        assert!(text.ends_with('?'), "{text}");
    }
}

#[test]
fn a_layout_that_is_too_large_is_none() {
    let deep = format!("0,={}b", "a2,".repeat(100));
    let wide = format!("{},", u64::MAX);
    for text in [
        deep.as_str(),
        &wide,
        "",
        "0,=&&b",
        "0,=i9,",
        "0,=b-",
        "0,+1:x",
        "1,4:né",
    ] {
        assert_eq!(Layout::parse(text), None, "{text}");
    }
}

#[test]
fn rows_that_never_end_are_cut() {
    let huge = format!("0,={}u1,", "a65535,".repeat(20));
    let layout = Layout::parse(&huge).unwrap();
    assert_eq!(layout.result(&[1]).unwrap().to_string(), "?");
    let nothing = format!("0,={}{{0,0:0,", "a65535,".repeat(20));
    let layout = Layout::parse(&nothing).unwrap();
    assert!(layout.result(&[1]).unwrap().to_string().len() < 10_000);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 8 } else { 512 }))]

    #[test]
    fn no_text_and_no_words_do_harm(
        at in 0_usize..400,
        insert in "[-=*bcpziufx&s\\[ae{|0-9,:]{0,12}",
        words in prop::collection::vec(any::<u64>(), 0..64),
    ) {
        let mut text = layout().to_string();
        let at = (0..=at.min(text.len())).rfind(|&at| text.is_char_boundary(at)).unwrap_or(0);
        let end = (at + insert.len()).min(text.len());
        let end = (end..=text.len()).find(|&end| text.is_char_boundary(end)).unwrap_or(end);
        text.replace_range(at..end, &insert);
        for layout in [Layout::parse(&text), Some(layout())].into_iter().flatten() {
            let written = layout.arguments(&words).to_string();
            prop_assert!(written.len() < 1 << 20);
            let _ = layout.result(&words).map(|result| result.to_string());
        }
    }
}
