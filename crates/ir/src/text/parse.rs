//! Reading the text form.

use super::names::{Named, register_from_name};
use crate::matrix::MatrixForm;
use crate::texture::Sampling;
use crate::{
    Block, BlockId, ConvertOp, Definition, FloatOp, GlobalId, Inst, InstData, InstId, Kernel, MemoryOperand,
    MemoryOrder, ParamSlot, Rounding, Target, Terminator, Type, Value, ValueData,
};

/// Highest number of a value or block that a text may use, so that a short text cannot ask for much
/// memory.
const NUMBER_MAX: u32 = 1 << 20;

/// What is wrong with a text, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct TextError {
    /// From 1.
    pub line: usize,
    pub problem: String,
}

type Parsed<T> = Result<T, String>;

/// Reads one kernel. The result is not verified: see [`crate::verify`].
pub fn parse(text: &str) -> Result<Kernel, TextError> {
    let mut reader = Reader { kernel: Kernel::default(), terminated: true };
    for (index, line) in text.lines().enumerate() {
        let line = line.split("//").next().unwrap_or_default().trim_end();
        reader.line(line).map_err(|problem| TextError { line: index + 1, problem })?;
    }
    let end = |problem: &str| TextError { line: text.lines().count(), problem: problem.to_owned() };
    if !reader.terminated {
        return Err(end("the last block has no terminator"));
    }
    if reader.kernel.blocks.is_empty() {
        return Err(end("a kernel has at least one block"));
    }
    Ok(reader.kernel)
}

struct Reader {
    kernel: Kernel,
    /// Whether the last block has its terminator.
    terminated: bool,
}

impl Reader {
    fn line(&mut self, line: &str) -> Parsed<()> {
        let trimmed = line.trim_start();
        if trimmed.is_empty() {
            Ok(())
        } else if trimmed.len() < line.len() {
            self.statement(trimmed)
        } else if let Some(header) = trimmed.strip_suffix(':') {
            self.block(header)
        } else {
            self.property(trimmed)
        }
    }

    fn property(&mut self, line: &str) -> Parsed<()> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let words: Vec<&str> = rest.split_whitespace().collect();
        match (word, words.as_slice()) {
            ("kernel", [name]) => self.kernel.name = (*name).to_owned(),
            ("params", [bytes, slots @ ..]) => {
                self.kernel.params.bytes = number(bytes)?;
                self.kernel.params.params =
                    slots.iter().map(|slot| param_slot(slot)).collect::<Parsed<_>>()?;
            }
            ("shared", [bytes, "align", align, dynamic @ ..]) => {
                self.kernel.shared.static_bytes = number(bytes)?;
                self.kernel.shared.align = number(align)?;
                self.kernel.shared.dynamic_offset = match dynamic {
                    [] => None,
                    ["dynamic", offset] => Some(number(offset)?),
                    _ => return Err("expected `dynamic OFFSET`".into()),
                };
            }
            ("local", [bytes, "align", align, stack @ ..]) => {
                self.kernel.local_bytes = number(bytes)?;
                self.kernel.local_align = number(align)?;
                self.kernel.needs_stack = match stack {
                    [] => false,
                    ["stack"] => true,
                    _ => return Err("expected `stack`".into()),
                };
            }
            ("maxntid", [x, y, z]) => self.kernel.max_threads = Some([number(x)?, number(y)?, number(z)?]),
            ("reqntid", [x, y, z]) => {
                self.kernel.required_threads = Some([number(x)?, number(y)?, number(z)?])
            }
            ("global", [name]) => self.kernel.globals.push((*name).to_owned()),
            ("missing", words) => self.kernel.missing.push(words.join(" ")),
            _ => return Err(format!("`{line}` is no property of a kernel")),
        }
        Ok(())
    }

    fn block(&mut self, header: &str) -> Parsed<()> {
        if !self.terminated {
            return Err("the block before has no terminator".into());
        }
        let (name, params) = split_call(header)?;
        let id = BlockId::new(self.kernel.blocks.len());
        if numbered(name, 'b')? != id.0 {
            return Err(format!("expected {id}: blocks stand in order"));
        }
        let mut block = Block { params: Vec::new(), insts: Vec::new(), terminator: Terminator::Exit };
        for (index, param) in params.into_iter().enumerate() {
            let (value, ty) = param.split_once(':').ok_or("expected `vN: type`")?;
            let value = value_id(value)?;
            self.define(value, named(ty.trim())?, Definition::Param { block: id, index: index as u32 })?;
            block.params.push(value);
        }
        self.kernel.blocks.push(block);
        self.terminated = false;
        Ok(())
    }

    fn statement(&mut self, line: &str) -> Parsed<()> {
        if self.terminated {
            return Err("an instruction outside a block".into());
        }
        let (results, text) = match line.split_once(" = ") {
            Some((results, text)) => (results.split(',').map(value_id).collect::<Parsed<Vec<_>>>()?, text),
            None => (Vec::new(), line),
        };
        if results.is_empty()
            && let Some(terminator) = terminator(text)?
        {
            self.last_block().terminator = terminator;
            self.terminated = true;
            return Ok(());
        }
        let inst = inst(text)?;
        let mut types = Vec::new();
        inst.result_types(|ty| types.push(ty));
        let drops_result = results.is_empty() && matches!(inst, Inst::Atomic { .. });
        if types.len() != results.len() && !drops_result {
            return Err(format!("`{text}` has {} results", types.len()));
        }
        let id = InstId::new(self.kernel.insts.len());
        let first_result = results.first().copied().unwrap_or(Value(0));
        for (index, (value, ty)) in results.iter().zip(types).enumerate() {
            if value.0 != first_result.0 + index as u32 {
                return Err("results are numbered one after the other".into());
            }
            self.define(*value, ty, Definition::Result { inst: id, index: index as u8 })?;
        }
        self.kernel.insts.push(InstData { inst, first_result, result_count: results.len() as u8, line: 0 });
        self.last_block().insts.push(id);
        Ok(())
    }

    fn define(&mut self, value: Value, ty: Type, definition: Definition) -> Parsed<()> {
        let missing = ValueData { ty: Type::I1, definition: Definition::None };
        if self.kernel.values.len() <= value.index() {
            self.kernel.values.resize(value.index() + 1, missing);
        }
        let slot = &mut self.kernel.values[value.index()];
        if slot.definition != Definition::None {
            return Err(format!("{value} is defined twice"));
        }
        *slot = ValueData { ty, definition };
        Ok(())
    }

    fn last_block(&mut self) -> &mut Block {
        let last = self.kernel.blocks.len() - 1;
        &mut self.kernel.blocks[last]
    }
}

