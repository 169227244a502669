//! Chooses the recorded values of a function by its signature.

use fgraph::Symbol;
use fgraph::signature::{
    self, NoValue, Parameter, Piece, Signature, Source, Type, TypeKind, Value, ValuePath,
};
use fgraph_trace::values::{Argument, Layout, Recorded, Shape, ShapeField, ShapeVariant};

use super::fetch::{Fetch, Program};

/// Most bytes of the target of a reference that is recorded.
const MAX_TARGET: usize = 64;

/// Values of functions that are recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) arguments: bool,
    pub(super) result: bool,
    /// Values that lead to texts.
    pub(super) texts: Vec<String>,
    /// Values behind arguments.
    pub(super) paths: Vec<String>,
}

impl Wanted {
    /// Returns a signature in which the values of `texts` lead to texts, or one of registers if
    /// none is known.
    pub(super) fn with_texts(&self, known: Option<Signature>) -> Option<Signature> {
        if self.texts.is_empty() {
            return known;
        }
        let mut signature = known.unwrap_or_else(registers);
        for (place, parameter) in signature.parameters.iter_mut().enumerate() {
            if self.is_text(&parameter.name) || self.is_text(&format!("arg{place}")) {
                lead_to_text(&mut parameter.value);
            }
        }
        if let Some(result) = signature.result.as_mut().filter(|_| self.is_text("retval")) {
            lead_to_text(result);
        }
        Some(signature)
    }

    /// Returns the values behind the arguments of a function, and the paths that lead to none, with
    /// reasons.
    pub(super) fn behind(&self, function: Option<Symbol>) -> (Vec<Parameter>, Vec<Absent>) {
        let (mut found, mut absent) = (Vec::new(), Vec::new());
        for name in &self.paths {
            let path: Result<ValuePath, _> = name.parse();
            let path = path.map_err(|error| (error.to_string(), Vec::new()));
            let value = path.and_then(|path| {
                let value = function.map_or(Err(NoValue::unknown()), |it| it.value(&path));
                value.map_err(|error| (error.why, error.names))
            });
            match value {
                Ok(mut value) => {
                    if self.is_text(name) {
                        lead_to_text(&mut value);
                    }
                    let name = name.clone();
                    found.push(Parameter::new(name, value));
                }
                Err((why, names)) => absent.push(Absent {
                    path: name.clone(),
                    why,
                    names,
                }),
            }
        }
        (found, absent)
    }

    fn is_text(&self, name: &str) -> bool {
        self.texts.iter().any(|text| text == name)
    }
}

/// Path that leads to no value of a function.
#[derive(Debug)]
pub(super) struct Absent {
    pub(super) path: String,
    pub(super) why: String,
    /// Names that exist in place of a wrong one.
    pub(super) names: Vec<String>,
}

/// Returns integers in all registers that can hold arguments and results.
fn registers() -> Signature {
    let value = |index| {
        let piece = Piece::new(Source::Integer(index), 0, 8);
        let place = signature::Place::Pieces(vec![piece]);
        Value::new(Type::new("long", 8, TypeKind::Signed), Some(place))
    };
    let parameter = |index| Parameter::new(format!("arg{index}"), value(index));
    Signature::new((0..6).map(parameter).collect(), Some(value(0)))
}

/// Turns a value of eight bytes into the address of a text, unless it leads to one already.
fn lead_to_text(value: &mut Value) {
    let is_text = matches!(value.ty.kind, TypeKind::CString | TypeKind::Str { .. });
    if value.ty.size == 8 && !is_text {
        value.ty.kind = TypeKind::CString;
    }
}

/// Recording and fetching of a function's values.
#[derive(Debug)]
pub(super) struct Compiled {
    pub(super) layout: Layout,
    /// Programs for its entry and its return; without steps where there is nothing to fetch.
    pub(super) entry: Program,
    pub(super) ret: Program,
}

