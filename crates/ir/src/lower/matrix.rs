//! Matrix instructions (PTX ISA, "Warp Level Matrix Instructions"): `mma`, `wmma`, `ldmatrix`,
//! `stmatrix`.
//!
//! Fragments have the layout of [`crate::matrix`]. Products of doubles are spelled out in shuffles
//! and multiply-adds; all others are [`Inst::MatrixMultiply`]. Registers of a `wmma` fragment that
//! the layout does not fill are 0. A 16-bit C has both i of a pair in one register.

use sluice_ptx::ast::{Address, Instruction, Operand};
use sluice_ptx::{Modifier, Opcode, Type as PtxType};

use super::half::Half;
use super::operand::register_type;
use super::{Lowered, Lowering, malformed, memory, operand, unsupported};
use crate::inst::{
    BinaryOp, ConvertOp, Inst, MemoryOperand, Rounding, ShuffleMode, Space, SpecialRegister, Window,
};
use crate::matrix::{MatrixElement, MatrixForm};
use crate::types::{Type, Value};

/// M, N, K of an instruction.
#[derive(Clone, Copy, Debug)]
struct Shape {
    m: u32,
    n: u32,
    k: u32,
}

/// What the bits of an element mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Element {
    Half(Half),
    Tf32,
    F32,
    F64,
    /// 8 bits, signed or not.
    Byte {
        signed: bool,
    },
    I32,
}

impl Element {
    fn of(i: &Instruction, ty: PtxType) -> Lowered<Element> {
        Ok(match ty {
            PtxType::F16 => Element::Half(Half::Ieee),
            PtxType::Bf16 => Element::Half(Half::Bfloat),
            PtxType::Tf32 => Element::Tf32,
            PtxType::F32 => Element::F32,
            PtxType::F64 => Element::F64,
            PtxType::S8 | PtxType::U8 => Element::Byte { signed: ty == PtxType::S8 },
            PtxType::S32 => Element::I32,
            _ => return Err(unsupported(i)),
        })
    }

    /// In bytes.
    fn bytes(self) -> u32 {
        match self {
            Element::Byte { .. } => 1,
            Element::Half(_) => 2,
            Element::F64 => 8,
            _ => 4,
        }
    }

    /// In one register.
    fn per_register(self) -> u32 {
        (4 / self.bytes()).max(1)
    }

    /// What back ends call it; `None` for what [`Inst::MatrixMultiply`] does not take.
    fn of_matrix(self) -> Option<MatrixElement> {
        Some(match self {
            Element::Half(Half::Ieee) => MatrixElement::Half,
            Element::Half(Half::Bfloat) => MatrixElement::Bfloat,
            Element::Tf32 => MatrixElement::Tf32,
            Element::Byte { signed: true } => MatrixElement::S8,
            Element::Byte { signed: false } => MatrixElement::U8,
            Element::F32 | Element::F64 | Element::I32 => return None,
        })
    }

    /// The type of a register of elements.
    fn register(self) -> Type {
        if self == Element::F64 { Type::F64 } else { Type::I32 }
    }
}

impl<'m> Lowering<'m> {
    pub(super) fn matrix(&mut self, i: &Instruction) -> Lowered {
        match i.opcode {
            Opcode::Mma => self.mma(i),
            Opcode::Ldmatrix => self.ldmatrix(i),
            Opcode::Stmatrix => self.stmatrix(i),
            Opcode::Wmma if i.has(Modifier::Load) => self.wmma_load(i),
            Opcode::Wmma if i.has(Modifier::Store) => self.wmma_store(i),
            Opcode::Wmma if i.has(Modifier::Mma) => self.mma(i),
            _ => Err(unsupported(i)),
        }
    }

    // ---- Multiplication
    // -----------------------------------------------------------------------------------

