//! Simplifications of one instruction: constants, identities, addresses.
//!
//! [`simplify`] gives the value that stands for the instruction, or changes the instruction in
//! place and gives None. Float arithmetic is left alone: its results must not depend on who
//! computes them.

use crate::inst::{BinaryOp, ConvertOp, FloatCond, Inst, IntCond, MemoryOperand, Space, UnaryOp, Window};
use crate::passes::value_numbering::Numbering;
use crate::types::{Type, Value};

pub(super) fn simplify(n: &mut Numbering, inst: &mut Inst) -> Option<Value> {
    match inst {
        Inst::Unary { op, ty, arg } => unary(n, *op, *ty, *arg),
        Inst::Binary { op, ty, args } => {
            let (op, ty) = (*op, *ty);
            // Constants to the right.
            if op.is_commutative() && constant(n, args[0]).is_some() && constant(n, args[1]).is_none() {
                args.swap(0, 1);
            }
            let (a, b) = (args[0], args[1]);
            if op.is_float() {
                return None;
            }
            match (constant(n, a), constant(n, b)) {
                (Some(x), Some(y)) => Some(n.constant(ty, evaluate(op, ty, x, y))),
                (_, Some(y)) => binary_constant(n, op, ty, a, y),
                _ => binary(n, op, ty, a, b),
            }
        }
        Inst::Compare { cond, ty, args } => compare(n, *cond, *ty, *args),
        Inst::Select { ty, cond, args } => select(n, *ty, *cond, *args),
        Inst::Convert { op, from, to, arg } => convert(n, *op, *from, *to, *arg),
        Inst::Load { place, guard, .. } => {
            address(n, place);
            simplify_guard(n, guard);
            None
        }
        Inst::Store { place, guard, .. } | Inst::Atomic { place, guard, .. } => {
            address(n, place);
            simplify_guard(n, guard);
            None
        }
        _ => None,
    }
}

fn constant(n: &Numbering, value: Value) -> Option<u64> {
    match n.definition(value)? {
        Inst::Const { bits, .. } => Some(*bits),
        _ => None,
    }
}

fn sign_extend(ty: Type, bits: u64) -> i64 {
    let unused = 64 - ty.bits();
    ((bits << unused) as i64) >> unused
}

/// A guard that always holds is none.
fn simplify_guard(n: &Numbering, guard: &mut Option<Value>) {
    if guard.is_some_and(|guard| constant(n, guard) == Some(1)) {
        *guard = None;
    }
}

// ---- Unary
// ------------------------------------------------------------------------------------------------

fn unary(n: &mut Numbering, op: UnaryOp, ty: Type, arg: Value) -> Option<Value> {
    if let Some(bits) = constant(n, arg) {
        let width = ty.bits();
        let result = match op {
            UnaryOp::Neg => bits.wrapping_neg(),
            UnaryOp::Not => !bits,
            UnaryOp::Abs => sign_extend(ty, bits).unsigned_abs(),
            UnaryOp::Clz => u64::from(bits.leading_zeros() - (64 - width)),
            UnaryOp::Popc => u64::from(bits.count_ones()),
            UnaryOp::Brev => bits.reverse_bits() >> (64 - width),
            UnaryOp::FNeg => bits ^ (1 << (width - 1)),
            UnaryOp::FAbs => bits & !(1 << (width - 1)),
            _ => return None,
        };
        return Some(n.constant(ty, result));
    }
    match (op, n.definition(arg)?) {
        (UnaryOp::Not, Inst::Unary { op: UnaryOp::Not, arg, .. })
        | (UnaryOp::Neg, Inst::Unary { op: UnaryOp::Neg, arg, .. })
        | (UnaryOp::FNeg, Inst::Unary { op: UnaryOp::FNeg, arg, .. }) => Some(*arg),
        (UnaryOp::Not, Inst::Compare { cond, ty, args }) => {
            let inverse = Inst::Compare { cond: inverse(*cond), ty: *ty, args: *args };
            Some(n.value(inverse))
        }
        (UnaryOp::Not, Inst::FloatCompare { cond, ty, args }) => {
            let inverse = Inst::FloatCompare { cond: float_inverse(*cond), ty: *ty, args: *args };
            Some(n.value(inverse))
        }
        _ => None,
    }
}

