//! Pure instructions, on single elements and on vectors alike.
//!
//! No instruction may be undefined for an operand, not even in lanes that are not active: LLVM
//! would take what follows from it for granted. Poison that stays in a lane that is not active is
//! no harm, since masks never come from it.

use sluice_ir::{BinaryOp, ConvertOp, FloatCond, FloatOp, Inst, IntCond, Rounding, Type, UnaryOp};

use super::emitter::{Emitter, NotCovered};
use super::writer::{Val, constant, mangled, type_name};
use crate::{math, round};

impl Emitter<'_> {
    /// The result for operands that are all single elements or all vectors (but the condition of a
    /// selection), in the order of [`Inst::for_each_arg`].
    pub(super) fn pure(&mut self, inst: &Inst, args: &[Val]) -> Result<Val, NotCovered> {
        Ok(match *inst {
            Inst::Unary { op, ty, .. } => self.unary(op, ty, &args[0])?,
            Inst::Binary { op, ty, .. } => self.binary(op, ty, &args[0], &args[1])?,
            Inst::Float { op, rounding, ty, .. } => self.float(op, rounding, ty, &args[0], &args[1])?,
            Inst::Fma { rounding, ty, .. } => self.fma(rounding, ty, [&args[0], &args[1], &args[2]])?,
            Inst::Sqrt { rounding: Rounding::Near, .. } => self.w.intrinsic("llvm.sqrt", &[&args[0]], &[]),
            Inst::Sqrt { rounding, ty, .. } => {
                let function = match ty {
                    Type::F32 => ("round_sqrt32", round::sqrt32 as *const ()),
                    _ => ("round_sqrt64", round::sqrt64 as *const ()),
                };
                self.each(function, &[&args[0]], Some(round::mode(rounding)), ty)
            }
            Inst::Permute { args: [_, _, selector] } => {
                let selector = self.kernel.constant(selector);
                self.permute(args, selector)
            }
            Inst::Compare { cond, .. } => self.w.icmp(int_condition(cond), &args[0], &args[1]),
            Inst::FloatCompare { cond, .. } => self.w.fcmp(float_condition(cond), &args[0], &args[1]),
            Inst::Select { .. } => self.w.select(&args[0], &args[1], &args[2]),
            Inst::Convert { op, from, to, .. } => self.convert(op, from, to, &args[0])?,
            _ => return Err(NotCovered(format!("{inst:?}"))),
        })
    }

    fn unary(&mut self, op: UnaryOp, ty: Type, arg: &Val) -> Result<Val, NotCovered> {
        let zero = constant(ty, arg.lanes, 0);
        Ok(match op {
            UnaryOp::Neg => self.w.binary("sub", &zero, arg),
            UnaryOp::Not => self.w.binary_const("xor", arg, u64::MAX),
            UnaryOp::Abs => self.w.intrinsic("llvm.abs", &[arg], &["false"]),
            UnaryOp::Clz => self.w.intrinsic("llvm.ctlz", &[arg], &["false"]),
            UnaryOp::Popc => self.w.intrinsic("llvm.ctpop", &[arg], &[]),
            UnaryOp::Brev => self.w.intrinsic("llvm.bitreverse", &[arg], &[]),
            UnaryOp::FNeg => self.w.op(ty, arg.lanes, &format!("fneg {}", arg.arg())),
            UnaryOp::FAbs => self.w.intrinsic("llvm.fabs", &[arg], &[]),
            UnaryOp::FlushSubnormal => {
                let magnitude = self.w.intrinsic("llvm.fabs", &[arg], &[]);
                let smallest = constant(ty, arg.lanes, u64::from(f32::MIN_POSITIVE.to_bits()));
                let is_subnormal = self.w.fcmp("olt", &magnitude, &smallest);
                let bits = self.w.bits(arg, Type::I32);
                let sign = self.w.binary_const("and", &bits, 1 << 31);
                let sign = self.w.bits(&sign, ty);
                self.w.select(&is_subnormal, &sign, arg)
            }
            UnaryOp::Rcp => {
                let one = one(ty, arg.lanes);
                self.w.binary("fdiv", &one, arg)
            }
            UnaryOp::Rsqrt => {
                let one = one(ty, arg.lanes);
                let root = self.w.intrinsic("llvm.sqrt", &[arg], &[]);
                self.w.binary("fdiv", &one, &root)
            }
            UnaryOp::Ex2 | UnaryOp::Lg2 | UnaryOp::Sin | UnaryOp::Cos | UnaryOp::Tanh => {
                if ty != Type::F32 {
                    return Err(NotCovered(format!("{op:?} of {ty}")));
                }
                self.approximate(op, arg)
            }
        })
    }

    /// A function of the runtime, over an array.
    fn approximate(&mut self, op: UnaryOp, arg: &Val) -> Val {
        let (name, single, array) = match op {
            UnaryOp::Ex2 => ("ex2", math::ex2 as *const (), math::ex2_array as *const ()),
            UnaryOp::Lg2 => ("lg2", math::lg2 as *const (), math::lg2_array as *const ()),
            UnaryOp::Sin => ("sin", math::sin as *const (), math::sin_array as *const ()),
            UnaryOp::Cos => ("cos", math::cos as *const (), math::cos_array as *const ()),
            _ => ("tanh", math::tanh as *const (), math::tanh_array as *const ()),
        };
        if arg.lanes == 1 {
            let call = self.w.call_runtime(
                (&format!("math_{name}"), single),
                &[arg.arg()],
                Some(Type::F32),
                "memory(none)",
            );
            return call.expect("it has a result");
        }
        let place = self.w.array(arg.ty, arg.lanes);
        self.w.store(arg, &place);
        let args = [format!("ptr {place}"), format!("i64 {}", arg.lanes)];
        self.w.call_runtime((&format!("math_{name}_array"), array), &args, None, "memory(argmem: readwrite)");
        self.w.load(Type::F32, arg.lanes, &place)
    }

    pub(super) fn binary(&mut self, op: BinaryOp, ty: Type, a: &Val, b: &Val) -> Result<Val, NotCovered> {
        use BinaryOp::*;
        Ok(match op {
            Add => self.w.binary("add", a, b),
            Sub => self.w.binary("sub", a, b),
            Mul => self.w.binary("mul", a, b),
            And => self.w.binary("and", a, b),
            Or => self.w.binary("or", a, b),
            Xor => self.w.binary("xor", a, b),
            MulHiS | MulHiU => self.high_product(op == MulHiS, a, b),
            DivS | DivU | RemS | RemU => self.divide(op, ty, a, b),
            Shl | ShrS | ShrU => self.shift(op, a, b),
            MinS => self.w.intrinsic("llvm.smin", &[a, b], &[]),
            MaxS => self.w.intrinsic("llvm.smax", &[a, b], &[]),
            MinU => self.w.intrinsic("llvm.umin", &[a, b], &[]),
            MaxU => self.w.intrinsic("llvm.umax", &[a, b], &[]),
            FMin | FMax | FMinNan | FMaxNan => self.float_extreme(op, ty, a, b),
        })
    }

    fn high_product(&mut self, is_signed: bool, a: &Val, b: &Val) -> Val {
        let bits = a.ty.bits();
        let lanes = a.lanes;
        let wide = if lanes == 1 { format!("i{}", 2 * bits) } else { format!("<{lanes} x i{}>", 2 * bits) };
        let extend = if is_signed { "sext" } else { "zext" };
        let wide_a = self.w.raw(&format!("{extend} {} to {wide}", a.arg()));
        let wide_b = self.w.raw(&format!("{extend} {} to {wide}", b.arg()));
        let product = self.w.raw(&format!("mul {wide} {wide_a}, {wide_b}"));
        let by = if lanes == 1 {
            format!("{bits}")
        } else {
            format!("<{}>", vec![format!("i{} {bits}", 2 * bits); lanes].join(", "))
        };
        let high = self.w.raw(&format!("lshr {wide} {product}, {by}"));
        self.w.op(a.ty, lanes, &format!("trunc {wide} {high} to {}", a.t()))
    }

    /// Total division: all ones by zero (the dividend as remainder), and `MIN / -1` wraps.
    fn divide(&mut self, op: BinaryOp, ty: Type, a: &Val, b: &Val) -> Val {
        let is_signed = matches!(op, BinaryOp::DivS | BinaryOp::RemS);
        let zero = constant(ty, a.lanes, 0);
        let by_zero = self.w.icmp("eq", b, &zero);
        let quotient = if ty.bits() <= 32 && a.lanes > 1 {
            self.quotient_by_floats(is_signed, a, b)
        } else {
            self.quotient(is_signed, a, b, &by_zero)
        };
        if matches!(op, BinaryOp::DivS | BinaryOp::DivU) {
            let ones = constant(ty, a.lanes, u64::MAX);
            return self.w.select(&by_zero, &ones, &quotient);
        }
        let product = self.w.binary("mul", &quotient, b);
        let rest = self.w.binary("sub", a, &product);
        self.w.select(&by_zero, a, &rest)
    }

    /// The quotient of integers of at most 32 bits; anything by zero. It is exact in F64: unless it
    /// is an integer, its distance to the next one is more than the rounding takes.
    fn quotient_by_floats(&mut self, is_signed: bool, a: &Val, b: &Val) -> Val {
        let to = if is_signed { "sitofp" } else { "uitofp" };
        let wide_a = self.w.cast(to, a, Type::F64);
        let wide_b = self.w.cast(to, b, Type::F64);
        let quotient = self.w.binary("fdiv", &wide_a, &wide_b);
        // `MIN / -1` is beyond the type, but not beyond this one.
        let wide = self.w.cast("fptosi", &quotient, Type::I64);
        let wide = self.frozen(&wide);
        self.w.cast("trunc", &wide, a.ty)
    }

    fn quotient(&mut self, is_signed: bool, a: &Val, b: &Val, by_zero: &Val) -> Val {
        let one = constant(a.ty, a.lanes, 1);
        if !is_signed {
            let divisor = self.w.select(by_zero, &one, b);
            let divisor = self.divisor(&divisor);
            return self.w.binary("udiv", a, &divisor);
        }
        let minus_one = constant(a.ty, a.lanes, u64::MAX);
        let by_minus_one = self.w.icmp("eq", b, &minus_one);
        let is_special = self.w.binary("or", by_zero, &by_minus_one);
        let divisor = self.w.select(&is_special, &one, b);
        let divisor = self.divisor(&divisor);
        let quotient = self.w.binary("sdiv", a, &divisor);
        let zero = constant(a.ty, a.lanes, 0);
        let negated = self.w.binary("sub", &zero, a);
        self.w.select(&by_minus_one, &negated, &quotient)
    }

    /// A divisor that is 1 in lanes that are not active, where it could be anything.
    fn divisor(&mut self, divisor: &Val) -> Val {
        if divisor.lanes == 1 {
            return divisor.clone();
        }
        let one = constant(divisor.ty, divisor.lanes, 1);
        let mask = self.mask.clone();
        self.w.select(&mask, divisor, &one)
    }

    fn frozen(&mut self, value: &Val) -> Val {
        self.w.op(value.ty, value.lanes, &format!("freeze {}", value.arg()))
    }

    /// Shifts by an I32 amount; amounts beyond the width shift everything out.
    fn shift(&mut self, op: BinaryOp, a: &Val, amount: &Val) -> Val {
        let bits = u64::from(a.ty.bits());
        if op == BinaryOp::ShrS {
            let last = constant(Type::I32, a.lanes, bits - 1);
            let amount = self.w.intrinsic("llvm.umin", &[amount, &last], &[]);
            let amount = self.w.resize(&amount, a.ty);
            return self.w.binary("ashr", a, &amount);
        }
        let is_inside = self.w.icmp_const("ult", amount, bits);
        let amount = self.w.resize(amount, a.ty);
        let shifted = self.w.binary(if op == BinaryOp::Shl { "shl" } else { "lshr" }, a, &amount);
        let zero = constant(a.ty, a.lanes, 0);
        self.w.select(&is_inside, &shifted, &zero)
    }

    /// Minimum and maximum with the zeros ordered; see [`BinaryOp::FMin`].
    fn float_extreme(&mut self, op: BinaryOp, ty: Type, a: &Val, b: &Val) -> Val {
        let is_min = matches!(op, BinaryOp::FMin | BinaryOp::FMinNan);
        let first = self.w.fcmp(if is_min { "olt" } else { "ogt" }, a, b);
        let equal = self.w.fcmp("oeq", a, b);
        let (a_bits, b_bits) = (self.w.bits(a, ty.as_int()), self.w.bits(b, ty.as_int()));
        // Equal operands differ at most in the sign of zero.
        let both = self.w.binary(if is_min { "or" } else { "and" }, &a_bits, &b_bits);
        let both = self.w.bits(&both, ty);
        let second = self.w.select(&equal, &both, b);
        let result = self.w.select(&first, a, &second);
        let nan = constant(ty, a.lanes, if ty == Type::F32 { 0x7fff_ffff } else { 0x7fff_ffff_ffff_ffff });
        if matches!(op, BinaryOp::FMinNan | BinaryOp::FMaxNan) {
            let unordered = self.w.fcmp("uno", a, b);
            return self.w.select(&unordered, &nan, &result);
        }
        let is_b_nan = self.w.fcmp("uno", b, b);
        let result = self.w.select(&is_b_nan, a, &result);
        let is_nan = self.w.fcmp("uno", &result, &result);
        self.w.select(&is_nan, &nan, &result)
    }

    fn float(
        &mut self,
        op: FloatOp,
        rounding: Rounding,
        ty: Type,
        a: &Val,
        b: &Val,
    ) -> Result<Val, NotCovered> {
        if rounding == Rounding::Near {
            let op = match op {
                FloatOp::Add => "fadd",
                FloatOp::Sub => "fsub",
                FloatOp::Mul => "fmul",
                FloatOp::Div => "fdiv",
            };
            return Ok(self.w.binary(op, a, b));
        }
        if ty == Type::F32 && op != FloatOp::Div && rounding != Rounding::NearAway {
            return Ok(self.directed_float(op, rounding, a, b));
        }
        let function = match (op, ty) {
            (FloatOp::Add, Type::F32) => ("round_add32", round::add32 as *const ()),
            (FloatOp::Sub, Type::F32) => ("round_sub32", round::sub32 as *const ()),
            (FloatOp::Mul, Type::F32) => ("round_mul32", round::mul32 as *const ()),
            (FloatOp::Div, Type::F32) => ("round_div32", round::div32 as *const ()),
            (FloatOp::Add, _) => ("round_add64", round::add64 as *const ()),
            (FloatOp::Sub, _) => ("round_sub64", round::sub64 as *const ()),
            (FloatOp::Mul, _) => ("round_mul64", round::mul64 as *const ()),
            (FloatOp::Div, _) => ("round_div64", round::div64 as *const ()),
        };
        Ok(self.each(function, &[a, b], Some(round::mode(rounding)), ty))
    }

    fn fma(&mut self, rounding: Rounding, ty: Type, [a, b, c]: [&Val; 3]) -> Result<Val, NotCovered> {
        if rounding == Rounding::Near {
            return Ok(self.w.intrinsic("llvm.fma", &[a, b, c], &[]));
        }
        if ty == Type::F32 && rounding != Rounding::NearAway {
            return Ok(self.directed_fma(rounding, [a, b, c]));
        }
        let function = match ty {
            Type::F32 => ("round_fma32", round::fma32 as *const ()),
            _ => ("round_fma64", round::fma64 as *const ()),
        };
        Ok(self.each(function, &[a, b, c], Some(round::mode(rounding)), ty))
    }

    /// Four bytes out of eight; see [`Inst::Permute`].
    fn permute(&mut self, args: &[Val], selector: Option<u64>) -> Val {
        let low = self.w.resize(&args[0], Type::I64);
        let high = self.w.resize(&args[1], Type::I64);
        let high = self.w.binary_const("shl", &high, 32);
        let bytes = self.w.binary("or", &low, &high);
        let selectors = self.w.resize(&args[2], Type::I64);
        let mut result: Option<Val> = None;
        for index in 0..4 {
            let byte = if let Some(selector) = selector {
                let nibble = selector >> (4 * index) & 0xf;
                let byte = self.w.binary_const("lshr", &bytes, 8 * (nibble & 7));
                let byte = self.w.cast("trunc", &byte, Type::I8);
                if nibble & 8 == 0 { byte } else { self.w.binary_const("ashr", &byte, 7) }
            } else {
                let nibble = self.w.binary_const("lshr", &selectors, 4 * index);
                let place = self.w.binary_const("and", &nibble, 7);
                let place = self.w.binary_const("shl", &place, 3);
                let byte = self.w.binary("lshr", &bytes, &place);
                let byte = self.w.cast("trunc", &byte, Type::I8);
                let sign = self.w.binary_const("ashr", &byte, 7);
                let flag = self.w.binary_const("and", &nibble, 8);
                let is_sign = self.w.icmp_const("ne", &flag, 0);
                self.w.select(&is_sign, &sign, &byte)
            };
            let byte = self.w.cast("zext", &byte, Type::I32);
            let byte = self.w.binary_const("shl", &byte, 8 * index);
            result = Some(match result {
                Some(others) => self.w.binary("or", &others, &byte),
                None => byte,
            });
        }
        result.expect("four bytes")
    }

    fn convert(&mut self, op: ConvertOp, from: Type, to: Type, arg: &Val) -> Result<Val, NotCovered> {
        Ok(match op {
            ConvertOp::Truncate => self.w.cast("trunc", arg, to),
            ConvertOp::SignExtend => self.w.cast("sext", arg, to),
            ConvertOp::ZeroExtend => self.w.cast("zext", arg, to),
            ConvertOp::Bitcast => self.w.bits(arg, to),
            ConvertOp::FloatToFloat(_) if to == Type::F64 => self.w.cast("fpext", arg, to),
            ConvertOp::FloatToFloat(Rounding::Near) => self.w.cast("fptrunc", arg, to),
            ConvertOp::FloatToFloat(_) if from == to => arg.clone(),
            ConvertOp::FloatToFloat(rounding) => {
                let function = ("round_demote", round::demote as *const ());
                self.each(function, &[arg], Some(round::mode(rounding)), to)
            }
            ConvertOp::HalfToFloat => self.float_of_half(arg, to),
            ConvertOp::BfloatToFloat => {
                let bits = self.w.cast("zext", arg, Type::I32);
                let bits = self.w.binary_const("shl", &bits, 16);
                let single = self.w.bits(&bits, Type::F32);
                self.w.cast("fpext", &single, to)
            }
            ConvertOp::FloatToHalf(Rounding::Near) if from == Type::F32 => self.half_of_single(arg),
            ConvertOp::FloatToBfloat(Rounding::Near) if from == Type::F32 => self.bfloat_of_single(arg),
            ConvertOp::FloatToHalf(rounding) | ConvertOp::FloatToBfloat(rounding) => {
                let function = match op {
                    ConvertOp::FloatToHalf(_) => ("math_to_half", math::to_half as *const ()),
                    _ => ("math_to_bfloat", math::to_bfloat as *const ()),
                };
                let wide = self.w.cast("fpext", arg, Type::F64);
                let bits = self.each(function, &[&wide], Some(round::mode(rounding)), Type::I32);
                self.w.cast("trunc", &bits, Type::I16)
            }
            ConvertOp::SignedToFloat(Rounding::Near) => self.w.cast("sitofp", arg, to),
            ConvertOp::UnsignedToFloat(Rounding::Near) => self.w.cast("uitofp", arg, to),
            ConvertOp::SignedToFloat(rounding) => {
                let wide = self.w.cast("sext", arg, Type::I64);
                let function = match to {
                    Type::F32 => ("round_signed32", round::signed_to_float32 as *const ()),
                    _ => ("round_signed64", round::signed_to_float64 as *const ()),
                };
                self.each(function, &[&wide], Some(round::mode(rounding)), to)
            }
            ConvertOp::UnsignedToFloat(rounding) => {
                let wide = self.w.cast("zext", arg, Type::I64);
                let function = match to {
                    Type::F32 => ("round_unsigned32", round::unsigned_to_float32 as *const ()),
                    _ => ("round_unsigned64", round::unsigned_to_float64 as *const ()),
                };
                self.each(function, &[&wide], Some(round::mode(rounding)), to)
            }
            ConvertOp::FloatToSigned(rounding) => self.float_to_int(rounding, true, from, to, arg),
            ConvertOp::FloatToUnsigned(rounding) => self.float_to_int(rounding, false, from, to, arg),
            ConvertOp::RoundToIntegral(rounding) => self.round_to_integral(rounding, arg),
            ConvertOp::FloatToTf32(rounding) => {
                let function = ("math_to_tf32", math::to_tf32 as *const ());
                self.each(function, &[arg], Some(round::mode(rounding)), Type::F32)
            }
        })
    }

    fn float_to_int(&mut self, rounding: Rounding, is_signed: bool, from: Type, to: Type, arg: &Val) -> Val {
        // The conversion truncates.
        let integral = match rounding {
            Rounding::Zero => arg.clone(),
            _ => self.round_to_integral(rounding, arg),
        };
        let name = if is_signed { "llvm.fptosi.sat" } else { "llvm.fptoui.sat" };
        let name = format!("{name}.{}.{}", mangled(to, arg.lanes), mangled(from, arg.lanes));
        let result = self.w.call_named(&name, (to, arg.lanes), &[&integral], &[]);
        if from != Type::F64 && to != Type::I64 {
            return result;
        }
        let is_nan = self.w.fcmp("uno", arg, arg);
        let top = constant(to, arg.lanes, 1 << (to.bits() - 1));
        self.w.select(&is_nan, &top, &result)
    }

    fn round_to_integral(&mut self, rounding: Rounding, arg: &Val) -> Val {
        let name = match rounding {
            Rounding::Near => "llvm.roundeven",
            Rounding::Zero => "llvm.trunc",
            Rounding::Down => "llvm.floor",
            Rounding::Up => "llvm.ceil",
            Rounding::NearAway => "llvm.round",
        };
        self.w.intrinsic(name, &[arg], &[])
    }

    fn float_of_half(&mut self, arg: &Val, to: Type) -> Val {
        let half = if arg.lanes == 1 { "half".to_owned() } else { format!("<{} x half>", arg.lanes) };
        let bits = self.w.raw(&format!("bitcast {} to {half}", arg.arg()));
        let single = format!("fpext {half} {bits} to {}", type_name(Type::F32, arg.lanes));
        let single = self.w.op(Type::F32, arg.lanes, &single);
        self.w.cast("fpext", &single, to)
    }

    fn half_of_single(&mut self, arg: &Val) -> Val {
        let half = if arg.lanes == 1 { "half".to_owned() } else { format!("<{} x half>", arg.lanes) };
        let rounded = self.w.raw(&format!("fptrunc {} to {half}", arg.arg()));
        let bits = format!("bitcast {half} {rounded} to {}", type_name(Type::I16, arg.lanes));
        let bits = self.w.op(Type::I16, arg.lanes, &bits);
        self.unless_nan(arg, &bits)
    }

    fn bfloat_of_single(&mut self, arg: &Val) -> Val {
        let bits = self.w.bits(arg, Type::I32);
        let odd = self.w.binary_const("lshr", &bits, 16);
        let odd = self.w.binary_const("and", &odd, 1);
        let rounded = self.w.binary_const("add", &bits, 0x7fff);
        let rounded = self.w.binary("add", &rounded, &odd);
        let rounded = self.w.binary_const("lshr", &rounded, 16);
        let rounded = self.w.cast("trunc", &rounded, Type::I16);
        self.unless_nan(arg, &rounded)
    }

    /// The canonical NaN of 16 bits where a float is one.
    fn unless_nan(&mut self, float: &Val, bits: &Val) -> Val {
        let is_nan = self.w.fcmp("uno", float, float);
        let nan = constant(Type::I16, bits.lanes, 0x7fff);
        self.w.select(&is_nan, &nan, bits)
    }

    /// A function of the runtime for each element; `mode` is its last argument.
    fn each(&mut self, function: (&str, *const ()), args: &[&Val], mode: Option<u32>, to: Type) -> Val {
        let call = |emitter: &mut Self, args: &[Val]| {
            let mut args: Vec<String> = args.iter().map(Val::arg).collect();
            args.extend(mode.map(|mode| format!("i32 {mode}")));
            let result = emitter.w.call_runtime(function, &args, Some(to), "memory(none)");
            result.expect("it has a result")
        };
        if args[0].lanes == 1 {
            let args: Vec<Val> = args.iter().map(|&arg| arg.clone()).collect();
            return call(self, &args);
        }
        let mask = self.mask.clone();
        let results = self.lane_loop(&mask, args, &[to], |emitter, _, args| vec![call(emitter, args)]);
        results.into_iter().next().expect("one result")
    }
}