    /// `mma.sync.aligned.shape.row.col.d.a.b.c`; `wmma.mma` too, where `d.c` alone means halves for
    /// a and b.
    fn mma(&mut self, i: &Instruction) -> Lowered {
        let shape = shape(i)?;
        let types: Vec<PtxType> = i.types().collect();
        let [d, a, b, c] = match types[..] {
            [d, a, b, c] => [d, a, b, c],
            [d, c] => [d, PtxType::F16, PtxType::F16, c],
            [all] => [all; 4],
            _ => return Err(malformed(i)),
        };
        let is_odd_form = [Modifier::Satfinite, Modifier::Popc].into_iter().any(|modifier| i.has(modifier));
        let is_quad_pair = i.opcode == Opcode::Mma && shape.m == 8 && shape.k == 4 && a == PtxType::F16;
        if is_odd_form || is_quad_pair {
            return Err(unsupported(i));
        }
        let [d, a, b, c] = [Element::of(i, d)?, Element::of(i, a)?, Element::of(i, b)?, Element::of(i, c)?];
        let counts = [shape.m, shape.n, shape.k, a.per_register() * 4];
        if a.bytes() != b.bytes() || shape.m % 8 != 0 || shape.n % 8 != 0 || counts[2] % counts[3] != 0 {
            return Err(unsupported(i));
        }
        let chunks = shape.k / (4 * a.per_register());
        let a_values = self.fragment(i, 1, a, shape.m / 8 * chunks)?;
        let b_values = self.fragment(i, 2, b, shape.n / 8 * chunks)?;
        let mut sums = self.accumulators(i, c, shape)?;
        if a == Element::F64 {
            for chunk in 0..chunks {
                for lane in 0..4 {
                    self.multiply_doubles(shape, [&a_values, &b_values], chunks, chunk, lane, &mut sums);
                }
            }
            return self.write_accumulators(i, d, sums);
        }
        let [a, b] = [a, b].map(|element| element.of_matrix().ok_or_else(|| unsupported(i)));
        let [m, n, k] = [shape.m, shape.n, shape.k].map(|side| u8::try_from(side).unwrap_or(0));
        let form = MatrixForm { m, n, k, a: a?, b: b? };
        if !form.is_valid() {
            return Err(unsupported(i));
        }
        let args = [a_values, b_values, sums].concat().into();
        let mut build = self.build();
        let mask = build.i32(u32::MAX);
        let id = build.push(Inst::MatrixMultiply { form, args, mask });
        let results = build.kernel.inst(id).results().collect();
        self.write_accumulators(i, d, results)
    }

    /// The registers of an operand, the first `count` of them.
    fn fragment(
        &mut self,
        i: &Instruction,
        place: usize,
        element: Element,
        count: u32,
    ) -> Lowered<Vec<Value>> {
        let parts = parts(operand(i, place)?);
        let parts = parts.get(..count as usize).ok_or_else(|| malformed(i))?;
        parts.iter().map(|part| self.read(part, element.register())).collect()
    }

    /// C as single numbers: F32, F64 or I32.
    fn accumulators(&mut self, i: &Instruction, c: Element, shape: Shape) -> Lowered<Vec<Value>> {
        let pairs = shape.m / 8 * (shape.n / 8);
        let Element::Half(half) = c else {
            let ty = match c {
                Element::I32 => Type::I32,
                Element::F64 => Type::F64,
                _ => Type::F32,
            };
            let parts = parts(operand(i, 3)?).get(..2 * pairs as usize).ok_or_else(|| malformed(i))?;
            return parts.iter().map(|part| self.read(part, ty)).collect();
        };
        let registers = self.fragment(i, 3, c, pairs)?;
        let mut sums = Vec::with_capacity(2 * pairs as usize);
        for register in registers {
            for part in self.halves(register) {
                sums.push(self.build().convert(half.widen(), Type::F32, part));
            }
        }
        Ok(sums)
    }

    fn write_accumulators(&mut self, i: &Instruction, d: Element, sums: Vec<Value>) -> Lowered {
        let results = parts(operand(i, 0)?);
        let values = match d {
            Element::Half(half) => {
                let mut registers = Vec::with_capacity(sums.len() / 2);
                for pair in sums.chunks_exact(2) {
                    let narrow = half.narrow(Rounding::Near);
                    let halves = [0, 1].map(|at| self.build().convert(narrow, Type::I16, pair[at]));
                    registers.push(self.join_halves(halves));
                }
                registers
            }
            _ => sums,
        };
        self.write_fragment(i, results, values)
    }

