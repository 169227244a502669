//! Removes LLVM's complaints from the output of rustc.
//!
//! The list names the functions of the whole crate. rustc passes a crate to LLVM in several units.
//! For each unit LLVM complains about each function of the list that is in another unit:
//!
//! ```text
//!   Function in CSV file at line 17 does not exist.
//! ```
//!
//! It writes this in three pieces, from several threads at once. The pieces arrive in any order,
//! with rustc's own lines between them. Cargo waits for some of these lines, so they must arrive
//! whole and at once. A piece that is followed by something else on its line is cut off.

// Long strings: output of compilers.

use std::io::{self, BufRead, Write};

const BEFORE: &[u8] = b"Function in CSV file at line ";
const BEHIND: &[u8] = b" does not exist.";

/// Copies lines as they come, without LLVM's complaints.
///
/// # Errors
///
/// Errors of reading and writing.
pub(crate) fn drop_from(mut from: impl BufRead, mut to: impl Write) -> io::Result<()> {
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line)? > 0 {
        if let Some(rest) = rest(&line) {
            to.write_all(rest)?;
        }
        line.clear();
    }
    Ok(())
}

/// Returns a line without the pieces of complaints at its start; nothing if it consists only of
/// these.
fn rest(line: &[u8]) -> Option<&[u8]> {
    let mut rest = line;
    let mut complains = false;
    loop {
        if let Some(behind) = rest.strip_prefix(BEFORE).or(rest.strip_prefix(BEHIND)) {
            complains = true;
            rest = behind;
        } else if let [b'0'..=b'9', behind @ ..] = rest {
            rest = behind;
        } else {
            break;
        }
    }
    match rest {
        b"" | b"\n" if complains => None,
        // A message of rustc. A number before it belongs to a complaint, whose other pieces are
        // elsewhere.
        [b'{', ..] => Some(rest),
        _ if complains => Some(rest),
        // A line that starts with a number by chance.
        _ => Some(line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(text: &str) -> String {
        let mut left = Vec::new();
        drop_from(text.as_bytes(), &mut left).unwrap();
        String::from_utf8(left).unwrap()
    }

    #[test]
    fn complaints_go_however_their_pieces_fall() {
        assert_eq!(
            left("Function in CSV file at line 17 does not exist.\n"),
            ""
        );
        let mixed = "Function in CSV file at line Function in CSV file at line 1217 does not exist.\n \
                     does not exist.\n";
        assert_eq!(left(mixed), "");
    }

    #[test]
    fn messages_between_the_pieces_arrive_whole() {
        let text =
            "Function in CSV file at line {\"a\":1}\n12{\"b\":2}\n does not exist.\n{\"c\":3}\n";
        assert_eq!(left(text), "{\"a\":1}\n{\"b\":2}\n{\"c\":3}\n");
    }

    #[test]
    fn all_else_stays() {
        for text in [
            "",
            "\n",
            "12\n",
            "3 warnings\n",
            "error: Function in CSV file at line 3 does not exist.\n",
            "no line's end",
        ] {
            assert_eq!(left(text), text);
        }
    }
}
