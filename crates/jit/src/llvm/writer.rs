//! The text of LLVM's intermediate representation, instruction by instruction.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

use sluice_ir::Type;

/// A value in the text: one element, or a vector of as many as a warp has lanes.
#[derive(Clone, Debug)]
pub(super) struct Val {
    pub ty: Type,
    /// 1 for a single element.
    pub lanes: usize,
    pub name: String,
}

/// LLVM's name of a type.
pub(super) fn type_name(ty: Type, lanes: usize) -> String {
    let element = element_name(ty);
    if lanes == 1 { element.into() } else { format!("<{lanes} x {element}>") }
}

pub(super) fn element_name(ty: Type) -> &'static str {
    match ty {
        Type::I1 => "i1",
        Type::I8 => "i8",
        Type::I16 => "i16",
        Type::I32 => "i32",
        Type::I64 => "i64",
        Type::F32 => "float",
        Type::F64 => "double",
    }
}

/// A type as it is in the names of intrinsic functions.
pub(super) fn mangled(ty: Type, lanes: usize) -> String {
    if lanes == 1 { ty.name().into() } else { format!("v{lanes}{}", ty.name()) }
}

impl Val {
    pub(super) fn new(ty: Type, lanes: usize, name: impl Into<String>) -> Val {
        Val { ty, lanes, name: name.into() }
    }

    /// Its type.
    pub(super) fn t(&self) -> String {
        type_name(self.ty, self.lanes)
    }

    /// Type and name, as an argument of a call.
    pub(super) fn arg(&self) -> String {
        format!("{} {}", self.t(), self.name)
    }
}

/// A constant with the same element in all lanes.
pub(super) fn constant(ty: Type, lanes: usize, bits: u64) -> Val {
    let bits = bits & ty.mask();
    let int = element_name(ty.as_int());
    let element = match ty {
        Type::I1 => if bits == 1 { "true" } else { "false" }.to_owned(),
        ty if ty.is_float() => format!("bitcast ({int} {bits} to {})", element_name(ty)),
        _ => format!("{bits}"),
    };
    if lanes == 1 {
        return Val::new(ty, 1, element);
    }
    if bits == 0 {
        return Val::new(ty, lanes, "zeroinitializer");
    }
    let elements = vec![format!("{} {element}", element_name(ty)); lanes].join(", ");
    Val::new(ty, lanes, format!("<{elements}>"))
}

/// 0, `stride`, 2 `stride`, ...
pub(super) fn steps(ty: Type, lanes: usize, stride: i64) -> Val {
    let element = |lane: usize| {
        let bits = (lane as i64).wrapping_mul(stride) as u64 & ty.mask();
        format!("{} {bits}", element_name(ty))
    };
    let elements: Vec<String> = (0..lanes).map(element).collect();
    Val::new(ty, lanes, format!("<{}>", elements.join(", ")))
}

#[derive(Default)]
pub(super) struct Writer {
    /// The function's instructions.
    pub text: String,
    /// Variables, which the function begins with.
    pub variables: String,
    /// Bytes of the arrays among them, which stay on the stack.
    pub stack: usize,
    declarations: BTreeMap<String, String>,
    /// Functions of the runtime by their names in the text.
    pub functions: HashMap<String, *const ()>,
    next: usize,
}

impl Writer {
    pub(super) fn fresh(&mut self, prefix: &str) -> String {
        self.next += 1;
        format!("{prefix}{}", self.next)
    }

    pub(super) fn line(&mut self, line: &str) {
        let _ = writeln!(self.text, "  {line}");
    }

    pub(super) fn label(&mut self, label: &str) {
        let _ = writeln!(self.text, "{label}:");
    }

    /// An instruction with a result.
    pub(super) fn raw(&mut self, instruction: &str) -> String {
        let name = self.fresh("%t");
        let _ = writeln!(self.text, "  {name} = {instruction}");
        name
    }

    pub(super) fn op(&mut self, ty: Type, lanes: usize, instruction: &str) -> Val {
        Val::new(ty, lanes, self.raw(instruction))
    }

    /// A variable, as the address of its place.
    pub(super) fn variable(&mut self, ty: &str) -> String {
        let name = self.fresh("%v");
        let _ = writeln!(self.variables, "  {name} = alloca {ty}, align 64");
        name
    }

    /// A variable whose elements are reached by their numbers, or by the runtime.
    pub(super) fn array(&mut self, ty: Type, lanes: usize) -> String {
        self.stack += (ty.bytes() as usize * lanes).next_multiple_of(64);
        self.variable(&type_name(ty, lanes))
    }

    pub(super) fn load(&mut self, ty: Type, lanes: usize, place: &str) -> Val {
        self.op(ty, lanes, &format!("load {}, ptr {place}", type_name(ty, lanes)))
    }

    pub(super) fn store(&mut self, value: &Val, place: &str) {
        self.line(&format!("store {}, ptr {place}", value.arg()));
    }

    pub(super) fn binary(&mut self, op: &str, a: &Val, b: &Val) -> Val {
        self.op(a.ty, a.lanes, &format!("{op} {} {}, {}", a.t(), a.name, b.name))
    }

