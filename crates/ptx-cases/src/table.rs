//! Cases that are tables of values: parsed, made into kernels, checked.
//!
//! Two kernels come of a table, so that every way in which a back end may compute an instruction is
//! taken:
//! - `lanes`: thread i computes row i, once plainly and once guarded by a predicate that holds in
//!   some lanes only; the others must keep what the outputs held before.
//! - `once`: every thread computes row after row, each with constants, which passes may fold, and
//!   with values loaded from one address, which a back end may compute once for the warp.

use std::fmt::Write;

use sluice_ptx::Type;

use crate::content::{Random, from_bytes, items, to_bytes};
use crate::expression::{Names, Value, evaluate};
use crate::literal::{self, Tolerance, mask, show};
use crate::machine::{Arg, Launch, Outcome, Program};

/// A paragraph of a table file for one type.
#[derive(Clone, Debug)]
pub struct Table {
    pub name: String,
    inputs: Vec<Column>,
    outputs: Vec<Column>,
    tolerance: Tolerance,
    code: String,
    rows: Vec<Row>,
}

#[derive(Clone, Debug, PartialEq)]
struct Column {
    name: String,
    ty: Type,
}

#[derive(Clone, Debug)]
struct Row {
    inputs: Vec<u64>,
    outputs: Vec<u64>,
}

/// Threads of the `lanes` kernel at least: more than a warp, not a multiple of one.
const LANES_MIN: usize = 45;
/// Rows that the `once` kernel computes.
const ONCE_ROWS: usize = 24;
/// What outputs hold where a guard is false.
const KEPT: u64 = 0x5a5a_a5a5_1234_8765;

/// All tables of a file.
pub fn parse(text: &str) -> Result<Vec<Table>, String> {
    let mut paragraphs: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in text.lines().map(|line| line.split('#').next().unwrap_or_default().trim_end()) {
        match line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            Some(head) => paragraphs.push((head, Vec::new())),
            None if line.trim().is_empty() => {}
            None => paragraphs.last_mut().ok_or("a line before the first [name]")?.1.push(line.trim()),
        }
    }
    let mut tables = Vec::new();
    for (head, lines) in paragraphs {
        let (name, word, types) = match head.split_once(" for ") {
            Some((name, rest)) => {
                let (word, types) =
                    rest.split_once(':').ok_or_else(|| format!("[{head}]: for WORD: TYPES"))?;
                (name, word.trim(), types.split_whitespace().collect())
            }
            None => (head, "", vec![""]),
        };
        for ty in types {
            let name = replace_word(name, word, ty);
            let lines: Vec<String> = lines.iter().map(|line| replace_word(line, word, ty)).collect();
            tables.push(Table::parse(name.clone(), &lines).map_err(|error| format!("[{name}]: {error}"))?);
        }
    }
    Ok(tables)
}

impl Table {
    fn parse(name: String, lines: &[String]) -> Result<Table, String> {
        let (columns, rest) = lines.split_first().ok_or("no columns")?;
        let (columns, tolerance) = match columns.split_once(" within ") {
            Some((columns, tolerance)) => (columns, Tolerance::parse(tolerance)?),
            None => (columns.as_str(), Tolerance::Exact),
        };
        let (inputs, outputs) = columns.split_once("->").ok_or("no -> between the columns")?;
        let first_row = rest.iter().position(|line| line.contains("->")).ok_or("no rows")?;
        let mut table = Table {
            name,
            inputs: parse_columns(inputs)?,
            outputs: parse_columns(outputs)?,
            tolerance,
            code: rest[..first_row].join("\n    "),
            rows: Vec::new(),
        };
        for line in &rest[first_row..] {
            table.add_rows(line).map_err(|error| format!("{line}: {error}"))?;
        }
        Ok(table)
    }

    fn add_rows(&mut self, line: &str) -> Result<(), String> {
        let (inputs, outputs) = line.split_once("->").ok_or("no ->")?;
        let (given, expected) = (items(inputs), items(outputs));
        let random = match given.first() {
            Some(&"random") => given.get(1).and_then(|count| count.parse().ok()).ok_or("random COUNT")?,
            _ => 0,
        };
        let mut source = Random(self.rows.len() as u64 + 1);
        for _ in 0..random.max(1) {
            let inputs: Vec<u64> = match random {
                0 if given.len() == self.inputs.len() => {
                    let columns = self.inputs.iter().zip(&given);
                    columns.map(|(column, text)| literal::parse(column.ty, text)).collect::<Result<_, _>>()?
                }
                0 => return Err(format!("{} inputs for {} columns", given.len(), self.inputs.len())),
                _ => self.inputs.iter().map(|column| source.value(column.ty)).collect(),
            };
            if expected.len() != self.outputs.len() {
                return Err(format!("{} outputs for {} columns", expected.len(), self.outputs.len()));
            }
            let names = Inputs { columns: &self.inputs, values: &inputs };
            let outputs = self.outputs.iter().zip(&expected).map(|(column, text)| {
                match text.strip_prefix('(').and_then(|text| text.strip_suffix(')')) {
                    Some(expression) => Ok(literal::from_value(column.ty, evaluate(expression, &names)?)),
                    None => literal::parse(column.ty, text),
                }
            });
            let outputs = outputs.collect::<Result<_, String>>()?;
            self.rows.push(Row { inputs, outputs });
        }
        Ok(())
    }

