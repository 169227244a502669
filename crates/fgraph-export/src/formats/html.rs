//! A page for browsers, with everything in it: flame graph, timeline, table and slowest calls.
//!
//! The page is `html/page.html`; this module writes the text for each `{{word}}` in it. Data are
//! JSON without any `<`, so that no name can end its element, and the page's script shows names as
//! text only. The calls of the timeline are compressed numbers of seven bits a byte, the lowest
//! first. Each call has its thread, the time since the previous one, its duration, its depth, and
//! twice its function, plus one if its end is lost. The states of each thread follow: their number,
//! the time of the first one, and for each four times its duration plus its
//! [number](fgraph_trace::schedule::State); 3 is for several states, whose nanoseconds running and
//! runnable follow.

use std::io::{self, Write};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use fgraph_analysis::calls::{At, Call, Open, Slot, Visitor};
use fgraph_analysis::numbers::grown;
use fgraph_trace::text::escaped;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;

use super::text::Out;
use crate::names::{process_name, thread_name};
use crate::output::{Output, Trace};
use crate::stacks::{Frame, Stacks};
use crate::states::{NAMES, Span, joined};

const PAGE: &str = include_str!("html/page.html");

/// Most calls of the timeline; the shortest ones are left out.
const MAX_CALLS: usize = 1_000_000;
/// Most states of threads; shorter ones are joined.
const MAX_STATES: u64 = 1_000_000;
/// Most stacks of the flame graph; those with the least time are left out.
const MAX_STACKS: usize = 50_000;

/// Call of the timeline. Times are in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Shown {
    begin: u64,
    duration: u64,
    thread: u32,
    depth: u32,
    slot: Slot,
    is_lost: bool,
}

/// Row of the table for a function. Times are in nanoseconds.
#[derive(Clone, Debug)]
struct Row {
    calls: u64,
    total: u64,
    own: u64,
    max: u64,
    /// Number of calls by the number of bits of their duration.
    bits: [u64; 65],
}

pub(crate) struct Html {
    out: Out,
    stacks: Stacks,
    rows: Vec<Row>,
    /// For each thread, the number of running calls of each function.
    active: Vec<Vec<u32>>,
    shown: Vec<Shown>,
    /// Calls that took less time are left out.
    least: u64,
    left_out: u64,
    /// Number of events that are missing in the recording.
    lost: u64,
}

impl Html {
    pub(crate) fn new(out: Out) -> Self {
        Self {
            out,
            stacks: Stacks::default(),
            rows: Vec::new(),
            active: Vec::new(),
            shown: Vec::new(),
            least: 0,
            left_out: 0,
            lost: 0,
        }
    }

    /// Drops the shortest calls if there are too many.
    fn thin_out(&mut self) {
        if self.shown.len() <= MAX_CALLS {
            return;
        }
        self.left_out += (self.shown.len() - MAX_CALLS) as u64;
        let longest_first = |call: &Shown| std::cmp::Reverse(call.duration);
        let (_, last, _) = self
            .shown
            .select_nth_unstable_by_key(MAX_CALLS - 1, longest_first);
        self.least = last.duration;
        self.shown.truncate(MAX_CALLS);
    }

    /// Returns the calls of the timeline and the states of threads, compressed, and the number of
    /// states.
    fn calls(&mut self, trace: &Trace<'_>) -> io::Result<(String, u64)> {
        let start = trace.start;
        self.thin_out();
        let order = |call: &Shown| (call.thread, call.begin, call.depth);
        self.shown.sort_unstable_by_key(order);
        let mut out = GzEncoder::new(Vec::new(), Compression::new(6));
        let (mut bytes, mut before) = (Vec::new(), (0, start));
        for call in &self.shown {
            if call.thread != before.0 {
                before = (call.thread, start);
            }
            bytes.clear();
            let numbers = [
                call.thread.into(),
                call.begin - before.1,
                call.duration,
                call.depth.into(),
                2 * u64::from(call.slot) + u64::from(call.is_lost),
            ];
            numbers
                .into_iter()
                .for_each(|number| push_number(&mut bytes, number));
            before.1 = call.begin;
            out.write_all(&bytes)?;
        }
        let states = write_states(trace, &mut out)?;
        Ok((BASE64_STANDARD.encode(out.finish()?), states))
    }