    /// Fills a fragment's registers, with 0 where there are no more values.
    fn write_fragment(&mut self, i: &Instruction, results: &[Operand], values: Vec<Value>) -> Lowered {
        if results.len() < values.len() {
            return Err(malformed(i));
        }
        for (at, result) in results.iter().enumerate() {
            let value = match values.get(at) {
                Some(value) => *value,
                None => self.build().i32(0),
            };
            self.write(result, value)?;
        }
        Ok(())
    }

    /// Adds the products of the doubles of one register chunk that lane `lane` of each group of
    /// four holds.
    fn multiply_doubles(
        &mut self,
        shape: Shape,
        [a, b]: [&[Value]; 2],
        chunks: u32,
        chunk: u32,
        lane: u32,
        sums: &mut [Value],
    ) {
        let (m_tiles, n_tiles) = (shape.m / 8, shape.n / 8);
        // Rows of A are in the own group of four lanes; columns 2t and 2t + 1 of B in groups 2t and
        // 2t + 1.
        let mut build = self.build();
        let own = build.special(SpecialRegister::LaneId);
        let group = build.binary_imm(BinaryOp::And, own, !3 & 31);
        let row_lane = build.binary_imm(BinaryOp::Or, group, u64::from(lane));
        let t = build.binary_imm(BinaryOp::And, own, 3);
        let pair = build.binary_imm(BinaryOp::Shl, t, 3);
        let column_lanes = [0, 4].map(|next| build.binary_imm(BinaryOp::Or, pair, next + u64::from(lane)));
        let mut columns = Vec::with_capacity(2 * n_tiles as usize);
        for n in 0..n_tiles {
            for column_lane in column_lanes {
                columns.push(self.value_of_lane(b[(n * chunks + chunk) as usize], column_lane));
            }
        }
        for m in 0..m_tiles {
            let row = self.value_of_lane(a[(chunk * m_tiles + m) as usize], row_lane);
            for (at, column) in columns.iter().enumerate() {
                let (n, next) = (at as u32 / 2, at % 2);
                let sum = &mut sums[((n * m_tiles + m) * 2) as usize + next];
                *sum = self.build().fma(Rounding::Near, row, *column, *sum);
            }
        }
    }

    /// A value of 32 bits, or a double, as another lane has it.
    fn value_of_lane(&mut self, value: Value, lane: Value) -> Value {
        let mut build = self.build();
        let (clamp, mask) = (build.i32(31), build.i32(u32::MAX));
        let shuffle = |build: &mut crate::Builder, value: Value| {
            let id = build.push(Inst::Shuffle { mode: ShuffleMode::Index, value, lane, clamp, mask });
            build.kernel.inst(id).result(0)
        };
        if build.ty(value) != Type::F64 {
            return shuffle(&mut build, value);
        }
        let bits = build.bitcast(Type::I64, value);
        let high = build.binary_imm(BinaryOp::ShrU, bits, 32);
        let [low, high] = [bits, high].map(|half| build.convert(ConvertOp::Truncate, Type::I32, half));
        let [low, high] = [low, high].map(|half| shuffle(&mut build, half));
        let [low, high] = [low, high].map(|half| build.convert(ConvertOp::ZeroExtend, Type::I64, half));
        let high = build.binary_imm(BinaryOp::Shl, high, 32);
        let bits = build.binary(BinaryOp::Or, low, high);
        build.bitcast(Type::F64, bits)
    }

    // ---- Loads and stores
    // ---------------------------------------------------------------------------------

    /// `ldmatrix.sync.aligned.m8n8.xN[.trans].shared.b16 {r...}, [row]`: lanes 8i to 8i + 7 hold
    /// the rows of matrix i.
    fn ldmatrix(&mut self, i: &Instruction) -> Lowered {
        let results = parts(operand(i, 0)?);
        let rows = self.rows_of_matrices(i, 1)?;
        let mut values = Vec::with_capacity(results.len());
        for matrix in 0..results.len() as u32 {
            let value = if i.has(Modifier::Trans) {
                let halves = [0, 1].map(|next| {
                    let place = self.transposed_place(rows, matrix, next);
                    self.build().load(place.space, Type::I16, place.addr, 0)
                });
                self.join_halves(halves)
            } else {
                let place = self.row_place(rows, matrix);
                self.build().load(place.space, Type::I32, place.addr, 0)
            };
            values.push(value);
        }
        self.write_fragment(i, results, values)
    }