    /// Runs both kernels on all back ends and compares every row.
    pub fn check(&self) -> Result<(), String> {
        let rows = self.rows.len().max(LANES_MIN);
        let lanes = self.lanes_kernel();
        let program = Program::new(&lanes, "lanes").map_err(|error| format!("{error}\n{lanes}"))?;
        let mut launch = self.launch(rows, self.is_guardable());
        launch.args.push(Arg::Value((rows as u32).to_le_bytes().to_vec()));
        for (block, back_ends) in [([64, 1, 1], &[0, 1, 2][..]), ([3, 7, 2], &[2])] {
            launch.block = block;
            launch.grid = [(rows as u32).div_ceil(block.iter().product()), 1, 1];
            self.run(&program, &launch, back_ends, |outcome| self.compare(outcome, rows))
                .map_err(|error| format!("lanes {block:?}: {error}"))?;
        }
        let rows = self.rows.len().min(ONCE_ROWS);
        let once = self.once_kernel(rows);
        let program = Program::new(&once, "once").map_err(|error| format!("{error}\n{once}"))?;
        let mut launch = self.launch(rows, true);
        launch.block = [33, 1, 1];
        self.run(&program, &launch, &[0, 1, 2], |outcome| self.compare(outcome, rows))
            .map_err(|error| format!("once: {error}"))
    }

    /// Back ends 0 and 1 are the interpreter before and behind the passes, 2 is compiled code.
    fn run(
        &self,
        program: &Program,
        launch: &Launch,
        back_ends: &[u64],
        compare: impl Fn(Outcome) -> Result<(), String>,
    ) -> Result<(), String> {
        for &back_end in back_ends {
            let outcome = match back_end {
                2 => program.execute(launch, 1),
                seed => program.interpret(launch, seed),
            };
            let name = ["interpreter", "interpreter behind the passes", "compiled"][back_end as usize];
            let outcome = outcome.map_err(|fault| format!("{name}: fault: {fault}"))?;
            compare(outcome).map_err(|error| format!("{name}: {error}"))?;
        }
        let is_compiled = back_ends.contains(&2);
        if let Some(outcome) = is_compiled.then(|| program.execute_by_llvm(launch, 1)).flatten() {
            let outcome = outcome.map_err(|fault| format!("by LLVM: fault: {fault}"))?;
            compare(outcome).map_err(|error| format!("by LLVM: {error}"))?;
        }
        Ok(())
    }

    /// Inputs repeated up to `rows`, then two buffers per output (one without `twice`).
    fn launch(&self, rows: usize, twice: bool) -> Launch {
        let rows_of =
            |index: usize| (0..rows).map(move |row| &self.rows[row % self.rows.len()].inputs[index]);
        let inputs = self.inputs.iter().enumerate().map(|(index, column)| {
            let values: Vec<u64> = rows_of(index).copied().collect();
            Arg::Buffer(to_bytes(memory_type(column.ty), &values))
        });
        let outputs = self.outputs.iter().flat_map(|column| {
            let empty = Arg::Buffer(vec![0; rows * memory_type(column.ty).bytes() as usize]);
            std::iter::repeat_n(empty, 1 + usize::from(twice))
        });
        Launch {
            grid: [1; 3],
            block: [1; 3],
            cluster: None,
            cooperative: false,
            shared_bytes: 0,
            stack_bytes: 0,
            args: inputs.chain(outputs).collect(),
        }
    }

    fn compare(&self, outcome: Outcome, rows: usize) -> Result<(), String> {
        let outputs = &outcome.buffers[self.inputs.len()..];
        let per_column = outputs.len() / self.outputs.len();
        let is_lanes = rows >= LANES_MIN;
        for (index, bytes) in outputs.iter().enumerate() {
            let at = index / per_column;
            let column = &self.outputs[at];
            let is_second = index % per_column == 1;
            for (row, found) in from_bytes(memory_type(column.ty), bytes).into_iter().enumerate() {
                let given = &self.rows[row % self.rows.len()];
                let kept = is_lanes && is_second && !guard_holds(row);
                let expected = if kept { KEPT & mask(column.ty) } else { given.outputs[at] };
                if !literal::matches(column.ty, found, expected, self.tolerance) {
                    return Err(self.describe(row, column, found, expected, (is_lanes, is_second)));
                }
            }
        }
        Ok(())
    }

