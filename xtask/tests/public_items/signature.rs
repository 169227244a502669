//! One line for each public item: its declaration, with the path in place of the name.
//!
//! Other types are written by their last name, as code does that imports them.

use serde_json::Value;

use super::rustdoc::{Shown, inner, text};

/// Returns the lines of an item: of itself, its public fields, its variants, its functions, and the
/// traits that are implemented for it.
pub(crate) fn lines(item: &Shown<'_>) -> Vec<String> {
    let (kind, inner) = item.inner();
    let Shown { path, value, .. } = item;
    let mut lines = Vec::new();
    match kind {
        "struct" | "enum" | "union" => {
            let (parameters, bounds) = generics(&inner["generics"]);
            lines.extend(members(item, path, value));
            let mut traits = Vec::new();
            for block in item.impls() {
                if block["trait"].is_null() {
                    lines.extend(functions(item, block));
                    continue;
                }
                let (name, line) = of_impl(path, block);
                match is_plain(block, &parameters) {
                    true => traits.push(name),
                    false => lines.extend(line),
                }
            }
            traits.retain(|name| name != "StructuralPartialEq");
            traits.sort_unstable();
            let traits = traits
                .iter()
                .fold(String::new(), |all, name| format!("{all} +{name}"));
            let marks = marks(value);
            lines.push(format!("{kind} {path}{parameters}{bounds}{marks}{traits}"));
        }
        "trait" => {
            let (parameters, bounds) = generics(&inner["generics"]);
            let safety = if inner["is_unsafe"] == true {
                "unsafe "
            } else {
                ""
            };
            let above = colon(&inner["bounds"]);
            lines.push(format!("{safety}trait {path}{parameters}{above}{bounds}"));
            for part in item.items(&inner["items"]) {
                lines.push(of_trait(path, part));
            }
        }
        "macro" => lines.push(format!("macro {path}!")),
        _ => lines.extend(declaration(path, value)),
    }
    lines
}

/// Returns the lines of the fields of a structure or union, or of the variants of an enum.
fn members(item: &Shown<'_>, path: &str, value: &Value) -> Vec<String> {
    let (kind, inner) = inner(value);
    let field = |field: &Value| {
        let name = text(&field["name"]);
        format!(
            "field {path}::{name}: {}",
            ty(&field["inner"]["struct_field"])
        )
    };
    match kind {
        "enum" => {
            let variants = item.items(&inner["variants"]);
            variants
                .map(|variant| of_variant(item, path, variant))
                .collect()
        }
        "union" => item.items(&inner["fields"]).map(field).collect(),
        _ => {
            let kind = &inner["kind"];
            let (plain, tuple) = (&kind["plain"]["fields"], &kind["tuple"]);
            let fields = item.items(plain).chain(item.items(tuple));
            fields.map(field).collect()
        }
    }
}

/// Returns the line of a variant, with its fields.
fn of_variant(item: &Shown<'_>, path: &str, variant: &Value) -> String {
    let kind = &variant["inner"]["variant"]["kind"];
    let type_of = |field: &Value| ty(&field["inner"]["struct_field"]);
    let name = text(&variant["name"]);
    let fields = if kind["tuple"].is_array() {
        let fields: Vec<_> = item.items(&kind["tuple"]).map(type_of).collect();
        format!("({})", fields.join(", "))
    } else if kind["struct"].is_object() {
        let named = |field: &Value| format!("{}: {}", text(&field["name"]), type_of(field));
        let fields: Vec<_> = item.items(&kind["struct"]["fields"]).map(named).collect();
        format!(" {{ {} }}", fields.join(", "))
    } else {
        String::new()
    };
    format!("variant {path}::{name}{fields}{}", marks(variant))
}

/// Returns the lines of the public functions and constants of a block.
fn functions(item: &Shown<'_>, block: &Value) -> Vec<String> {
    let parts = item.items(&block["items"]);
    let public = parts.filter(|part| part["visibility"] == "public");
    public
        .flat_map(|part| declaration(&format!("{}::{}", item.path, text(&part["name"])), part))
        .collect()
}