fn number<T: TryFrom<u64>>(text: &str) -> Parsed<T> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    };
    parsed
        .and_then(|value| T::try_from(value).ok())
        .ok_or_else(|| format!("`{text}` is no number that fits here"))
}

fn numbered(text: &str, prefix: char) -> Parsed<u32> {
    let digits = text.trim().strip_prefix(prefix);
    let id = digits.and_then(|digits| digits.parse().ok()).filter(|id| *id < NUMBER_MAX);
    id.ok_or_else(|| format!("expected {prefix} and a number, found `{}`", text.trim()))
}

fn value_id(text: &str) -> Parsed<Value> {
    numbered(text, 'v').map(Value)
}

fn named<T: Named>(text: &str) -> Parsed<T> {
    T::from_name(text).ok_or_else(|| format!("unknown word `{text}`"))
}

fn param_slot(text: &str) -> Parsed<ParamSlot> {
    let parts: Vec<&str> = text.split(':').collect();
    let [offset, bytes, align] = parts.as_slice() else { return Err("expected `offset:bytes:align`".into()) };
    Ok(ParamSlot { offset: number(offset)?, bytes: number(bytes)?, align: number(align)? })
}

/// `name(a, b)` or `name`.
fn split_call(text: &str) -> Parsed<(&str, Vec<&str>)> {
    let Some((name, rest)) = text.split_once('(') else { return Ok((text.trim(), Vec::new())) };
    let inner = rest.trim_end().strip_suffix(')').ok_or("expected `)`")?;
    Ok((name.trim(), inner.split(',').map(str::trim).collect()))
}

fn target(text: &str) -> Parsed<Target> {
    let (name, args) = split_call(text)?;
    let args = args.into_iter().map(value_id).collect::<Parsed<_>>()?;
    Ok(Target { block: BlockId(numbered(name, 'b')?), args })
}

/// Splits at commas outside parentheses.
fn split_arguments(text: &str) -> Vec<&str> {
    let mut depth = 0;
    let split = text.split(move |c| {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    });
    split.map(str::trim).filter(|part| !part.is_empty()).collect()
}