impl Compiled {
    /// Compiles the programs; `None` if the place of all wanted values is unknown.
    pub(super) fn new(
        signature: &Signature,
        behind: &[Parameter],
        wanted: &Wanted,
    ) -> Option<Self> {
        let (mut entry, mut ret) = (Fetch::new(), Fetch::new());
        let parameters: &[Parameter] = match wanted.arguments {
            true => &signature.parameters,
            false => &[],
        };
        let arguments = parameters.iter().chain(behind).map(|parameter| {
            let value = recorded(&parameter.value, &mut entry);
            Argument::new(parameter.name.clone(), value)
        });
        let arguments = arguments.collect();
        let result = signature.result.as_ref().filter(|_| wanted.result);
        let has_values = !parameters.is_empty() || !behind.is_empty() || result.is_some();
        let result = result.and_then(|value| recorded(value, &mut ret));
        let layout = Layout::new(arguments, result);
        let (entry, ret) = (entry.finish(), ret.finish());
        let is_known = !has_values || !entry.is_empty() || !ret.is_empty();
        is_known.then_some(Self { layout, entry, ret })
    }
}

fn recorded(value: &Value, fetch: &mut Fetch) -> Option<Recorded> {
    let place = value.place.as_ref()?;
    let in_memory = !matches!(place, signature::Place::Pieces(_));
    let recorded = Recorded::new(shape(&value.ty)?, in_memory);
    fetch.add(&recorded, place)?;
    Some(recorded)
}

/// Returns the layout in which values of a type are recorded; `None` for a type that is too large.
fn shape(ty: &Type) -> Option<Shape> {
    let size = u16::try_from(ty.size).ok()?;
    let number = u8::try_from(size).ok().filter(|size| matches!(size, 1..=8));
    let place = |at: u64| u16::try_from(at).ok();
    Some(match &ty.kind {
        TypeKind::Bool if size == 1 => Shape::Bool,
        TypeKind::Char if size == 4 => Shape::Char,
        TypeKind::Signed if number.is_some() => Shape::Signed(number?),
        TypeKind::Unsigned if number.is_some() => Shape::Unsigned(number?),
        TypeKind::Float if matches!(size, 4 | 8) => Shape::Float(number?),
        TypeKind::Pointer => Shape::Pointer,
        TypeKind::CString => Shape::CString,
        TypeKind::Reference(target) => match shape(target) {
            Some(target) if is_of_interest(&target) => Shape::Reference(Box::new(target)),
            _ => Shape::Pointer,
        },
        TypeKind::Str { data, len } => Shape::Str {
            size,
            data: place(*data)?,
            len: place(*len)?,
        },
        TypeKind::Slice { data, len, element } => Shape::Slice {
            size,
            data: place(*data)?,
            len: place(*len)?,
            element: Box::new(shape(element)?),
        },
        TypeKind::Array(element, count) => {
            Shape::Array(Box::new(shape(element)?), u16::try_from(*count).ok()?)
        }
        TypeKind::Enumeration(names) => Shape::Enumeration {
            size: number?,
            names: names.clone(),
        },
        TypeKind::Struct(members) => Shape::Struct {
            size,
            name: short(&ty.name),
            fields: fields(members)?,
        },
        TypeKind::Variants { tag, variants } => {
            let variant = |variant: &signature::Variant| {
                let fields = fields(&variant.fields)?;
                Some(ShapeVariant::new(variant.name.clone(), variant.tag, fields))
            };
            let (at, tag_size) = tag.unwrap_or_default();
            Shape::Variants {
                size,
                tag: (
                    place(at)?,
                    u8::try_from(tag_size).ok().filter(|size| *size <= 8)?,
                ),
                variants: variants.iter().map(variant).collect::<Option<_>>()?,
            }
        }
        _ => Shape::Opaque(size),
    })
}

fn fields(all: &[signature::Field]) -> Option<Vec<ShapeField>> {
    let field = |field: &signature::Field| {
        let offset = u16::try_from(field.offset).ok()?;
        Some(ShapeField::new(
            field.name.clone(),
            offset,
            shape(&field.ty)?,
        ))
    };
    all.iter().map(field).collect()
}

/// True if the target of a reference is recorded. An address says as much as bytes of an unknown
/// type.
fn is_of_interest(target: &Shape) -> bool {
    let is_known = !matches!(target, Shape::Opaque(_) | Shape::Pointer);
    is_known && (1..=MAX_TARGET).contains(&target.size())
}

/// Returns the name of a type without its parameters; empty for a tuple.
fn short(name: &str) -> String {
    let name = name.strip_prefix("struct ").unwrap_or(name);
    let name = name.split(['<', '(']).next().unwrap_or_default();
    name.to_owned()
}
