//! Programs in Python: a slow function of a Flask application, and a leak in an extension in C.

use std::io;
use std::process::Command;

use fgraph_chores::process::Done;
use fgraph_needs::{CURL, GCC};

use super::page::Recipe;

pub(super) const VIEW: Recipe = Recipe {
    name: "flask-view",
    needs: &[CURL],
    names_cause: is_slow,
};

/// Returns true if the slowest call of the view is slow in the filter.
fn is_slow(output: &str) -> bool {
    let is_it = |line: &str| {
        let words = ["computes more", "re.Pattern.match < shop.first_sentence"];
        words.iter().all(|word| line.contains(word))
    };
    output.lines().any(is_it)
}

pub(super) const LEAK: Recipe = Recipe {
    name: "python-leak",
    needs: &[GCC],
    names_cause: leaks,
};

/// Returns true if the path that grows most has the function in C and those of Python around it.
fn leaks(output: &str) -> bool {
    let mut lines = output
        .lines()
        .skip_while(|line| !line.contains("growth  steady"));
    let first = lines.nth(1).unwrap_or_default();
    let path = "pack [pack.so] < pack.pack < __main__.store < __main__.handle [py]";
    first.trim_start().starts_with('+') && first.contains(path)
}

/// Recipes, scripts that fail without what they need, and the packages that have it.
const NEEDS: [(&str, &str, &str); 2] = [
    (VIEW.name, "import flask", "python3-flask"),
    (
        LEAK.name,
        "import os, sysconfig\n\
         os.stat(sysconfig.get_paths()['include'] + '/Python.h')\n\
         os.stat('/usr/bin/python3-config')",
        "python3-dev",
    ),
];

/// Returns the reason for which a recipe of this file cannot run.
pub(super) fn missing(recipe: &Recipe) -> io::Result<Option<String>> {
    let Some((_, script, package)) = NEEDS.iter().find(|needs| needs.0 == recipe.name) else {
        return Ok(None);
    };
    let found = match Done::of(Command::new("/usr/bin/python3").args(["-c", script])) {
        Ok(done) => done.fault().is_none(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => return Err(error),
    };
    let missing = format!("no {package} for /usr/bin/python3 (apt-get install {package})");
    Ok((!found).then_some(missing))
}