    /// Returns the stacks with the most time: parent, function, calls, total and own time of each.
    fn flames(&self) -> Vec<[i64; 5]> {
        let nodes = self.stacks.nodes();
        // Roots have no calls of their own.
        let mut totals: Vec<u64> = nodes.iter().map(|node| node.total).collect();
        for (at, node) in nodes.iter().enumerate() {
            if node.parent() != at && matches!(nodes[node.parent()].frame, Frame::Process(_)) {
                totals[node.parent()] += node.total;
            }
        }
        let mut sorted = totals.clone();
        let least = match sorted.len().checked_sub(MAX_STACKS) {
            None | Some(0) => 0,
            Some(less) => *sorted.select_nth_unstable(less).1,
        };
        let mut numbers = vec![-1; nodes.len()];
        let mut flames: Vec<[i64; 5]> = Vec::new();
        for (at, node) in nodes.iter().enumerate() {
            let parent = match node.parent() {
                parent if parent == at => -1,
                parent if numbers[parent] >= 0 => numbers[parent],
                _ => continue,
            };
            if totals[at] < least {
                continue;
            }
            numbers[at] = flames.len() as i64;
            let frame = match node.frame {
                Frame::Function(symbol) => i64::from(symbol),
                Frame::Process(process) => -i64::from(process) - 1,
            };
            let [calls, total, own] = [node.calls, totals[at], node.own].map(|it| it as i64);
            flames.push([parent, frame, calls, total, own]);
        }
        flames
    }
}

/// Writes the states of all threads, and returns their number. If there are too many, the shortest
/// are joined.
fn write_states(trace: &Trace<'_>, out: &mut impl Write) -> io::Result<u64> {
    let each = || trace.threads.iter().flat_map(|thread| trace.states(thread));
    let least = match each().count() as u64 {
        0 => return Ok(0),
        1..=MAX_STATES => 0,
        // A duration of that length has two of them at most.
        _ => each().map(|span| span.end - span.begin).sum::<u64>() / (MAX_STATES / 2) + 1,
    };
    let (mut bytes, mut count) = (Vec::new(), 0);
    for thread in trace.threads {
        let mut spans = trace.states(thread).peekable();
        let begin = spans
            .peek()
            .map_or(0, |span: &Span| span.begin.saturating_sub(trace.start));
        let states = joined(spans, least);
        count += states.len() as u64;
        bytes.clear();
        push_number(&mut bytes, states.len() as u64);
        push_number(&mut bytes, begin);
        for [running, runnable, blocked] in states {
            match (running, runnable, blocked) {
                (time, 0, 0) => push_number(&mut bytes, 4 * time),
                (0, time, 0) => push_number(&mut bytes, 4 * time + 1),
                (0, 0, time) => push_number(&mut bytes, 4 * time + 2),
                _ => {
                    push_number(&mut bytes, 4 * (running + runnable + blocked) + 3);
                    push_number(&mut bytes, running);
                    push_number(&mut bytes, runnable);
                }
            }
        }
        out.write_all(&bytes)?;
    }
    Ok(count)
}

fn push_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

impl Visitor for Html {
    type Error = io::Error;

    fn thread(&mut self, at: &At<'_>) -> io::Result<()> {
        self.stacks.thread(at.thread);
        self.active.push(Vec::new());
        Ok(())
    }

    fn enter(&mut self, at: &At<'_>, call: &Open) -> io::Result<()> {
        let symbol = call.data;
        self.stacks.begin(at.thread, symbol);
        *grown(&mut self.active[at.thread.index], symbol as usize) += 1;
        Ok(())
    }

