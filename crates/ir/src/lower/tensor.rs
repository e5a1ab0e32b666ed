//! Tensor copies and changes of tensor maps (PTX ISA, "cp.async.bulk.tensor", "tensormap.replace"),
//! in tile mode.
//!
//! A box of the tensor is copied in pieces of 16 bytes, which never go beyond a row of the box. A
//! piece that is partly outside the tensor, or not aligned in global memory, is copied byte by
//! byte.

use sluice_ptx::ast::{Address, AddressBase, Instruction, Operand};
use sluice_ptx::{Modifier, Space as PtxSpace, Type as PtxType};

use super::cluster::address;
use super::mbarrier::CLUSTER_BLOCKS_MAX;
use super::memory::atomic_op;
use super::operand::register_type;
use super::{Lowered, Lowering, choose, malformed, operand, unsupported};
use crate::inst::{
    BinaryOp, ConvertOp, Inst, IntCond, MemoryOperand, MemoryOrder, Ordering, Scope, Space, UnaryOp,
};
use crate::kernel::Terminator;
use crate::tensor as map;
use crate::types::{Type, Value};

const PIECE_BYTES: u32 = 16;
/// The logarithm to base 2 of it.
const PIECE_SHIFT: u64 = 4;
/// A NaN of each type of 32 bits and more, and of each of 16 bits.
const NANS: u64 = 0x7fff_ffff_7fff_ffff;
const NANS_OF_HALVES: u64 = 0x7fff_7fff_7fff_7fff;

/// Types of reductions by their numbers in a tensor map; 8 flushes subnormals.
const REDUCED: [(u64, PtxType); 9] = [
    (2, PtxType::U32),
    (3, PtxType::S32),
    (4, PtxType::U64),
    (5, PtxType::S64),
    (6, PtxType::F16),
    (7, PtxType::F32),
    (8, PtxType::F32),
    (9, PtxType::F64),
    (10, PtxType::Bf16),
];

/// One dimension of a box, and where it begins in the tensor; all I32.
#[derive(Clone, Copy)]
struct Dimension {
    begin: Value,
    size: Value,
    /// Elements of the box.
    count: Value,
    step: Value,
    /// Bytes from one element to the next, I64; the innermost dimension has none.
    stride: Option<Value>,
}

/// A box of a tensor.
struct Tile {
    address: Value,
    dimensions: Vec<Dimension>,
    ty: Value,
    /// The logarithm to base 2 of an element's size in bytes, I32.
    shift: Value,
    /// Which bits of an address change others.
    swizzle_mask: Value,
    /// 8 bytes that stand for elements outside, I64.
    fill: Value,
    row_pieces: Value,
    pieces: Value,
}

/// 16 bytes of a box.
struct Piece {
    /// In global memory, I64.
    address: Value,
    /// Index of the first element in the innermost dimension, I32.
    first: Value,
    /// Whether the other dimensions are inside the tensor, I1.
    is_row_inside: Value,
    /// Whether all of it is inside and aligned, I1.
    is_whole: Value,
}

/// Where a box is in shared memory: an address of 32 bits, and the space that it is of.
#[derive(Clone, Copy)]
enum Shared {
    Block(Value),
    Cluster(Value),
    /// A generic address, I64.
    Generic(Value),
}

impl<'m> Lowering<'m> {
    /// `cp.async.bulk.tensor` and `cp.reduce.async.bulk.tensor`.
    pub(super) fn copy_tensor(&mut self, i: &Instruction) -> Lowered {
        let is_other_mode = |modifier: &Modifier| {
            let text = modifier.to_string();
            text.starts_with("im2col") || text.starts_with("tile::")
        };
        if i.modifiers.iter().any(is_other_mode) {
            return Err(unsupported(i));
        }
        let spaces: Vec<PtxSpace> = i
            .modifiers
            .iter()
            .filter_map(|modifier| if let Modifier::Space(space) = modifier { Some(*space) } else { None })
            .collect();
        match spaces[..] {
            [to @ (PtxSpace::Shared | PtxSpace::SharedCta | PtxSpace::SharedCluster), PtxSpace::Global] => {
                self.load_tile(i, to)
            }
            [PtxSpace::Global, from @ (PtxSpace::Shared | PtxSpace::SharedCta)] => self.store_tile(i, from),
            _ => Err(unsupported(i)),
        }
    }