fn inverse(cond: IntCond) -> IntCond {
    use IntCond::*;
    match cond {
        Eq => Ne,
        Ne => Eq,
        LtS => GeS,
        LeS => GtS,
        GtS => LeS,
        GeS => LtS,
        LtU => GeU,
        LeU => GtU,
        GtU => LeU,
        GeU => LtU,
    }
}

fn float_inverse(cond: FloatCond) -> FloatCond {
    use FloatCond::*;
    match cond {
        Eq => NeU,
        Ne => EqU,
        Lt => GeU,
        Le => GtU,
        Gt => LeU,
        Ge => LtU,
        EqU => Ne,
        NeU => Eq,
        LtU => Ge,
        LeU => Gt,
        GtU => Le,
        GeU => Lt,
        Num => Nan,
        Nan => Num,
    }
}

// ---- Binary
// -----------------------------------------------------------------------------------------------

/// The result of an integer operation on constants.
fn evaluate(op: BinaryOp, ty: Type, x: u64, y: u64) -> u64 {
    use BinaryOp::*;
    let (sx, sy) = (sign_extend(ty, x), sign_extend(ty, y));
    let width = u64::from(ty.bits());
    match op {
        Add => x.wrapping_add(y),
        Sub => x.wrapping_sub(y),
        Mul => x.wrapping_mul(y),
        MulHiS => ((i128::from(sx) * i128::from(sy)) >> width) as u64,
        MulHiU => ((u128::from(x) * u128::from(y)) >> width) as u64,
        DivS if y == 0 => u64::MAX,
        DivS => sx.wrapping_div(sy) as u64,
        DivU => x.checked_div(y).unwrap_or(u64::MAX),
        RemS if y == 0 => x,
        RemS => sx.wrapping_rem(sy) as u64,
        RemU => x.checked_rem(y).unwrap_or(x),
        And => x & y,
        Or => x | y,
        Xor => x ^ y,
        Shl => {
            if y < width {
                x << y
            } else {
                0
            }
        }
        ShrU => {
            if y < width {
                x >> y
            } else {
                0
            }
        }
        ShrS => (sx >> y.min(width - 1)) as u64,
        MinS => sx.min(sy) as u64,
        MaxS => sx.max(sy) as u64,
        MinU => x.min(y),
        MaxU => x.max(y),
        FMin | FMax | FMinNan | FMaxNan => x,
    }
}

/// `a op constant`.
fn binary_constant(n: &mut Numbering, op: BinaryOp, ty: Type, a: Value, y: u64) -> Option<Value> {
    use BinaryOp::*;
    let ones = ty.mask();
    let make = |n: &mut Numbering, op: BinaryOp, a: Value, y: u64| {
        let amount_type = if op.is_shift() { Type::I32 } else { ty };
        let b = n.constant(amount_type, y);
        Some(n.value(Inst::Binary { op, ty, args: [a, b] }))
    };
    match op {
        Add | Sub | Or | Xor | Shl | ShrU | ShrS if y == 0 => return Some(a),
        Mul | DivU if y == 1 => return Some(a),
        And if y == ones => return Some(a),
        Or if y == ones => return Some(n.constant(ty, ones)),
        Mul | And if y == 0 => return Some(n.constant(ty, 0)),
        Shl | ShrU if y >= u64::from(ty.bits()) => return Some(n.constant(ty, 0)),
        Sub => return make(n, Add, a, y.wrapping_neg()),
        Mul if y.is_power_of_two() && ty != Type::I1 => {
            return make(n, Shl, a, u64::from(y.trailing_zeros()));
        }
        DivU if y.is_power_of_two() => return make(n, ShrU, a, u64::from(y.trailing_zeros())),
        RemU if y.is_power_of_two() => return make(n, And, a, y - 1),
        Xor if y == ones => return Some(n.value(Inst::Unary { op: UnaryOp::Not, ty, arg: a })),
        _ => {}
    }
    // With another constant below.
    match *n.definition(a)? {
        // The high half of a pair: what is below is shifted out.
        Inst::Binary { op: Or, args: [low, high], .. } if op == ShrU => unpack_high(n, ty, low, high, y),
        Inst::Binary { op: inner, args: [x, c], .. } => {
            let c = constant(n, c)?;
            match (inner, op) {
                (Add, Add) => make(n, Add, x, c.wrapping_add(y)),
                (And, And) => make(n, And, x, c & y),
                (Or, Or) => make(n, Or, x, c | y),
                (Xor, Xor) => make(n, Xor, x, c ^ y),
                (Shl, Shl) | (ShrU, ShrU) if c + y < u64::from(ty.bits()) => make(n, op, x, c + y),
                (Shl, Shl) | (ShrU, ShrU) => Some(n.constant(ty, 0)),
                _ => None,
            }
        }
        Inst::Convert { op: ConvertOp::ZeroExtend, from, .. }
            if op == And && y & from.mask() == from.mask() =>
        {
            Some(a)
        }
        Inst::Convert { op: ConvertOp::ZeroExtend, from, .. }
            if op == ShrU && y >= u64::from(from.bits()) =>
        {
            Some(n.constant(ty, 0))
        }
        _ => None,
    }
}

