//! PTX text of one kernel: registers by class, parameters, loops.

use std::fmt::{self, Display, Write};

/// The text of a module with one kernel.
pub struct Source {
    pub text: String,
}

/// The type of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Predicate,
    B16,
    B32,
    B64,
    F32,
    F64,
}

impl Class {
    const ALL: [Class; 6] = [Class::Predicate, Class::B16, Class::B32, Class::B64, Class::F32, Class::F64];

    fn prefix(self) -> &'static str {
        match self {
            Class::Predicate => "p",
            Class::B16 => "h",
            Class::B32 => "r",
            Class::B64 => "rd",
            Class::F32 => "f",
            Class::F64 => "d",
        }
    }

    fn ty(self) -> &'static str {
        match self {
            Class::Predicate => "pred",
            Class::B16 => "b16",
            Class::B32 => "b32",
            Class::B64 => "b64",
            Class::F32 => "f32",
            Class::F64 => "f64",
        }
    }
}

/// A register of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register {
    pub class: Class,
    number: u32,
}

impl Display for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}{}", self.class.prefix(), self.number)
    }
}

/// A kernel that is being written.
pub struct Writer {
    name: String,
    body: String,
    params: u32,
    labels: u32,
    registers: [u32; Class::ALL.len()],
    shared: String,
}

/// Writes one instruction.
#[macro_export]
macro_rules! emit {
    ($writer:expr, $($text:tt)*) => { $writer.line(format_args!($($text)*)) };
}
pub use emit;

impl Writer {
    pub fn new(name: &str) -> Writer {
        Writer {
            name: name.to_owned(),
            body: String::new(),
            params: 0,
            labels: 0,
            registers: [0; Class::ALL.len()],
            shared: String::new(),
        }
    }

    pub fn line(&mut self, text: fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = writeln!(self.body, "    {text};");
    }

    pub fn register(&mut self, class: Class) -> Register {
        let number = &mut self.registers[class as usize];
        *number += 1;
        Register { class, number: *number - 1 }
    }

    /// The next parameter's value.
    pub fn param(&mut self) -> Register {
        let value = self.register(Class::B64);
        let (name, number) = (self.name.clone(), self.params);
        self.params += 1;
        emit!(self, "ld.param.u64 {value}, [{name}_{number}]");
        value
    }

    pub fn params<const N: usize>(&mut self) -> [Register; N] {
        std::array::from_fn(|_| self.param())
    }

    /// An array in shared memory; its address within the shared space.
    pub fn shared(&mut self, name: &str, bytes: u32) -> Register {
        let _ = writeln!(self.shared, "    .shared .align 16 .b8 {name}[{bytes}];");
        let address = self.register(Class::B64);
        emit!(self, "mov.u64 {address}, {name}");
        address
    }

    /// A special register with 32 bits, as a number with 64.
    pub fn special(&mut self, name: &str) -> Register {
        let (narrow, wide) = (self.register(Class::B32), self.register(Class::B64));
        emit!(self, "mov.u32 {narrow}, %{name}");
        emit!(self, "cvt.u64.u32 {wide}, {narrow}");
        wide
    }

    /// The number of this thread in a dimension of the grid.
    pub fn thread(&mut self, dimension: char) -> Register {
        let block = self.special(&format!("ctaid.{dimension}"));
        let size = self.special(&format!("ntid.{dimension}"));
        let thread = self.special(&format!("tid.{dimension}"));
        self.multiply_add(block, size, thread)
    }

    /// The number of threads in a dimension of the grid.
    pub fn threads(&mut self, dimension: char) -> Register {
        let blocks = self.special(&format!("nctaid.{dimension}"));
        let size = self.special(&format!("ntid.{dimension}"));
        self.binary("mul.lo.s64", blocks, size)
    }

    pub fn integer(&mut self, value: i64) -> Register {
        let register = self.register(Class::B64);
        emit!(self, "mov.s64 {register}, {value}");
        register
    }

    /// An instruction with two operands, whose result is of the first one's class.
    pub fn binary(&mut self, operation: &str, a: Register, b: impl Display) -> Register {
        let result = self.register(a.class);
        emit!(self, "{operation} {result}, {a}, {b}");
        result
    }

    pub fn add(&mut self, a: Register, b: impl Display) -> Register {
        self.binary("add.s64", a, b)
    }