/// Returns true if a block implements a trait without arguments for a type with these parameters,
/// whatever they are.
fn is_plain(block: &Value, parameters: &str) -> bool {
    let (own, bounds) = generics(&block["generics"]);
    is_own(block)
        && block["is_negative"] == false
        && arguments(&block["trait"]["args"]).is_empty()
        && block["for"]["resolved_path"].is_object()
        && own == parameters
        && bounds.is_empty()
}

/// Returns true if the crate has written the block, or derived it.
fn is_own(block: &Value) -> bool {
    block["is_synthetic"] == false && block["blanket_impl"].is_null()
}

/// Returns the name of the trait that a block implements, and the line of the block, if it counts.
fn of_impl(path: &str, block: &Value) -> (String, Option<String>) {
    let name = last(&block["trait"]["path"]);
    let is_negative = block["is_negative"] == true;
    // The compiler implements some traits by itself: the list says only that a type lacks them.
    let is_lacking = is_negative && ["Send", "Sync"].contains(&&*name);
    let (parameters, bounds) = match is_own(block) {
        true => generics(&block["generics"]),
        false if is_lacking => Default::default(),
        false => return (name, None),
    };
    let not = if is_negative { "!" } else { "" };
    let arguments = arguments(&block["trait"]["args"]);
    let to = of_type(&ty(&block["for"]), path);
    let line = format!("impl{parameters} {not}{name}{arguments} for {to}{bounds}");
    (name, Some(line))
}

/// Returns a type with its last name replaced by the path of `path`, if that ends in this name.
fn of_type(ty: &str, path: &str) -> String {
    let name = path.rsplit("::").next().unwrap_or(path);
    match ty.split_once(name) {
        Some((before, after)) if !after.starts_with(|next: char| next.is_alphanumeric()) => {
            format!("{before}{path}{after}")
        }
        _ => format!("{ty} of {path}"),
    }
}

/// Returns the line of a part of a trait.
fn of_trait(path: &str, part: &Value) -> String {
    let path = format!("{path}::{}", text(&part["name"]));
    let (kind, inner) = inner(part);
    match kind {
        "assoc_type" => {
            let (parameters, clause) = generics(&inner["generics"]);
            let bounds = colon(&inner["bounds"]);
            format!("type {path}{parameters}{bounds}{clause}")
        }
        "assoc_const" => {
            let ending = if inner["value"].is_null() {
                ""
            } else {
                " = .."
            };
            format!("const {path}: {}{ending}", ty(&inner["type"]))
        }
        _ => {
            let ending = if inner["has_body"] == true {
                " { .. }"
            } else {
                ""
            };
            format!("{}{ending}", function(&path, inner))
        }
    }
}

/// Returns the line of a function, a constant, a static or a type alias; `None` for other items.
fn declaration(path: &str, value: &Value) -> Option<String> {
    let (kind, inner) = inner(value);
    Some(match kind {
        "function" => format!("{}{}", function(path, inner), marks(value)),
        "constant" | "assoc_const" => format!("const {path}: {}", ty(&inner["type"])),
        "static" => {
            let mutable = if inner["is_mutable"] == true {
                "mut "
            } else {
                ""
            };
            format!("static {mutable}{path}: {}", ty(&inner["type"]))
        }
        "type_alias" => {
            let (parameters, bounds) = generics(&inner["generics"]);
            format!("type {path}{parameters}{bounds} = {}", ty(&inner["type"]))
        }
        _ => return None,
    })
}

/// Returns the attributes that are part of a promise.
fn marks(value: &Value) -> &'static str {
    let attributes = value["attrs"].to_string();
    match attributes.contains("non_exhaustive") {
        true => " #[non_exhaustive]",
        false => "",
    }
}