/// `(low | high << y) >> y` where low has no bits from y on and high none that are shifted out.
fn unpack_high(n: &mut Numbering, ty: Type, low: Value, high: Value, y: u64) -> Option<Value> {
    let is_narrow = |n: &Numbering, value: Value, bits: u64| match n.definition(value) {
        Some(Inst::Convert { op: ConvertOp::ZeroExtend, from, .. }) => u64::from(from.bits()) <= bits,
        Some(Inst::Const { bits: value, .. }) => value.checked_shr(bits as u32).unwrap_or(0) == 0,
        _ => false,
    };
    let Some(Inst::Binary { op: BinaryOp::Shl, args: [value, amount], .. }) = n.definition(high) else {
        return None;
    };
    let (value, amount) = (*value, *amount);
    let fits = is_narrow(n, low, y) && is_narrow(n, value, u64::from(ty.bits()) - y);
    (constant(n, amount) == Some(y) && fits).then_some(value)
}

/// `a op b`, neither constant.
fn binary(n: &mut Numbering, op: BinaryOp, ty: Type, a: Value, b: Value) -> Option<Value> {
    use BinaryOp::*;
    if a == b {
        match op {
            Sub | Xor => return Some(n.constant(ty, 0)),
            And | Or | MinS | MinU | MaxS | MaxU => return Some(a),
            _ => {}
        }
    }
    if op == Sub {
        return difference(n, ty, a, b);
    }
    // Constants outwards: (x + c) + b is (x + b) + c, so that they end up in the offset of an
    // access.
    if op == Add {
        for (sum, other) in [(a, b), (b, a)] {
            if let Some(Inst::Binary { op: Add, args: [x, c], .. }) = n.definition(sum) {
                let (x, c) = (*x, *c);
                if constant(n, c).is_some() {
                    let inner = n.value(Inst::Binary { op: Add, ty, args: [x, other] });
                    return Some(n.value(Inst::Binary { op: Add, ty, args: [inner, c] }));
                }
            }
        }
    }
    None
}

/// `(p + q) - p`, with a constant between.
fn difference(n: &mut Numbering, ty: Type, a: Value, b: Value) -> Option<Value> {
    let add = |n: &Numbering, value: Value| match n.definition(value) {
        Some(Inst::Binary { op: BinaryOp::Add, args, .. }) => Some(*args),
        _ => None,
    };
    let [p, q] = add(n, a)?;
    if p == b {
        return Some(q);
    }
    if q == b {
        return Some(p);
    }
    constant(n, q)?;
    let [x, y] = add(n, p)?;
    let rest = if x == b {
        y
    } else if y == b {
        x
    } else {
        return None;
    };
    Some(n.value(Inst::Binary { op: BinaryOp::Add, ty, args: [rest, q] }))
}

// ---- Comparison and selection
// -----------------------------------------------------------------------------