    pub fn multiply_add(&mut self, a: Register, b: impl Display, c: Register) -> Register {
        let result = self.register(Class::B64);
        emit!(self, "mad.lo.s64 {result}, {a}, {b}, {c}");
        result
    }

    /// `base + index * bytes`.
    pub fn address(&mut self, base: Register, index: Register, bytes: u64) -> Register {
        self.multiply_add(index, bytes, base)
    }

    /// Whether a comparison of two registers holds, such as `lt.s64`.
    pub fn compare(&mut self, comparison: &str, a: Register, b: impl Display) -> Register {
        let result = self.register(Class::Predicate);
        emit!(self, "setp.{comparison} {result}, {a}, {b}");
        result
    }

    pub fn both(&mut self, a: Register, b: Register) -> Register {
        self.binary("and.pred", a, b)
    }

    /// `condition ? a : b` of one class.
    pub fn select(&mut self, condition: Register, a: Register, b: impl Display) -> Register {
        let (result, ty) = (self.register(a.class), a.class.ty());
        emit!(self, "selp.{ty} {result}, {a}, {b}, {condition}");
        result
    }

    /// A register of the same class with the same value, which can be assigned to.
    pub fn variable(&mut self, value: Register) -> Register {
        let register = self.register(value.class);
        self.assign(register, value);
        register
    }

    pub fn assign(&mut self, to: Register, value: Register) {
        emit!(self, "mov.{} {to}, {value}", to.class.ty());
    }

    /// Writes code that only threads with `condition` execute.
    pub fn when(&mut self, condition: Register, body: impl FnOnce(&mut Writer)) {
        let end = self.label();
        emit!(self, "@!{condition} bra {end}");
        body(self);
        self.place(&end);
    }

    /// Writes two branches.
    pub fn either(
        &mut self,
        condition: Register,
        then: impl FnOnce(&mut Writer),
        otherwise: impl FnOnce(&mut Writer),
    ) {
        let (other, end) = (self.label(), self.label());
        emit!(self, "@!{condition} bra {other}");
        then(self);
        emit!(self, "bra {end}");
        self.place(&other);
        otherwise(self);
        self.place(&end);
    }

    /// Writes a loop over `first`, `first + step`, ... below `end`, with `step` above 0.
    pub fn each(
        &mut self,
        first: Register,
        end: Register,
        step: impl Display,
        body: impl FnOnce(&mut Writer, Register),
    ) {
        let (top, behind) = (self.label(), self.label());
        let counter = self.variable(first);
        let outside = self.compare("ge.s64", counter, end);
        emit!(self, "@{outside} bra {behind}");
        self.place(&top);
        body(self, counter);
        emit!(self, "add.s64 {counter}, {counter}, {step}");
        let inside = self.compare("lt.s64", counter, end);
        emit!(self, "@{inside} bra {top}");
        self.place(&behind);
    }

    /// Writes a loop over the indices below `end` that are this thread's, in one dimension.
    pub fn each_of_thread(
        &mut self,
        dimension: char,
        end: Register,
        body: impl FnOnce(&mut Writer, Register),
    ) {
        let (first, step) = (self.thread(dimension), self.threads(dimension));
        self.each(first, end, step, body);
    }

    pub fn barrier(&mut self) {
        emit!(self, "bar.sync 0");
    }

    fn label(&mut self) -> String {
        self.labels += 1;
        format!("L{}", self.labels)
    }

    fn place(&mut self, label: &str) {
        let _ = writeln!(self.body, "{label}:");
    }

    pub fn finish(mut self) -> Source {
        emit!(self, "ret");
        let params: Vec<String> =
            (0..self.params).map(|number| format!(".param .u64 {}_{number}", self.name)).collect();
        let mut declarations = String::new();
        for class in Class::ALL {
            let count = self.registers[class as usize];
            if count > 0 {
                let _ = writeln!(declarations, "    .reg .{} %{}<{count}>;", class.ty(), class.prefix());
            }
        }
        Source {
            text: format!(
                ".version 7.8\n.target sm_80\n.address_size 64\n\n.visible .entry {}(\n    {}\n)\n{{\n{}{}{}}}\n",
                self.name,
                params.join(",\n    "),
                declarations,
                self.shared,
                self.body
            ),
        }
    }
}