/// Writes the signature of a function.
fn function(path: &str, function: &Value) -> String {
    let (header, signature) = (&function["header"], &function["sig"]);
    let mut before = String::new();
    for (key, word) in [
        ("is_const", "const "),
        ("is_async", "async "),
        ("is_unsafe", "unsafe "),
    ] {
        if header[key] == true {
            before += word;
        }
    }
    before += &abi(&header["abi"]);
    let (parameters, bounds) = generics(&function["generics"]);
    let inputs: Vec<_> = all(&signature["inputs"])
        .map(|input| match (text(&input[0]), ty(&input[1])) {
            (name, of) if name == "self" && of == "Self" => name,
            (name, of) if name == "self" && of.starts_with('&') && of.ends_with("Self") => {
                of.replace("Self", "self")
            }
            (name, of) => format!("{name}: {of}"),
        })
        .collect();
    let output = output(&signature["output"]);
    format!(
        "{before}fn {path}{parameters}({}){output}{bounds}",
        inputs.join(", ")
    )
}

/// Writes a calling convention; nothing for Rust's own.
fn abi(abi: &Value) -> String {
    match abi.as_object().and_then(|abi| abi.keys().next()) {
        Some(name) => format!("extern \"{name}\" "),
        None => String::new(),
    }
}

fn output(output: &Value) -> String {
    match output.is_null() {
        true => String::new(),
        false => format!(" -> {}", ty(output)),
    }
}

fn all(values: &Value) -> impl Iterator<Item = &Value> {
    values.as_array().into_iter().flatten()
}

/// Returns the last name of a path.
fn last(path: &Value) -> String {
    let path = text(path);
    path.rsplit("::").next().unwrap_or_default().to_owned()
}

/// Writes bounds after a colon; nothing if there is none.
fn colon(of: &Value) -> String {
    match bounds(of) {
        none if none.is_empty() => none,
        some => format!(": {some}"),
    }
}

fn bounds(bounds: &Value) -> String {
    let one = |bound: &Value| {
        if let Some(bound) = bound.get("trait_bound") {
            let modifier = match bound["modifier"].as_str() {
                Some("maybe") => "?",
                _ => "",
            };
            let higher = higher(&bound["generic_params"]);
            return format!("{modifier}{higher}{}", path_of(&bound["trait"]));
        }
        if let Some(uses) = bound.get("use") {
            let names: Vec<_> = all(uses)
                .map(|used| {
                    text(
                        used.as_object()
                            .and_then(|of| of.values().next())
                            .unwrap_or(used),
                    )
                })
                .collect();
            return format!("use<{}>", names.join(", "));
        }
        text(&bound["outlives"])
    };
    all(bounds).map(one).collect::<Vec<_>>().join(" + ")
}

/// Writes `for<..>`, if there are parameters.
fn higher(parameters: &Value) -> String {
    let names: Vec<_> = all(parameters).map(|one| text(&one["name"])).collect();
    match names.is_empty() {
        true => String::new(),
        false => format!("for<{}> ", names.join(", ")),
    }
}

/// Writes generic parameters, and the clause with their bounds.
fn generics(generics: &Value) -> (String, String) {
    let parameter = |one: &Value| {
        let (name, kind) = (text(&one["name"]), &one["kind"]);
        if let Some(lifetime) = kind.get("lifetime") {
            let outlives: Vec<_> = all(&lifetime["outlives"]).map(text).collect();
            return Some(match outlives.is_empty() {
                true => name,
                false => format!("{name}: {}", outlives.join(" + ")),
            });
        }
        if let Some(of) = kind.get("const") {
            return Some(format!("const {name}: {}", ty(&of["type"])));
        }
        let of = &kind["type"];
        // `impl Trait` in an argument shows there.
        (of["is_synthetic"] == false).then(|| {
            let default = match of["default"].is_null() {
                true => String::new(),
                false => format!(" = {}", ty(&of["default"])),
            };
            format!("{name}{}{default}", colon(&of["bounds"]))
        })
    };
    let parameters: Vec<_> = all(&generics["params"]).filter_map(parameter).collect();
    let predicate = |one: &Value| {
        if let Some(of) = one.get("bound_predicate") {
            let higher = higher(&of["generic_params"]);
            return format!("{higher}{}{}", ty(&of["type"]), colon(&of["bounds"]));
        }
        if let Some(of) = one.get("lifetime_predicate") {
            let outlives: Vec<_> = all(&of["outlives"]).map(text).collect();
            return format!("{}: {}", text(&of["lifetime"]), outlives.join(" + "));
        }
        one.to_string()
    };
    let predicates: Vec<_> = all(&generics["where_predicates"]).map(predicate).collect();
    let (mut angles, mut clause) = (String::new(), String::new());
    if !parameters.is_empty() {
        angles = format!("<{}>", parameters.join(", "));
    }
    if !predicates.is_empty() {
        clause = format!(" where {}", predicates.join(", "));
    }
    (angles, clause)
}

