//! A program at work, recorded, and its recording in every format.
//!
//! ```text
//! cargo run --release -p fgraph-export --features svg --example exports -- DIRECTORY [FILE..]
//! ```
//!
//! The job sorts the words of each file on a thread of its own, and merges the lists.
//! `docs/exports.md` says how to look at what is in the directory afterwards.

use std::error::Error;
use std::path::Path;
use std::{env, fs, io, thread};

use fgraph_export::{Export, Format};
use fgraph_trace::Recording;
use fgraph_tracers::recorder::{FileRecorder, Options};

/// The program that is watched. Nothing in it knows of that.
mod job {
    #[inline(never)]
    pub(super) fn list(text: &str) -> Vec<String> {
        sort(split(text))
    }

    #[inline(never)]
    fn split(text: &str) -> Vec<String> {
        text.lines().flat_map(split_line).collect()
    }

    #[inline(never)]
    fn split_line(line: &str) -> Vec<String> {
        let words = line.split(|char: char| !char.is_alphanumeric());
        words.filter(|word| word.len() > 3).map(normalize).collect()
    }

    #[inline(never)]
    fn normalize(word: &str) -> String {
        word.to_lowercase()
    }

    #[inline(never)]
    fn sort(mut words: Vec<String>) -> Vec<String> {
        if words.len() <= 16 {
            insert(&mut words);
            return words;
        }
        let upper = words.split_off(words.len() / 2);
        merge(sort(words), sort(upper))
    }

    /// Sorts a few words.
    #[inline(never)]
    fn insert(words: &mut [String]) {
        for end in 1..words.len() {
            let place = words[..end].partition_point(|word| *word <= words[end]);
            words[place..=end].rotate_right(1);
        }
    }

    #[inline(never)]
    pub(super) fn merge(left: Vec<String>, right: Vec<String>) -> Vec<String> {
        let mut merged = Vec::with_capacity(left.len() + right.len());
        let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
        loop {
            let next = match (left.peek(), right.peek()) {
                (Some(one), Some(other)) if other < one => right.next(),
                (Some(_), _) => left.next(),
                (None, _) => right.next(),
            };
            match next {
                Some(word) => merged.push(word),
                None => return merged,
            }
        }
    }
}

/// Returns the name of a format's export.
fn file_name(format: Format) -> &'static str {
    match format {
        Format::Html => "words.html",
        Format::Perfetto => "words.pftrace",
        Format::Chrome => "words.trace.json",
        Format::Firefox => "words.firefox.json",
        Format::Speedscope => "words.speedscope.json",
        Format::Folded => "words.folded",
        Format::Svg => "words.svg",
        Format::Pprof => "words.pb.gz",
        Format::Callgrind => "callgrind.out.words",
        Format::Uftrace => "uftrace.data",
        Format::Ctf => "ctf",
        _ => "words.csv",
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let usage = "usage: exports DIRECTORY [FILE..]";
    let directory = arguments.next().ok_or(usage)?;
    let directory = Path::new(&directory);
    let mut paths: Vec<String> = arguments.collect();
    if paths.is_empty() {
        paths = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"]
            .map(str::to_owned)
            .to_vec();
    }
    fs::create_dir_all(directory)?;

    let texts = paths.iter().map(fs::read_to_string);
    let texts: Vec<String> = texts.collect::<io::Result<_>>()?;
    let recording = directory.join("words.fgraph");
    let recorder = FileRecorder::start(&recording, "exports::job::*", &Options::default())?;
    let words = thread::scope(|scope| -> io::Result<Vec<String>> {
        let mut threads = Vec::new();
        for (number, text) in texts.iter().enumerate() {
            let thread = thread::Builder::new().name(format!("list {number}"));
            threads.push(thread.spawn_scoped(scope, || job::list(text))?);
        }
        let lists = threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"));
        Ok(lists.reduce(job::merge).unwrap_or_default())
    })?;
    recorder.finish()?;
    if !words.is_sorted() {
        return Err("the words are not sorted".into());
    }

    for &format in Format::ALL {
        let path = directory.join(file_name(format));
        if format.is_directory() && path.exists() {
            // One of an earlier run.
            fs::remove_dir_all(&path)?;
        }
        let mut export = Export::create(format, &path)?;
        let mut recording = Recording::open(&recording)?;
        export.advance(&mut recording)?;
        let summary = export.finish(&recording)?;
        println!("{}: {} calls", path.display(), summary.calls);
    }
    Ok(())
}