    pub(super) fn binary_const(&mut self, op: &str, a: &Val, bits: u64) -> Val {
        let b = constant(a.ty, a.lanes, bits);
        self.binary(op, a, &b)
    }

    pub(super) fn icmp(&mut self, condition: &str, a: &Val, b: &Val) -> Val {
        self.op(Type::I1, a.lanes, &format!("icmp {condition} {} {}, {}", a.t(), a.name, b.name))
    }

    pub(super) fn icmp_const(&mut self, condition: &str, a: &Val, bits: u64) -> Val {
        let b = constant(a.ty, a.lanes, bits);
        self.icmp(condition, a, &b)
    }

    pub(super) fn fcmp(&mut self, condition: &str, a: &Val, b: &Val) -> Val {
        self.op(Type::I1, a.lanes, &format!("fcmp {condition} {} {}, {}", a.t(), a.name, b.name))
    }

    pub(super) fn select(&mut self, condition: &Val, a: &Val, b: &Val) -> Val {
        self.op(a.ty, a.lanes, &format!("select {}, {}, {}", condition.arg(), a.arg(), b.arg()))
    }

    /// A conversion between types, by one of LLVM's instructions.
    pub(super) fn cast(&mut self, op: &str, value: &Val, to: Type) -> Val {
        if value.ty == to {
            return value.clone();
        }
        self.op(to, value.lanes, &format!("{op} {} to {}", value.arg(), type_name(to, value.lanes)))
    }

    pub(super) fn bits(&mut self, value: &Val, to: Type) -> Val {
        self.cast("bitcast", value, to)
    }

    /// An unsigned integer in another width.
    pub(super) fn resize(&mut self, value: &Val, to: Type) -> Val {
        let op = if to.bits() > value.ty.bits() { "zext" } else { "trunc" };
        self.cast(op, value, to)
    }

    /// A vector with an element in all lanes.
    pub(super) fn splat(&mut self, value: &Val, lanes: usize) -> Val {
        if value.lanes == lanes {
            return value.clone();
        }
        let ty = type_name(value.ty, lanes);
        let first = self.raw(&format!("insertelement {ty} poison, {}, i64 0", value.arg()));
        let shuffle = format!("shufflevector {ty} {first}, {ty} poison, <{lanes} x i32> zeroinitializer");
        self.op(value.ty, lanes, &shuffle)
    }

    /// A call of an intrinsic function, whose name ends with the type of its first operand.
    pub(super) fn intrinsic(&mut self, name: &str, args: &[&Val], flags: &[&str]) -> Val {
        let result = args[0];
        let suffix = mangled(result.ty, result.lanes);
        self.call_named(&format!("{name}.{suffix}"), (result.ty, result.lanes), args, flags)
    }

    /// A call of an intrinsic function by its whole name; `flags` are arguments of type i1.
    pub(super) fn call_named(
        &mut self,
        name: &str,
        result: (Type, usize),
        args: &[&Val],
        flags: &[&str],
    ) -> Val {
        let types = args.iter().map(|arg| arg.t()).chain(flags.iter().map(|_| "i1".into()));
        let types: Vec<String> = types.collect();
        let values = args.iter().map(|arg| arg.arg()).chain(flags.iter().map(|flag| format!("i1 {flag}")));
        let values: Vec<String> = values.collect();
        self.call_text(name, &type_name(result.0, result.1), &types.join(", "), &values.join(", "), result)
    }

    pub(super) fn call_text(
        &mut self,
        name: &str,
        returns: &str,
        types: &str,
        values: &str,
        result: (Type, usize),
    ) -> Val {
        self.declare(name, format!("declare {returns} @{name}({types})"));
        self.op(result.0, result.1, &format!("call {returns} @{name}({values})"))
    }

    pub(super) fn declare(&mut self, name: &str, declaration: String) {
        self.declarations.entry(name.into()).or_insert(declaration);
    }

    /// A call of a runtime function; `args` are with their types.
    pub(super) fn call_runtime(
        &mut self,
        (name, address): (&str, *const ()),
        args: &[String],
        result: Option<Type>,
        attributes: &str,
    ) -> Option<Val> {
        let types: Vec<&str> = args.iter().map(|arg| arg.split_once(' ').map_or("", |pair| pair.0)).collect();
        let returns = result.map_or("void", element_name);
        self.functions.insert(name.into(), address);
        self.declare(
            name,
            format!("declare {returns} @{name}({}) nounwind nonlazybind {attributes}", types.join(", ")),
        );
        let call = format!("call {returns} @{name}({})", args.join(", "));
        match result {
            Some(ty) => Some(self.op(ty, 1, &call)),
            None => {
                self.line(&call);
                None
            }
        }
    }

    /// The whole text, with one function.
    pub(super) fn module(&self, head: &str, tail: &str) -> String {
        let declarations: Vec<&str> = self.declarations.values().map(String::as_str).collect();
        format!(
            "{head}\nentry:\n{}  br label %enter\n{}}}\n{}\n{tail}",
            self.variables,
            self.text,
            declarations.join("\n")
        )
    }
}