/// Writes a path with its arguments.
fn path_of(path: &Value) -> String {
    format!("{}{}", last(&path["path"]), arguments(&path["args"]))
}

/// Writes the arguments of a path.
fn arguments(of: &Value) -> String {
    if let Some(called) = of.get("parenthesized") {
        let inputs: Vec<_> = all(&called["inputs"]).map(ty).collect();
        return format!("({}){}", inputs.join(", "), output(&called["output"]));
    }
    let angles = &of["angle_bracketed"];
    let argument = |one: &Value| {
        if let Some(of) = one.get("type") {
            return ty(of);
        }
        if let Some(of) = one.get("const") {
            return text(&of["expr"]);
        }
        one.get("lifetime").map_or_else(|| text(one), text)
    };
    let constraint = |one: &Value| {
        let (name, binding) = (text(&one["name"]), &one["binding"]);
        match binding.get("equality") {
            Some(of) => format!("{name} = {}", argument(of)),
            None => format!("{name}{}", colon(&binding["constraint"])),
        }
    };
    let arguments = all(&angles["args"]).map(argument);
    let inside: Vec<_> = arguments
        .chain(all(&angles["constraints"]).map(constraint))
        .collect();
    match inside.is_empty() {
        true => String::new(),
        false => format!("<{}>", inside.join(", ")),
    }
}

/// Writes a type.
fn ty(of: &Value) -> String {
    let Some((kind, inner)) = of.as_object().and_then(|of| of.iter().next()) else {
        return text(of);
    };
    let mutable = |word| {
        if inner["is_mutable"] == true {
            "mut "
        } else {
            word
        }
    };
    match kind.as_str() {
        "resolved_path" => path_of(inner),
        "generic" | "primitive" => text(inner),
        "tuple" => {
            let parts: Vec<_> = all(inner).map(ty).collect();
            match &*parts {
                [one] => format!("({one},)"),
                _ => format!("({})", parts.join(", ")),
            }
        }
        "slice" => format!("[{}]", ty(inner)),
        "array" => format!("[{}; {}]", ty(&inner["type"]), text(&inner["len"])),
        "impl_trait" => format!("impl {}", bounds(inner)),
        "raw_pointer" => format!("*{}{}", mutable("const "), ty(&inner["type"])),
        "borrowed_ref" => {
            let lifetime = match inner["lifetime"].as_str() {
                Some(lifetime) => format!("{lifetime} "),
                None => String::new(),
            };
            format!("&{lifetime}{}{}", mutable(""), ty(&inner["type"]))
        }
        "dyn_trait" => {
            let one =
                |of: &Value| format!("{}{}", higher(&of["generic_params"]), path_of(&of["trait"]));
            let mut parts: Vec<_> = all(&inner["traits"]).map(one).collect();
            parts.extend(inner["lifetime"].as_str().map(str::to_owned));
            format!("dyn {}", parts.join(" + "))
        }
        "function_pointer" => {
            let signature = &inner["sig"];
            let inputs: Vec<_> = all(&signature["inputs"])
                .map(|input| ty(&input[1]))
                .collect();
            let safety = if inner["header"]["is_unsafe"] == true {
                "unsafe "
            } else {
                ""
            };
            let abi = abi(&inner["header"]["abi"]);
            let output = output(&signature["output"]);
            format!("{safety}{abi}fn({}){output}", inputs.join(", "))
        }
        "qualified_path" => {
            let (name, of) = (text(&inner["name"]), ty(&inner["self_type"]));
            match inner["trait"]["path"].as_str() {
                None | Some("") => format!("{of}::{name}"),
                Some(_) if of == "Self" => format!("{of}::{name}"),
                Some(_) => format!("<{of} as {}>::{name}", path_of(&inner["trait"])),
            }
        }
        _ => of.to_string(),
    }
}
