//! Values in memory: the types through which a path leads.

use gimli::constants::*;
use gimli::{Reader, UnitOffset};

use super::super::{NoValue, Place, Step, TypeKind, Value, ValuePath};
use super::{Entry, MAX_DEPTH, MAX_MEMBERS, MAX_TYPES, UnitTypes};

/// The most names and qualifiers before a type.
const MAX_NAMES: usize = 16;

/// A type on the path, and the location of its value: at the last address that was followed, or in
/// registers.
struct Stop<R: Reader<Offset = usize>> {
    entry: Entry<R>,
    at: Option<u64>,
}

impl<R: Reader<Offset = usize>> UnitTypes<'_, R> {
    /// Returns the value to which a path of a function leads.
    pub(super) fn value(
        &self,
        function: UnitOffset,
        address: u64,
        path: &ValuePath,
    ) -> Result<Value, NoValue> {
        let signature = self.signature(function, address);
        let signature = signature.ok_or_else(NoValue::unknown)?;
        // The path has its own budget of types, as large as that of a signature.
        self.types_left.set(MAX_TYPES);
        let wanted = path.parameter.as_str();
        let number = wanted.strip_prefix("arg");
        let number = number.and_then(|number| number.parse::<usize>().ok());
        let mut parameters = signature.parameters.iter();
        let index = parameters.position(|parameter| parameter.name == wanted);
        let index = index.or(number.filter(|it| *it < signature.parameters.len()));
        let Some(index) = index else {
            let mut error = NoValue::new(format!("the function has no argument '{wanted}'"));
            let names = signature.parameters.into_iter().map(|it| it.name);
            error.names = names.filter(|name| !name.is_empty()).collect();
            return Err(error);
        };
        let place = signature.parameters[index].value.place.as_ref();
        let source = match place {
            Some(Place::Pieces(pieces)) => match pieces[..] {
                [piece] if piece.offset == 0 && piece.size == 8 => Ok(piece.source),
                _ => Err(format!("'{wanted}' is no address")),
            },
            Some(_) => Err(format!("'{wanted}' is no address")),
            None => Err(format!(
                "debug information does not say where '{wanted}' is"
            )),
        };
        let source = source.map_err(NoValue::new)?;
        let ty = self.parameter(function, index);
        let entry = ty
            .and_then(|ty| self.bare(ty))
            .ok_or_else(|| NoValue::new(format!("the type of '{wanted}' is not known")))?;
        let mut offsets = Vec::new();
        let mut stop = Stop { entry, at: None };
        let mut so_far = wanted.to_owned();
        for step in &path.steps {
            stop = match step {
                Step::Follow => {
                    if self.is_reference(&stop.entry) {
                        stop = self.follow(stop, &mut offsets, &so_far)?;
                    }
                    match stop.entry.tag() {
                        // `->` on a reference, which C++ does not have.
                        DW_TAG_structure_type | DW_TAG_class_type if stop.at.is_some() => stop,
                        _ => self.follow(stop, &mut offsets, &so_far)?,
                    }
                }
                Step::Member(name) => {
                    if self.is_reference(&stop.entry) {
                        stop = self.follow(stop, &mut offsets, &so_far)?;
                    }
                    let found = self.member(stop, name, &so_far)?;
                    so_far += &format!(".{name}");
                    found
                }
            };
        }
        if self.is_reference(&stop.entry) {
            stop = self.follow(stop, &mut offsets, &so_far)?;
        }
        let at = stop
            .at
            .ok_or_else(|| NoValue::new("it is no value behind an address"))?;
        offsets.push(at);
        let ty = self.ty(stop.entry.offset(), 0);
        let ty = ty.ok_or_else(|| NoValue::new("its type is not known"))?;
        match &ty.kind {
            TypeKind::Struct(_) | TypeKind::Union(_) | TypeKind::Variants { .. } => {
                let mut error = NoValue::new(format!("it is a whole {}: name a member", ty.name));
                self.names_of(&stop.entry, 0, &mut error.names);
                return Err(error);
            }
            TypeKind::Opaque => {
                let why = format!("values of its type, {}, cannot be shown", ty.name);
                return Err(NoValue::new(why));
            }
            _ => {}
        }
        let place = Place::Behind {
            address: source,
            offsets,
        };
        Ok(Value {
            ty,
            place: Some(place),
        })
    }

    /// Returns the type of a parameter.
    fn parameter(&self, function: UnitOffset, index: usize) -> Option<UnitOffset> {
        let entry = self.unit.entry(function).ok()?;
        let (mut nth, mut found) = (0, None);
        self.children(&entry, |child| {
            if child.tag() != DW_TAG_formal_parameter {
                return Some(());
            }
            if nth == index {
                found = self.attr(child, DW_AT_type).and_then(|ty| self.offset(ty));
            }
            nth += 1;
            (nth <= index).then_some(())
        });
        found
    }

    /// Returns a type without the names and qualifiers before it.
    fn bare(&self, ty: UnitOffset) -> Option<Entry<R>> {
        let mut entry = self.unit.entry(ty).ok()?;
        for _ in 0..MAX_NAMES {
            match entry.tag() {
                DW_TAG_typedef | DW_TAG_const_type | DW_TAG_volatile_type
                | DW_TAG_restrict_type | DW_TAG_atomic_type => {
                    let inner = self.offset(self.attr(&entry, DW_AT_type)?)?;
                    entry = self.unit.entry(inner).ok()?;
                }
                _ => return Some(entry),
            }
        }
        None
    }

    /// Returns true for types that are followed implicitly: C++ references, and Rust pointers,
    /// whose members are written with a dot.
    fn is_reference(&self, entry: &Entry<R>) -> bool {
        match entry.tag() {
            DW_TAG_reference_type | DW_TAG_rvalue_reference_type => true,
            DW_TAG_pointer_type => self.name(entry).starts_with('&'),
            _ => false,
        }
    }

    fn follow(
        &self,
        stop: Stop<R>,
        offsets: &mut Vec<u64>,
        so_far: &str,
    ) -> Result<Stop<R>, NoValue> {
        let is_address = matches!(
            stop.entry.tag(),
            DW_TAG_pointer_type | DW_TAG_reference_type | DW_TAG_rvalue_reference_type
        );
        if !is_address {
            return Err(NoValue::new(format!("{so_far} is no address")));
        }
        let target = self.attr(&stop.entry, DW_AT_type);
        let target = target.and_then(|target| self.offset(target));
        let Some(entry) = target.and_then(|target| self.bare(target)) else {
            let why = format!("the type that {so_far} leads to is not known");
            return Err(NoValue::new(why));
        };
        // An address in memory is read first.
        offsets.extend(stop.at);
        Ok(Stop { entry, at: Some(0) })
    }

    fn member(&self, stop: Stop<R>, name: &str, so_far: &str) -> Result<Stop<R>, NoValue> {
        let type_name = self.name(&stop.entry);
        match stop.entry.tag() {
            DW_TAG_structure_type | DW_TAG_class_type | DW_TAG_union_type => {}
            DW_TAG_pointer_type => {
                let why = format!("{so_far} is an address: write -> before '{name}'");
                return Err(NoValue::new(why));
            }
            _ => return Err(NoValue::new(format!("{so_far} is no structure"))),
        }
        let Some(at) = stop.at else {
            return Err(NoValue::new(format!("{so_far} is no address")));
        };
        if stop.entry.has_attr(DW_AT_declaration) {
            let why = format!("debug information has no members of '{type_name}' here");
            return Err(NoValue::new(why));
        }
        let Some(found) = self.find_member(&stop.entry, name, 0) else {
            let mut error = NoValue::new(format!("'{type_name}' has no member '{name}'"));
            self.names_of(&stop.entry, 0, &mut error.names);
            return Err(error);
        };
        let (offset, entry) = found.ok_or_else(|| {
            NoValue::new(format!("'{name}' of '{type_name}' is not at a fixed byte"))
        })?;
        Ok(Stop {
            entry,
            at: Some(at.wrapping_add(offset)),
        })
    }

    /// Returns offset and type of a member, including inherited ones and those of unnamed members;
    /// `Some(None)` for a bit field, or a member whose place depends on the value.
    #[allow(clippy::option_option)]
    fn find_member(
        &self,
        entry: &Entry<R>,
        wanted: &str,
        depth: usize,
    ) -> Option<Option<(u64, Entry<R>)>> {
        self.types_left.set(self.types_left.get().checked_sub(1)?);
        if depth >= MAX_DEPTH {
            return None;
        }
        let mut found = None;
        self.children(entry, |child| {
            if !self.is_part(child) {
                return Some(());
            }
            let name = self.name(child);
            let offset = match child.attr_value(DW_AT_data_member_location) {
                Some(value) => value.udata_value(),
                None => Some(0),
            };
            let offset = offset.filter(|_| !self.is_bits(child));
            let ty = self.attr(child, DW_AT_type).and_then(|ty| self.offset(ty));
            let ty = ty.and_then(|ty| self.bare(ty));
            if child.tag() == DW_TAG_member && name == wanted {
                found = Some(offset.zip(ty));
            } else if let Some(ty) = ty
                && (child.tag() == DW_TAG_inheritance || name.is_empty())
                && let Some(inner) = self.find_member(&ty, wanted, depth + 1)
            {
                found = Some(
                    inner
                        .zip(offset)
                        .map(|((inner, ty), offset)| (inner.wrapping_add(offset), ty)),
                );
            }
            found.is_none().then_some(())
        });
        found
    }

    /// Returns true for members and bases that are in each value.
    fn is_part(&self, child: &Entry<R>) -> bool {
        matches!(child.tag(), DW_TAG_member | DW_TAG_inheritance)
            && !child.has_attr(DW_AT_external)
            && !child.has_attr(DW_AT_declaration)
    }

    fn is_bits(&self, child: &Entry<R>) -> bool {
        child.has_attr(DW_AT_bit_size)
    }

    fn names_of(&self, entry: &Entry<R>, depth: usize, names: &mut Vec<String>) {
        let left = self.types_left.get().checked_sub(1);
        let Some(left) = left.filter(|_| depth < MAX_DEPTH) else {
            return;
        };
        self.types_left.set(left);
        self.children(entry, |child| {
            let name = self.name(child);
            if self.is_part(child) && child.tag() == DW_TAG_member && !name.is_empty() {
                names.push(name);
            } else if self.is_part(child) {
                let ty = self.attr(child, DW_AT_type).and_then(|ty| self.offset(ty));
                if let Some(ty) = ty.and_then(|ty| self.bare(ty)) {
                    self.names_of(&ty, depth + 1, names);
                }
            }
            (names.len() < MAX_MEMBERS).then_some(())
        });
    }
}