fn compare(n: &mut Numbering, cond: IntCond, ty: Type, args: [Value; 2]) -> Option<Value> {
    use IntCond::*;
    let holds = |x: u64, y: u64| {
        let (sx, sy) = (sign_extend(ty, x), sign_extend(ty, y));
        match cond {
            Eq => x == y,
            Ne => x != y,
            LtS => sx < sy,
            LeS => sx <= sy,
            GtS => sx > sy,
            GeS => sx >= sy,
            LtU => x < y,
            LeU => x <= y,
            GtU => x > y,
            GeU => x >= y,
        }
    };
    if args[0] == args[1] {
        return Some(n.constant(Type::I1, u64::from(matches!(cond, Eq | LeS | GeS | LeU | GeU))));
    }
    let y = constant(n, args[1])?;
    if let Some(x) = constant(n, args[0]) {
        return Some(n.constant(Type::I1, u64::from(holds(x, y))));
    }
    // A predicate that went through an integer.
    let (source, yes, no) = match *n.definition(args[0])? {
        Inst::Select { cond, args: [yes, no], .. } => (cond, constant(n, yes)?, constant(n, no)?),
        Inst::Convert { op: ConvertOp::ZeroExtend, from: Type::I1, arg, .. } => (arg, 1, 0),
        _ => return None,
    };
    Some(match (holds(yes, y), holds(no, y)) {
        (true, true) => n.constant(Type::I1, 1),
        (false, false) => n.constant(Type::I1, 0),
        (true, false) => source,
        (false, true) => n.value(Inst::Unary { op: UnaryOp::Not, ty: Type::I1, arg: source }),
    })
}

fn select(n: &mut Numbering, ty: Type, cond: Value, args: [Value; 2]) -> Option<Value> {
    if args[0] == args[1] {
        return Some(args[0]);
    }
    if let Some(cond) = constant(n, cond) {
        return Some(args[usize::from(cond == 0)]);
    }
    if ty == Type::I1 {
        match args.map(|arg| constant(n, arg)) {
            [Some(1), Some(0)] => return Some(cond),
            [Some(0), Some(1)] => return Some(n.value(Inst::Unary { op: UnaryOp::Not, ty, arg: cond })),
            _ => {}
        }
    }
    if let Some(Inst::Unary { op: UnaryOp::Not, arg, .. }) = n.definition(cond) {
        let cond = *arg;
        return Some(n.value(Inst::Select { ty, cond, args: [args[1], args[0]] }));
    }
    None
}

// ---- Conversion
// -------------------------------------------------------------------------------------------

fn convert(n: &mut Numbering, op: ConvertOp, from: Type, to: Type, arg: Value) -> Option<Value> {
    use ConvertOp::*;
    if let Some(bits) = constant(n, arg) {
        let result = match op {
            Truncate | ZeroExtend | Bitcast => bits,
            SignExtend => sign_extend(from, bits) as u64,
            _ => return None,
        };
        return Some(n.constant(to, result));
    }
    let again = |n: &mut Numbering, op: ConvertOp, from: Type, arg: Value| {
        if from == to { Some(arg) } else { Some(n.value(Inst::Convert { op, from, to, arg })) }
    };
    match (op, n.definition(arg)?.clone()) {
        (Bitcast, Inst::Convert { op: Bitcast, from, arg, .. }) => again(n, Bitcast, from, arg),
        (Truncate, Inst::Convert { op: Truncate, from, arg, .. }) => again(n, Truncate, from, arg),
        (Truncate, Inst::Convert { op: inner @ (SignExtend | ZeroExtend), from, arg, .. }) => {
            let op = if from.bits() < to.bits() { inner } else { Truncate };
            again(n, op, from, arg)
        }
        (ZeroExtend, Inst::Convert { op: ZeroExtend, from, arg, .. }) => again(n, ZeroExtend, from, arg),
        (SignExtend, Inst::Convert { op: inner @ (SignExtend | ZeroExtend), from, arg, .. }) => {
            again(n, inner, from, arg)
        }
        // The low half of a pair.
        (Truncate, Inst::Binary { op: BinaryOp::Or, args: [low, high], .. }) => {
            let Some(Inst::Binary { op: BinaryOp::Shl, args: [_, amount], .. }) = n.definition(high) else {
                return None;
            };
            let is_above = constant(n, *amount).is_some_and(|amount| amount >= u64::from(to.bits()));
            if is_above { again(n, Truncate, from, low) } else { None }
        }
        (Truncate, Inst::Binary { op, args, .. }) => narrow(n, op, from, to, args),
        _ => None,
    }
}