/// None when the word is no terminator's.
fn terminator(text: &str) -> Parsed<Option<Terminator>> {
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    let arguments = split_arguments(rest);
    Ok(Some(match (word, arguments.as_slice()) {
        ("exit", []) => Terminator::Exit,
        ("trap", []) => Terminator::Trap,
        ("jump", [to]) => Terminator::Jump(target(to)?),
        ("branch", [cond, then, otherwise]) => {
            Terminator::Branch { cond: value_id(cond)?, then: target(then)?, otherwise: target(otherwise)? }
        }
        ("switch", [index, default, targets @ ..]) => Terminator::Switch {
            index: value_id(index)?,
            default: target(default)?,
            targets: targets.iter().map(|to| target(to)).collect::<Parsed<_>>()?,
        },
        _ => return Ok(None),
    }))
}

fn place(space: &str, text: &str) -> Parsed<MemoryOperand> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [addr, sign, offset] = words.as_slice() else { return Err("expected `vN + offset`".into()) };
    let magnitude: i64 = number::<u32>(offset)?.into();
    let offset = match *sign {
        "+" => magnitude,
        "-" => -magnitude,
        _ => return Err("expected + or -".into()),
    };
    let offset = i32::try_from(offset).map_err(|_| "the offset does not fit 32 bits".to_owned())?;
    Ok(MemoryOperand { space: named(space)?, addr: value_id(addr)?, offset })
}

fn order(ordering: &str, scope: &str) -> Parsed<MemoryOrder> {
    Ok(MemoryOrder { ordering: named(ordering)?, scope: named(scope)? })
}

fn convert_op(word: &str, rounding: Option<Rounding>) -> Option<ConvertOp> {
    Some(match (word, rounding) {
        ("trunc", None) => ConvertOp::Truncate,
        ("sext", None) => ConvertOp::SignExtend,
        ("zext", None) => ConvertOp::ZeroExtend,
        ("bitcast", None) => ConvertOp::Bitcast,
        ("half_to_float", None) => ConvertOp::HalfToFloat,
        ("bfloat_to_float", None) => ConvertOp::BfloatToFloat,
        ("float_to_float", Some(rounding)) => ConvertOp::FloatToFloat(rounding),
        ("float_to_half", Some(rounding)) => ConvertOp::FloatToHalf(rounding),
        ("float_to_bfloat", Some(rounding)) => ConvertOp::FloatToBfloat(rounding),
        ("signed_to_float", Some(rounding)) => ConvertOp::SignedToFloat(rounding),
        ("unsigned_to_float", Some(rounding)) => ConvertOp::UnsignedToFloat(rounding),
        ("float_to_signed", Some(rounding)) => ConvertOp::FloatToSigned(rounding),
        ("float_to_unsigned", Some(rounding)) => ConvertOp::FloatToUnsigned(rounding),
        ("round", Some(rounding)) => ConvertOp::RoundToIntegral(rounding),
        ("float_to_tf32", Some(rounding)) => ConvertOp::FloatToTf32(rounding),
        _ => return None,
    })
}

fn inst(text: &str) -> Parsed<Inst> {
    let (mnemonic, rest) = text.split_once(' ').unwrap_or((text, ""));
    let (rest, guard) = match rest.split_once(" if ") {
        Some((rest, guard)) => (rest, Some(value_id(guard)?)),
        None => (rest, None),
    };
    let words: Vec<&str> = mnemonic.split('.').collect();
    let operands = split_arguments(rest);
    let unknown = || format!("`{text}` is no instruction");
    if matches!(words[0], "load" | "store" | "atomic") {
        return access(&words, &operands, guard)?.ok_or_else(unknown);
    }
    let found = match (words.as_slice(), operands.as_slice()) {
        (["const", ty], [bits]) => {
            let (ty, bits) = (named::<Type>(ty)?, number::<u64>(bits)?);
            Inst::Const { ty, bits: bits & ty.mask() }
        }
        (["special", register], []) => {
            Inst::Special { register: register_from_name(register).ok_or_else(unknown)? }
        }
        (["global"], [global]) => Inst::GlobalAddress { global: GlobalId(numbered(global, 'g')?) },
        (["window", window], []) => Inst::WindowBase { window: named(window)? },
        (["activemask"], []) => Inst::ActiveMask,
        (["fence", scope], []) => Inst::Fence { scope: named(scope)? },
        (["barrier", kind], [operands]) => barrier(kind, operands)?,
        (["cluster_barrier", "arrive"], []) => Inst::ClusterBarrier { waits: false },
        (["cluster_barrier", "wait"], []) => Inst::ClusterBarrier { waits: true },
        _ => {
            let args = operands.iter().map(|operand| value_id(operand)).collect::<Parsed<Vec<_>>>()?;
            return of_values(&words, &args)?.ok_or_else(unknown);
        }
    };
    Ok(found)
}

