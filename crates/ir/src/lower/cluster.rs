//! Clusters and their distributed shared memory (PTX ISA, "Cluster of Cooperative Thread Arrays").
//!
//! The shared memories of a cluster's blocks are equally far apart in the generic address space, in
//! the order of ranks. An address in `.shared::cluster` has 32 bits: one more than the rank of the
//! block in the highest 8, and the offset in its shared memory in the others. An address in
//! `.shared::cta` is also one in `.shared::cluster`, which 0 in the highest bits stands for.

use sluice_ptx::ast::{Address, AddressBase, Instruction, Operand};
use sluice_ptx::{Modifier, Space as PtxSpace, SpecialRegister as Ptx};

use super::{Lowered, Lowering, malformed, memory, operand};
use crate::inst::{BinaryOp, ConvertOp, Inst, IntCond, MemoryOperand, Space, SpecialRegister, Window};
use crate::types::{Type, Value};

/// Bits of an address in `.shared::cluster` that are the offset in the shared memory of one block.
const OFFSET_BITS: u64 = 24;
pub(super) const OFFSET_MASK: u64 = (1 << OFFSET_BITS) - 1;

impl<'m> Lowering<'m> {
    /// `barrier.cluster.arrive`, `barrier.cluster.wait`.
    pub(super) fn cluster_barrier(&mut self, i: &Instruction) -> Lowered {
        let waits = match (i.has(Modifier::Arrive), i.has(Modifier::Wait)) {
            (true, false) => false,
            (false, true) => true,
            _ => return Err(malformed(i)),
        };
        self.build().push(Inst::ClusterBarrier { waits });
        Ok(())
    }

    /// `mapa`: an address of shared memory in the block of another rank.
    pub(super) fn mapa(&mut self, i: &Instruction) -> Lowered {
        let rank = self.read(operand(i, 2)?, Type::I32)?;
        if i.space().is_some() {
            let address = self.read(operand(i, 1)?, Type::I32)?;
            let offset = self.build().binary_imm(BinaryOp::And, address, OFFSET_MASK);
            let mapped = self.shared_cluster_address(rank, offset);
            return self.write(operand(i, 0)?, mapped);
        }
        let generic = self.read(operand(i, 1)?, Type::I64)?;
        let (_, offset) = self.rank_and_offset(generic);
        let base = self.shared_base_of(rank);
        let mapped = self.build().binary(BinaryOp::Add, base, offset);
        self.write(operand(i, 0)?, mapped)
    }

    /// `getctarank`: the rank of the block to which an address of shared memory belongs.
    pub(super) fn getctarank(&mut self, i: &Instruction) -> Lowered {
        let rank = if i.space().is_some() {
            let address = self.read(operand(i, 1)?, Type::I32)?;
            self.rank_of(address)
        } else {
            let generic = self.read(operand(i, 1)?, Type::I64)?;
            let (rank, _) = self.rank_and_offset(generic);
            self.build().convert(ConvertOp::Truncate, Type::I32, rank)
        };
        self.write(operand(i, 0)?, rank)
    }

    /// Where an address operand points in the space that an instruction names (None: generic).
    pub(super) fn place_in(&mut self, address: &Address, space: Option<PtxSpace>) -> Lowered<MemoryOperand> {
        let is_symbol = matches!(address.base, AddressBase::Symbol(_));
        if space != Some(PtxSpace::SharedCluster) || is_symbol {
            return self.place(address, space.map(|space| memory::space(Some(space))));
        }
        let MemoryOperand { addr, offset, .. } = self.place(address, Some(Space::Shared))?;
        let addr = self.build().binary_imm(BinaryOp::Add, addr, u64::from(offset as u32));
        let addr = self.generic_of_cluster(addr);
        Ok(MemoryOperand { space: Space::Generic, addr, offset: 0 })
    }

