//! Local memory that is never addressed becomes values.
//!
//! Compilers keep arrays, spilled structures and the parameters of calls in `.local` and `.param`
//! memory. Where every access to the frame is at a constant place, the pieces that are always
//! accessed as a whole are variables, and the SSA construction of the lowering makes values of
//! them. One access at a computed place, or one pointer to the frame, leaves all of it in memory.

use crate::inst::{ConvertOp, Inst, MemoryOperand, Space, Window};
use crate::kernel::{Definition, Kernel};
use crate::ssa::{Variable, Variables};
use crate::types::{InstId, Type, Value};

/// Whether anything changed.
pub fn run(kernel: &mut Kernel) -> bool {
    if kernel.local_bytes == 0 {
        return false;
    }
    let Some(mut frame) = Frame::new(kernel) else { return false };
    let mut variables = Variables::default();
    let is_all_promoted = frame.pieces.iter().all(|piece| piece.is_whole);
    for piece in &mut frame.pieces {
        if piece.is_whole {
            piece.variable = Some(variables.declare(piece.ty));
        }
    }
    let mut rewriter = Rewriter { kernel, variables, frame: &frame, insts: Vec::new(), aliases: Vec::new() };
    for id in rewriter.kernel.block_ids() {
        rewriter.variables.enter(id);
        let old = std::mem::take(&mut rewriter.kernel.block_mut(id).insts);
        for inst in old {
            rewriter.rewrite(inst);
        }
        rewriter.kernel.block_mut(id).insts = std::mem::take(&mut rewriter.insts);
    }
    let Rewriter { variables, aliases, .. } = rewriter;
    variables.finish_with(kernel, aliases);
    if is_all_promoted {
        kernel.local_bytes = 0;
    }
    true
}

/// The frame cut into the pieces that accesses touch, sorted by place.
struct Frame {
    pieces: Vec<Piece>,
}

struct Piece {
    start: u32,
    end: u32,
    /// All accesses are of exactly this range.
    is_whole: bool,
    /// The type of the first access; others of the same width reinterpret.
    ty: Type,
    variable: Option<Variable>,
}

impl Frame {
    /// None where some access is not at a constant place.
    fn new(kernel: &Kernel) -> Option<Frame> {
        let mut elements = Vec::new();
        let mut accesses = Vec::new();
        for block in &kernel.blocks {
            for inst in &block.insts {
                match &kernel.inst(*inst).inst {
                    Inst::WindowBase { window: Window::Local } => return None,
                    Inst::Atomic { place, .. } if place.space == Space::Local => return None,
                    Inst::Load { place, ty, count, .. } if place.space == Space::Local => {
                        let start = constant_place(kernel, place)?;
                        elements
                            .extend((0..u32::from(*count)).map(|index| (start + index * ty.bytes(), *ty)));
                        accesses.push((start, start + u32::from(*count) * ty.bytes()));
                    }
                    Inst::Store { place, ty, values, .. } if place.space == Space::Local => {
                        let start = constant_place(kernel, place)?;
                        elements
                            .extend((0..values.len() as u32).map(|index| (start + index * ty.bytes(), *ty)));
                        accesses.push((start, start + values.len() as u32 * ty.bytes()));
                    }
                    _ => {}
                }
            }
        }
        elements.sort_unstable_by_key(|(start, ty)| (*start, ty.bytes()));
        let mut pieces: Vec<Piece> = Vec::new();
        for (start, ty) in &elements {
            let (start, ty) = (*start, *ty);
            let end = start + ty.bytes();
            match pieces.last_mut() {
                Some(last) if start < last.end => {
                    last.is_whole &= start == last.start && end == last.end;
                    last.end = last.end.max(end);
                }
                _ => pieces.push(Piece { start, end, is_whole: true, ty, variable: None }),
            }
        }
        let mut frame = Frame { pieces };
        frame.keep_together(&accesses);
        Some(frame)
    }

