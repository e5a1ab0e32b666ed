//! Cases that are PTX modules: their directions, and the check.

use sluice_ptx::Type;

use crate::content::{elements, from_bytes, to_bytes};
use crate::expression::{Names, Value};
use crate::literal::{self, Tolerance, show};
use crate::machine::{Arg, Fault, Launch, Outcome, Program};

/// One `run:` paragraph.
#[derive(Clone, Debug)]
pub struct Run {
    pub entry: String,
    grid: [u32; 3],
    /// Each is tried.
    blocks: Vec<[u32; 3]>,
    cluster: Option<[u32; 3]>,
    cooperative: bool,
    shared_bytes: u32,
    stack_bytes: u32,
    interpreted: bool,
    params: Vec<Param>,
    ending: Ending,
    prints: Option<String>,
    /// What the sanitizer finds, in order and with commas between.
    finds: String,
}

#[derive(Clone, Debug)]
enum Ending {
    Normal,
    /// How the launch fails.
    Fault(String),
    /// What the compiler's error contains.
    Refused(String),
}

#[derive(Clone, Debug)]
struct Param {
    name: String,
    ty: Type,
    shape: Shape,
    before: Vec<u64>,
    after: After,
    tolerance: Tolerance,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    One,
    Array,
    Buffer,
}

#[derive(Clone, Debug)]
enum After {
    Expected(Vec<u64>),
    /// Whatever all back ends agree about.
    Agreed,
    Anything,
}

/// The runs that a file asks for.
pub fn parse(text: &str) -> Result<Vec<Run>, String> {
    let mut runs = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(head) = line.strip_prefix("// run:") else { continue };
        let mut run = Run::parse(head)?;
        let mut after = Vec::new();
        while let Some(line) = lines.peek().and_then(|line| line.strip_prefix("//   ")) {
            lines.next();
            run.direct(line.trim(), &mut after)?;
        }
        run.expect(&after)?;
        runs.push(run);
    }
    if runs.is_empty() { Err("no line starts with // run:".into()) } else { Ok(runs) }
}

impl Run {
    fn parse(head: &str) -> Result<Run, String> {
        let mut run = Run {
            entry: String::new(),
            grid: [1; 3],
            blocks: Vec::new(),
            cluster: None,
            cooperative: false,
            shared_bytes: 0,
            stack_bytes: 1024,
            interpreted: true,
            params: Vec::new(),
            ending: Ending::Normal,
            prints: None,
            finds: String::new(),
        };
        let mut words = head.split_whitespace();
        run.entry = words.next().ok_or("run: names no entry")?.to_owned();
        let mut in_blocks = false;
        for word in words.filter(|word| *word != "/") {
            match word.split_once('=') {
                Some(("grid", value)) => run.grid = axes(value)?,
                Some(("block", value)) => run.blocks.push(axes(value)?),
                Some(("cluster", value)) => run.cluster = Some(axes(value)?),
                Some(("shared", value)) => run.shared_bytes = number(value)?,
                Some(("stack", value)) => run.stack_bytes = number(value)?,
                Some(("interp", "no")) => run.interpreted = false,
                Some(("cooperative", "yes")) => run.cooperative = true,
                Some(("finds", value)) => run.finds = value.to_owned(),
                None if in_blocks => run.blocks.push(axes(word)?),
                _ => return Err(format!("{word} in a run: line")),
            }
            in_blocks = !run.blocks.is_empty();
        }
        if run.blocks.is_empty() {
            run.blocks.push([1; 3]);
        }
        Ok(run)
    }