    /// The generic address of one in `.shared::cluster`.
    pub(super) fn generic_of_cluster(&mut self, address: Value) -> Value {
        let rank = self.rank_of(address);
        let base = self.shared_base_of(rank);
        let mut build = self.build();
        let offset = build.binary_imm(BinaryOp::And, address, OFFSET_MASK);
        let offset = build.convert(ConvertOp::ZeroExtend, Type::I64, offset);
        build.binary(BinaryOp::Add, base, offset)
    }

    /// The address in `.shared::cluster` of a generic one; in `.shared::cta`, where the block's own
    /// shared memory has it.
    pub(super) fn cluster_of_generic(&mut self, generic: Value) -> Value {
        let (rank, offset) = self.rank_and_offset(generic);
        let own = self.cluster_rank();
        let mut build = self.build();
        let [rank, offset] = [rank, offset].map(|value| build.convert(ConvertOp::Truncate, Type::I32, value));
        let is_own = build.compare(IntCond::Eq, rank, own);
        let remote = self.shared_cluster_address(rank, offset);
        self.build().select(is_own, offset, remote)
    }

    /// Whether a generic address is in the shared memory of a block of the cluster.
    pub(super) fn is_in_cluster(&mut self, generic: Value) -> Value {
        let (rank, offset) = self.rank_and_offset(generic);
        let blocks = self.cluster_blocks();
        let mut build = self.build();
        let blocks = build.convert(ConvertOp::ZeroExtend, Type::I64, blocks);
        let bytes = build.special(SpecialRegister::TotalSharedBytes);
        let bytes = build.convert(ConvertOp::ZeroExtend, Type::I64, bytes);
        let is_block = build.compare(IntCond::LtU, rank, blocks);
        let is_shared = build.compare(IntCond::LtU, offset, bytes);
        build.binary(BinaryOp::And, is_block, is_shared)
    }

    /// Special registers about clusters; None for any other.
    pub(super) fn cluster_register(&mut self, register: Ptx) -> Option<Value> {
        use SpecialRegister as S;
        let axes = [
            (S::CtaidX, S::NctaidX, S::ClusterNctaidX),
            (S::CtaidY, S::NctaidY, S::ClusterNctaidY),
            (S::CtaidZ, S::NctaidZ, S::ClusterNctaidZ),
        ];
        let (of, axis) = match register {
            Ptx::ClusteridX => (Of::Id, 0),
            Ptx::ClusteridY => (Of::Id, 1),
            Ptx::ClusteridZ => (Of::Id, 2),
            Ptx::NclusteridX => (Of::Clusters, 0),
            Ptx::NclusteridY => (Of::Clusters, 1),
            Ptx::NclusteridZ => (Of::Clusters, 2),
            Ptx::ClusterCtaidX => (Of::Inside, 0),
            Ptx::ClusterCtaidY => (Of::Inside, 1),
            Ptx::ClusterCtaidZ => (Of::Inside, 2),
            Ptx::ClusterNctaidX => (Of::Size, 0),
            Ptx::ClusterNctaidY => (Of::Size, 1),
            Ptx::ClusterNctaidZ => (Of::Size, 2),
            Ptx::ClusterCtarank => return Some(self.cluster_rank()),
            Ptx::ClusterNctarank => return Some(self.cluster_blocks()),
            Ptx::IsExplicitCluster => {
                let mut build = self.build();
                let flag = build.special(S::IsExplicitCluster);
                return Some(build.convert(ConvertOp::Truncate, Type::I1, flag));
            }
            _ => return None,
        };
        let (index, count, size) = axes[axis];
        let mut build = self.build();
        let size = build.special(size);
        Some(match of {
            Of::Id => {
                let index = build.special(index);
                build.binary(BinaryOp::DivU, index, size)
            }
            Of::Clusters => {
                let count = build.special(count);
                build.binary(BinaryOp::DivU, count, size)
            }
            Of::Inside => {
                let index = build.special(index);
                build.binary(BinaryOp::RemU, index, size)
            }
            Of::Size => size,
        })
    }

