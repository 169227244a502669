//! The types of debug information.

use gimli::constants::*;
use gimli::{AttributeValue, Reader, UnitOffset};

use super::{Entry, Language, MAX_CHILDREN, MAX_DEPTH, MAX_MEMBERS, UnitTypes};
use crate::signature::{Field, Type, TypeKind, Variant};

/// A member of a structure.
struct Member {
    name: String,
    offset: u64,
    ty: UnitOffset,
}

impl<R: Reader<Offset = usize>> UnitTypes<'_, R> {
    pub(super) fn ty(&self, offset: UnitOffset, depth: usize) -> Option<Type> {
        self.types_left.set(self.types_left.get().checked_sub(1)?);
        let entry = self.unit.entry(offset).ok()?;
        let (name, size) = (self.name(&entry), self.number(&entry, DW_AT_byte_size));
        let size = size.unwrap_or(0);
        let is_deep = depth >= MAX_DEPTH;
        let kind = match entry.tag() {
            DW_TAG_base_type => {
                let Some(AttributeValue::Encoding(encoding)) = entry.attr_value(DW_AT_encoding)
                else {
                    return None;
                };
                match encoding {
                    DW_ATE_boolean => TypeKind::Bool,
                    DW_ATE_signed | DW_ATE_signed_char => TypeKind::Signed,
                    DW_ATE_unsigned | DW_ATE_unsigned_char => TypeKind::Unsigned,
                    DW_ATE_UTF if size == 4 => TypeKind::Char,
                    DW_ATE_UTF => TypeKind::Unsigned,
                    DW_ATE_float => TypeKind::Float,
                    _ => TypeKind::Opaque,
                }
            }
            DW_TAG_pointer_type | DW_TAG_reference_type | DW_TAG_rvalue_reference_type => {
                return self.pointer(&entry, name, depth);
            }
            DW_TAG_const_type | DW_TAG_volatile_type | DW_TAG_restrict_type
            | DW_TAG_atomic_type => return self.qualified(&entry, depth),
            DW_TAG_typedef => {
                let inner = self.type_of(&entry, depth + 1);
                let inner = inner.unwrap_or_else(|| Type::new("", 0, TypeKind::Opaque));
                return Some(Type { name, ..inner });
            }
            DW_TAG_enumeration_type => self.enumeration(&entry, size),
            DW_TAG_structure_type | DW_TAG_class_type => {
                let kind = match is_deep {
                    true => TypeKind::Opaque,
                    false => self.structure(&entry, &name, depth),
                };
                let by_address =
                    self.language == Language::Cpp && self.is_by_address(&entry, &name, depth);
                return Some(Type {
                    by_address,
                    ..Type::new(&self.tagged("struct ", name), size, kind)
                });
            }
            DW_TAG_union_type => {
                let fields = match is_deep {
                    true => None,
                    false => self.fields(&entry, depth),
                };
                let kind = fields.map_or(TypeKind::Opaque, TypeKind::Union);
                return Some(Type::new(&self.tagged("union ", name), size, kind));
            }
            DW_TAG_array_type => return self.array(&entry, depth),
            DW_TAG_subroutine_type => return Some(Type::new("fn", 0, TypeKind::Opaque)),
            _ => TypeKind::Opaque,
        };
        let name = match entry.tag() {
            DW_TAG_enumeration_type => self.tagged("enum ", name),
            _ => name,
        };
        Some(Type::new(&name, size, kind))
    }

    /// Returns true if C++ passes values of a class by address: it must if copying or destroying
    /// one is a call. GNU's compiler does not record it.
    fn is_by_address(&self, entry: &Entry<R>, name: &str, depth: usize) -> bool {
        if let Some(AttributeValue::CallingConvention(said)) =
            entry.attr_value(DW_AT_calling_convention)
        {
            return said == DW_CC_pass_by_reference;
        }
        let class = name.split('<').next().unwrap_or_default();
        let mut found = false;
        self.children(entry, |child| {
            found |= match child.tag() {
                DW_TAG_member if self.name(child).starts_with("_vptr") => true,
                DW_TAG_member | DW_TAG_inheritance => self.has_class_by_address(child, depth),
                DW_TAG_subprogram => self.is_copying(child, entry.offset(), class),
                _ => false,
            };
            (!found).then_some(())
        });
        found
    }

    fn has_class_by_address(&self, member: &Entry<R>, depth: usize) -> bool {
        let entry = || {
            let offset = self.offset(member.attr_value(DW_AT_type)?)?;
            self.unit.entry(offset).ok()
        };
        let is_class =
            |entry: &Entry<R>| matches!(entry.tag(), DW_TAG_structure_type | DW_TAG_class_type);
        let inner = entry().filter(is_class).filter(|_| depth < MAX_DEPTH);
        inner.is_some_and(|inner| self.is_by_address(&inner, &self.name(&inner), depth + 1))
    }

    /// Returns true if a member function destroys, copies or moves its class, and the programmer
    /// wrote it.
    fn is_copying(&self, function: &Entry<R>, class: UnitOffset, class_name: &str) -> bool {
        if function.has_attr(DW_AT_artificial) || function.has_attr(DW_AT_defaulted) {
            return false;
        }
        let name = self.name(function);
        if let Some(destroyed) = name.strip_prefix('~') {
            return destroyed == class_name;
        }
        if name != class_name {
            return false;
        }
        let mut types = Vec::new();
        self.children(function, |child| {
            if child.tag() == DW_TAG_formal_parameter && !child.has_attr(DW_AT_artificial) {
                types.push(child.attr_value(DW_AT_type).and_then(|ty| self.offset(ty)));
            }
            Some(())
        });
        let [Some(only)] = types[..] else {
            return false;
        };
        self.unit.entry(only).is_ok_and(|reference| {
            let tag = reference.tag();
            let is_reference = matches!(tag, DW_TAG_reference_type | DW_TAG_rvalue_reference_type);
            is_reference && self.target(&reference) == Some(class)
        })
    }

    /// Returns the target of a reference, constant or not.
    fn target(&self, reference: &Entry<R>) -> Option<UnitOffset> {
        let offset = self.offset(reference.attr_value(DW_AT_type)?)?;
        let target = self.unit.entry(offset).ok()?;
        match target.tag() {
            DW_TAG_const_type => self.offset(target.attr_value(DW_AT_type)?),
            _ => Some(offset),
        }
    }

    /// Returns a name as C writes it.
    fn tagged(&self, tag: &str, name: String) -> String {
        match self.language {
            Language::C => format!("{tag}{name}"),
            Language::Cpp | Language::Rust => name,
        }
    }

    fn qualified(&self, entry: &Entry<R>, depth: usize) -> Option<Type> {
        let void = || Type::new("void", 0, TypeKind::Opaque);
        let inner = match entry.attr_value(DW_AT_type) {
            Some(_) => self.type_of(entry, depth + 1)?,
            None => void(),
        };
        let word = match entry.tag() {
            DW_TAG_const_type => "const",
            DW_TAG_volatile_type => "volatile",
            DW_TAG_restrict_type => "restrict",
            _ => "_Atomic",
        };
        let name = match inner.name.ends_with(['*', '&']) {
            true => format!("{}{word}", inner.name),
            false => format!("{word} {}", inner.name),
        };
        Some(Type { name, ..inner })
    }

    fn pointer(&self, entry: &Entry<R>, name: String, depth: usize) -> Option<Type> {
        let is_reference = name.starts_with('&') || entry.tag() != DW_TAG_pointer_type;
        // For targets of other pointers, only the name matters.
        let is_followed = is_reference && depth == 0;
        let target_depth = if is_followed { 1 } else { MAX_DEPTH };
        let target = match entry.attr_value(DW_AT_type) {
            Some(_) => self.type_of(entry, target_depth)?,
            None => Type::new("void", 0, TypeKind::Opaque),
        };
        let is_char = target.size == 1
            && matches!(target.kind, TypeKind::Signed | TypeKind::Unsigned)
            && matches!(target.name.trim_start_matches("const "), "char");
        let star = match entry.tag() {
            DW_TAG_reference_type => "&",
            DW_TAG_rvalue_reference_type => "&&",
            _ => "*",
        };
        let name = match name.as_str() {
            "" if target.name.ends_with(['*', '&']) => format!("{}{star}", target.name),
            "" => format!("{} {star}", target.name),
            _ => name,
        };
        let kind = match () {
            () if is_followed => TypeKind::Reference(Box::new(target)),
            () if is_char && !is_reference => TypeKind::CString,
            () => TypeKind::Pointer,
        };
        Some(Type::new(&name, 8, kind))
    }

    fn enumeration(&self, entry: &Entry<R>, size: u64) -> TypeKind {
        let mut names = Vec::new();
        self.children(entry, |child| {
            let value = child.attr_value(DW_AT_const_value);
            let value = value.as_ref().and_then(bits);
            if let (DW_TAG_enumerator, Some(value)) = (child.tag(), value) {
                names.push((value & mask(size), self.name(child)));
            }
            (names.len() < MAX_MEMBERS).then_some(())
        });
        TypeKind::Enumeration(names)
    }

    /// Passes the children of an entry to `with`, until it returns `None`.
    pub(super) fn children(&self, entry: &Entry<R>, mut with: impl FnMut(&Entry<R>) -> Option<()>) {
        let Ok(mut tree) = self.unit.entries_tree(Some(entry.offset())) else {
            return;
        };
        let Ok(root) = tree.root() else {
            return;
        };
        let mut children = root.children();
        for _ in 0..MAX_CHILDREN {
            match children.next() {
                Ok(Some(child)) if with(child.entry()).is_some() => {}
                _ => return,
            }
        }
    }

    /// Returns the members of a structure that are in its values; `None` if some are bit fields, or
    /// are not at a fixed place.
    fn members(&self, entry: &Entry<R>) -> Option<Vec<Member>> {
        let (mut found, mut is_known) = (Vec::new(), true);
        self.children(entry, |child| {
            let is_static = child.has_attr(DW_AT_external) || child.has_attr(DW_AT_declaration);
            if !matches!(child.tag(), DW_TAG_member | DW_TAG_inheritance) || is_static {
                return Some(());
            }
            let offset = match child.attr_value(DW_AT_data_member_location) {
                Some(value) => value.udata_value(),
                None => Some(0),
            };
            let is_whole = !child.has_attr(DW_AT_bit_size);
            let ty = self.attr(child, DW_AT_type).and_then(|ty| self.offset(ty));
            match (offset, ty) {
                (Some(offset), Some(ty)) if is_whole && found.len() < MAX_MEMBERS => {
                    let name = self.name(child);
                    found.push(Member { name, offset, ty });
                }
                _ => is_known = false,
            }
            Some(())
        });
        is_known.then_some(found)
    }

    fn fields(&self, entry: &Entry<R>, depth: usize) -> Option<Vec<Field>> {
        let members = self.members(entry)?.into_iter();
        let field = |member: Member| {
            Some(Field {
                name: member.name,
                offset: member.offset,
                ty: self.ty(member.ty, depth + 1)?,
            })
        };
        members.map(field).collect()
    }

    fn structure(&self, entry: &Entry<R>, name: &str, depth: usize) -> TypeKind {
        let known = match self.language {
            Language::Rust => self.rust_text_or_slice(entry, name, depth),
            Language::Cpp => self.cpp_text(entry, name),
            Language::C => None,
        };
        if let Some(kind) = known {
            return kind;
        }
        let mut part = None;
        self.children(entry, |child| {
            match child.tag() {
                DW_TAG_variant_part => part = Some(child.offset()),
                _ => return Some(()),
            }
            None
        });
        let kind = match part {
            Some(part) => self.variants(part, depth),
            None => self.fields(entry, depth).map(TypeKind::Struct),
        };
        kind.unwrap_or(TypeKind::Opaque)
    }

    /// Recognizes `&str`, `&[T]` and the like, `String`, `Vec` and types that wrap one.
    fn rust_text_or_slice(&self, entry: &Entry<R>, name: &str, depth: usize) -> Option<TypeKind> {
        let members = self.members(entry)?;
        let member = |name: &str| members.iter().find(|member| member.name == name);
        if let (Some(data), Some(len), 2) = (member("data_ptr"), member("length"), members.len()) {
            let is_text = ["str", "str>", "Path", "OsStr", "str, alloc::alloc::Global>"];
            let (data, len, pointer) = (data.offset, len.offset, data.ty);
            if is_text.iter().any(|end| name.ends_with(end)) {
                return Some(TypeKind::Str { data, len });
            }
            if !name.ends_with([']', '>']) {
                return None;
            }
            let pointer = self.unit.entry(pointer).ok()?;
            let element = Box::new(self.type_of(&pointer, depth + 2)?);
            return Some(TypeKind::Slice { data, len, element });
        }
        let is_text = matches!(name, "String" | "PathBuf" | "OsString");
        if !is_text && !name.starts_with("Vec<") {
            return None;
        }
        let (vec, base) = self.find_vec(entry, 0)?;
        let members = self.members(&vec)?;
        let len = members.iter().find(|member| member.name == "len")?;
        let buffer = members.iter().find(|member| member.name == "buf")?;
        let data = base + buffer.offset + self.first_pointer(buffer.ty, 0)?;
        let len = base + len.offset;
        if is_text {
            return Some(TypeKind::Str { data, len });
        }
        let mut element = None;
        self.children(&vec, |child| {
            if child.tag() != DW_TAG_template_type_parameter {
                return Some(());
            }
            element = self.type_of(child, depth + 2);
            None
        });
        let element = Box::new(element?);
        Some(TypeKind::Slice { data, len, element })
    }

    /// Returns the vector inside a Rust text, and its offset.
    fn find_vec(&self, entry: &Entry<R>, depth: usize) -> Option<(Entry<R>, u64)> {
        if self.name(entry).starts_with("Vec<") {
            return Some((entry.clone(), 0));
        }
        if depth >= MAX_DEPTH {
            return None;
        }
        self.members(entry)?.iter().find_map(|member| {
            let inner = self.unit.entry(member.ty).ok()?;
            let (vec, offset) = self.find_vec(&inner, depth + 1)?;
            Some((vec, member.offset + offset))
        })
    }

    /// Returns the offset of the first pointer in a value.
    fn first_pointer(&self, ty: UnitOffset, depth: usize) -> Option<u64> {
        let entry = self.unit.entry(ty).ok()?;
        if entry.tag() == DW_TAG_pointer_type {
            return Some(0);
        }
        if depth >= MAX_DEPTH {
            return None;
        }
        self.members(&entry)?.iter().find_map(|member| {
            let offset = self.first_pointer(member.ty, depth + 1)?;
            member.offset.checked_add(offset)
        })
    }

    /// Recognizes the strings of GNU's C++ library.
    fn cpp_text(&self, entry: &Entry<R>, name: &str) -> Option<TypeKind> {
        if !name.starts_with("basic_string<char,") && !name.starts_with("basic_string_view<char,") {
            return None;
        }
        let members = self.members(entry)?;
        let offset = |names: [&str; 2]| {
            let is_it = |member: &&Member| names.contains(&member.name.as_str());
            members.iter().find(is_it).map(|member| member.offset)
        };
        Some(TypeKind::Str {
            data: offset(["_M_dataplus", "_M_str"])?,
            len: offset(["_M_string_length", "_M_len"])?,
        })
    }

    fn variants(&self, part: UnitOffset, depth: usize) -> Option<TypeKind> {
        let entry = self.unit.entry(part).ok()?;
        let tag = match entry.attr_value(DW_AT_discr) {
            Some(discriminant) => {
                let member = self.unit.entry(self.offset(discriminant)?).ok()?;
                let offset = self
                    .number(&member, DW_AT_data_member_location)
                    .unwrap_or(0);
                Some((offset, self.type_of(&member, depth + 1)?.size))
            }
            None => None,
        };
        let (mut variants, mut is_known) = (Vec::new(), true);
        self.children(&entry, |child| {
            if child.tag() != DW_TAG_variant {
                return Some(());
            }
            is_known &= !child.has_attr(DW_AT_discr_list);
            let value = child.attr_value(DW_AT_discr_value);
            let value = value.as_ref().and_then(bits);
            let mut members = self.members(child)?.into_iter();
            let member = members.next()?;
            let inner = self.unit.entry(member.ty).ok()?;
            let mut fields = self.fields(&inner, depth + 1)?;
            for field in &mut fields {
                field.offset = field.offset.checked_add(member.offset)?;
            }
            variants.push(Variant {
                name: member.name,
                tag: value.map(|value| value & mask(tag.map_or(8, |(_, size)| size))),
                fields,
            });
            Some(())
        });
        is_known.then_some(TypeKind::Variants { tag, variants })
    }

    fn array(&self, entry: &Entry<R>, depth: usize) -> Option<Type> {
        let element = self.type_of(entry, depth + 1)?;
        let mut counts = Vec::new();
        self.children(entry, |child| {
            if child.tag() == DW_TAG_subrange_type {
                let last = self.number(child, DW_AT_upper_bound);
                let count = self.number(child, DW_AT_count);
                counts.push(count.or_else(|| last?.checked_add(1)).unwrap_or(0));
            }
            Some(())
        });
        let is_vector = entry.has_attr(DW_AT_GNU_vector);
        counts.iter().rev().try_fold(element, |element, &count| {
            let size = element.size.checked_mul(count)?;
            let name = match self.language {
                Language::Rust => format!("[{}; {count}]", element.name),
                Language::C | Language::Cpp => format!("{}[{count}]", element.name),
            };
            let kind = match is_vector {
                true => TypeKind::Opaque,
                false => TypeKind::Array(Box::new(element), count),
            };
            Some(Type::new(&name, size, kind))
        })
    }
}

/// Returns the bits of a number of any form.
pub(crate) fn bits<R: Reader>(value: &AttributeValue<R>) -> Option<u64> {
    value
        .udata_value()
        .or_else(|| value.sdata_value().map(|value| value as u64))
}

/// Returns the mask for a number of `size` bytes.
pub(crate) fn mask(size: u64) -> u64 {
    match size {
        0..8 => (1 << (8 * size)) - 1,
        _ => u64::MAX,
    }
}