    /// `cp.async.bulk.tensor.Nd.shared.global.mbarrier [to], [map, coordinates], [object]{, mask}`.
    fn load_tile(&mut self, i: &Instruction, to_space: PtxSpace) -> Lowered {
        let tile = self.tile(i, 1)?;
        let bytes = self.build().binary_imm(BinaryOp::Shl, tile.pieces, PIECE_SHIFT);
        if !i.has(Modifier::MulticastCluster) {
            let to = self.shared_address(address(i, 0)?, to_space)?;
            self.load_pieces(&tile, to)?;
            let object = self.place_in(address(i, 2)?, Some(to_space))?;
            self.complete(object, bytes);
            return Ok(());
        }
        let mask = self.read(operand(i, 3)?, Type::I32)?;
        let [to, object] = [0, 2].map(|at| self.offset_in_block(i, at));
        let (to, object) = (to?, object?);
        let blocks = self.build().i32(CLUSTER_BLOCKS_MAX as u32);
        self.count_up(blocks, 1, |lowering, rank| {
            let mut build = lowering.build();
            let bit = build.binary(BinaryOp::ShrU, mask, rank);
            let is_meant = build.convert(ConvertOp::Truncate, Type::I1, bit);
            lowering.branch_around(Some(is_meant), |lowering| {
                let base = lowering.shared_base_of(rank);
                let [to, object] =
                    [to, object].map(|offset| lowering.build().binary(BinaryOp::Add, base, offset));
                lowering.load_pieces(&tile, Shared::Generic(to))?;
                let object = MemoryOperand { space: Space::Generic, addr: object, offset: 0 };
                lowering.complete(object, bytes);
                Ok(())
            })
        })
    }

    /// `cp{.reduce}.async.bulk.tensor.Nd.global.shared [map, coordinates], [from]`.
    fn store_tile(&mut self, i: &Instruction, from_space: PtxSpace) -> Lowered {
        let tile = self.tile(i, 0)?;
        let from = self.shared_address(address(i, 1)?, from_space)?;
        let reduces = i.has(Modifier::Reduce);
        self.count_up(tile.pieces, 1, |lowering, number| {
            let piece = lowering.piece(&tile, number);
            let from = lowering.swizzled(&tile, from, number);
            if reduces {
                return lowering.reduce_piece(i, &tile, &piece, from);
            }
            let to = MemoryOperand { space: Space::Global, addr: piece.address, offset: 0 };
            lowering.branch_around(Some(piece.is_whole), |lowering| {
                lowering.copy_piece(to, from);
                Ok(())
            })?;
            lowering.bytes_inside(&tile, &piece, |lowering, at| {
                let [to, from] = [to, from].map(|place| lowering.behind(place, at));
                lowering.copy_byte(to, from);
                Ok(())
            })
        })
    }