    /// A line below `run:`. What is expected behind the arrow may speak of later parameters, so it
    /// is kept.
    fn direct(&mut self, line: &str, after: &mut Vec<(usize, String)>) -> Result<(), String> {
        if let Some(ending) = line.strip_prefix("-> ") {
            let (kind, rest) = ending.split_once(' ').unwrap_or((ending, ""));
            match kind {
                "fault" => self.ending = Ending::Fault(rest.to_owned()),
                "refused" => self.ending = Ending::Refused(rest.to_owned()),
                "prints" => self.prints = Some(rest.trim_matches('"').replace("\\n", "\n")),
                _ => return Err(format!("-> {ending}")),
            }
            return Ok(());
        }
        let (name, rest) = line.split_once(':').ok_or_else(|| format!("{line}: no NAME: TYPE"))?;
        let (rest, expected) = match rest.split_once("->") {
            Some((rest, expected)) => (rest, Some(expected.trim())),
            None => (rest, None),
        };
        let (ty, content) = rest.split_once('=').unwrap_or((rest, ""));
        let (ty, shape, count) = shaped_type(ty.trim())?;
        let mut before = elements(ty, count, content, |i| self.names(i))?;
        before.resize(count, 0);
        let unchanged = After::Expected(before.clone());
        self.params.push(Param {
            name: name.trim().to_owned(),
            ty,
            shape,
            before,
            after: unchanged,
            tolerance: Tolerance::Exact,
        });
        after.extend(expected.map(|expected| (self.params.len() - 1, expected.to_owned())));
        Ok(())
    }

    fn expect(&mut self, after: &[(usize, String)]) -> Result<(), String> {
        for (index, text) in after {
            let (text, tolerance) = match text.split_once(" within ") {
                Some((text, tolerance)) => (text, Tolerance::parse(tolerance)?),
                None => (text.as_str(), Tolerance::Exact),
            };
            let param = &self.params[*index];
            let after = match text.trim() {
                "?" => After::Agreed,
                "*" => After::Anything,
                content => {
                    let mut values = elements(param.ty, param.before.len(), content, |i| self.names(i))?;
                    values.resize(param.before.len(), 0);
                    After::Expected(values)
                }
            };
            self.params[*index].after = after;
            self.params[*index].tolerance = tolerance;
        }
        Ok(())
    }

    fn names(&self, index: usize) -> Before<'_> {
        Before { run: self, index }
    }

    /// Runs on every back end and compares.
    pub fn check(&self, text: &str) -> Result<(), String> {
        let program = match (Program::new(text, &self.entry), &self.ending) {
            (Err(error), Ending::Refused(words)) if error.contains(words) => return Ok(()),
            (Err(error), _) => return Err(error),
            (Ok(_), Ending::Refused(words)) => {
                return Err(format!("compiles, but should be refused: {words}"));
            }
            (Ok(program), _) => program,
        };
        for &block in &self.blocks {
            self.check_block(&program, block).map_err(|error| format!("block {block:?}: {error}"))?;
        }
        Ok(())
    }

    fn check_block(&self, program: &Program, block: [u32; 3]) -> Result<(), String> {
        let args = self.params.iter().map(|param| {
            let bytes = to_bytes(param.ty, &param.before);
            if param.shape == Shape::Buffer { Arg::Buffer(bytes) } else { Arg::Value(bytes) }
        });
        let Run { grid, cluster, cooperative, shared_bytes, stack_bytes, .. } = *self;
        let args = args.collect();
        let launch = Launch { grid, block, cluster, cooperative, shared_bytes, stack_bytes, args };
        let mut agreed = None;
        for seed in if self.interpreted { 0..3 } else { 0..0 } {
            let outcome = program.interpret(&launch, seed);
            self.compare(outcome, &mut agreed)
                .map_err(|error| format!("interpreter, seed {seed}: {error}"))?;
        }
        let by_cranelift = [1, 3].map(|threads| (threads, Some(program.execute(&launch, threads))));
        let by_llvm = [1, 3].map(|threads| (threads, program.execute_by_llvm(&launch, threads)));
        for (threads, outcome) in by_cranelift.into_iter().chain(by_llvm) {
            let Some(outcome) = outcome else { continue };
            if let (Ok(outcome), Some(prints)) = (&outcome, &self.prints)
                && outcome.printed != *prints
            {
                return Err(format!("printed {:?} instead of {prints:?}", outcome.printed));
            }
            self.compare(outcome, &mut agreed)
                .map_err(|error| format!("compiled, {threads} threads: {error}"))?;
        }
        self.check_findings(program, &launch, &mut agreed).map_err(|error| format!("instrumented: {error}"))
    }

    /// Runs instrumented code, of which correct kernels notice nothing. A wrong access is found;
    /// the kernel may then continue where it would have faulted.
    fn check_findings(
        &self,
        program: &Program,
        launch: &Launch,
        agreed: &mut Option<Vec<Vec<u8>>>,
    ) -> Result<(), String> {
        let (outcome, findings) = program.execute_checked(launch, 2)?;
        let mut kinds: Vec<&str> = findings.iter().map(|finding| finding.kind.name()).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let is_access = |kind: &&str| matches!(*kind, "out-of-bounds" | "misaligned");
        match &self.ending {
            Ending::Fault(fault) if fault.ends_with(" address") => {
                let is_found = kinds.iter().any(is_access);
                is_found.then_some(()).ok_or_else(|| format!("{fault} is not found: {kinds:?}"))
            }
            _ if kinds.join(",") != self.finds => Err(format!("finds {findings:?}")),
            _ => self.compare(outcome, agreed),
        }
    }

    fn compare(
        &self,
        outcome: Result<Outcome, Fault>,
        agreed: &mut Option<Vec<Vec<u8>>>,
    ) -> Result<(), String> {
        let outcome = match (outcome, &self.ending) {
            (Ok(outcome), Ending::Normal) => outcome,
            (Err(fault), Ending::Fault(expected)) if fault.to_string() == *expected => return Ok(()),
            (Err(fault), _) => return Err(format!("fault: {fault}")),
            (Ok(_), _) => return Err("ends without the fault".into()),
        };
        let buffers = self.params.iter().filter(|param| param.shape == Shape::Buffer);
        let agreed = agreed.get_or_insert_with(|| outcome.buffers.clone());
        for ((param, bytes), agreed) in buffers.zip(&outcome.buffers).zip(agreed) {
            let agreed = from_bytes(param.ty, agreed);
            let expected = match &param.after {
                After::Expected(expected) => expected,
                After::Agreed => &agreed,
                After::Anything => continue,
            };
            param.compare(&from_bytes(param.ty, bytes), expected)?;
        }
        Ok(())
    }
}

