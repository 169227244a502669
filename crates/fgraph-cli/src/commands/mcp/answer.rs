//! Views, cut to a size that a client can use.

use serde_json::{Map, Value, json};

/// The most bytes of a view in an answer.
const MOST_BYTES: usize = 48 << 10;
/// The longest text in a view, in bytes.
const LONGEST_TEXT: usize = 1000;
/// The most cuts that an answer lists.
const MOST_CUTS: usize = 10;

/// The rows that a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) offset: usize,
    pub(super) limit: usize,
}

/// Limits of what is shown.
#[derive(Clone, Copy, Debug)]
struct Limits {
    page: Page,
    /// Elements of other lists.
    others: usize,
    /// Nested lists.
    depth: usize,
}

/// A view that is cut.
#[derive(Debug)]
struct Cutter<'a> {
    rows: &'a [&'a str],
    limits: Limits,
    cuts: Vec<Value>,
    is_cut: bool,
    /// The most rows of a list of rows, and the most that are shown of one.
    total: usize,
    shown: usize,
}

/// Returns the beginning of a text, of at most this number of bytes.
pub(super) fn first(text: &str, most: usize) -> &str {
    let mut end = most.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Returns the part of a view that is on a page, as fields of an answer. `rows` is the path of the
/// list with the rows, where `*` is each element of a list.
pub(super) fn page(view: &Value, rows: &[&str], page: Page) -> Map<String, Value> {
    let mut limits = Limits {
        page,
        others: 30,
        depth: 24,
    };
    loop {
        let mut cutter = Cutter {
            rows,
            limits,
            cuts: Vec::new(),
            is_cut: false,
            total: 0,
            shown: 0,
        };
        let view = cutter.cut(view, Some(rows), 0, &mut String::new());
        let is_small = serde_json::to_string(&view).is_ok_and(|text| text.len() <= MOST_BYTES);
        let is_smallest = limits.page.limit <= 1 && limits.others <= 1 && limits.depth <= 1;
        if is_small || is_smallest {
            return cutter.fields(view);
        }
        // Details of rows go before rows do.
        match limits.others {
            0..=2 if limits.page.limit > 1 => limits.page.limit /= 2,
            0..=1 => limits.depth /= 2,
            _ => limits.others /= 2,
        }
    }
}

impl Cutter<'_> {
    /// `rows` is the rest of the path to the rows, unless `value` is beside it.
    fn cut(
        &mut self,
        value: &Value,
        rows: Option<&[&str]>,
        depth: usize,
        at: &mut String,
    ) -> Value {
        let len = at.len();
        match value {
            Value::String(text) if text.len() > LONGEST_TEXT => {
                Value::String(format!("{}…", first(text, LONGEST_TEXT)))
            }
            Value::Array(all) => {
                let (from, most) = match rows {
                    Some([]) => (self.limits.page.offset, self.limits.page.limit),
                    // Each is a list with rows.
                    Some(["*", ..]) => (0, usize::MAX),
                    _ if depth >= self.limits.depth => (0, 0),
                    _ => (0, self.limits.others),
                };
                let shown = all.len().saturating_sub(from).min(most);
                if rows == Some(&[]) {
                    self.total = self.total.max(all.len());
                    self.shown = self.shown.max(shown);
                } else if shown < all.len() {
                    self.is_cut = true;
                    if self.cuts.len() < MOST_CUTS {
                        let cut = json!({ "at": at, "shown": shown, "of": all.len() });
                        self.cuts.push(cut);
                    }
                }
                let inner = match rows {
                    Some(["*", rest @ ..]) => Some(rest),
                    _ => None,
                };
                let all = all.iter().enumerate().skip(from).take(shown);
                let all = all.map(|(nth, value)| {
                    *at += &format!("/{nth}");
                    let value = self.cut(value, inner, depth + 1, at);
                    at.truncate(len);
                    value
                });
                Value::Array(all.collect())
            }
            Value::Object(all) => {
                let all = all.iter().map(|(key, value)| {
                    let rows = match rows {
                        Some([first, rest @ ..]) if first == key => Some(rest),
                        _ => None,
                    };
                    *at += "/";
                    *at += key;
                    let value = self.cut(value, rows, depth, at);
                    at.truncate(len);
                    (key.clone(), value)
                });
                Value::Object(all.collect())
            }
            other => other.clone(),
        }
    }

    fn fields(self, view: Value) -> Map<String, Value> {
        let mut fields = Map::new();
        fields.insert("view".to_owned(), view);
        if !self.rows.is_empty() {
            let Page { offset, .. } = self.limits.page;
            let mut rows = json!({
                "of": self.rows.join("/"),
                "offset": offset,
                "shown": self.shown,
                "total": self.total,
            });
            if self.total > offset + self.shown && self.shown > 0 {
                rows["next_offset"] = (offset + self.shown).into();
            }
            fields.insert("rows".to_owned(), rows);
        }
        if self.is_cut {
            fields.insert("cut".to_owned(), self.cuts.into());
        }
        fields
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: Page = Page {
        offset: 2,
        limit: 3,
    };

    #[test]
    fn a_page_has_its_rows_and_says_how_many_there_are() {
        let lines: Vec<Value> = (0..10).map(|nth| json!({ "nth": nth })).collect();
        let view = json!({ "calls": 10, "lines": lines });
        let of = page(&view, &["lines"], PAGE);
        assert_eq!(
            of["view"]["lines"],
            json!(view["lines"].as_array().unwrap()[2..5])
        );
        assert_eq!(of["view"]["calls"], 10);
        let rows = json!({
            "of": "lines", "offset": 2, "shown": 3, "total": 10, "next_offset": 5
        });
        assert_eq!(of["rows"], rows);
        assert_eq!(of.get("cut"), None);
        let last = Page {
            offset: 8,
            limit: 3,
        };
        assert_eq!(
            page(&view, &["lines"], last)["rows"].get("next_offset"),
            None
        );
        let behind = Page {
            offset: usize::MAX,
            limit: 3,
        };
        assert_eq!(page(&view, &["lines"], behind)["rows"]["shown"], 0);
    }

    #[test]
    fn rows_may_be_in_each_element_of_a_list() {
        let view = json!({ "actions": [{ "rows": [1, 2, 3, 4] }, { "rows": [5] }] });
        let of = page(&view, &["actions", "*", "rows"], PAGE);
        assert_eq!(
            of["view"],
            json!({ "actions": [{ "rows": [3, 4] }, { "rows": [] }] })
        );
        assert_eq!(of["rows"]["total"], 4);
    }

    #[test]
    fn no_view_is_longer_than_the_limit() {
        let mut tree = json!([]);
        for _ in 0..50 {
            tree = json!([{ "next": tree, "name": "é".repeat(1000) }, 1, 2, 3]);
        }
        let wide: Vec<Value> = (0..40).map(|nth| json!([nth, [tree]])).collect();
        for view in [json!({ "lines": wide, "tree": tree }), tree] {
            let of = page(&view, &["lines"], PAGE);
            let text = serde_json::to_string(&of).unwrap();
            assert!(text.len() <= MOST_BYTES + 4096, "{}", text.len());
            let cut = of["cut"].as_array().unwrap();
            assert!((1..=MOST_CUTS).contains(&cut.len()));
        }
    }
}