    fn stmatrix(&mut self, i: &Instruction) -> Lowered {
        let sources = parts(operand(i, 1)?);
        let rows = self.rows_of_matrices(i, 0)?;
        for (matrix, source) in sources.iter().enumerate() {
            let value = self.read(source, Type::I32)?;
            if i.has(Modifier::Trans) {
                let halves = self.halves(value);
                for (next, half) in halves.into_iter().enumerate() {
                    let place = self.transposed_place(rows, matrix as u32, next as u32);
                    self.build().store(place.space, place.addr, 0, half);
                }
            } else {
                let place = self.row_place(rows, matrix as u32);
                self.build().store(place.space, place.addr, 0, value);
            }
        }
        Ok(())
    }

    /// Each lane's row address, in shared memory.
    fn rows_of_matrices(&mut self, i: &Instruction, at: usize) -> Lowered<Value> {
        let is_plain =
            i.modifiers.iter().any(|modifier| modifier.to_string() == "m8n8") && i.ty() == Some(PtxType::B16);
        if !is_plain || parts(operand(i, 1 - at)?).len() > 4 {
            return Err(unsupported(i));
        }
        let place = self.place(address(i, at)?, memory::named_space(i))?;
        let offset = place.offset as i64 as u64;
        match place.space {
            Space::Shared => Ok(self.build().binary_imm(BinaryOp::Add, place.addr, offset)),
            Space::Generic => {
                let mut build = self.build();
                let address = build.binary_imm(BinaryOp::Add, place.addr, offset);
                let base = build.value(Inst::WindowBase { window: Window::Shared });
                let inside = build.binary(BinaryOp::Sub, address, base);
                // What is outside of the window stays outside.
                let inside = build.binary_imm(BinaryOp::MinU, inside, u64::from(u32::MAX - 255));
                Ok(build.convert(ConvertOp::Truncate, Type::I32, inside))
            }
            _ => Err(malformed(i)),
        }
    }

    /// Elements 2t and 2t + 1 of row g.
    fn row_place(&mut self, rows: Value, matrix: u32) -> MemoryOperand {
        let (g, t) = self.group_and_thread();
        let lane = self.build().binary_imm(BinaryOp::Add, g, u64::from(8 * matrix));
        let row = self.value_of_lane(rows, lane);
        let mut build = self.build();
        let column = build.binary_imm(BinaryOp::Shl, t, 2);
        MemoryOperand { space: Space::Shared, addr: build.binary(BinaryOp::Add, row, column), offset: 0 }
    }

    /// Element g of row 2t + next.
    fn transposed_place(&mut self, rows: Value, matrix: u32, next: u32) -> MemoryOperand {
        let (g, t) = self.group_and_thread();
        let mut build = self.build();
        let lane = build.binary_imm(BinaryOp::Shl, t, 1);
        let lane = build.binary_imm(BinaryOp::Add, lane, u64::from(8 * matrix + next));
        let row = self.value_of_lane(rows, lane);
        let mut build = self.build();
        let column = build.binary_imm(BinaryOp::Shl, g, 1);
        MemoryOperand { space: Space::Shared, addr: build.binary(BinaryOp::Add, row, column), offset: 0 }
    }

    fn group_and_thread(&mut self) -> (Value, Value) {
        let mut build = self.build();
        let lane = build.special(SpecialRegister::LaneId);
        (build.binary_imm(BinaryOp::ShrU, lane, 2), build.binary_imm(BinaryOp::And, lane, 3))
    }

