//! Loads and stores, each behind its range check.
//!
//! Neighbouring lanes make one access with a mask, which is checked for the whole warp at once, and
//! lane by lane (on vectors) where that fails. Other accesses are gathered and scattered.

use sluice_ir::analysis::Shape;
use sluice_ir::{Inst, InstId, MemoryOperand, MemoryOrder, Ordering, Scope, Space, Type, Value};

use super::emitter::{Emitter, NotCovered, alias};
use super::writer::{Val, constant, mangled, steps, type_name};
use crate::runtime::fault_code;

/// How the lanes of an access lie.
#[derive(Clone, Copy, PartialEq)]
enum Pattern {
    /// All at one place.
    Same,
    /// One behind the other.
    Neighbours,
    Scattered,
}

/// Orders accesses for the compiler; the processor keeps loads and stores in order as PTX's ordered
/// accesses ask.
const COMPILER_FENCE: &str = "fence syncscope(\"singlethread\") seq_cst";

impl Emitter<'_> {
    pub(super) fn load(&mut self, id: InstId) -> Result<(), NotCovered> {
        let kernel = self.kernel;
        let data = kernel.inst(id);
        let Inst::Load { place, ty, count, order, guard } = data.inst else { unreachable!("a load") };
        let (ty, count) = (ty, usize::from(count));
        let is_ordered = self.begin(order)?;
        let bytes = ty.bytes() * count as u32;
        let results = match self.pattern(&place, bytes, guard) {
            Pattern::Same => self.load_same(&place, ty, count, guard),
            Pattern::Neighbours => self.load_neighbours(&place, ty, count, guard),
            Pattern::Scattered => self.gather(&place, ty, count, guard),
        };
        self.end(is_ordered);
        for (value, result) in data.results().zip(results) {
            self.define(value, result);
        }
        Ok(())
    }

    pub(super) fn store(&mut self, id: InstId) -> Result<(), NotCovered> {
        let kernel = self.kernel;
        let Inst::Store { place, ty, ref values, order, guard } = kernel.inst(id).inst else {
            unreachable!("a store")
        };
        let is_ordered = self.begin(order)?;
        let bytes = ty.bytes() * values.len() as u32;
        let are_same = values.iter().all(|&value| self.shape(value) == Shape::Uniform);
        match self.pattern(&place, bytes, guard) {
            Pattern::Same if are_same => self.store_same(&place, ty, values, guard),
            Pattern::Neighbours => self.store_neighbours(&place, ty, values, guard),
            _ => self.scatter(&place, ty, values, guard),
        }
        self.end(is_ordered);
        Ok(())
    }

    /// Before an access: says whether it is an ordered one.
    fn begin(&mut self, order: MemoryOrder) -> Result<bool, NotCovered> {
        let is_ordered = !matches!(order.ordering, Ordering::Weak | Ordering::Invariant);
        let is_strong =
            matches!(order.ordering, Ordering::Acquire | Ordering::Release | Ordering::AcquireRelease);
        if is_strong && order.scope == Scope::System {
            return Err(NotCovered("an access that orders what others than the device see".into()));
        }
        if is_ordered {
            self.w.line(COMPILER_FENCE);
        }
        Ok(is_ordered)
    }

    fn end(&mut self, is_ordered: bool) {
        if is_ordered {
            self.w.line(COMPILER_FENCE);
        }
    }

    fn pattern(&self, place: &MemoryOperand, bytes: u32, guard: Option<Value>) -> Pattern {
        match self.shape(place.addr) {
            _ if place.space == Space::Local => Pattern::Scattered,
            Shape::Uniform if guard.is_none_or(|guard| self.shape(guard) == Shape::Uniform) => Pattern::Same,
            Shape::Affine { stride } if stride == i64::from(bytes) => Pattern::Neighbours,
            _ => Pattern::Scattered,
        }
    }

    /// The lanes that make an access.
    pub(super) fn access_mask(&mut self, guard: Option<Value>) -> Val {
        let mask = self.mask.clone();
        match guard {
            Some(guard) => {
                let guard = self.vector(guard);
                self.within(&mask, &guard)
            }
            None => mask,
        }
    }

    /// The place of the first lane, or of all, behind its displacement.
    pub(super) fn scalar_place(&mut self, place: &MemoryOperand) -> Val {
        let address = self.scalar(place.addr);
        self.displaced(&address, place)
    }

    pub(super) fn vector_place(&mut self, place: &MemoryOperand) -> Val {
        let address = self.vector(place.addr);
        self.displaced(&address, place)
    }

    fn displaced(&mut self, address: &Val, place: &MemoryOperand) -> Val {
        match place.offset {
            0 => address.clone(),
            offset => self.w.binary_const("add", address, i64::from(offset) as u64),
        }
    }

    // ---- Accesses

    fn load_same(&mut self, place: &MemoryOperand, ty: Type, count: usize, guard: Option<Value>) -> Vec<Val> {
        let guard = guard.map(|guard| self.scalar(guard));
        let at = self.scalar_place(place);
        let results: Vec<String> = match guard {
            Some(_) => (0..count).map(|_| self.w.variable(&type_name(ty, 1))).collect(),
            None => Vec::new(),
        };
        let [go, end] = ["go", "end"].map(|name| self.w.fresh(name));
        if let Some(guard) = &guard {
            results.iter().for_each(|result| self.w.store(&constant(ty, 1, 0), result));
            self.w.line(&format!("br i1 {}, label %{go}, label %{end}", guard.name));
            self.w.label(&go);
        }
        self.check_scalar(place, &at, ty.bytes() * count as u32);
        let pointer = self.pointer(place.space, &at);
        let mark = if place.space == Space::Param { alias::FIXED } else { mark(place.space) };
        let loaded: Vec<Val> = (0..count)
            .map(|index| {
                let at = self.element(&pointer, ty, index);
                let load = format!("load {}, ptr {at}, align {}, {mark}", type_name(ty, 1), ty.bytes());
                self.w.op(ty, 1, &load)
            })
            .collect();
        if guard.is_none() {
            return loaded;
        }
        loaded.iter().zip(&results).for_each(|(value, result)| self.w.store(value, result));
        self.w.line(&format!("br label %{end}"));
        self.w.label(&end);
        results.iter().map(|result| self.w.load(ty, 1, result)).collect()
    }

    fn store_same(&mut self, place: &MemoryOperand, ty: Type, values: &[Value], guard: Option<Value>) {
        let values: Vec<Val> = values.iter().map(|&value| self.scalar(value)).collect();
        let at = self.scalar_place(place);
        let [go, end] = ["go", "end"].map(|name| self.w.fresh(name));
        if let Some(guard) = guard {
            let guard = self.scalar(guard);
            self.w.line(&format!("br i1 {}, label %{go}, label %{end}", guard.name));
            self.w.label(&go);
        }
        self.check_scalar(place, &at, ty.bytes() * values.len() as u32);
        let pointer = self.pointer(place.space, &at);
        for (index, value) in values.iter().enumerate() {
            let at = self.element(&pointer, ty, index);
            self.w.line(&format!(
                "store {}, ptr {at}, align {}, {}",
                value.arg(),
                ty.bytes(),
                mark(place.space)
            ));
        }
        if guard.is_some() {
            self.w.line(&format!("br label %{end}"));
            self.w.label(&end);
        }
    }

    fn load_neighbours(
        &mut self,
        place: &MemoryOperand,
        ty: Type,
        count: usize,
        guard: Option<Value>,
    ) -> Vec<Val> {
        let mask = self.access_mask(guard);
        let pointer = self.checked_neighbours(place, ty.bytes() * count as u32, &mask);
        let all = self.lanes * count;
        let wide_mask = self.repeated(&mask, count);
        let vector = type_name(ty, all);
        let name = format!("llvm.masked.load.{}.p0", mangled(ty, all));
        let types = format!("ptr, i32, <{all} x i1>, {vector}");
        let values =
            format!("ptr {pointer}, i32 {}, {}, {vector} zeroinitializer", ty.bytes(), wide_mask.arg());
        self.w.declare(&name, format!("declare {vector} @{name}({types})"));
        let loaded = self.w.op(ty, all, &format!("call {vector} @{name}({values}), {}", mark(place.space)));
        if count == 1 {
            return vec![loaded];
        }
        let pick = |index: usize| (0..self.lanes).map(|lane| lane * count + index).collect::<Vec<_>>();
        let picks: Vec<Vec<usize>> = (0..count).map(pick).collect();
        picks.iter().map(|places| self.shuffle(&loaded, &loaded, places)).collect()
    }

    fn store_neighbours(&mut self, place: &MemoryOperand, ty: Type, values: &[Value], guard: Option<Value>) {
        let count = values.len();
        let mask = self.access_mask(guard);
        let mut parts: Vec<Val> = values.iter().map(|&value| self.vector(value)).collect();
        let pointer = self.checked_neighbours(place, ty.bytes() * count as u32, &mask);
        // Interleaved in pairs: those half of the list apart first.
        while parts.len() > 1 {
            let half = parts.len() / 2;
            let width = parts[0].lanes;
            let places: Vec<usize> = (0..2 * width).map(|at| at / 2 + at % 2 * width).collect();
            parts =
                (0..half).map(|index| self.shuffle(&parts[index], &parts[index + half], &places)).collect();
        }
        let all = self.lanes * count;
        let wide_mask = self.repeated(&mask, count);
        let name = format!("llvm.masked.store.{}.p0", mangled(ty, all));
        self.w.declare(&name, format!("declare void @{name}({}, ptr, i32, <{all} x i1>)", parts[0].t()));
        self.w.line(&format!(
            "call void @{name}({}, ptr {pointer}, i32 {}, {}), {}",
            parts[0].arg(),
            ty.bytes(),
            wide_mask.arg(),
            mark(place.space)
        ));
    }

    fn gather(&mut self, place: &MemoryOperand, ty: Type, count: usize, guard: Option<Value>) -> Vec<Val> {
        let mask = self.access_mask(guard);
        let at = self.vector_place(place);
        self.check_vector(place, &at, ty.bytes() * count as u32, &mask);
        (0..count)
            .map(|index| {
                let at = self.w.binary_const("add", &at, index as u64 * u64::from(ty.bytes()));
                if ty.bytes() >= 4 {
                    let pointers = self.pointers(place.space, &at);
                    return self.gather_from(&pointers, ty, &mask, place.space);
                }
                // A word around the narrow element is in the same page and range.
                let aligned = self.w.binary_const("and", &at, !3);
                let pointers = self.pointers(place.space, &aligned);
                let words = self.gather_from(&pointers, Type::I32, &mask, place.space);
                let at = self.w.resize(&at, Type::I32);
                let byte = self.w.binary_const("and", &at, 3);
                let shift = self.w.binary_const("shl", &byte, 3);
                let element = self.w.binary("lshr", &words, &shift);
                self.w.cast("trunc", &element, ty)
            })
            .collect()
    }

    fn gather_from(&mut self, pointers: &str, ty: Type, mask: &Val, space: Space) -> Val {
        let lanes = self.lanes;
        let vector = type_name(ty, lanes);
        let name = format!("llvm.masked.gather.{}.v{lanes}p0", mangled(ty, lanes));
        let types = format!("<{lanes} x ptr>, i32, <{lanes} x i1>, {vector}");
        self.w.declare(&name, format!("declare {vector} @{name}({types})"));
        let values = format!(
            "<{lanes} x ptr> {pointers}, i32 {}, {}, {vector} zeroinitializer",
            ty.bytes(),
            mask.arg()
        );
        self.w.op(ty, lanes, &format!("call {vector} @{name}({values}), {}", mark(space)))
    }

    fn scatter(&mut self, place: &MemoryOperand, ty: Type, values: &[Value], guard: Option<Value>) {
        let mask = self.access_mask(guard);
        let vectors: Vec<Val> = values.iter().map(|&value| self.vector(value)).collect();
        let at = self.vector_place(place);
        self.check_vector(place, &at, ty.bytes() * values.len() as u32, &mask);
        let lanes = self.lanes;
        for (index, value) in vectors.iter().enumerate() {
            let at = self.w.binary_const("add", &at, index as u64 * u64::from(ty.bytes()));
            let pointers = self.pointers(place.space, &at);
            if ty.bytes() >= 4 {
                let name = format!("llvm.masked.scatter.{}.v{lanes}p0", mangled(ty, lanes));
                let types = format!("{}, <{lanes} x ptr>, i32, <{lanes} x i1>", value.t());
                self.w.declare(&name, format!("declare void @{name}({types})"));
                self.w.line(&format!(
                    "call void @{name}({}, <{lanes} x ptr> {pointers}, i32 {}, {}), {}",
                    value.arg(),
                    ty.bytes(),
                    mask.arg(),
                    mark(place.space)
                ));
                continue;
            }
            let addresses = format!("ptrtoint <{lanes} x ptr> {pointers} to <{lanes} x i64>");
            let addresses = self.w.op(Type::I64, lanes, &addresses);
            self.lane_loop(&mask, &[&addresses, value], &[], |emitter, _, args| {
                let pointer = emitter.w.raw(&format!("inttoptr i64 {} to ptr", args[0].name));
                let mark = mark(place.space);
                emitter.w.line(&format!(
                    "store {}, ptr {pointer}, align {}, {mark}",
                    args[1].arg(),
                    ty.bytes()
                ));
                Vec::new()
            });
        }
    }

    // ---- Places

    fn element(&mut self, pointer: &str, ty: Type, index: usize) -> String {
        match index {
            0 => pointer.to_owned(),
            _ => self.w.raw(&format!("getelementptr i8, ptr {pointer}, i64 {}", index as u32 * ty.bytes())),
        }
    }

    /// Where a checked place is in the process. Of neighbouring lanes it is the first one's, which
    /// may be off, and below the window's start.
    pub(super) fn pointer(&mut self, space: Space, at: &Val) -> String {
        let base = match space {
            Space::Shared => "%shared_base",
            Space::Param => "%params",
            _ => return self.w.raw(&format!("inttoptr {} to ptr", at.arg())),
        };
        let offset = self.w.cast("sext", at, Type::I64);
        self.w.raw(&format!("getelementptr i8, ptr {base}, {}", offset.arg()))
    }

    /// Where the checked places of all lanes are in the process. Offsets in windows are below 2^31
    /// once they are checked.
    pub(super) fn pointers(&mut self, space: Space, at: &Val) -> String {
        let lanes = self.lanes;
        let base = match space {
            Space::Shared => "%shared_base",
            Space::Param => "%params",
            Space::Local => {
                let bases = self.local_bases();
                let offsets = self.w.resize(at, Type::I64);
                let at = self.w.binary("add", &bases, &offsets);
                return self.w.raw(&format!("inttoptr {} to <{lanes} x ptr>", at.arg()));
            }
            _ => return self.w.raw(&format!("inttoptr {} to <{lanes} x ptr>", at.arg())),
        };
        let offsets = self.w.cast("sext", at, Type::I64);
        self.w.raw(&format!("getelementptr i8, ptr {base}, {}", offsets.arg()))
    }

    fn repeated(&mut self, mask: &Val, count: usize) -> Val {
        if count == 1 {
            return mask.clone();
        }
        let places: Vec<usize> = (0..self.lanes * count).map(|at| at / count).collect();
        self.shuffle(mask, mask, &places)
    }

    /// Elements of two vectors by their places in both, one behind the other.
    pub(super) fn shuffle(&mut self, a: &Val, b: &Val, places: &[usize]) -> Val {
        let list: Vec<String> = places.iter().map(|place| format!("i32 {place}")).collect();
        let shuffle =
            format!("shufflevector {}, {}, <{} x i32> <{}>", a.arg(), b.arg(), places.len(), list.join(", "));
        self.w.op(a.ty, places.len(), &shuffle)
    }

    // ---- Checks

    /// What a valid place of an access is compared with, once its low bits have been rotated to the
    /// top: places that are not aligned are beyond any limit then.
    fn limit(&mut self, space: Space, bytes: u32, align: u32) -> Val {
        let shift = u64::from(align.trailing_zeros());
        let size = match space {
            Space::Shared => Val::new(Type::I32, 1, "%shared_size"),
            Space::Param => Val::new(Type::I32, 1, "%params_size"),
            Space::Local => Val::new(Type::I32, 1, self.w.raw("trunc i64 %local_stride to i32")),
            _ => {
                // The range is larger than any access of a warp: see `Executor::launch`.
                let last = self.w.raw(&format!("sub i64 %memory_size, {}", bytes - 1));
                return self.rounded_up(Val::new(Type::I64, 1, last), shift);
            }
        };
        let less = constant(Type::I32, 1, u64::from(bytes - 1));
        let starts = self.w.intrinsic("llvm.usub.sat", &[&size, &less], &[]);
        self.rounded_up(starts, shift)
    }

    /// How many multiples of the alignment are below a number.
    fn rounded_up(&mut self, count: Val, shift: u64) -> Val {
        let more = self.w.binary_const("add", &count, (1 << shift) - 1);
        self.w.binary_const("lshr", &more, shift)
    }

    /// Whether places are beyond a limit of [`Emitter::limit`].
    fn is_beyond(&mut self, space: Space, at: &Val, align: u32, limit: &Val) -> Val {
        let offset = match space {
            Space::Shared | Space::Param | Space::Local => at.clone(),
            _ => {
                let base = self.w.splat(&Val::new(Type::I64, 1, "%memory_base"), at.lanes);
                self.w.binary("sub", at, &base)
            }
        };
        let shift = constant(at.ty, at.lanes, u64::from(align.trailing_zeros()));
        let rotated = match align {
            1 => offset,
            _ => self.w.intrinsic("llvm.fshr", &[&offset, &offset, &shift], &[]),
        };
        let limit = self.w.splat(limit, at.lanes);
        self.w.icmp("uge", &rotated, &limit)
    }

    /// An access at a constant place that is known to be aligned and inside its window needs no
    /// check.
    fn is_known_inside(&self, place: &MemoryOperand, bytes: u32) -> bool {
        let Some(addr) = self.kernel.constant(place.addr) else { return false };
        let offset = (addr as u32).wrapping_add_signed(place.offset);
        let size = match place.space {
            Space::Shared => self.kernel.shared.static_bytes,
            Space::Param => self.kernel.params.bytes,
            _ => return false,
        };
        u64::from(offset) + u64::from(bytes) <= u64::from(size) && offset.is_multiple_of(bytes)
    }

    pub(super) fn check_scalar(&mut self, place: &MemoryOperand, at: &Val, bytes: u32) {
        if self.is_known_inside(place, bytes) {
            return;
        }
        let limit = self.limit(place.space, bytes, bytes);
        let is_bad = self.is_beyond(place.space, at, bytes, &limit);
        let [bad, good] = ["bad", "good"].map(|name| self.w.fresh(name));
        self.w.line(&format!("br i1 {}, label %{bad}, label %{good}, !prof !10", is_bad.name));
        self.w.label(&bad);
        self.fault(code(place.space, bytes), at);
        self.w.label(&good);
    }

    pub(super) fn check_vector(&mut self, place: &MemoryOperand, at: &Val, bytes: u32, mask: &Val) {
        let limit = self.limit(place.space, bytes, bytes);
        let is_bad = self.is_beyond(place.space, at, bytes, &limit);
        let is_bad = self.within(mask, &is_bad);
        let any = self.any(&is_bad);
        let [bad, good] = ["bad", "good"].map(|name| self.w.fresh(name));
        self.w.line(&format!("br i1 {}, label %{bad}, label %{good}, !prof !10", any.name));
        self.w.label(&bad);
        let bits = self.bits_of(&is_bad);
        let lane = self.w.intrinsic("llvm.cttz", &[&bits], &["true"]);
        let address = self.w.op(at.ty, 1, &format!("extractelement {}, i32 {}", at.arg(), lane.name));
        self.fault(code(place.space, bytes), &address);
        self.w.label(&good);
    }

    /// The address of the first lane of neighbours with `bytes` each.
    fn checked_neighbours(&mut self, place: &MemoryOperand, bytes: u32, mask: &Val) -> String {
        let at = self.scalar_place(place);
        let limit = self.limit(place.space, bytes * self.lanes as u32, bytes);
        let is_beyond = self.is_beyond(place.space, &at, bytes, &limit);
        let [each, good] = ["each", "good"].map(|name| self.w.fresh(name));
        self.w.line(&format!("br i1 {}, label %{each}, label %{good}, !prof !10", is_beyond.name));
        self.w.label(&each);
        let first = self.w.splat(&at, self.lanes);
        let all = self.w.binary("add", &first, &steps(at.ty, self.lanes, i64::from(bytes)));
        self.check_vector(place, &all, bytes, mask);
        self.w.line(&format!("br label %{good}"));
        self.w.label(&good);
        self.pointer(place.space, &at)
    }
}

/// The mark of an access for LLVM's analysis of what can be at the same place.
pub(super) fn mark(space: Space) -> &'static str {
    match space {
        Space::Shared => alias::SHARED,
        Space::Global | Space::Const => alias::GLOBAL,
        Space::Generic | Space::Local | Space::Param => alias::DEVICE,
    }
}

fn code(space: Space, align: u32) -> u32 {
    let code = match space {
        Space::Shared | Space::Param | Space::Local => fault_code::OUT_OF_WINDOW,
        _ => fault_code::ILLEGAL_ADDRESS,
    };
    fault_code::of_access(code, align)
}