fn access(words: &[&str], operands: &[&str], guard: Option<Value>) -> Parsed<Option<Inst>> {
    let Some((at, values)) = operands.split_first() else { return Ok(None) };
    let values = values.iter().map(|value| value_id(value)).collect::<Parsed<Vec<_>>>()?;
    Ok(Some(match (words, values.as_slice()) {
        (["load", space, ordering, scope, ty, count], []) => Inst::Load {
            place: place(space, at)?,
            ty: named(ty)?,
            count: number(count)?,
            order: order(ordering, scope)?,
            guard,
        },
        (["store", space, ordering, scope, ty], [_, ..]) => Inst::Store {
            place: place(space, at)?,
            ty: named(ty)?,
            values: values.into(),
            order: order(ordering, scope)?,
            guard,
        },
        (["atomic", space, ordering, scope, op, ty], [arg, compare @ ..]) if compare.len() < 2 => {
            Inst::Atomic {
                op: named(op)?,
                place: place(space, at)?,
                ty: named(ty)?,
                arg: *arg,
                compare: compare.first().copied(),
                order: order(ordering, scope)?,
                guard,
            }
        }
        _ => return Ok(None),
    }))
}

/// `id [count vN] [of vN]`.
fn barrier(kind: &str, operands: &str) -> Parsed<Inst> {
    let mut words = operands.split_whitespace();
    let id = value_id(words.next().unwrap_or_default())?;
    let (mut count, mut predicate) = (None, None);
    while let Some(word) = words.next() {
        let value = value_id(words.next().unwrap_or_default())?;
        match word {
            "count" => count = Some(value),
            "of" => predicate = Some(value),
            _ => return Err(format!("unknown word `{word}`")),
        }
    }
    Ok(Inst::Barrier { kind: named(kind)?, id, count, predicate })
}

/// Instructions whose operands are all values.
fn of_values(words: &[&str], args: &[Value]) -> Parsed<Option<Inst>> {
    Ok(Some(match (words, args) {
        (["fma", rounding, ty], &[a, b, c]) => {
            Inst::Fma { rounding: named(rounding)?, ty: named(ty)?, args: [a, b, c] }
        }
        (["sqrt", rounding, ty], &[arg]) => Inst::Sqrt { rounding: named(rounding)?, ty: named(ty)?, arg },
        (["permute"], &[a, b, c]) => Inst::Permute { args: [a, b, c] },
        (["icmp", cond, ty], &[a, b]) => Inst::Compare { cond: named(cond)?, ty: named(ty)?, args: [a, b] },
        (["fcmp", cond, ty], &[a, b]) => {
            Inst::FloatCompare { cond: named(cond)?, ty: named(ty)?, args: [a, b] }
        }
        (["select", ty], &[cond, a, b]) => Inst::Select { ty: named(ty)?, cond, args: [a, b] },
        (["shuffle", mode], &[value, lane, clamp, mask]) => {
            Inst::Shuffle { mode: named(mode)?, value, lane, clamp, mask }
        }
        (["vote", kind], &[predicate, mask]) => Inst::Vote { kind: named(kind)?, predicate, mask },
        (["match", kind, ty], &[value, mask]) => {
            Inst::Match { kind: named(kind)?, ty: named(ty)?, value, mask }
        }
        (["redux", op, ty], &[value, mask]) => Inst::Redux { op: named(op)?, ty: named(ty)?, value, mask },
        (["matrix", m, n, k, a, b], &[ref args @ .., mask]) => {
            let form = MatrixForm { m: side(m)?, n: side(n)?, k: side(k)?, a: named(a)?, b: named(b)? };
            Inst::MatrixMultiply { form, args: args.into(), mask }
        }
        (["warpsync"], &[mask]) => Inst::WarpSync { mask },
        (["nanosleep"], &[nanoseconds]) => Inst::Nanosleep { nanoseconds },
        (["sample", bits], &[object, x, y, z, level]) => {
            Inst::Sample { sampling: Sampling::from_bits(number(bits)?), object, place: [x, y, z], level }
        }
        (["call", function], args) => Inst::CallRuntime { function: named(function)?, args: args.into() },
        ([op, rounding, ty], &[a, b]) if FloatOp::from_name(op).is_some() => {
            Inst::Float { op: named(op)?, rounding: named(rounding)?, ty: named(ty)?, args: [a, b] }
        }
        ([op, ty], &[arg]) => Inst::Unary { op: named(op)?, ty: named(ty)?, arg },
        ([op, ty], &[a, b]) => Inst::Binary { op: named(op)?, ty: named(ty)?, args: [a, b] },
        ([word, from, to], &[arg]) => {
            let Some(op) = convert_op(word, None) else { return Ok(None) };
            Inst::Convert { op, from: named(from)?, to: named(to)?, arg }
        }
        ([word, rounding, from, to], &[arg]) => {
            let Some(op) = convert_op(word, Some(named(rounding)?)) else { return Ok(None) };
            Inst::Convert { op, from: named(from)?, to: named(to)?, arg }
        }
        _ => return Ok(None),
    }))
}

