//! The attribute `scenario`, which `fgraph-scenario` exports.

use proc_macro::{Delimiter, Group, TokenStream, TokenTree};

/// Makes the function a test that runs its body as a scenario of the same name.
#[proc_macro_attribute]
pub fn scenario(_arguments: TokenStream, function: TokenStream) -> TokenStream {
    let mut function: Vec<TokenTree> = function.into_iter().collect();
    let is_fn = |token: &TokenTree| matches!(token, TokenTree::Ident(it) if it.to_string() == "fn");
    let name = function.iter().skip_while(|token| !is_fn(token)).nth(1);
    let (Some(name), Some(TokenTree::Group(_))) = (name, function.last()) else {
        return parsed("compile_error!(\"a scenario is a function with a body\");");
    };
    let mut arguments = parsed(&format!("concat!(module_path!(), \"::{name}\"), ||"));
    arguments.extend(function.pop());
    let mut run = parsed("::fgraph_scenario::run");
    run.extend([group(Delimiter::Parenthesis, arguments)]);
    let mut test = parsed("#[test]");
    test.extend(function);
    test.extend([group(Delimiter::Brace, run)]);
    test
}

fn parsed(code: &str) -> TokenStream {
    code.parse().expect("it is Rust")
}

fn group(delimiter: Delimiter, tokens: TokenStream) -> TokenTree {
    Group::new(delimiter, tokens).into()
}