    /// What a map says about the box at some coordinates. Where it says what is not supported, the
    /// kernel traps.
    fn tile(&mut self, i: &Instruction, at: usize) -> Lowered<Tile> {
        let Operand::Bracketed(inside) = operand(i, at)? else { return Err(malformed(i)) };
        let [object, coordinates] = &inside[..] else { return Err(malformed(i)) };
        let coordinates = match coordinates {
            Operand::Vector(parts) => parts,
            single => std::slice::from_ref(single),
        };
        let ranks = [(Modifier::D1, 1), (Modifier::D2, 2), (Modifier::D3, 3)];
        let named = i.modifiers.iter().find_map(|modifier| match modifier.to_string().as_str() {
            "4d" => Some(4),
            "5d" => Some(5),
            _ => None,
        });
        let rank = choose(i, &ranks).or(named).ok_or_else(|| malformed(i))?;
        if coordinates.len() < rank {
            return Err(malformed(i));
        }
        let object = self.map_place(i, object)?;
        let mut dimensions = Vec::with_capacity(rank);
        for (index, coordinate) in coordinates[..rank].iter().enumerate() {
            let begin = self.read(coordinate, Type::I32)?;
            let [size, extent, step] = [map::GLOBAL_DIMENSIONS, map::BOX_DIMENSIONS, map::ELEMENT_STRIDES]
                .map(|list| self.map_field(object, Type::I32, list + 4 * index));
            let stride = index
                .checked_sub(1)
                .map(|before| self.map_field(object, Type::I64, map::GLOBAL_STRIDES + 8 * before));
            let mut build = self.build();
            let one = build.i32(1);
            // The innermost dimension has no step where elements are not interleaved.
            let step = if index == 0 { one } else { build.binary(BinaryOp::MaxU, step, one) };
            let count = build.binary(BinaryOp::Add, extent, step);
            let count = build.binary(BinaryOp::Sub, count, one);
            let count = build.binary(BinaryOp::DivU, count, step);
            dimensions.push(Dimension { begin, size, count, step, stride });
        }
        let address = self.map_field(object, Type::I64, map::GLOBAL_ADDRESS);
        let [ty, interleave, swizzle, fill] = [map::ELEMENT_TYPE, map::INTERLEAVE, map::SWIZZLE, map::FILL]
            .map(|field| self.map_field(object, Type::I32, field));
        let shift = self.element_shift(ty, interleave, swizzle)?;

        let mut build = self.build();
        let one = build.i32(1);
        let mask = build.binary(BinaryOp::Shl, one, swizzle);
        let swizzle_mask = build.binary(BinaryOp::Sub, mask, one);
        let [nans, halves, zeros] = [NANS, NANS_OF_HALVES, 0].map(|bits| build.i64(bits));
        let are_halves = build.compare(IntCond::Eq, shift, one);
        let nans = build.select(are_halves, halves, nans);
        let zero = build.i32(0);
        let is_zero = build.compare(IntCond::Eq, fill, zero);
        let fill = build.select(is_zero, zeros, nans);
        let row = build.binary(BinaryOp::Shl, dimensions[0].count, shift);
        let row_pieces = build.binary_imm(BinaryOp::ShrU, row, PIECE_SHIFT);
        let outer = dimensions[1..].iter().map(|dimension| dimension.count);
        let pieces = outer.fold(row_pieces, |product, count| build.binary(BinaryOp::Mul, product, count));
        Ok(Tile { address, dimensions, ty, shift, swizzle_mask, fill, row_pieces, pieces })
    }

    /// The logarithm of an element's size. The kernel traps if it is no size, and at layouts that
    /// are not supported.
    fn element_shift(&mut self, ty: Value, interleave: Value, swizzle: Value) -> Lowered<Value> {
        let mut build = self.build();
        let sizes = build.i64(map::SIZES);
        let at = build.binary_imm(BinaryOp::Shl, ty, 2);
        let size = build.binary(BinaryOp::ShrU, sizes, at);
        let size = build.binary_imm(BinaryOp::And, size, map::NO_SIZE);
        let shift = build.convert(ConvertOp::Truncate, Type::I32, size);
        let [types, swizzles, zero] = [13, map::SWIZZLES, 0].map(|limit| build.i32(limit));
        let wrong = [
            build.compare(IntCond::GeU, ty, types),
            build.compare(IntCond::GeU, swizzle, swizzles),
            build.compare(IntCond::Ne, interleave, zero),
        ];
        let [a, b, c] = wrong;
        let wrong = build.binary(BinaryOp::Or, a, b);
        let wrong = build.binary(BinaryOp::Or, wrong, c);
        self.branch_around(Some(wrong), |lowering| {
            lowering.end_block(Terminator::Trap);
            Ok(())
        })?;
        Ok(shift)
    }

    fn map_place(&mut self, i: &Instruction, object: &Operand) -> Lowered<MemoryOperand> {
        let address = match object {
            Operand::Register(register) => Address { base: AddressBase::Register(*register), offset: 0 },
            Operand::Symbol { symbol, offset } => {
                Address { base: AddressBase::Symbol(symbol.clone()), offset: *offset }
            }
            Operand::Address(address) => address.clone(),
            _ => return Err(malformed(i)),
        };
        self.place(&address, None)
    }

