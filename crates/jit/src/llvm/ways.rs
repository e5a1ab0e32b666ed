//! The way out of a block: who goes where, and what runs next.

use sluice_ir::analysis::Shape;
use sluice_ir::{BlockId, Target, Terminator, Type};

use super::emitter::{Emitter, NotCovered};
use super::flow::candidates;
use super::writer::{Val, constant};
use crate::runtime::{self, fault_code};

impl Emitter<'_> {
    pub(super) fn terminator(&mut self, block: BlockId) -> Result<(), NotCovered> {
        let kernel = self.kernel;
        let mask = self.mask.clone();
        match &kernel.block(block).terminator {
            Terminator::Jump(target) => self.leave(&[(target, mask)]),
            Terminator::Branch { cond, then, otherwise } if self.is_varying(*cond) => {
                let cond = self.vector(*cond);
                let none = constant(Type::I1, self.lanes, 0);
                let yes = self.within(&mask, &cond);
                let rest = self.w.select(&cond, &none, &mask);
                let no = self.within(&mask, &rest);
                self.leave(&[(then, yes), (otherwise, no)]);
            }
            Terminator::Branch { cond, then, otherwise } => {
                let cond = self.scalar(*cond);
                let [yes, no] = ["yes", "no"].map(|name| self.w.fresh(name));
                self.w.line(&format!("br i1 {}, label %{yes}, label %{no}", cond.name));
                self.w.label(&yes);
                self.aside(|emitter| emitter.leave(&[(then, mask.clone())]));
                self.w.label(&no);
                self.leave(&[(otherwise, mask)]);
            }
            Terminator::Switch { index, targets, default } if self.shape(*index) != Shape::Uniform => {
                let index = self.vector(*index);
                let none = constant(Type::I1, self.lanes, 0);
                let mut rest = mask;
                let mut ways = Vec::with_capacity(targets.len() + 1);
                for (number, target) in targets.iter().enumerate() {
                    let matches = self.w.icmp_const("eq", &index, number as u64);
                    let lanes = self.within(&rest, &matches);
                    rest = self.w.select(&lanes, &none, &rest);
                    ways.push((target, lanes));
                }
                ways.push((default, rest));
                self.leave(&ways);
            }
            Terminator::Switch { index, targets, default } => {
                let index = self.scalar(*index);
                let labels: Vec<String> = targets.iter().map(|_| self.w.fresh("case")).collect();
                let other = self.w.fresh("case");
                let cases =
                    labels.iter().enumerate().map(|(number, label)| format!("i32 {number}, label %{label}"));
                let cases = cases.collect::<Vec<_>>().join(" ");
                self.w.line(&format!("switch {}, label %{other} [ {cases} ]", index.arg()));
                for (label, target) in labels.iter().chain([&other]).zip(targets.iter().chain([default])) {
                    self.w.label(label);
                    self.aside(|emitter| emitter.leave(&[(target, mask.clone())]));
                }
            }
            Terminator::Exit => {
                self.exit();
                self.go_on(&[]);
            }
            Terminator::Trap => {
                let none = constant(Type::I64, 1, 0);
                self.fault(fault_code::TRAP, &none);
            }
        }
        Ok(())
    }

    /// Lanes leave the block, those of each mask for a target.
    fn leave(&mut self, ways: &[(&Target, Val)]) {
        let kernel = self.kernel;
        let flow = self.flow;
        let others = &flow.others[self.block.index()];
        // Everything that a parameter may overwrite is read first.
        let args: Vec<Vec<Val>> = ways
            .iter()
            .map(|(target, _)| {
                let params = &kernel.block(target.block).params;
                let pairs = target.args.iter().zip(params);
                pairs.map(|(&arg, &param)| self.in_shape_of(arg, param)).collect()
            })
            .collect();
        for (place, ((target, lanes), args)) in ways.iter().zip(args).enumerate() {
            let to = target.block;
            let is_shared = others.has(to.index())
                || ways.iter().enumerate().any(|(other, (target, _))| other != place && target.block == to);
            for (&param, arg) in kernel.block(to).params.iter().zip(args) {
                let is_wanted = is_shared
                    || flow.is_wanted(param, others)
                    || ways.iter().any(|(target, _)| target.block != to && flow.is_live(param, target.block));
                let keeps = is_wanted && self.is_varying(param);
                self.assign(param, &arg, keeps.then_some(lanes));
            }
            let pending = self.pending[to.index()].clone();
            let lanes = match is_shared {
                true => {
                    let before = self.w.load(Type::I1, self.lanes, &pending);
                    self.w.binary("or", &before, lanes)
                }
                false => lanes.clone(),
            };
            self.w.store(&lanes, &pending);
        }
        let targets: Vec<BlockId> = ways.iter().map(|(target, _)| target.block).collect();
        if targets.iter().any(|&target| target <= self.block) {
            self.safepoint();
        }
        self.go_on(&targets);
    }

    /// The lowest block with pending lanes is next, after lanes have left for these blocks.
    fn go_on(&mut self, targets: &[BlockId]) {
        let (next, is_last_sure) = candidates(&self.flow.others[self.block.index()], targets);
        for (place, &block) in next.iter().enumerate() {
            if is_last_sure && place + 1 == next.len() {
                self.w.line(&format!("br label %b{block}"));
                return;
            }
            let pending = self.pending[block].clone();
            let lanes = self.w.load(Type::I1, self.lanes, &pending);
            let any = self.any(&lanes);
            let other = self.w.fresh("other");
            self.w.line(&format!("br i1 {}, label %b{block}, label %{other}", any.name));
            self.w.label(&other);
        }
        self.w.line("br label %done");
    }

    /// On a back edge: wait while the launch is paused, and end with it.
    fn safepoint(&mut self) {
        let word = self.w.raw("load volatile i32, ptr %control, align 4");
        let is_asked = self.w.raw(&format!("icmp ne i32 {word}, 0"));
        let [stop, go] = ["stop", "go"].map(|name| self.w.fresh(name));
        self.w.line(&format!("br i1 {is_asked}, label %{stop}, label %{go}, !prof !10"));
        self.w.label(&stop);
        let function = ("safepoint", runtime::safepoint as *const ());
        self.w.call_runtime(function, &["ptr %ctx".into()], None, "cold memory(inaccessiblemem: readwrite)");
        self.w.line(&format!("br label %{go}"));
        self.w.label(&go);
    }

    /// Ends the grid.
    pub(super) fn fault(&mut self, kind: u32, address: &Val) {
        let address = self.w.resize(address, Type::I64);
        let args = ["ptr %ctx".into(), format!("i32 {kind}"), address.arg()];
        self.w.call_runtime(("fault", runtime::fault as *const ()), &args, None, "cold noreturn");
        self.w.line("unreachable");
    }
}