fn one(ty: Type, lanes: usize) -> Val {
    let bits = if ty == Type::F32 { u64::from(1f32.to_bits()) } else { 1f64.to_bits() };
    constant(ty, lanes, bits)
}

fn int_condition(condition: IntCond) -> &'static str {
    match condition {
        IntCond::Eq => "eq",
        IntCond::Ne => "ne",
        IntCond::LtS => "slt",
        IntCond::LeS => "sle",
        IntCond::GtS => "sgt",
        IntCond::GeS => "sge",
        IntCond::LtU => "ult",
        IntCond::LeU => "ule",
        IntCond::GtU => "ugt",
        IntCond::GeU => "uge",
    }
}

fn float_condition(condition: FloatCond) -> &'static str {
    match condition {
        FloatCond::Eq => "oeq",
        FloatCond::Ne => "one",
        FloatCond::Lt => "olt",
        FloatCond::Le => "ole",
        FloatCond::Gt => "ogt",
        FloatCond::Ge => "oge",
        FloatCond::EqU => "ueq",
        FloatCond::NeU => "une",
        FloatCond::LtU => "ult",
        FloatCond::LeU => "ule",
        FloatCond::GtU => "ugt",
        FloatCond::GeU => "uge",
        FloatCond::Num => "ord",
        FloatCond::Nan => "uno",
    }
}