    fn map_field(&mut self, object: MemoryOperand, ty: Type, offset: usize) -> Value {
        let place = MemoryOperand { offset: object.offset.wrapping_add(offset as i32), ..object };
        self.build().value(Inst::Load { place, ty, count: 1, order: MemoryOrder::WEAK, guard: None })
    }

    fn shared_address(&mut self, address: &Address, space: PtxSpace) -> Lowered<Shared> {
        let is_symbol = matches!(address.base, AddressBase::Symbol(_));
        let place = self.place(address, Some(Space::Shared))?;
        let address = self.build().binary_imm(BinaryOp::Add, place.addr, u64::from(place.offset as u32));
        Ok(match space == PtxSpace::SharedCluster && !is_symbol {
            true => Shared::Cluster(address),
            false => Shared::Block(address),
        })
    }

    /// Where the piece of a number is in shared memory: bits 7 to 9 of its address change bits 4 to
    /// 6, as many of them as the map says.
    fn swizzled(&mut self, tile: &Tile, begin: Shared, number: Value) -> MemoryOperand {
        let mut build = self.build();
        let offset = build.binary_imm(BinaryOp::Shl, number, PIECE_SHIFT);
        let (Shared::Block(begin_address) | Shared::Cluster(begin_address) | Shared::Generic(begin_address)) =
            begin;
        let ty = build.ty(begin_address);
        let [offset, mask] = [offset, tile.swizzle_mask].map(|value| build.resize(ty, false, value));
        let address = build.binary(BinaryOp::Add, begin_address, offset);
        let bits = build.binary_imm(BinaryOp::ShrU, address, 7);
        let bits = build.binary(BinaryOp::And, bits, mask);
        let bits = build.binary_imm(BinaryOp::Shl, bits, 4);
        let addr = build.binary(BinaryOp::Xor, address, bits);
        match begin {
            Shared::Block(_) => MemoryOperand { space: Space::Shared, addr, offset: 0 },
            Shared::Cluster(_) => {
                MemoryOperand { space: Space::Generic, addr: self.generic_of_cluster(addr), offset: 0 }
            }
            Shared::Generic(_) => MemoryOperand { space: Space::Generic, addr, offset: 0 },
        }
    }

    fn piece(&mut self, tile: &Tile, number: Value) -> Piece {
        let inner = tile.dimensions[0];
        let mut build = self.build();
        let column = build.binary(BinaryOp::RemU, number, tile.row_pieces);
        let mut rest = build.binary(BinaryOp::DivU, number, tile.row_pieces);
        let piece_shift = build.i32(PIECE_SHIFT as u32);
        let elements_shift = build.binary(BinaryOp::Sub, piece_shift, tile.shift);
        let first = build.binary(BinaryOp::Shl, column, elements_shift);
        let first = build.binary(BinaryOp::Add, inner.begin, first);
        let far = build.convert(ConvertOp::SignExtend, Type::I64, first);
        let bytes = build.binary(BinaryOp::Shl, far, tile.shift);
        let mut address = build.binary(BinaryOp::Add, tile.address, bytes);
        let mut is_row_inside = build.constant(Type::I1, 1);
        for dimension in &tile.dimensions[1..] {
            let at = build.binary(BinaryOp::RemU, rest, dimension.count);
            rest = build.binary(BinaryOp::DivU, rest, dimension.count);
            let at = build.binary(BinaryOp::Mul, at, dimension.step);
            let at = build.binary(BinaryOp::Add, dimension.begin, at);
            let is_inside = build.compare(IntCond::LtU, at, dimension.size);
            is_row_inside = build.binary(BinaryOp::And, is_row_inside, is_inside);
            if let Some(stride) = dimension.stride {
                let at = build.convert(ConvertOp::SignExtend, Type::I64, at);
                let bytes = build.binary(BinaryOp::Mul, at, stride);
                address = build.binary(BinaryOp::Add, address, bytes);
            }
        }
        let one = build.i32(1);
        let elements = build.binary(BinaryOp::Shl, one, elements_shift);
        let last = build.binary(BinaryOp::Add, first, elements);
        let last = build.binary(BinaryOp::Sub, last, one);
        let [begins, ends] = [first, last].map(|at| build.compare(IntCond::LtU, at, inner.size));
        let low_bits = build.binary_imm(BinaryOp::And, address, u64::from(PIECE_BYTES) - 1);
        let zero = build.i64(0);
        let is_aligned = build.compare(IntCond::Eq, low_bits, zero);
        let is_inside = build.binary(BinaryOp::And, begins, ends);
        let is_inside = build.binary(BinaryOp::And, is_inside, is_row_inside);
        let is_whole = build.binary(BinaryOp::And, is_inside, is_aligned);
        Piece { address, first, is_row_inside, is_whole }
    }