impl Param {
    fn compare(&self, found: &[u64], expected: &[u64]) -> Result<(), String> {
        for (index, (&found, &expected)) in found.iter().zip(expected).enumerate() {
            if !literal::matches(self.ty, found, expected, self.tolerance) {
                let (found, expected) = (show(self.ty, found), show(self.ty, expected));
                return Err(format!("{}[{index}] is {found}, not {expected}", self.name));
            }
        }
        Ok(())
    }
}

/// What expressions see: the contents at the start, and the index of the element.
struct Before<'r> {
    run: &'r Run,
    index: usize,
}

impl Names for Before<'_> {
    fn variable(&self, name: &str) -> Option<Value> {
        match name {
            "i" => Some(Value::Int(self.index as i128)),
            _ => self.element(name, 0),
        }
    }

    fn element(&self, name: &str, index: usize) -> Option<Value> {
        let param = self.run.params.iter().find(|param| param.name == name)?;
        Some(literal::to_value(param.ty, *param.before.get(index)?))
    }
}

/// `T`, `T[N]`, `T{N}`.
fn shaped_type(text: &str) -> Result<(Type, Shape, usize), String> {
    let (name, shape, count) = match text.find(['[', '{']) {
        Some(at) => {
            let shape = if text[at..].starts_with('[') { Shape::Buffer } else { Shape::Array };
            (&text[..at], shape, number(text[at + 1..].trim_end_matches([']', '}']))? as usize)
        }
        None => (text, Shape::One, 1),
    };
    let ty = Type::from_text(name).ok_or_else(|| format!("{name} is no type"))?;
    Ok((ty, shape, count))
}

fn axes(text: &str) -> Result<[u32; 3], String> {
    let mut axes = [1; 3];
    for (index, axis) in text.split(',').enumerate() {
        *axes.get_mut(index).ok_or_else(|| format!("{text}: more than three axes"))? = number(axis)?;
    }
    Ok(axes)
}

fn number(text: &str) -> Result<u32, String> {
    text.trim().parse().map_err(|_| format!("{text} is no number"))
}