    fn describe(&self, row: usize, column: &Column, found: u64, expected: u64, way: (bool, bool)) -> String {
        let given = &self.rows[row % self.rows.len()];
        let mut text = match way {
            (true, false) => format!("thread {row}:"),
            (true, true) => format!("thread {row}, guarded:"),
            (false, false) => format!("row {row}, constants:"),
            (false, true) => format!("row {row}, uniform values:"),
        };
        for (input, bits) in self.inputs.iter().zip(&given.inputs) {
            let _ = write!(text, " {} = {}", input.name, show(input.ty, *bits));
        }
        let (found, expected) = (show(column.ty, found), show(column.ty, expected));
        let _ = write!(text, ": {} is {found}, not {expected}", column.name);
        text
    }

    // ---- Kernels
    // ------------------------------------------------------------------------------------------

    fn lanes_kernel(&self) -> String {
        let mut text = self.head("lanes", 1 + usize::from(self.is_guardable()), true);
        text.push_str(
            "    mov.u32 %t0, %tid.z;\n    mov.u32 %t1, %ntid.y;\n    mov.u32 %t2, %tid.y;\n\
             \x20   mad.lo.u32 %t0, %t0, %t1, %t2;\n    mov.u32 %t1, %ntid.x;\n    mov.u32 %t2, %tid.x;\n\
             \x20   mad.lo.u32 %t0, %t0, %t1, %t2;\n    mov.u32 %t2, %ntid.y;\n    mul.lo.u32 %t1, %t1, %t2;\n\
             \x20   mov.u32 %t2, %ntid.z;\n    mul.lo.u32 %t1, %t1, %t2;\n    mov.u32 %t2, %ctaid.x;\n\
             \x20   mad.lo.u32 %t0, %t1, %t2, %t0;\n    ld.param.u32 %t1, [count];\n\
             \x20   setp.ge.u32 %p0, %t0, %t1;\n    @%p0 exit;\n    popc.b32 %t1, %t0;\n\
             \x20   and.b32 %t1, %t1, 1;\n    setp.eq.u32 %on, %t1, 1;\n",
        );
        let at = |text: &mut String, ty: Type, param: &str| {
            let bytes = memory_type(ty).bytes();
            let _ =
                writeln!(text, "    ld.param.u64 %a0, [{param}];\n    mad.wide.u32 %a0, %t0, {bytes}, %a0;");
        };
        for is_guarded in [false, true] {
            if is_guarded && !self.is_guardable() {
                break;
            }
            for (index, column) in self.inputs.iter().enumerate() {
                at(&mut text, column.ty, &format!("in{index}"));
                load(&mut text, column, "[%a0]");
            }
            if is_guarded {
                for column in &self.outputs {
                    constant(&mut text, column, KEPT & mask(column.ty));
                }
                let _ = writeln!(text, "    {{\n    {}\n    }}", self.guarded_code());
            } else {
                let _ = writeln!(text, "    {{\n    {}\n    }}", self.code);
            }
            for (index, column) in self.outputs.iter().enumerate() {
                let which = usize::from(is_guarded);
                at(&mut text, column.ty, &format!("out{index}_{which}"));
                store(&mut text, column, "[%a0]");
            }
        }
        text.push_str("    ret;\n}\n");
        text
    }

    fn once_kernel(&self, rows: usize) -> String {
        let mut text = self.head("once", 2, false);
        for (index, row) in self.rows[..rows].iter().enumerate() {
            for which in 0..2 {
                for (input, (column, bits)) in self.inputs.iter().zip(&row.inputs).enumerate() {
                    if which == 0 {
                        constant(&mut text, column, *bits);
                    } else {
                        let offset = index * memory_type(column.ty).bytes() as usize;
                        let _ = writeln!(text, "    ld.param.u64 %a0, [in{input}];");
                        load(&mut text, column, &format!("[%a0+{offset}]"));
                    }
                }
                let _ = writeln!(text, "    {{\n    {}\n    }}", self.code);
                for (output, column) in self.outputs.iter().enumerate() {
                    let offset = index * memory_type(column.ty).bytes() as usize;
                    let _ = writeln!(text, "    ld.param.u64 %a0, [out{output}_{which}];");
                    store(&mut text, column, &format!("[%a0+{offset}]"));
                }
            }
        }
        text.push_str("    ret;\n}\n");
        text
    }