    fn load_pieces(&mut self, tile: &Tile, to: Shared) -> Lowered {
        self.count_up(tile.pieces, 1, |lowering, number| {
            let piece = lowering.piece(tile, number);
            let to = lowering.swizzled(tile, to, number);
            let from = MemoryOperand { space: Space::Global, addr: piece.address, offset: 0 };
            lowering.branch_around(Some(piece.is_whole), |lowering| {
                lowering.copy_piece(to, from);
                Ok(())
            })?;
            let is_partial = lowering.build().unary(UnaryOp::Not, piece.is_whole);
            lowering.branch_around(Some(is_partial), |lowering| {
                lowering.store_weak(to, Type::I64, vec![tile.fill; 2]);
                Ok(())
            })?;
            lowering.bytes_inside(tile, &piece, |lowering, at| {
                let [to, from] = [to, from].map(|place| lowering.behind(place, at));
                lowering.copy_byte(to, from);
                Ok(())
            })
        })
    }

    /// Does something for each byte of a piece that is inside the tensor, unless it is copied as a
    /// whole.
    fn bytes_inside(
        &mut self,
        tile: &Tile,
        piece: &Piece,
        body: impl FnOnce(&mut Self, Value) -> Lowered,
    ) -> Lowered {
        let mut build = self.build();
        let is_partial = build.unary(UnaryOp::Not, piece.is_whole);
        let is_partial = build.binary(BinaryOp::And, is_partial, piece.is_row_inside);
        let bytes = build.i32(PIECE_BYTES);
        self.branch_around(Some(is_partial), |lowering| {
            lowering.count_up(bytes, 1, |lowering, at| {
                let mut build = lowering.build();
                let element = build.binary(BinaryOp::ShrU, at, tile.shift);
                let element = build.binary(BinaryOp::Add, piece.first, element);
                let is_inside = build.compare(IntCond::LtU, element, tile.dimensions[0].size);
                lowering.branch_around(Some(is_inside), |lowering| body(lowering, at))
            })
        })
    }

    /// Combines the elements of a piece that are inside the tensor with those that are there.
    fn reduce_piece(&mut self, i: &Instruction, tile: &Tile, piece: &Piece, from: MemoryOperand) -> Lowered {
        let mut is_any = false;
        for (number, ptx) in REDUCED {
            // What PTX does not have for a type traps below.
            let Ok(op) = atomic_op(i, ptx) else { continue };
            is_any = true;
            let ty = register_type(ptx);
            let mut build = self.build();
            let number = build.i32(number as u32);
            let is_meant = build.compare(IntCond::Eq, tile.ty, number);
            let is_meant = build.binary(BinaryOp::And, is_meant, piece.is_row_inside);
            let elements = build.i32(PIECE_BYTES / ty.bytes());
            self.branch_around(Some(is_meant), |lowering| {
                lowering.count_up(elements, 1, |lowering, at| {
                    let mut build = lowering.build();
                    let element = build.binary(BinaryOp::Add, piece.first, at);
                    let is_inside = build.compare(IntCond::LtU, element, tile.dimensions[0].size);
                    let offset = build.binary(BinaryOp::Shl, at, tile.shift);
                    lowering.branch_around(Some(is_inside), |lowering| {
                        let to = MemoryOperand { space: Space::Global, addr: piece.address, offset: 0 };
                        let [place, from] = [to, from].map(|place| lowering.behind(place, offset));
                        let order = MemoryOrder::WEAK;
                        let load = Inst::Load { place: from, ty, count: 1, order, guard: None };
                        let arg = lowering.build().value(load);
                        let order = MemoryOrder { ordering: Ordering::Relaxed, scope: Scope::Device };
                        let atomic = Inst::Atomic { op, place, ty, arg, compare: None, order, guard: None };
                        let (block, line) = (lowering.here(), lowering.line);
                        lowering.kernel.push_without_result(block, atomic, line);
                        Ok(())
                    })
                })
            })?;
        }
        if is_any { Ok(()) } else { Err(unsupported(i)) }
    }

