//! `cargo xtask recipes`: runs the recipes of `docs/recipes/`, and checks that each names its
//! cause.
//!
//! To add one, write its page and a file beside `recipes/sqlite_index.rs`, and name that in
//! [`RECIPES`].

mod axum;
mod cpp_crash;
mod ignored_fsync;
mod mcp_session;
mod nginx_upstream;
mod page;
mod postgres_lock;
mod python;
mod redis_heap;
mod redis_script;
mod sqlite_index;

use std::io;
use std::path::PathBuf;

use clap::Args;
use fgraph_chores::cargo;

use page::Recipe;

/// Options of the command line.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// The recipes, by the names of their pages; all if none is named
    recipes: Vec<String>,
    /// The command, in place of the one of this workspace
    #[arg(long, value_name = "PATH")]
    fgraph: Option<PathBuf>,
}

/// All recipes, each in a file of its own.
const RECIPES: &[Recipe] = &[
    sqlite_index::RECIPE,
    redis_script::RECIPE,
    redis_heap::RECIPE,
    postgres_lock::RECIPE,
    nginx_upstream::RECIPE,
    axum::BLOCKING,
    axum::LOCK,
    axum::STARVED,
    cpp_crash::RECIPE,
    ignored_fsync::RECIPE,
    mcp_session::RECIPE,
    python::VIEW,
    python::LEAK,
];

pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let is_known = |name: &&String| RECIPES.iter().any(|recipe| recipe.name == **name);
    if let Some(unknown) = options.recipes.iter().find(|name| !is_known(name)) {
        let names: Vec<&str> = RECIPES.iter().map(|recipe| recipe.name).collect();
        let names = names.join(", ");
        return Err(io::Error::other(format!(
            "no recipe '{unknown}': there are {names}"
        )));
    }
    let is_wanted = |recipe: &&Recipe| {
        options.recipes.is_empty() || options.recipes.iter().any(|name| name == recipe.name)
    };
    let fgraph = cargo::fgraph(options.fgraph.as_deref())?;
    let mut all_well = true;
    for recipe in RECIPES.iter().filter(is_wanted) {
        let missing = recipe.needs.iter().find_map(|need| need.find().err());
        let missing = match missing {
            Some(missing) => Some(missing.to_string()),
            None => match axum::missing(recipe)? {
                None => python::missing(recipe)?,
                missing => missing,
            },
        };
        if let Some(missing) = missing {
            println!("skipped: {}: {missing}", recipe.name);
            continue;
        }
        match recipe.fault(&fgraph)? {
            None => println!("{}: the cause is named", recipe.name),
            Some(fault) => {
                all_well = false;
                println!("{}: FAILED: {fault}", recipe.name);
            }
        }
    }
    Ok(all_well)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::recipes::page::commands;

    #[test]
    fn each_page_is_a_recipe_whose_shown_output_names_the_cause() {
        let pages = fs::read_dir(cargo::workspace().join("docs/recipes")).unwrap();
        let mut pages: Vec<PathBuf> = pages.map(|page| page.unwrap().path()).collect();
        for recipe in RECIPES {
            let at = pages
                .iter()
                .position(|page| page.file_stem().unwrap() == recipe.name);
            let page = fs::read_to_string(pages.swap_remove(at.unwrap())).unwrap();
            assert!((recipe.names_cause)(&page), "{}", recipe.name);
            assert!(!(recipe.names_cause)(&commands(&page)), "{}", recipe.name);
        }
        assert!(pages.is_empty(), "{pages:?}");
    }
}
