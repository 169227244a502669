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
use fgraph_needs::{CHROMIUM, Missing, PNGQUANT, SPEEDSCOPE};
use serde_json::Value;

use crate::cargo;
use crate::process::succeed;

/// Options of the command line.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Where the pictures are written to; `docs/pictures` if nothing is said
    #[arg(long, value_name = "DIRECTORY")]
    out: Option<PathBuf>,
}

/// A picture.
#[derive(Clone, Copy, Debug)]
struct Picture {
    name: &'static str,
    /// The export, by the name that the example gives it.
    export: &'static str,
    viewer: Viewer,
    /// Height of the window.
    height: u32,
}

#[derive(Clone, Copy, Debug)]
enum Viewer {
    /// The browser by itself.
    Browser,
    /// Speedscope, with one of its views.
    Speedscope(&'static str),
}

const PICTURES: [Picture; 6] = [
    picture("html", "words.html", Viewer::Browser, 700),
    picture("svg", "words.svg", Viewer::Browser, 263),
    picture(
        "speedscope",
        "words.speedscope.json",
        Viewer::Speedscope("time-ordered"),
        400,
    ),
    picture(
        "folded",
        "words.folded",
        Viewer::Speedscope("left-heavy"),
        400,
    ),
    picture(
        "chrome",
        "words.trace.json",
        Viewer::Speedscope("time-ordered"),
        400,
    ),
    picture("pprof", "words.pb.gz", Viewer::Speedscope("sandwich"), 250),
];

const fn picture(name: &'static str, export: &'static str, viewer: Viewer, height: u32) -> Picture {
    Picture {
        name,
        export,
        viewer,
        height,
    }
}

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
pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let tools = (CHROMIUM.find(), PNGQUANT.find(), SPEEDSCOPE.npm_directory());
    let (browser, pngquant, speedscope) = match tools {
        (Ok(browser), Ok(pngquant), Ok(speedscope)) => (browser, pngquant, speedscope),
        (browser, pngquant, speedscope) => {
            let missing = [browser.err(), pngquant.err(), speedscope.err()];
            return Err(unmet(missing.into_iter().flatten()));
        }
    };
    let out = options.out.clone();
    let out = out.unwrap_or_else(|| cargo::workspace().join("docs/pictures"));
    fs::create_dir_all(&out)?;
    let directory = tempfile::Builder::new()
        .prefix("fgraph-pictures-")
        .tempdir()?;
    let directory = directory.path();
    export(directory)?;
    for picture in PICTURES {
        let url = match picture.viewer {
            Viewer::Browser => format!("file://{}", directory.join(picture.export).display()),
            Viewer::Speedscope(view) => {
                let page = speedscope.join("dist/release/index.html");
                let script = script(directory, picture.export)?;
                format!(
                    "file://{}#view={view}&localProfilePath={}",
                    page.display(),
                    script.display()
                )
            }
        };
        let large = directory.join("large.png");
        // A picture of another run would do for one that was not made.
        let _ = fs::remove_file(&large);
        shoot(&browser, directory, &url, picture.height, &large)?;
        let path = out.join(picture.name).with_extension("png");
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

/// An error that names all that is missing.
fn unmet(missing: impl Iterator<Item = Missing>) -> io::Error {
    let missing: Vec<String> = missing.map(|missing| missing.to_string()).collect();
    io::Error::other(missing.join("; "))
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
    let mut command = Command::new("timeout");
    command
        .arg("120")
        .arg(browser)
        // No page but our own is loaded, and root has no sandbox.
        .args(["--headless", "--no-sandbox", "--disable-quic"])
        .args(["--no-first-run", "--disable-background-networking"])
        .args(["--disable-component-update", "--disable-sync"])
        // Speedscope draws by WebGL, which machines without a screen have in software.
        .args(["--use-angle=swiftshader", "--enable-unsafe-swiftshader"])
        .args(["--hide-scrollbars", "--allow-file-access-from-files"])
        .arg("--virtual-time-budget=8000")
        .arg(format!("--window-size={WIDTH},{height}"))
        .arg(format!(
            "--user-data-dir={}",
            directory.join("browser").display()
        ))
        .arg(format!("--screenshot={}", picture.display()))
        .arg(url);
    succeed(&mut command).map(drop)
}
