//! What a function takes and gives back, and where that is when it is called: from debug
//! information and the calling convention.
//!
//! | module | holds |
//! |---|---|
//! | `abi` | in which registers or words of the stack the convention puts values |
//! | `dwarf` | parameters, types and locations of debug information |
//! | `path` | ways from parameters to values behind addresses |

#[cfg(feature = "dwarf")]
pub(crate) mod abi;
#[cfg(feature = "dwarf")]
pub(crate) mod dwarf;
mod path;

use std::fmt;

pub use path::{NoValue, Step, ValuePath, ValuePathError};

/// What a function takes and gives back.
///
/// It is written as Rust writes it, with the types as the program's language names them:
///
/// ```
/// # use fgraph_symbols::signature::{Parameter, Signature, Type, TypeKind, Value};
/// let int = Type::new("int", 4, TypeKind::Signed);
/// let signature = Signature {
///     parameters: vec![Parameter {
///         name: "n".into(),
///         value: Value { ty: int.clone(), place: None },
///     }],
///     is_variadic: false,
///     result: Some(Value { ty: int, place: None }),
/// };
/// assert_eq!(signature.to_string(), "(n: int) -> int");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signature {
    /// What it is called with, in order.
    pub parameters: Vec<Parameter>,
    /// Whether more may follow, as for `printf`.
    pub is_variadic: bool,
    /// What it gives back; `None` if nothing.
    pub result: Option<Value>,
}

/// A parameter of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name; empty if it has none.
    pub name: String,
    /// What it is.
    pub value: Value,
}

/// Something that is handed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Its type.
    pub ty: Type,
    /// Where it is at the function's first instruction, or of a result when the function returns;
    /// `None` if that is not known.
    pub place: Option<Place>,
}

/// Where a value is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In registers or on the stack, in pieces.
    Pieces(Vec<Piece>),
    /// In memory, behind an address.
    Memory {
        /// Where the address is.
        address: Source,
        /// What is added to it.
        offset: i64,
    },
    /// In memory, behind several addresses.
    Behind {
        /// Where the first address is.
        address: Source,
        /// Distances from each address to the place of the next one, and at last of the value.
        offsets: Vec<u64>,
    },
}

/// A part of a value, in one register or word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where it is.
    pub source: Source,
    /// At which byte of the value it belongs.
    pub offset: u8,
    /// The number of its bytes, 1 to 8.
    pub size: u8,
}

/// A register, or a word of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The integer register of this number among those that arguments, or results, travel in.
    Integer(u8),
    /// The low half of the vector register of this number among these.
    Vector(u8),
    /// The word of this number behind the return address.
    Stack(u16),
}

/// A type, as far as its values can be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Type {
    /// Its name, as the program's language writes it.
    pub name: String,
    /// The number of its bytes.
    pub size: u64,
    /// What it is.
    pub kind: TypeKind,
    /// Whether the C++ convention hands it over by address, as it has a constructor or destructor
    /// to be called.
    #[cfg_attr(not(feature = "dwarf"), allow(dead_code))]
    pub(crate) by_address: bool,
}

/// What a type is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TypeKind {
    /// True or false.
    Bool,
    /// A number with a sign.
    Signed,
    /// A number without a sign.
    Unsigned,
    /// A character by its number in Unicode.
    Char,
    /// A number of IEEE 754.
    Float,
    /// An address.
    Pointer,
    /// The address of a text that ends with a byte of zeros.
    CString,
    /// The address of a value.
    Reference(Box<Type>),
    /// A text: its address and its length in bytes, each at an offset.
    Str {
        /// Where the address is.
        data: u64,
        /// Where the length is.
        len: u64,
    },
    /// Values in a row: their address and their number, each at an offset.
    Slice {
        /// Where the address is.
        data: u64,
        /// Where the number is.
        len: u64,
        /// What each of them is.
        element: Box<Type>,
    },
    /// Values in a row, and how many they are.
    Array(Box<Type>, u64),
    /// A number that has names.
    Enumeration(Vec<(u64, String)>),
    /// Several values.
    Struct(Vec<Field>),
    /// Several values in one place, of which debug information does not say which is there.
    Union(Vec<Field>),
    /// One of several, as a Rust `enum` is.
    Variants {
        /// Offset and size of the number that tells which.
        tag: Option<(u64, u64)>,
        /// All that there are.
        variants: Vec<Variant>,
    },
    /// Bytes.
    Opaque,
}

/// A value in a larger one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name; `__0` for the first one without a name in Rust.
    pub name: String,
    /// Where it is, in bytes.
    pub offset: u64,
    /// What it is.
    pub ty: Type,
}

/// One of those that a value may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Its name.
    pub name: String,
    /// The tag that says so; `None` if every other one does.
    pub tag: Option<u64>,
    /// What it has.
    pub fields: Vec<Field>,
}

impl Type {
    /// A type.
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
