//! The tables from instructions to source lines, in the forms of CPython's releases.

/// Form of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineTable {
    /// Until CPython 3.9: steps of the instruction and of the line.
    Steps,
    /// CPython 3.10: ranges of instructions, some of them without a line.
    Ranges,
    /// From CPython 3.11 on: ranges with columns.
    Locations,
}

/// Returns the line of an instruction, which is `at` bytes after the first one. `first` is the line
/// where the function begins.
pub(super) fn line(form: LineTable, table: &[u8], first: u32, at: u32) -> Option<u32> {
    let line = match form {
        LineTable::Steps => Some(steps(table, first.into(), at.into())),
        LineTable::Ranges => ranges(table, first.into(), at.into()),
        LineTable::Locations => locations(table, first.into(), at.into()),
    };
    line.and_then(|line| u32::try_from(line).ok())
}

fn steps(table: &[u8], first: i64, at: i64) -> i64 {
    let (mut start, mut line) = (0, first);
    for &[bytes, lines] in table.as_chunks().0 {
        start += i64::from(bytes);
        if start > at {
            break;
        }
        line += i64::from(lines.cast_signed());
    }
    line
}

fn ranges(table: &[u8], first: i64, at: i64) -> Option<i64> {
    const NO_LINE: i8 = i8::MIN;
    let (mut end, mut line) = (0, first);
    for &[bytes, lines] in table.as_chunks().0 {
        end += i64::from(bytes);
        let lines = lines.cast_signed();
        if lines != NO_LINE {
            line += i64::from(lines);
        }
        if at < end {
            return (lines != NO_LINE).then_some(line);
        }
    }
    None
}

fn locations(table: &[u8], first: i64, at: i64) -> Option<i64> {
    /// Set in the first byte of an entry, and in no other one.
    const FIRST: u8 = 0x80;
    /// Bytes of an instruction.
    const UNIT: i64 = 2;
    let (mut end, mut line) = (0, first);
    let mut rest = table;
    while let Some((&head, more)) = rest.split_first() {
        let next = more.iter().position(|byte| byte & FIRST != 0);
        let (entry, after) = more.split_at(next.unwrap_or(more.len()));
        rest = after;
        end += UNIT * i64::from((head & 7) + 1);
        let form = head >> 3 & 0xf;
        line += match form {
            13 | 14 => signed(entry),
            10..=12 => i64::from(form) - 10,
            _ => 0,
        };
        if at < end {
            return (form != 15).then_some(line);
        }
    }
    None
}

/// Reads a signed number of groups of six bits, the lowest bits first.
fn signed(bytes: &[u8]) -> i64 {
    let mut value: u64 = 0;
    for (nth, byte) in (0..).zip(bytes.iter().take(8)) {
        value |= u64::from(byte & 0x3f) << (6 * nth);
        if byte & 0x40 == 0 {
            break;
        }
    }
    let size = (value >> 1).cast_signed();
    if value & 1 == 1 { -size } else { size }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_each_form() {
        // Two instructions on line 10, two on 12, two on 11.
        let steps = [4, 2, 4, 0xff];
        // The same, and one without a line after the first two.
        let ranges = [4, 0, 2, 0x80, 4, 2, 4, 0xff];
        // Two without columns, one without a line, two short ones a line further, one far back.
        let back = [0x80 | 14 << 3, 0x40 | 0x2b, 0x01, 0, 0, 0];
        let locations = [
            &[0x80 | 13 << 3 | 1, 0, 0x80 | 15 << 3][..],
            &[0x80 | 11 << 3 | 1, 3, 4],
            &back,
        ];
        let locations = locations.concat();
        for (form, table, at, expected) in [
            (LineTable::Steps, &steps[..], 0, Some(10)),
            (LineTable::Steps, &steps, 3, Some(10)),
            (LineTable::Steps, &steps, 4, Some(12)),
            (LineTable::Steps, &steps, 9, Some(11)),
            (LineTable::Ranges, &ranges, 2, Some(10)),
            (LineTable::Ranges, &ranges, 4, None),
            (LineTable::Ranges, &ranges, 6, Some(12)),
            (LineTable::Ranges, &ranges, 12, Some(11)),
            (LineTable::Ranges, &ranges, 14, None),
            (LineTable::Locations, &locations, 2, Some(10)),
            (LineTable::Locations, &locations, 4, None),
            (LineTable::Locations, &locations, 8, Some(11)),
            (LineTable::Locations, &locations, 10, None),
            (LineTable::Locations, &[], 0, None),
        ] {
            assert_eq!(line(form, table, 10, at), expected, "{form:?} {at}");
        }
        // The number is -53: 0x2b | 1 << 6 is 107, and its lowest bit the sign.
        assert_eq!(line(LineTable::Locations, &locations, 100, 10), Some(48));
    }
}