    fn exit(&mut self, at: &At<'_>, call: &Call) -> io::Result<()> {
        self.stacks.end(at.thread, call);
        let symbol = call.slot as usize;
        if self.rows.len() <= symbol {
            self.rows.resize(
                symbol + 1,
                Row {
                    calls: 0,
                    total: 0,
                    own: 0,
                    max: 0,
                    bits: [0; 65],
                },
            );
        }
        let row = &mut self.rows[symbol];
        let active = &mut self.active[at.thread.index][symbol];
        *active -= 1;
        row.calls += 1;
        row.own += call.measured.own;
        if call.length().is_some() {
            let duration = call.measured.ran;
            row.max = row.max.max(duration);
            row.bits[(u64::BITS - duration.leading_zeros()) as usize] += 1;
        }
        if *active == 0 {
            row.total += call.measured.ran;
        }
        if call.ran < self.least {
            self.left_out += 1;
            return Ok(());
        }
        self.shown.push(Shown {
            begin: call.begin,
            duration: call.ran,
            thread: at.thread.index as u32,
            depth: at.around.len() as u32,
            slot: call.slot,
            is_lost: call.length().is_none(),
        });
        if self.shown.len() >= 2 * MAX_CALLS {
            self.thin_out();
        }
        Ok(())
    }

    fn lost(&mut self, _: &At<'_>, events: u64) -> io::Result<()> {
        self.lost = self.lost.saturating_add(events);
        Ok(())
    }
}

impl Output for Html {
    fn finish(mut self: Box<Self>, trace: &Trace<'_>) -> io::Result<()> {
        let (calls, states) = self.calls(trace)?;
        let functions = trace.functions.iter().enumerate();
        let functions: Vec<_> = functions
            .map(|(symbol, function)| {
                let name = escaped(&function.name);
                let module = escaped(&function.module);
                match self.rows.get(symbol) {
                    Some(row) => {
                        let used = row.bits.iter().rposition(|&count| count != 0);
                        let bits = &row.bits[..used.map_or(0, |last| last + 1)];
                        let Row {
                            calls,
                            total,
                            own,
                            max,
                            ..
                        } = row;
                        json!([name, module, calls, total, own, max, bits])
                    }
                    None => json!([name, module, 0, 0, 0, 0, []]),
                }
            })
            .collect();
        let threads = trace.threads.iter();
        let threads: Vec<_> = threads
            .map(|thread| {
                let name = thread_name(trace.names, thread.process, thread.id);
                json!([thread.process_id(), thread.id, escaped(&name)])
            })
            .collect();
        let processes = trace.processes().into_iter();
        let processes: Vec<_> = processes
            .map(|process| json!([process, escaped(&process_name(trace.names, process))]))
            .collect();
        let data = json!({
            "functions": functions,
            "threads": threads,
            "processes": processes,
            "flames": self.flames(),
            "length": trace.end - trace.start,
            "shown": self.shown.len(),
            "states": states,
            "measured": trace.measured.map(|state| NAMES[state as usize]),
            "weight": trace.weight,
            "leftOut": self.left_out,
            "least": self.least,
            "lost": self.lost,
        });
        let data = data.to_string().replace('<', "\\u003c");
        for part in PAGE.split("{{").enumerate() {
            let text = match part {
                (0, text) => text,
                (_, part) => {
                    let (word, text) = part.split_once("}}").unwrap_or(("", part));
                    self.out.write_all(match word {
                        "data" => data.as_bytes(),
                        _ => calls.as_bytes(),
                    })?;
                    text
                }
            };
            self.out.write_all(text.as_bytes())?;
        }
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_loads_nothing_and_has_its_two_places() {
        assert_eq!(PAGE.matches("{{").count(), 2);
        assert!(PAGE.contains("{{data}}") && PAGE.contains("{{calls}}"));
        assert!(PAGE.contains("default-src 'none'"));
        for way_out in ["http:", "https:", "innerHTML", "document.write", "eval("] {
            assert!(!PAGE.contains(way_out), "{way_out}");
        }
    }

    #[test]
    fn the_shortest_calls_are_left_out_where_there_are_too_many() {
        let mut html = Html::new(Out::new(Box::new(io::sink())));
        html.shown = (0..MAX_CALLS as u64 + 10)
            .map(|n| Shown {
                begin: n,
                duration: n,
                thread: 0,
                depth: 0,
                slot: 0,
                is_lost: false,
            })
            .collect();
        html.thin_out();
        assert_eq!(
            (html.shown.len(), html.left_out, html.least),
            (MAX_CALLS, 10, 10)
        );
        assert!(html.shown.iter().all(|call| call.duration >= 10));
    }
}