    /// `wmma.load.{a,b,c}.sync.aligned.layout.shape[.space].type {r...}, [p][, stride]`.
    fn wmma_load(&mut self, i: &Instruction) -> Lowered {
        let results = parts(operand(i, 0)?);
        let fragment = WmmaFragment::new(i)?;
        let base = self.matrix_base(i, 1, &fragment)?;
        let mut values = Vec::new();
        for register in fragment.registers() {
            let mut value = None;
            for element in 0..fragment.per_register {
                let place = self.element_place(&fragment, &base, register, element);
                let ty = fragment.element_type();
                let mut build = self.build();
                let part = build.load(place.space, ty, place.addr, place.offset);
                let part = if ty.is_int() { build.resize(Type::I32, false, part) } else { part };
                let part = match element {
                    0 => part,
                    _ => build.binary_imm(
                        BinaryOp::Shl,
                        part,
                        u64::from(8 * fragment.element.bytes() * element),
                    ),
                };
                value = Some(match value {
                    None => part,
                    Some(low) => build.binary(BinaryOp::Or, low, part),
                });
            }
            values.extend(value);
        }
        self.write_fragment(i, results, values)
    }

    /// `wmma.store.d.sync.aligned.layout.shape[.space].type [p], {r...}[, stride]`.
    fn wmma_store(&mut self, i: &Instruction) -> Lowered {
        let fragment = WmmaFragment::new(i)?;
        let base = self.matrix_base(i, 0, &fragment)?;
        let sources = parts(operand(i, 1)?);
        for (register, source) in fragment.registers().zip(sources) {
            let ty = fragment.element_type();
            let held = if fragment.per_register > 1 { Type::I32 } else { ty };
            let value = self.read(source, held)?;
            for element in 0..fragment.per_register {
                let mut build = self.build();
                let part = match element {
                    0 => value,
                    _ => build.binary_imm(
                        BinaryOp::ShrU,
                        value,
                        u64::from(8 * fragment.element.bytes() * element),
                    ),
                };
                let part = if ty.is_int() { build.resize(ty, false, part) } else { part };
                let place = self.element_place(&fragment, &base, register, element);
                self.build().store(place.space, place.addr, place.offset, part);
            }
        }
        Ok(())
    }

    /// Where a matrix starts, and the distance in bytes between its rows (or columns, where those
    /// are contiguous).
    fn matrix_base(
        &mut self,
        i: &Instruction,
        at: usize,
        fragment: &WmmaFragment,
    ) -> Lowered<(MemoryOperand, Value)> {
        let place = self.place(address(i, at)?, i.space().map(|space| memory::space(Some(space))))?;
        let ty = place.space.address_type();
        let stride = match i.operands.get(2) {
            Some(stride) => self.read(stride, Type::I32)?,
            None => self.build().i32(fragment.contiguous()),
        };
        let mut build = self.build();
        let stride = build.resize(ty, true, stride);
        let bytes = build.constant(ty, u64::from(fragment.element.bytes()));
        Ok((place, build.binary(BinaryOp::Mul, stride, bytes)))
    }

    /// Where one element of a fragment's register is in memory.
    fn element_place(
        &mut self,
        fragment: &WmmaFragment,
        (base, stride): &(MemoryOperand, Value),
        register: [u32; 2],
        element: u32,
    ) -> MemoryOperand {
        let (g, t) = self.group_and_thread();
        let ty = base.space.address_type();
        let mut build = self.build();
        // The index that the group tells, and the one that the thread in the group tells.
        let by_group = build.binary_imm(BinaryOp::Add, g, u64::from(register[0]));
        let step = if fragment.is_accumulator { 2 } else { fragment.per_register };
        let by_thread = build.binary_imm(BinaryOp::Mul, t, u64::from(step));
        let by_thread = build.binary_imm(BinaryOp::Add, by_thread, u64::from(register[1] + element));
        let (slow, fast) = if fragment.group_is_slow { (by_group, by_thread) } else { (by_thread, by_group) };
        let [slow, fast] = [slow, fast].map(|index| build.resize(ty, false, index));
        let slow = build.binary(BinaryOp::Mul, slow, *stride);
        let fast = build.binary_imm(BinaryOp::Mul, fast, u64::from(fragment.element.bytes()));
        let offset = build.binary(BinaryOp::Add, slow, fast);
        MemoryOperand { addr: build.binary(BinaryOp::Add, base.addr, offset), ..*base }
    }
}