/// An operation on widened numbers of which the low bits are wanted is done on the low bits.
fn narrow(n: &mut Numbering, op: BinaryOp, from: Type, to: Type, args: [Value; 2]) -> Option<Value> {
    use BinaryOp::*;
    let is_free = |n: &Numbering, value: Value| match n.definition(value) {
        Some(Inst::Const { .. }) => true,
        Some(Inst::Convert { op: ConvertOp::SignExtend | ConvertOp::ZeroExtend, from, .. }) => {
            from.bits() <= to.bits()
        }
        _ => false,
    };
    if to == Type::I1 {
        return None;
    }
    let low =
        |n: &mut Numbering, arg: Value| n.value(Inst::Convert { op: ConvertOp::Truncate, from, to, arg });
    match op {
        Add | Sub | Mul | And | Or | Xor if is_free(n, args[0]) && is_free(n, args[1]) => {
            let args = args.map(|arg| low(n, arg));
            Some(n.value(Inst::Binary { op, ty: to, args }))
        }
        Shl if is_free(n, args[0]) && constant(n, args[1]).is_some_and(|by| by < u64::from(to.bits())) => {
            let a = low(n, args[0]);
            Some(n.value(Inst::Binary { op, ty: to, args: [a, args[1]] }))
        }
        _ => None,
    }
}

// ---- Addresses
// --------------------------------------------------------------------------------------------

/// Constants move from the address into the offset, and an address built on a window's base becomes
/// one in the window.
fn address(n: &mut Numbering, place: &mut MemoryOperand) {
    loop {
        match n.definition(place.addr).cloned() {
            Some(Inst::Binary { op: BinaryOp::Add, ty, args: [base, c] }) if constant(n, c).is_some() => {
                let c = sign_extend(ty, constant(n, c).unwrap_or(0));
                let Some(offset) = add_offset(place.offset, c) else { return };
                (place.addr, place.offset) = (base, offset);
            }
            Some(Inst::Binary { op: BinaryOp::Add, args: [a, b], .. }) if place.space == Space::Generic => {
                let Some((window, offset)) = window_sum(n, a, b).or_else(|| window_sum(n, b, a)) else {
                    return;
                };
                (place.space, place.addr) = (window, offset);
            }
            Some(Inst::WindowBase { window }) if place.space == Space::Generic => {
                (place.space, place.addr) = (space(window), n.constant(Type::I32, 0));
            }
            Some(Inst::Const { ty: Type::I32, bits }) if bits != 0 => {
                let Some(offset) = add_offset(place.offset, i64::from(bits as i32)) else { return };
                (place.addr, place.offset) = (n.constant(Type::I32, 0), offset);
            }
            Some(Inst::GlobalAddress { .. }) if place.space == Space::Generic => place.space = Space::Global,
            _ => return,
        }
    }
}

fn add_offset(offset: i32, c: i64) -> Option<i32> {
    i64::from(offset).checked_add(c).and_then(|sum| i32::try_from(sum).ok())
}

/// The window and the offset in `base + zero_extended(offset)`.
fn window_sum(n: &Numbering, base: Value, offset: Value) -> Option<(Space, Value)> {
    let Inst::WindowBase { window } = n.definition(base)? else { return None };
    match n.definition(offset)? {
        Inst::Convert { op: ConvertOp::ZeroExtend | ConvertOp::SignExtend, from: Type::I32, arg, .. } => {
            Some((space(*window), *arg))
        }
        _ => None,
    }
}

fn space(window: Window) -> Space {
    match window {
        Window::Shared => Space::Shared,
        Window::Local => Space::Local,
        Window::Param => Space::Param,
    }
}