/// M, N or K.
fn side(text: &str) -> Parsed<u8> {
    text.parse()
        .ok()
        .filter(|side| *side <= MatrixForm::SIDE_MAX)
        .ok_or_else(|| format!("`{text}` is no size"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of each instruction; what they compute does not matter here.
    const ALL: &str = "kernel all
params 12 0:8:8 8:4:4
shared 64 align 16 dynamic 64
local 8 align 8
maxntid 128 1 1
global table

b0:
  v0 = special.tid_x
  v1 = special.envreg2
  v2 = const.i32 0x7
  v3 = add.i32 v0, v2
  v4 = shl.i32 v3, v2
  v5 = const.f32 0x3f800000
  v6 = fadd.rn.f32 v5, v5
  v7 = fma.rz.f32 v5, v6, v5
  v8 = sqrt.rn.f32 v7
  v9 = ex2.f32 v8
  v10 = permute v0, v2, v3
  v11 = icmp.lt_u.i32 v0, v2
  v12 = fcmp.geu.f32 v5, v8
  v13 = select.f32 v11, v5, v8
  v14 = zext.i32.i64 v0
  v15 = float_to_signed.rz.f32.i32 v13
  v16 = global g0
  v17 = window.shared
  v18, v19 = load.global.weak.block.f32.2 v16 + 8
  v20 = load.shared.volatile.block.i32.1 v0 - 4 if v11
  store.generic.release.device.i32 v16 + 0, v20 if v12
  store.global.weak.block.f32 v16 + 0, v18, v19
  v21 = atomic.global.relaxed.device.exch.i32 v16 + 4, v20, v0
  atomic.global.relaxed.device.add.i32 v16 + 4, v20 if v11
  fence.system
  v22, v23 = shuffle.bfly v0, v2, v2, v2
  v24 = vote.ballot v11, v2
  v25, v26 = match.all.i32 v0, v2
  v27 = redux.min_s.i32 v0, v2
  v33, v34 = matrix.8.8.8.half.half v0, v2, v5, v5, v2
  warpsync v2
  v28 = activemask
  barrier.sync v2 count v3
  v29 = barrier.red_popc v2 of v11
  nanosleep v2
  v30 = call.vprintf v16, v17
  branch v11, b1(v0, v5), b2
b1(v31: i32, v32: f32):
  switch v31, b2, b1(v31, v32), b2
b2:
  jump b3
b3:
  exit
";

    #[test]
    fn prints_what_it_read() {
        let kernel = parse(ALL).unwrap();
        let text = kernel.to_string();
        let lines =
            |text: &str| text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(lines(&text), lines(ALL));
        assert_eq!(parse(&text).unwrap(), kernel);
    }

    #[test]
    fn says_what_is_wrong_and_where() {
        let problem = |text: &str| parse(text).unwrap_err().to_string();
        assert_eq!(problem("kernel k\nb0:\n  v0 = frob.i32 v1\n  exit"), "line 3: unknown word `frob`");
        assert_eq!(
            problem("kernel k\nb0:\n  v0 = special.tid_x\n"),
            "line 3: the last block has no terminator"
        );
        assert_eq!(problem("b1:\n"), "line 1: expected b0: blocks stand in order");
        assert_eq!(
            problem("b0:\n  v9999999 = special.tid_x"),
            "line 2: expected v and a number, found `v9999999`"
        );
        assert_eq!(problem("b0:\n  v0 = special.tid_x\n  v0 = special.tid_x"), "line 3: v0 is defined twice");
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text in "(kernel k\n|b0:\n|b0\\(v1: i32\\):\n|  v[0-9] = [a-z.0-9]{1,12} v1, v2\n|  jump b0\\(v1|[ -~\n]){0,40}") {
            let _ = parse(&text);
        }

        #[test]
        fn never_panics_on_damaged_text(at in 0..ALL.len(), with in "[ -~]{0,3}") {
            let mut text = ALL.to_owned();
            text.replace_range(at..at + 1, &with);
            let _ = parse(&text);
        }
    }
}