    /// `%cluster_ctarank`.
    fn cluster_rank(&mut self) -> Value {
        let [x, y, z] =
            [Ptx::ClusterCtaidX, Ptx::ClusterCtaidY, Ptx::ClusterCtaidZ].map(|register| self.known(register));
        let [nx, ny] = [Ptx::ClusterNctaidX, Ptx::ClusterNctaidY].map(|register| self.known(register));
        let mut build = self.build();
        let rows = build.binary(BinaryOp::Mul, z, ny);
        let rows = build.binary(BinaryOp::Add, rows, y);
        let rank = build.binary(BinaryOp::Mul, rows, nx);
        build.binary(BinaryOp::Add, rank, x)
    }

    /// `%cluster_nctarank`.
    pub(super) fn cluster_blocks(&mut self) -> Value {
        let [x, y, z] = [Ptx::ClusterNctaidX, Ptx::ClusterNctaidY, Ptx::ClusterNctaidZ]
            .map(|register| self.known(register));
        let mut build = self.build();
        let plane = build.binary(BinaryOp::Mul, x, y);
        build.binary(BinaryOp::Mul, plane, z)
    }

    fn known(&mut self, register: Ptx) -> Value {
        self.cluster_register(register).expect("a register about clusters")
    }

    /// An address in `.shared::cluster`.
    fn shared_cluster_address(&mut self, rank: Value, offset: Value) -> Value {
        let mut build = self.build();
        let window = build.binary_imm(BinaryOp::Add, rank, 1);
        let window = build.binary_imm(BinaryOp::Shl, window, OFFSET_BITS);
        build.binary(BinaryOp::Or, window, offset)
    }

    /// The rank of the block in whose shared memory an address in `.shared::cluster` is.
    fn rank_of(&mut self, address: Value) -> Value {
        let own = self.cluster_rank();
        let mut build = self.build();
        let window = build.binary_imm(BinaryOp::ShrU, address, OFFSET_BITS);
        let zero = build.i32(0);
        let is_own = build.compare(IntCond::Eq, window, zero);
        let rank = build.binary_imm(BinaryOp::Add, window, u64::from(u32::MAX));
        build.select(is_own, own, rank)
    }

    /// The generic address at which the shared memory of the block with this rank starts.
    pub(super) fn shared_base_of(&mut self, rank: Value) -> Value {
        let own = self.cluster_rank();
        let mut build = self.build();
        let base = build.value(Inst::WindowBase { window: Window::Shared });
        let stride = build.special(SpecialRegister::ClusterSharedStride);
        let blocks = build.binary(BinaryOp::Sub, rank, own);
        let blocks = build.convert(ConvertOp::SignExtend, Type::I64, blocks);
        let distance = build.binary(BinaryOp::Mul, blocks, stride);
        build.binary(BinaryOp::Add, base, distance)
    }

    /// The rank of the block to which a generic address of shared memory belongs, and its offset
    /// there, both I64.
    fn rank_and_offset(&mut self, generic: Value) -> (Value, Value) {
        let first = self.build().i32(0);
        let base = self.shared_base_of(first);
        let mut build = self.build();
        let stride = build.special(SpecialRegister::ClusterSharedStride);
        let distance = build.binary(BinaryOp::Sub, generic, base);
        (build.binary(BinaryOp::DivU, distance, stride), build.binary(BinaryOp::RemU, distance, stride))
    }
}

/// What a register says of one direction.
enum Of {
    Id,
    Clusters,
    Inside,
    Size,
}

/// Whether an instruction makes generic addresses of other blocks' shared memory.
pub(super) fn reaches_other_blocks(i: &Instruction) -> bool {
    use sluice_ptx::Opcode::{Cvta, Getctarank, Mapa};
    match i.opcode {
        Mapa | Getctarank => true,
        Cvta => i.space() == Some(PtxSpace::SharedCluster),
        _ => false,
    }
}

/// The address at this place among the operands.
pub(super) fn address(i: &Instruction, at: usize) -> Lowered<&Address> {
    match operand(i, at)? {
        Operand::Address(address) => Ok(address),
        _ => Err(malformed(i)),
    }
}