    fn behind(&mut self, place: MemoryOperand, offset: Value) -> MemoryOperand {
        let mut build = self.build();
        let offset = build.resize(place.space.address_type(), false, offset);
        MemoryOperand { addr: build.binary(BinaryOp::Add, place.addr, offset), ..place }
    }

    fn copy_byte(&mut self, to: MemoryOperand, from: MemoryOperand) {
        let load = Inst::Load { place: from, ty: Type::I8, count: 1, order: MemoryOrder::WEAK, guard: None };
        let byte = self.build().value(load);
        self.store_weak(to, Type::I8, vec![byte]);
    }

    fn store_weak(&mut self, place: MemoryOperand, ty: Type, values: Vec<Value>) {
        let order = MemoryOrder::WEAK;
        self.build().push(Inst::Store { place, ty, values: values.into(), order, guard: None });
    }

    /// `tensormap.replace.tile.FIELD.SPACE.b1024.TYPE [map], {ordinal,} value` and
    /// `tensormap.cp_fenceproxy`.
    pub(super) fn tensormap(&mut self, i: &Instruction) -> Lowered {
        let words: Vec<String> = i.modifiers.iter().map(Modifier::to_string).collect();
        let has = |word: &str| words.iter().any(|known| known == word);
        if has("cp_fenceproxy") {
            let [to, from] = [(0, PtxSpace::Global), (1, PtxSpace::SharedCta)]
                .map(|(at, space)| self.place_in(address(i, at)?, Some(space)));
            let bytes = self.build().i32(map::MAP_BYTES as u32);
            return self.copy_in_loop(to?, from?, bytes);
        }
        if !has("replace") || !has("tile") {
            return Err(unsupported(i));
        }
        // Name, offset, elements of a list.
        const FIELDS: [(&str, usize, Option<usize>); 10] = [
            ("global_address", map::GLOBAL_ADDRESS, None),
            ("global_stride", map::GLOBAL_STRIDES, Some(map::RANK_MAX - 1)),
            ("global_dim", map::GLOBAL_DIMENSIONS, Some(map::RANK_MAX)),
            ("box_dim", map::BOX_DIMENSIONS, Some(map::RANK_MAX)),
            ("element_stride", map::ELEMENT_STRIDES, Some(map::RANK_MAX)),
            ("rank", map::RANK, None),
            ("elemtype", map::ELEMENT_TYPE, None),
            ("interleave_layout", map::INTERLEAVE, None),
            ("swizzle_mode", map::SWIZZLE, None),
            ("fill_mode", map::FILL, None),
        ];
        let field = FIELDS.iter().find(|(name, ..)| has(name)).ok_or_else(|| unsupported(i))?;
        let &(name, mut offset, elements) = field;
        let ty = if matches!(name, "global_address" | "global_stride") { Type::I64 } else { Type::I32 };
        let mut value_at = 1;
        if let Some(elements) = elements {
            let Operand::Integer(ordinal) = operand(i, 1)? else { return Err(malformed(i)) };
            let ordinal = usize::try_from(*ordinal).ok().filter(|&ordinal| ordinal < elements);
            offset += ty.bytes() as usize * ordinal.ok_or_else(|| malformed(i))?;
            value_at = 2;
        }
        let place = self.place_in(address(i, 0)?, i.space())?;
        let value = self.read(operand(i, value_at)?, ty)?;
        let place = MemoryOperand { offset: place.offset.wrapping_add(offset as i32), ..place };
        self.store_weak(place, ty, vec![value]);
        Ok(())
    }
}
