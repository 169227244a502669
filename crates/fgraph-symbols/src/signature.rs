//! Arguments and results of functions, and their locations during a call, from debug information
//! and the calling convention.
//!
//! | module | holds |
//! |---|---|
//! | `abi` | registers and stack words in which the convention passes values |
//! | `dwarf` | parameters, types and locations in debug information |
//! | `path` | paths from parameters to values in memory |

#[cfg(feature = "dwarf")]
pub(crate) mod abi;
#[cfg(feature = "dwarf")]
pub(crate) mod dwarf;
mod path;

use std::fmt;

pub use path::{NoValue, Step, ValuePath, ValuePathError};

/// The parameters and the result of a function.
///
/// It is displayed as in Rust, with the types as the program's language names them:
///
/// ```
/// # use fgraph_symbols::signature::{Parameter, Signature, Type, TypeKind, Value};
/// let int = Type::new("int", 4, TypeKind::Signed);
/// let n = Parameter::new("n".into(), Value::new(int.clone(), None));
/// let signature = Signature::new(vec![n], Some(Value::new(int, None)));
/// assert_eq!(signature.to_string(), "(n: int) -> int");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Signature {
    /// The parameters, in order.
    pub parameters: Vec<Parameter>,
    /// True if more may follow, as for `printf`.
    pub is_variadic: bool,
    /// The result; `None` if there is none.
    pub result: Option<Value>,
}

impl Signature {
    /// A signature with these parameters and no variadic ones.
    #[must_use]
    pub fn new(parameters: Vec<Parameter>, result: Option<Value>) -> Self {
        Self {
            parameters,
            is_variadic: false,
            result,
        }
    }
}

/// A parameter of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Parameter {
    /// Its name; empty if it has none.
    pub name: String,
    /// The type and the location.
    pub value: Value,
}

impl Parameter {
    /// The parameter of this name.
    #[must_use]
    pub fn new(name: String, value: Value) -> Self {
        Self { name, value }
    }
}

/// A value that is passed or returned.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Value {
    /// Its type.
    pub ty: Type,
    /// The location at the function's first instruction, or, for a result, when the function
    /// returns; `None` if it is unknown.
    pub place: Option<Place>,
}

impl Value {
    /// A value of this type, at a place if that is known.
    #[must_use]
    pub fn new(ty: Type, place: Option<Place>) -> Self {
        Self { ty, place }
    }
}

/// The location of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// In registers or on the stack, in pieces.
    Pieces(Vec<Piece>),
    /// In memory, at an address.
    Memory {
        /// The register or word that holds the address.
        address: Source,
        /// The distance that is added to it.
        offset: i64,
    },
    /// In memory, behind several addresses.
    Behind {
        /// The register or word that holds the first address.
        address: Source,
        /// Distances from each address to the place of the next one, and finally of the value.
        offsets: Vec<u64>,
    },
}

/// A part of a value, in one register or word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Piece {
    /// The register or word that holds it.
    pub source: Source,
    /// Its offset in the value, in bytes.
    pub offset: u8,
    /// The number of its bytes, 1 to 8.
    pub size: u8,
}

impl Piece {
    /// The part of `size` bytes that belongs at `offset`.
    #[must_use]
    pub fn new(source: Source, offset: u8, size: u8) -> Self {
        Self {
            source,
            offset,
            size,
        }
    }
}

/// A register, or a word of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// The integer register with this number among those for arguments, or for results.
    Integer(u8),
    /// The low half of the vector register with this number among those for arguments, or for
    /// results.
    Vector(u8),
    /// The stack word with this number after the return address.
    Stack(u16),
}

/// A type, as far as its values can be displayed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Type {
    /// Its name, in the program's language.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
    /// Its kind.
    pub kind: TypeKind,
    /// True if the C++ convention passes it by address, because it has a constructor or destructor
    /// to be called.
    #[cfg_attr(not(feature = "dwarf"), allow(dead_code))]
    pub(crate) by_address: bool,
}

/// The kind of a type.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TypeKind {
    /// True or false.
    Bool,
    /// A signed integer.
    Signed,
    /// An unsigned integer.
    Unsigned,
    /// A character as a Unicode code point.
    Char,
    /// A floating-point number of IEEE 754.
    Float,
    /// An address.
    Pointer,
    /// The address of a text that ends with a zero byte.
    CString,
    /// The address of a value.
    Reference(Box<Type>),
    /// A text: its address and its length in bytes, each at an offset.
    Str {
        /// The offset of the address.
        data: u64,
        /// The offset of the length.
        len: u64,
    },
    /// A sequence of values: their address and their number, each at an offset.
    Slice {
        /// The offset of the address.
        data: u64,
        /// The offset of the number.
        len: u64,
        /// The type of the elements.
        element: Box<Type>,
    },
    /// A sequence of values, and their number.
    Array(Box<Type>, u64),
    /// A number with names.
    Enumeration(Vec<(u64, String)>),
    /// A structure of several values.
    Struct(Vec<Field>),
    /// A union, for which debug information does not say which value is present.
    Union(Vec<Field>),
    /// A value of one of several types, like a Rust `enum`.
    Variants {
        /// Offset and size of the number that selects the variant.
        tag: Option<(u64, u64)>,
        /// All variants.
        variants: Vec<Variant>,
    },
    /// Bytes of unknown type.
    Opaque,
}

/// A field of a structure or variant.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Field {
    /// Its name; `__0` for the first field without a name in Rust.
    pub name: String,
    /// Its offset, in bytes.
    pub offset: u64,
    /// Its type.
    pub ty: Type,
}

/// One of the types that a value may have.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Variant {
    /// Its name.
    pub name: String,
    /// The tag that selects it; `None` if all other tags do.
    pub tag: Option<u64>,
    /// Its fields.
    pub fields: Vec<Field>,
}

impl Type {
    /// Makes a type.
    #[must_use]
    pub fn new(name: &str, size: u64, kind: TypeKind) -> Self {
        Self {
            name: name.to_owned(),
            size,
            kind,
            by_address: false,
        }
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(")?;
        for (index, parameter) in self.parameters.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            let name = match parameter.name.as_str() {
                "" => "_",
                name => name,
            };
            write!(f, "{comma}{name}: {}", parameter.value.ty.name)?;
        }
        if self.is_variadic {
            let comma = if self.parameters.is_empty() { "" } else { ", " };
            write!(f, "{comma}...")?;
        }
        f.write_str(")")?;
        match &self.result {
            Some(result) => write!(f, " -> {}", result.ty.name),
            None => Ok(()),
        }
    }
}