    fn head(&self, entry: &str, copies: usize, has_count: bool) -> String {
        let inputs = (0..self.inputs.len()).map(|index| format!(".param .u64 in{index}"));
        let outputs = (0..self.outputs.len())
            .flat_map(|index| (0..copies).map(move |copy| format!(".param .u64 out{index}_{copy}")));
        let count = has_count.then(|| ".param .u32 count".to_owned());
        let params: Vec<String> = inputs.chain(outputs).chain(count).collect();
        let mut text = format!(
            ".version 8.8\n.target sm_120\n.address_size 64\n\n.visible .entry {entry}(\n    {})\n{{\n\
             \x20   .reg .pred %p0, %on;\n    .reg .b32 %t<3>;\n    .reg .b64 %a0;\n",
            params.join(",\n    ")
        );
        let mut named: Vec<&str> = Vec::new();
        for column in self.inputs.iter().chain(&self.outputs) {
            if !named.contains(&&*column.name) {
                let _ = writeln!(text, "    .reg .{} {};", register_type(column.ty), column.name);
                named.push(&column.name);
            }
        }
        text
    }

    /// Whether each instruction of the code can simply be given a guard.
    fn is_guardable(&self) -> bool {
        !self.code.contains(['@', '{', '}', ':'])
    }

    fn guarded_code(&self) -> String {
        let statements = self.code.split(';').map(str::trim).filter(|statement| !statement.is_empty());
        let guarded = statements.map(|statement| match statement.starts_with('.') {
            true => format!("{statement};"),
            false => format!("@%on {statement};"),
        });
        guarded.collect::<Vec<_>>().join("\n    ")
    }
}

/// Whether the guard of the `lanes` kernel holds in a thread.
fn guard_holds(thread: usize) -> bool {
    thread.count_ones() % 2 == 1
}

fn load(text: &mut String, column: &Column, address: &str) {
    let (name, bits) = (&column.name, memory_type(column.ty).bits());
    let _ = match column.ty {
        Type::Pred => {
            writeln!(text, "    ld.global.u32 %t1, {address};\n    setp.ne.u32 {name}, %t1, 0;")
        }
        _ => writeln!(text, "    ld.global.b{bits} {name}, {address};"),
    };
}

fn store(text: &mut String, column: &Column, address: &str) {
    let (name, bits) = (&column.name, memory_type(column.ty).bits());
    let _ = match column.ty {
        Type::Pred => {
            writeln!(text, "    selp.u32 %t1, 1, 0, {name};\n    st.global.u32 {address}, %t1;")
        }
        _ => writeln!(text, "    st.global.b{bits} {address}, {name};"),
    };
}

fn constant(text: &mut String, column: &Column, bits: u64) {
    let (name, width) = (&column.name, column.ty.bits());
    let _ = match column.ty {
        Type::Pred => writeln!(text, "    mov.u32 %t1, {bits};\n    setp.ne.u32 {name}, %t1, 0;"),
        _ => writeln!(text, "    mov.b{width} {name}, {bits:#x};"),
    };
}

/// Predicates are in memory as u32.
fn memory_type(ty: Type) -> Type {
    if ty == Type::Pred { Type::U32 } else { ty }
}

/// A type that registers may have.
fn register_type(ty: Type) -> String {
    match ty {
        Type::F16 | Type::Bf16 => "b16".into(),
        Type::F16x2 | Type::Bf16x2 | Type::U16x2 | Type::S16x2 => "b32".into(),
        Type::F32x2 => "b64".into(),
        _ => ty.to_string(),
    }
}

fn parse_columns(text: &str) -> Result<Vec<Column>, String> {
    let columns = text.split(',').map(|column| {
        let (name, ty) = column.split_once(':').ok_or_else(|| format!("{column}: no NAME: TYPE"))?;
        let ty = Type::from_text(ty.trim()).ok_or_else(|| format!("{ty} is no type"))?;
        Ok(Column { name: name.trim().to_owned(), ty })
    });
    columns.collect()
}

/// Replaces `word` where it is not a part of a longer one.
fn replace_word(text: &str, word: &str, by: &str) -> String {
    if word.is_empty() {
        return text.to_owned();
    }
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let mut result = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(word) {
        let before = rest[..at].chars().next_back().or(result.chars().next_back());
        let after = rest[at + word.len()..].chars().next();
        let is_whole = !before.is_some_and(is_part) && !after.is_some_and(is_part);
        result.push_str(&rest[..at]);
        result.push_str(if is_whole { by } else { word });
        rest = &rest[at + word.len()..];
    }
    result.push_str(rest);
    result
}

struct Inputs<'t> {
    columns: &'t [Column],
    values: &'t [u64],
}

impl Names for Inputs<'_> {
    fn variable(&self, name: &str) -> Option<Value> {
        if name == "bits" {
            return Some(Value::Int(self.columns.first()?.ty.bits().into()));
        }
        let index = self.columns.iter().position(|column| column.name == name)?;
        Some(literal::to_value(self.columns[index].ty, self.values[index]))
    }

    fn element(&self, _: &str, _: usize) -> Option<Value> {
        None
    }
}
