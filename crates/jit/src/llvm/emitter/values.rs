//! Values of a kernel: as one or as a vector of all lanes, kept between blocks, and those that the
//! context has.

use std::mem::offset_of;

use sluice_ir::analysis::Shape;
use sluice_ir::{SpecialRegister, Type, Value, Window};

use super::super::writer::{Val, constant, steps, type_name};
use super::{Emitter, NotCovered, alias};
use crate::codegen::Tids;
use crate::context::WarpContext;
use crate::runtime;

impl Emitter<'_> {
    pub(in crate::llvm) fn shape(&self, value: Value) -> Shape {
        self.shapes[value.index()]
    }

    pub(in crate::llvm) fn is_varying(&self, value: Value) -> bool {
        self.shape(value) == Shape::Varying
    }

    /// A value that is the same in all lanes, or the first lane's of an affine one.
    pub(in crate::llvm) fn scalar(&mut self, value: Value) -> Val {
        debug_assert!(!self.is_varying(value), "{value} is not the same in all lanes");
        if let Some(bits) = self.kernel.constant(value) {
            return constant(self.kernel.ty(value), 1, bits);
        }
        if let Some(known) = self.known.scalars.get(&value) {
            return known.clone();
        }
        let place = self.place(value);
        let loaded = self.w.load(self.kernel.ty(value), 1, &place);
        self.known.scalars.insert(value, loaded.clone());
        loaded
    }

    /// A value in all lanes.
    pub(in crate::llvm) fn vector(&mut self, value: Value) -> Val {
        let (ty, lanes) = (self.kernel.ty(value), self.lanes);
        if let Some(bits) = self.kernel.constant(value) {
            return constant(ty, lanes, bits);
        }
        if let Some(known) = self.known.vectors.get(&value) {
            return known.clone();
        }
        let vector = match self.shape(value) {
            Shape::Varying => {
                let place = self.place(value);
                self.w.load(ty, lanes, &place)
            }
            Shape::Uniform => {
                let scalar = self.scalar(value);
                self.w.splat(&scalar, lanes)
            }
            Shape::Affine { stride } => {
                let scalar = self.scalar(value);
                let first = self.w.splat(&scalar, lanes);
                self.w.binary("add", &first, &steps(ty, lanes, stride))
            }
        };
        self.known.vectors.insert(value, vector.clone());
        vector
    }

    /// A value as it is passed on to another of the same shape.
    pub(in crate::llvm) fn in_shape_of(&mut self, value: Value, like: Value) -> Val {
        if self.is_varying(like) { self.vector(value) } else { self.scalar(value) }
    }

    /// Gives a result of the current block.
    pub(in crate::llvm) fn define(&mut self, value: Value, result: Val) {
        let crosses = self.flow.crosses[value.index()];
        if !self.is_varying(value) {
            debug_assert_eq!(result.lanes, 1);
            if crosses {
                let place = self.place(value);
                self.w.store(&result, &place);
            }
            self.known.scalars.insert(value, result);
            return;
        }
        let result = self.w.splat(&result, self.lanes);
        if crosses {
            let others = &self.flow.others[self.block.index()];
            let is_wanted = self.flow.is_wanted(value, others);
            let mask = self.mask.clone();
            self.assign(value, &result, is_wanted.then_some(&mask));
        }
        self.known.vectors.insert(value, result);
    }

    /// Stores a value in the lanes of a mask, or in all.
    pub(in crate::llvm) fn assign(&mut self, value: Value, new: &Val, mask: Option<&Val>) {
        let place = self.place(value);
        let Some(mask) = mask else { return self.w.store(new, &place) };
        let before = self.w.load(new.ty, new.lanes, &place);
        let merged = self.w.select(mask, new, &before);
        self.w.store(&merged, &place);
    }

    pub(in crate::llvm) fn place(&mut self, value: Value) -> String {
        if let Some(place) = self.variables.get(&value) {
            return place.clone();
        }
        let lanes = if self.is_varying(value) { self.lanes } else { 1 };
        let place = self.w.variable(&type_name(self.kernel.ty(value), lanes));
        self.variables.insert(value, place.clone());
        place
    }

    /// Where a value is in the warp's frame while the warp waits.
    pub(in crate::llvm) fn slot(&mut self, value: Value) -> usize {
        let lanes = if self.is_varying(value) { self.lanes as u32 } else { 1 };
        let bytes = (self.kernel.ty(value).bytes() * lanes).next_multiple_of(8);
        let frame = &mut self.traits.frame;
        *self.slots.entry(value).or_insert_with(|| {
            let slot = frame.size;
            frame.size += bytes;
            slot
        }) as usize
    }

    /// Adds the lanes of the block to a counter.
    pub(in crate::llvm) fn count_threads(&mut self, counter: Value) {
        let number = self.kernel.constant(counter).unwrap_or(0);
        let table = self.field("ptr", offset_of!(WarpContext, counters));
        let at = self.w.raw(&format!("getelementptr i64, ptr {table}, i64 {number}"));
        let bits = self.bits_of(&self.mask.clone());
        let count = self.w.intrinsic("llvm.ctpop", &[&bits], &[]);
        let count = self.w.resize(&count, Type::I64);
        self.w.line(&format!("atomicrmw add ptr {at}, {} monotonic, align 8", count.arg()));
    }

    pub(in crate::llvm) fn special(
        &mut self,
        register: SpecialRegister,
        result: Value,
    ) -> Result<Val, NotCovered> {
        use SpecialRegister::*;
        let is_wide = register.ty() == Type::I64;
        let offset = match register {
            TidX | TidY | TidZ if self.tids == Tids::Any => {
                let axis = [TidX, TidY, TidZ].iter().position(|&axis| axis == register).unwrap_or(0);
                let at = self.field_place(offset_of!(WarpContext, tid) + 128 * axis);
                let ty = type_name(Type::I32, self.lanes);
                let load = format!("load {ty}, ptr {at}, align 4, {}", alias::FRAME);
                return Ok(self.w.op(Type::I32, self.lanes, &load));
            }
            TidX => offset_of!(WarpContext, tid0),
            TidY => offset_of!(WarpContext, tid0) + 4,
            TidZ => offset_of!(WarpContext, tid0) + 8,
            NtidX => offset_of!(WarpContext, ntid),
            NtidY => offset_of!(WarpContext, ntid) + 4,
            NtidZ => offset_of!(WarpContext, ntid) + 8,
            CtaidX => offset_of!(WarpContext, ctaid),
            CtaidY => offset_of!(WarpContext, ctaid) + 4,
            CtaidZ => offset_of!(WarpContext, ctaid) + 8,
            NctaidX => offset_of!(WarpContext, nctaid),
            NctaidY => offset_of!(WarpContext, nctaid) + 4,
            NctaidZ => offset_of!(WarpContext, nctaid) + 8,
            ClusterNctaidX => offset_of!(WarpContext, cluster_nctaid),
            ClusterNctaidY => offset_of!(WarpContext, cluster_nctaid) + 4,
            ClusterNctaidZ => offset_of!(WarpContext, cluster_nctaid) + 8,
            IsExplicitCluster => offset_of!(WarpContext, is_explicit_cluster),
            ClusterSharedStride => offset_of!(WarpContext, cluster_shared_stride),
            LaneId if self.is_varying(result) => return Ok(steps(Type::I32, self.lanes, 1)),
            LaneId => return Ok(constant(Type::I32, 1, 0)),
            WarpId => offset_of!(WarpContext, warp_index),
            Nwarpid => offset_of!(WarpContext, warps),
            SmId => offset_of!(WarpContext, sm_id),
            Nsmid => offset_of!(WarpContext, sms),
            GridId => offset_of!(WarpContext, grid_id),
            DynamicSharedBytes => offset_of!(WarpContext, dynamic_shared_bytes),
            TotalSharedBytes => offset_of!(WarpContext, shared_size),
            LocalBytes => offset_of!(WarpContext, local_stride),
            EnvReg(1) => offset_of!(WarpContext, grid_workspace) + 4,
            EnvReg(2) => offset_of!(WarpContext, grid_workspace),
            EnvReg(_) => return Ok(constant(Type::I32, 1, 0)),
            Clock | Clock64 | GlobalTimer => {
                let function = match register {
                    GlobalTimer => ("global_timer", runtime::global_timer as *const ()),
                    _ => ("clock", runtime::clock as *const ()),
                };
                let time = self.w.call_runtime(function, &[], Some(Type::I64), "").expect("a result");
                return Ok(self.w.resize(&time, register.ty()));
            }
        };
        let ty = if is_wide { Type::I64 } else { Type::I32 };
        let first = self.field(if is_wide { "i64" } else { "i32" }, offset);
        let first = Val::new(ty, 1, first);
        if register == TidX && self.is_varying(result) {
            let first = self.w.splat(&first, self.lanes);
            return Ok(self.w.binary("add", &first, &steps(ty, self.lanes, 1)));
        }
        Ok(first)
    }

    pub(in crate::llvm) fn window_base(&mut self, window: Window) -> Val {
        match window {
            Window::Shared => self.w.op(Type::I64, 1, "ptrtoint ptr %shared_base to i64"),
            Window::Param => self.w.op(Type::I64, 1, "ptrtoint ptr %params to i64"),
            Window::Local => self.local_bases(),
        }
    }

    /// Where each lane's local memory starts.
    pub(in crate::llvm) fn local_bases(&mut self) -> Val {
        let first = self.field("i64", offset_of!(WarpContext, local_base));
        let first = self.w.splat(&Val::new(Type::I64, 1, first), self.lanes);
        let stride = self.w.splat(&Val::new(Type::I64, 1, "%local_stride"), self.lanes);
        let places = self.w.binary("mul", &stride, &steps(Type::I64, self.lanes, 1));
        self.w.binary("add", &first, &places)
    }

    pub(in crate::llvm) fn field_place(&mut self, offset: usize) -> String {
        self.w.raw(&format!("getelementptr i8, ptr %ctx, i64 {offset}"))
    }

    /// A field of the header, or a word behind it.
    pub(in crate::llvm) fn field(&mut self, ty: &str, offset: usize) -> String {
        let at = self.field_place(offset);
        self.w.raw(&format!("load {ty}, ptr {at}, {}", alias::FRAME))
    }

    pub(in crate::llvm) fn set_field(&mut self, value: &str, offset: usize) {
        let at = self.field_place(offset);
        self.w.line(&format!("store {value}, ptr {at}, {}", alias::FRAME));
    }

    /// The bits of an I32 as a mask.
    pub(in crate::llvm) fn mask_of(&mut self, bits: &Val) -> Val {
        let lanes = self.lanes;
        let narrow = match lanes {
            32 => bits.name.clone(),
            _ => self.w.raw(&format!("trunc i32 {} to i{lanes}", bits.name)),
        };
        self.w.op(Type::I1, lanes, &format!("bitcast i{lanes} {narrow} to <{lanes} x i1>"))
    }

    /// A mask as the bits of an I32.
    pub(in crate::llvm) fn bits_of(&mut self, mask: &Val) -> Val {
        let lanes = self.lanes;
        let narrow = self.w.raw(&format!("bitcast {} to i{lanes}", mask.arg()));
        match lanes {
            32 => Val::new(Type::I32, 1, narrow),
            _ => self.w.op(Type::I32, 1, &format!("zext i{lanes} {narrow} to i32")),
        }
    }
}
