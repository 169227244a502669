//! `fgraph open`: a recording as a page in the browser.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::export;
use crate::error::Error;
use crate::input::Input;
use crate::text::escaped;

/// Write the page of `fgraph export html` beside the recording, and open it in the browser
///
/// The browser is the one that the variable BROWSER names, otherwise the desktop's, by `xdg-open`.
/// Without one the path of the page is all that is said.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fgraph open                            writes fgraph.html, and opens it
  BROWSER=firefox fgraph open server.data
  fgraph record --open -- ./app          records first")]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    /// The page; the default is the recording's path with the ending html
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Opens it.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    show(&args.input.path, args.output.as_deref())
}

/// Writes the page of a recording, and opens it.
pub(super) fn show(recording: &Path, page: Option<&Path>) -> Result<(), Error> {
    let page = page.map_or_else(|| beside(recording), Path::to_owned);
    export::write_page(recording, &page)?;
    let full = page.canonicalize().unwrap_or(page);
    let shown = full.display().to_string();
    let shown = escaped(&shown);
    let Some((program, words)) = opener(|name| env::var_os(name), &full) else {
        say!("fgraph: no browser is known here (BROWSER, or a desktop): open {shown}");
        return Ok(());
    };
    let why = match Command::new(&program).args(words).status() {
        Ok(status) if status.success() => return Ok(()),
        Ok(status) => status.to_string(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => "there is no such program".into(),
        Err(error) => error.to_string(),
    };
    let program = program.display().to_string();
    let program = escaped(&program);
    say!("fgraph: {program} does not show the page ({why}): open {shown}");
    Ok(())
}

/// Returns the path of the page of a recording.
fn beside(recording: &Path) -> PathBuf {
    match recording.as_os_str() == "-" {
        true => "fgraph.html".into(),
        false => recording.with_extension("html"),
    }
}

/// Returns the program that shows a page, and its arguments. `variable` returns the value of a
/// variable.
fn opener(
    variable: impl Fn(&str) -> Option<OsString>,
    page: &Path,
) -> Option<(OsString, Vec<OsString>)> {
    let variable = |name| variable(name).filter(|value| !value.is_empty());
    if let Some(browsers) = variable("BROWSER") {
        // Several are separated by colons, in the order of preference.
        let mut all = browsers.as_bytes().split(|byte| *byte == b':');
        let first = all.find(|browser| !browser.trim_ascii().is_empty())?;
        let words = first.split(u8::is_ascii_whitespace);
        let mut words = words.filter(|word| !word.is_empty());
        let program = OsStr::from_bytes(words.next()?).to_owned();
        let mut has_page = false;
        let mut words: Vec<OsString> = words
            .map(|word| match word == b"%s" {
                true => {
                    has_page = true;
                    page.into()
                }
                false => OsStr::from_bytes(word).to_owned(),
            })
            .collect();
        if !has_page {
            words.push(page.into());
        }
        return Some((program, words));
    }
    let has_desktop = ["DISPLAY", "WAYLAND_DISPLAY"].map(variable);
    has_desktop
        .iter()
        .any(Option::is_some)
        .then(|| ("xdg-open".into(), vec![page.into()]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_is_beside_the_recording() {
        for (recording, page) in [
            ("fgraph.data", "fgraph.html"),
            ("/tmp/server", "/tmp/server.html"),
            ("-", "fgraph.html"),
        ] {
            assert_eq!(beside(Path::new(recording)), Path::new(page));
        }
    }

    #[test]
    fn browser_variable_comes_before_the_desktop() {
        let found = |variables: &[(&str, &str)]| {
            let value = |name: &str| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| OsString::from(value))
            };
            let (program, words) = opener(value, Path::new("/a b.html"))?;
            let words = words.iter().map(|word| word.to_str().unwrap().to_owned());
            Some((program.into_string().unwrap(), words.collect::<Vec<_>>()))
        };
        let expected = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            Some((words[0].clone(), words[1..].to_vec()))
        };
        let desktop = ("DISPLAY", ":0");
        for (variables, words) in [
            (
                &[("BROWSER", "firefox"), desktop][..],
                &["firefox", "/a b.html"][..],
            ),
            (
                &[("BROWSER", ":w3m -T %s -x:lynx")],
                &["w3m", "-T", "/a b.html", "-x"],
            ),
            (&[("BROWSER", ""), desktop], &["xdg-open", "/a b.html"]),
            (
                &[("WAYLAND_DISPLAY", "wayland-0")],
                &["xdg-open", "/a b.html"],
            ),
        ] {
            assert_eq!(found(variables), expected(words), "{variables:?}");
        }
        assert_eq!(found(&[("DISPLAY", "")]), None);
        assert_eq!(found(&[("BROWSER", " : ")]), None);
    }
}
