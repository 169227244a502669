//! `cargo xtask pictures`: pictures of exports, made by the programs that show them.
//!
//! A program is recorded, its recording is exported, and a browser without a window shows the
//! exports.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use clap::Args;
use fgraph_chores::cargo;
use fgraph_chores::process::{bounded, succeed};
use fgraph_needs::{CHROMIUM, PNGQUANT, SPEEDSCOPE};
use serde_json::Value;
use tempfile::TempDir;

/// Options of the command line: none.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {}

/// A picture: its name, the export by the name that the example gives it, the view of speedscope
/// unless the browser shows it by itself, and the height of the window.
type Picture = (&'static str, &'static str, Option<&'static str>, u32);

const PICTURES: [Picture; 6] = [
    ("html", "words.html", None, 700),
    ("svg", "words.svg", None, 263),
    (
        "speedscope",
        "words.speedscope.json",
        Some("time-ordered"),
        400,
    ),
    ("folded", "words.folded", Some("left-heavy"), 400),
    ("chrome", "words.trace.json", Some("time-ordered"), 400),
    ("pprof", "words.pb.gz", Some("sandwich"), 250),
];

const WIDTH: u32 = 1100;

/// The most bytes of a picture.
const LARGEST: u64 = 200_000;

/// The files whose words the program sorts.
const FILES: [&str; 4] = [
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "docs/limits.md",
];

/// Makes all pictures. Fails where something that they need is missing, or where the browser does
/// not make one.
pub(crate) fn run(_: &Options) -> io::Result<bool> {
    let tools = (CHROMIUM.find(), PNGQUANT.find(), SPEEDSCOPE.npm_directory());
    let (browser, pngquant, speedscope) = match tools {
        (Ok(browser), Ok(pngquant), Ok(speedscope)) => (browser, pngquant, speedscope),
        (browser, pngquant, speedscope) => {
            let missing = [browser.err(), pngquant.err(), speedscope.err()];
            let missing = missing
                .into_iter()
                .flatten()
                .map(|missing| missing.to_string());
            return Err(io::Error::other(missing.collect::<Vec<_>>().join("; ")));
        }
    };
    let out = cargo::workspace().join("docs/pictures");
    let directory = TempDir::with_prefix("fgraph-pictures-")?;
    let directory = directory.path();
    export(directory)?;
    for (name, export, view, height) in PICTURES {
        let url = match view {
            None => format!("file://{}", directory.join(export).display()),
            Some(view) => {
                let page = speedscope
                    .join("dist/release/index.html")
                    .display()
                    .to_string();
                let script = script(directory, export)?.display().to_string();
                format!("file://{page}#view={view}&localProfilePath={script}")
            }
        };
        let large = directory.join("large.png");
        // A picture of another run would do for one that was not made.
        let _ = fs::remove_file(&large);
        shoot(&browser, directory, &url, height, &large)?;
        let path = out.join(name).with_extension("png");
        let mut reduce = Command::new(&pngquant);
        reduce
            .args(["--force", "--strip", "--output"])
            .arg(&path)
            .arg("64")
            .arg(&large);
        succeed(&mut reduce)?;
        let len = fs::metadata(&path)?.len();
        println!("{}: {len} bytes", path.display());
        if len > LARGEST {
            let what = format!("{} has more than {LARGEST} bytes", path.display());
            return Err(io::Error::other(what));
        }
    }
    Ok(true)
}

/// Fills `directory` by the example.
fn export(directory: &Path) -> io::Result<()> {
    let mut example = Command::new(cargo::program());
    example
        .args(["run", "--release", "--quiet", "--package", "fgraph-export"])
        .args(["--features", "svg", "--example", "exports", "--"])
        .arg(directory)
        .args(FILES)
        .current_dir(cargo::workspace());
    succeed(&mut example).map(drop)
}

/// Makes the script that gives speedscope an export, as its own command does.
fn script(directory: &Path, export: &str) -> io::Result<PathBuf> {
    let bytes = fs::read(directory.join(export))?;
    let path = directory.join(format!("{export}.js"));
    let [name, content] = [export.into(), BASE64_STANDARD.encode(bytes)].map(Value::from);
    let call = format!("speedscope.loadFileFromBase64({name}, {content})");
    fs::write(&path, call)?;
    Ok(path)
}

/// Takes a picture of a page in the browser.
fn shoot(
    browser: &Path,
    directory: &Path,
    url: &str,
    height: u32,
    picture: &Path,
) -> io::Result<()> {
    // A page that never comes to rest would keep the browser for good.
    let mut command = bounded(120, browser);
    command
        // No page but our own is loaded, and root has no sandbox.
        .args(["--headless", "--no-sandbox", "--disable-quic"])
        .args(["--no-first-run", "--disable-background-networking"])
        .args(["--disable-component-update", "--disable-sync"])
        // Speedscope draws by WebGL, which machines without a screen have in software.
        .args(["--use-angle=swiftshader", "--enable-unsafe-swiftshader"])
        .args(["--hide-scrollbars", "--allow-file-access-from-files"])
        .arg("--virtual-time-budget=8000")
        .arg(format!("--window-size={WIDTH},{height}"))
        .arg(format!("--user-data-dir={}/browser", directory.display()))
        .arg(format!("--screenshot={}", picture.display()))
        .arg(url);
    succeed(&mut command).map(drop)
}