    /// An access that is partly to memory is to memory as a whole, and with it every other access
    /// to its pieces.
    fn keep_together(&mut self, accesses: &[(u32, u32)]) {
        let mut changed = true;
        while std::mem::take(&mut changed) {
            for (start, end) in accesses {
                let first = self.pieces.partition_point(|piece| piece.end <= *start);
                let touched = self.pieces[first..].iter_mut().take_while(|piece| piece.start < *end);
                let mut touched: Vec<&mut Piece> = touched.collect();
                if touched.iter().any(|piece| !piece.is_whole) {
                    for piece in touched.iter_mut().filter(|piece| piece.is_whole) {
                        piece.is_whole = false;
                        changed = true;
                    }
                }
            }
        }
    }

    fn variable_at(&self, start: u32) -> Option<Variable> {
        let index = self.pieces.partition_point(|piece| piece.end <= start);
        self.pieces.get(index)?.variable
    }
}

/// Where an access of the frame is, if that is known and within it.
fn constant_place(kernel: &Kernel, place: &MemoryOperand) -> Option<u32> {
    let base = kernel.constant(place.addr)? as u32;
    let start = base.wrapping_add(place.offset as u32);
    // 8 elements of 8 bytes at most.
    (start.checked_add(64)? <= kernel.local_bytes.checked_add(64)?).then_some(start)
}

struct Rewriter<'k> {
    kernel: &'k mut Kernel,
    variables: Variables,
    frame: &'k Frame,
    /// The current block's instructions so far.
    insts: Vec<InstId>,
    /// Results of loads with what stands for them.
    aliases: Vec<(Value, Value)>,
}

impl Rewriter<'_> {
    fn rewrite(&mut self, id: InstId) {
        let data = self.kernel.inst(id).clone();
        match data.inst {
            Inst::Load { place, ty, guard, .. } if place.space == Space::Local => {
                let variables = self.variables_of(&place, ty, usize::from(data.result_count));
                let Some(variables) = variables else { return self.insts.push(id) };
                for (variable, result) in variables.into_iter().zip(data.results()) {
                    let value = self.variables.read(self.kernel, variable);
                    let mut value = self.reinterpret(value, ty);
                    if let Some(guard) = guard {
                        let zero = self.value(Inst::Const { ty, bits: 0 });
                        value = self.value(Inst::Select { ty, cond: guard, args: [value, zero] });
                    }
                    self.aliases.push((result, value));
                    self.kernel.values[result.index()].definition = Definition::None;
                }
            }
            Inst::Store { place, ty, ref values, guard, .. } if place.space == Space::Local => {
                let variables = self.variables_of(&place, ty, values.len());
                let Some(variables) = variables else { return self.insts.push(id) };
                for (variable, value) in variables.into_iter().zip(values) {
                    let wanted = self.variables.ty(variable);
                    let mut value = self.reinterpret(*value, wanted);
                    if let Some(guard) = guard {
                        let old = self.variables.read(self.kernel, variable);
                        value = self.value(Inst::Select { ty: wanted, cond: guard, args: [value, old] });
                    }
                    self.variables.write(variable, value);
                }
            }
            _ => self.insts.push(id),
        }
    }

    /// The variables of all elements of an access, or None if it stays in memory.
    fn variables_of(&self, place: &MemoryOperand, ty: Type, count: usize) -> Option<Vec<Variable>> {
        let start = constant_place(self.kernel, place)?;
        (0..count as u32).map(|index| self.frame.variable_at(start + index * ty.bytes())).collect()
    }

    fn reinterpret(&mut self, value: Value, to: Type) -> Value {
        let from = self.kernel.ty(value);
        if from == to {
            return value;
        }
        self.value(Inst::Convert { op: ConvertOp::Bitcast, from, to, arg: value })
    }

    fn value(&mut self, inst: Inst) -> Value {
        let id = self.kernel.add_inst(inst, 0);
        self.insts.push(id);
        self.kernel.inst(id).first_result
    }
}
