//! Unwind rules (`.eh_frame`): from an address in a function to its caller.
//!
//! An unwinder needs three of the caller's registers: the address at which it continues, its stack
//! pointer, and its frame pointer, from which its own frame may be computed. A [`Row`] has the
//! rules for these at one address. Reading one allocates nothing and takes no lock.
//!
//! ```text
//!   push rbp; mov rbp, rsp; ...   frame  rbp + 16    returns to [frame - 8]   rbp [frame - 16]
//!   push rbx; sub rsp, 32; ...    frame  rsp + 48    returns to [frame - 8]   rbp as it is
//! ```

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, EndianSlice, LittleEndian, Operation, Pointer,
    Register, RegisterRule, UnwindContext, UnwindContextStorage, UnwindExpression, UnwindSection,
    UnwindTableRow, X86_64,
};

/// The size of an address.
const ADDRESS_SIZE: u8 = 8;

/// The unwind information of a module, with its index by address.
#[derive(Clone, Copy, Debug)]
pub struct UnwindTable<'a> {
    /// The memory that contains both.
    pub bytes: &'a [u8],
    /// The address of its first byte.
    pub address: u64,
    /// The address of the index, `.eh_frame_hdr`.
    pub index: u64,
}

/// The rules for finding the caller from an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The caller's stack pointer once the call has returned (the CFA).
    pub frame: Place,
    /// The address at which the caller continues.
    pub return_address: Saved,
    /// The caller's frame pointer.
    pub frame_pointer: Saved,
    /// True if a signal has interrupted the "caller", which continues where it was.
    pub is_signal: bool,
}

/// A register from which an address is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// rsp.
    StackPointer,
    /// rbp.
    FramePointer,
}

/// An address relative to a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The register.
    pub base: Base,
    /// The distance from the register's value, in bytes.
    pub offset: i64,
    /// True if the address is stored there.
    pub is_stored: bool,
}

/// The location of a value of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saved {
    /// In its register.
    Kept,
    /// In memory, at this distance from the frame in bytes.
    At(i64),
    /// In memory, at an address relative to a register.
    AtPlace(Place),
    /// Lost: for a return address, this is the outermost function.
    Lost,
}

/// Where a function goes on when the call that it makes returns, and with which registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The address of the next instruction. For a function that a signal has interrupted, one more
    /// than where it is: so the byte before it belongs to the function in each case.
    pub address: u64,
    /// rsp there.
    pub stack_pointer: u64,
    /// rbp there.
    pub frame_pointer: u64,
}

impl Row {
    /// Returns where the caller goes on, by this row, which is the one for the byte before
    /// `at.address`. `read` reads a word of the stack.
    ///
    /// `None` if there is no caller, a word cannot be read, or the frame is not above the stack
    /// pointer: stacks grow down, and only a signal comes from another one.
    #[inline]
    #[must_use]
    pub fn caller(&self, at: Position, read: impl Fn(u64) -> Option<u64>) -> Option<Position> {
        let resolve = |place: Place| {
            let base = match place.base {
                Base::StackPointer => at.stack_pointer,
                Base::FramePointer => at.frame_pointer,
            };
            let address = base.wrapping_add_signed(place.offset);
            match place.is_stored {
                true => read(address),
                false => Some(address),
            }
        };
        let frame = resolve(self.frame)?;
        let saved = |saved| match saved {
            Saved::At(offset) => read(frame.wrapping_add_signed(offset)),
            Saved::AtPlace(place) => read(resolve(place)?),
            Saved::Kept | Saved::Lost => None,
        };
        let address = saved(self.return_address)?;
        let frame_pointer = match self.frame_pointer {
            Saved::Kept | Saved::Lost => at.frame_pointer,
            at => saved(at)?,
        };
        (address != 0 && (self.is_signal || frame > at.stack_pointer)).then_some(Position {
            address: address.wrapping_add(u64::from(self.is_signal)),
            stack_pointer: frame,
            frame_pointer,
        })
    }
}

/// Room for the rules at one address: compilers write at most 7, and 18 for a signal's return.
struct Room;

impl UnwindContextStorage<usize> for Room {
    type Rules = [(Register, RegisterRule<usize>); 24];
    type Stack = [UnwindTableRow<usize, Self>; 4];
}

type Bytes<'a> = EndianSlice<'a, LittleEndian>;

impl UnwindTable<'_> {
    /// Returns the row for `address`; `None` if there is none, or it has rules that compilers do
    /// not write.
    #[must_use]
    pub fn row(&self, address: u64) -> Option<Row> {
        let at = |address: u64| usize::try_from(address.checked_sub(self.address)?).ok();
        let index = EhFrameHdr::new(self.bytes.get(at(self.index)?..)?, LittleEndian);
        let bases = BaseAddresses::default().set_eh_frame_hdr(self.index);
        let index = index.parse(&bases, ADDRESS_SIZE).ok()?;
        let Pointer::Direct(section) = index.eh_frame_ptr() else {
            return None;
        };
        let bases = bases.set_eh_frame(section);
        let frames = EhFrame::new(self.bytes.get(at(section)?..)?, LittleEndian);
        let fde = index
            .table()?
            .fde_for_address(&frames, &bases, address, EhFrame::cie_from_offset)
            .ok()?;
        let mut context = UnwindContext::<usize, Room>::new_in();
        let row = fde
            .unwind_info_for_address(&frames, &bases, &mut context, address)
            .ok()?;
        let encoding = fde.cie().encoding();
        let place = |expression: &UnwindExpression<usize>| {
            let expression = expression.get(&frames).ok()?;
            let mut operations = expression.operations(encoding);
            let first = operations.next().ok()??;
            let place = counted_from(&first)?;
            match operations.next().ok()? {
                None => Some(place),
                Some(Operation::Deref { .. }) if operations.next().ok()?.is_none() => Some(Place {
                    is_stored: true,
                    ..place
                }),
                Some(_) => None,
            }
        };
        let saved = |register: Register| match row.register(register) {
            Some(RegisterRule::Offset(offset)) => Some(Saved::At(offset)),
            Some(RegisterRule::Expression(expression)) => place(&expression)
                .filter(|place| !place.is_stored)
                .map(Saved::AtPlace),
            Some(RegisterRule::Undefined) => Some(Saved::Lost),
            None | Some(RegisterRule::SameValue) => Some(Saved::Kept),
            Some(_) => None,
        };
        Some(Row {
            frame: match row.cfa() {
                CfaRule::RegisterAndOffset { register, offset } => Place {
                    base: Base::of(*register)?,
                    offset: *offset,
                    is_stored: false,
                },
                CfaRule::Expression(expression) => place(expression)?,
            },
            // In no register: code without a rule has no caller.
            return_address: match saved(fde.cie().return_address_register())? {
                Saved::Kept => Saved::Lost,
                saved => saved,
            },
            frame_pointer: saved(X86_64::RBP)?,
            is_signal: fde.is_signal_trampoline(),
        })
    }
}

impl Base {
    fn of(register: Register) -> Option<Self> {
        match register {
            X86_64::RSP => Some(Self::StackPointer),
            X86_64::RBP => Some(Self::FramePointer),
            _ => None,
        }
    }
}

/// Returns the register-relative address that an operation computes.
fn counted_from(operation: &Operation<Bytes<'_>>) -> Option<Place> {
    match *operation {
        Operation::RegisterOffset {
            register, offset, ..
        } => Some(Place {
            base: Base::of(register)?,
            offset,
            is_stored: false,
        }),
        _ => None,
    }
}