/// The part of a matrix that `wmma.load` and `wmma.store` move.
struct WmmaFragment {
    shape: Shape,
    element: Element,
    per_register: u32,
    is_accumulator: bool,
    /// A's or C's rows (B's columns), which groups of lanes share, are the ones apart by the
    /// stride.
    group_is_slow: bool,
    /// Tiles of 8 along the index of the group; registers along the other one.
    tiles: u32,
    chunks: u32,
    is_b: bool,
}

impl WmmaFragment {
    fn new(i: &Instruction) -> Lowered<WmmaFragment> {
        let shape = shape(i)?;
        let element = Element::of(i, i.ty().ok_or_else(|| malformed(i))?)?;
        let is_row = i.has(Modifier::Row);
        let is_b = i.has(Modifier::B);
        let is_accumulator = i.has(Modifier::C) || i.has(Modifier::D);
        let per_register = match element {
            Element::F32 | Element::F64 | Element::I32 | Element::Tf32 => 1,
            other => other.per_register(),
        };
        let (tiles, other) = match (is_accumulator, is_b) {
            (true, _) => (shape.m / 8, shape.n),
            (false, true) => (shape.n / 8, shape.k),
            (false, false) => (shape.m / 8, shape.k),
        };
        let chunks = if is_accumulator { other / 8 } else { other / (4 * per_register) };
        if tiles == 0 || chunks == 0 {
            return Err(unsupported(i));
        }
        // Rows of A and C, columns of B.
        let group_is_slow = is_row != is_b;
        Ok(WmmaFragment { shape, element, per_register, is_accumulator, group_is_slow, tiles, chunks, is_b })
    }

    /// The type of an element in memory.
    fn element_type(&self) -> Type {
        match self.element {
            Element::Byte { .. } => Type::I8,
            Element::Half(_) => Type::I16,
            Element::F64 => Type::F64,
            Element::F32 | Element::Tf32 => register_type(PtxType::F32),
            Element::I32 => Type::I32,
        }
    }

    /// The number of elements between rows (or columns) of a dense matrix.
    fn contiguous(&self) -> u32 {
        let [rows, columns] = match (self.is_accumulator, self.is_b) {
            (true, _) => [self.shape.m, self.shape.n],
            (false, true) => [self.shape.n, self.shape.k],
            (false, false) => [self.shape.m, self.shape.k],
        };
        if self.group_is_slow { columns } else { rows }
    }

    /// By register: the first index of its tile, and the first index of its chunk, as the table in
    /// the module's documentation orders them.
    fn registers(&self) -> impl Iterator<Item = [u32; 2]> + use<> {
        let (tiles, chunks) = (self.tiles, self.chunks);
        let (is_accumulator, is_b, per_register) = (self.is_accumulator, self.is_b, self.per_register);
        let count = if is_accumulator && per_register == 1 { 2 * tiles * chunks } else { tiles * chunks };
        (0..count).map(move |register| {
            if is_accumulator {
                let (pair, i) = if per_register == 1 { (register / 2, register % 2) } else { (register, 0) };
                [8 * (pair % tiles), 8 * (pair / tiles) + i]
            } else if is_b {
                [8 * (register / chunks), 4 * per_register * (register % chunks)]
            } else {
                [8 * (register % tiles), 4 * per_register * (register / tiles)]
            }
        })
    }
}

fn parts(operand: &Operand) -> &[Operand] {
    match operand {
        Operand::Vector(parts) => parts,
        one => std::slice::from_ref(one),
    }
}

fn address(i: &Instruction, at: usize) -> Lowered<&Address> {
    match operand(i, at)? {
        Operand::Address(address) => Ok(address),
        _ => Err(malformed(i)),
    }
}

/// The modifier `mMnNkK`.
fn shape(i: &Instruction) -> Lowered<Shape> {
    let found = i.modifiers.iter().find_map(|modifier| {
        let text = modifier.to_string();
        let (m, rest) = text.strip_prefix('m')?.split_once('n')?;
        let (n, k) = rest.split_once('k')?;
        Some(Shape { m: m.parse().ok()?, n: n.parse().ok()?, k: k.parse().ok()? })
    });
    found.filter(|shape| shape.m <= 64 && shape.n <= 64 && shape.k <= 256).ok_or_else(|| unsupported(i))
}
