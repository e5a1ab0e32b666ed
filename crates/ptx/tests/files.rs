//! Whole modules under `tests/ptx`: what the tree says of them, and that the index sees the same as
//! the parser.

use std::path::PathBuf;

use sluice_ptx::ast::*;
use sluice_ptx::{Modifier, ModuleIndex, Opcode, Space, SpecialRegister, Type, parse};

fn text(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/ptx").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn module(name: &str) -> Module {
    parse(text(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn body<'m>(module: &'m Module, function: &str) -> &'m Body {
    module.function(function).and_then(|function| function.body.as_ref()).expect("a definition")
}

fn instructions(body: &Body) -> Vec<&Instruction> {
    body.statements
        .iter()
        .filter_map(|statement| match statement {
            Statement::Instruction(instruction) => Some(instruction),
            _ => None,
        })
        .collect()
}

fn calls(body: &Body) -> Vec<&Call> {
    body.statements
        .iter()
        .filter_map(|statement| match statement {
            Statement::Call(call) => Some(call),
            _ => None,
        })
        .collect()
}

/// Operands of the nth instruction with this mnemonic.
fn operands<'b>(body: &'b Body, mnemonic: &str, nth: usize) -> &'b [Operand] {
    let found =
        instructions(body).into_iter().filter(|instruction| instruction.mnemonic() == mnemonic).nth(nth);
    &found.unwrap_or_else(|| panic!("no {mnemonic}")).operands
}

fn register(body: &Body, name: &str) -> Operand {
    let index = body.registers.iter().position(|register| &*register.name == name).expect("a register");
    Operand::Register(RegisterId(index as u32))
}

#[test]
fn an_entry_has_its_parameters_laid_out() {
    let module = module("saxpy.ptx");
    assert_eq!((module.version, &*module.target[0], module.address_size), ((8, 0), "sm_80", 64));
    let entry = module.function("saxpy").expect("the entry");
    assert!(entry.is_entry);
    assert_eq!(entry.linkage, Linkage::Visible);
    assert_eq!(entry.directives.max_threads, Some([256, 1, 1]));
    let layout: Vec<_> = entry.params.iter().map(|param| (param.offset, param.size, param.align)).collect();
    assert_eq!(layout, [(0, 4, 4), (4, 4, 4), (8, 8, 8), (16, 8, 8)]);

    let calls = self::module("calls.ptx");
    let layout = calls.function("caller").expect("the entry");
    let layout: Vec<_> =
        layout.params.iter().map(|param| (param.offset, param.size, param.is_array)).collect();
    assert_eq!(layout, [(0, 24, true), (24, 1, false), (32, 8, false)]);
}

#[test]
fn instructions_keep_their_modifiers_in_order() {
    let module = module("saxpy.ptx");
    let body = body(&module, "saxpy");
    let instructions = instructions(body);
    let load = instructions.iter().find(|i| i.mnemonic() == "ld.global.nc.f32").expect("the load");
    assert_eq!(load.opcode, Opcode::Ld);
    assert_eq!(load.modifiers, [Modifier::Space(Space::Global), Modifier::Nc, Modifier::Type(Type::F32)]);
    assert_eq!((load.space(), load.ty(), load.vector_width()), (Some(Space::Global), Some(Type::F32), 1));
    assert!(load.has(Modifier::Nc));
    let branch = instructions.iter().find(|i| i.opcode == Opcode::Bra).expect("the branch");
    assert_eq!(branch.line, 28);
    assert_eq!(branch.operands, [Operand::Label(LabelId(0))]);
    assert_eq!(branch.guard.map(|guard| guard.is_negated), Some(false));
    assert_eq!(operands(body, "mov.u32", 0)[1], Operand::Special(SpecialRegister::CtaidX));
    assert!(!body.registers.iter().any(|register| &*register.name == "%f0"), "unused registers of a range");
}

#[test]
fn calls_know_what_they_call() {
    let module = module("calls.ptx");
    let body = body(&module, "caller");
    let calls = calls(body);
    assert_eq!(calls[0].callee, Callee::Function("twice".into()));
    assert!(calls[0].is_uniform);
    assert_eq!(calls[0].returns.len(), 1);
    assert!(matches!(calls[0].arguments[0], Operand::Symbol { symbol: Symbol::Variable(_), offset: 0 }));
    assert!(matches!(calls[1].callee, Callee::Indirect { targets: IndirectTargets::Prototype(0), .. }));
    assert!(body.prototypes[0].no_return);
    assert_eq!(body.prototypes[0].params[0].ty, Type::B64);
    assert_eq!(calls[2].returns, [register(body, "%r3")]);
    assert_eq!(calls[3].callee, Callee::Function("trapdoor".into()));
    // The definition stays, its declaration goes.
    assert_eq!(module.functions.iter().filter(|function| &*function.name == "twice").count(), 1);
    assert!(module.function("vprintf").is_some_and(|function| function.body.is_none()));
    assert!(module.function("__assertfail").is_some_and(|function| function.directives.no_return));
    assert_eq!(module.aliases, [Alias { name: "double".into(), aliasee: "twice".into() }]);
    let by_register = module.function("by_register").expect("the function");
    assert_eq!(by_register.returns[0].register, Some(RegisterId(0)));
    assert_eq!(by_register.params[0].register, Some(RegisterId(1)));
}

#[test]
fn scopes_hide_and_labels_come_later() {
    let module = module("calls.ptx");
    let body = body(&module, "caller");
    let params = body.variables.iter().filter(|variable| &*variable.name == "param0");
    assert_eq!(params.map(|variable| variable.ty).collect::<Vec<_>>(), [Type::B32, Type::B64]);
    let inner: Vec<_> = (0..)
        .zip(&body.labels)
        .filter(|(_, label)| &*label.name == "inner")
        .map(|(id, _)| LabelId(id))
        .collect();
    assert_eq!(inner.len(), 2);
    let branches = instructions(body).into_iter().filter(|i| i.mnemonic() == "bra").collect::<Vec<_>>();
    assert_eq!(branches[1].operands, [Operand::Label(inner[0])]);
    assert_eq!(branches[2].operands, [Operand::Label(inner[1])]);
    assert_eq!(operands(body, "brx.idx", 0)[1], Operand::BranchTargets(0));
    let names = body.branch_targets[0].iter().map(|label| &*body.labels[label.0 as usize].name);
    assert_eq!(names.collect::<Vec<_>>(), ["one", "two"]);
}

#[test]
fn operands_have_their_form() {
    let module = module("operands.ptx");
    let body = body(&module, "operands");
    let r = |name: &str| register(body, name);
    let register_id = |name: &str| match r(name) {
        Operand::Register(id) => id,
        _ => unreachable!(),
    };
    let on_register = |name: &str, offset| {
        Operand::Address(Address { base: AddressBase::Register(register_id(name)), offset })
    };
    assert_eq!(
        operands(body, "ld.global.v4.f32", 0),
        [Operand::Vector(vec![r("%f0"), r("%f1"), Operand::Sink, r("%f3")]), on_register("%rd0", -16)]
    );
    let symbol = |name: &str| Symbol::Module(name.into());
    let address = |base, offset| Operand::Address(Address { base, offset });
    assert_eq!(operands(body, "ld.param.u64", 0)[1], address(AddressBase::Symbol(Symbol::Param(0)), 0));
    assert_eq!(operands(body, "ld.shared.u32", 0)[1], address(AddressBase::Symbol(symbol("tile")), 64));
    assert_eq!(operands(body, "ld.shared.u32", 1)[1], address(AddressBase::Symbol(symbol("dynamic")), 0));
    assert_eq!(operands(body, "ld.global.u32", 0)[1], address(AddressBase::Absolute, 4096));
    assert_eq!(operands(body, "ld.global.u32", 1)[1], on_register("%rd2", 15));
    assert_eq!(operands(body, "st.shared::cta.u32", 0)[1], Operand::Integer(32));
    assert_eq!(operands(body, "mov.u64", 0)[1], Operand::Symbol { symbol: symbol("spread"), offset: 4 });
    assert_eq!(operands(body, "mov.f32", 0)[1], Operand::F32((-1f32).to_bits()));
    assert_eq!(operands(body, "mov.f32", 1)[1], Operand::F64((-1.5e-3f64).to_bits()));
    assert_eq!(operands(body, "mov.u32", 0)[1], Operand::Integer(0x8000_0000));
    assert_eq!(operands(body, "mov.u32", 1)[1], Operand::Integer(-5));
    assert_eq!(operands(body, "mov.f32", 2), [r("%v.x"), r("%v.w")]);
    assert!(matches!(&operands(body, "mov.v4.u32", 0)[1], Operand::Vector(tid) if tid.len() == 4));
    assert_eq!(operands(body, "setp.lt.and.u32", 0)[0], Operand::Pair(Box::new([r("p"), r("q")])));
    assert_eq!(operands(body, "setp.lt.and.u32", 0)[3], Operand::NegatedRegister(register_id("p")));
    assert_eq!(operands(body, "shfl.sync.idx.b32", 0)[0], Operand::Pair(Box::new([r("%r1"), Operand::Sink])));
    assert_eq!(operands(body, "vadd.u32.u32.u32", 0)[2], Operand::Part(register_id("%r3"), "h1".into()));
    let Operand::Bracketed(texture) = &operands(body, "tex.2d.v4.f32.f32", 0)[1] else { panic!("brackets") };
    assert_eq!(texture[0], Operand::Symbol { symbol: symbol("image"), offset: 0 });
    let local0 = Symbol::Variable(VariableId(0));
    assert_eq!(operands(body, "mov.u64", 1)[1], Operand::Symbol { symbol: local0.clone(), offset: 12 });
    assert_eq!(operands(body, "ld.shared.f32", 0)[1], address(AddressBase::Symbol(local0), 12));
    assert_eq!(operands(body, "mov.u64", 2)[1], Operand::Symbol { symbol: symbol("tile"), offset: 0 });
    assert_eq!(operands(body, "frobnicate.sideways.u32", 0), [r("%r1"), r("%r2")]);
}

#[test]
fn variables_have_their_bytes() {
    let module = module("operands.ptx");
    let variable = |name: &str| module.variable(name).unwrap_or_else(|| panic!("no {name}"));
    let contents = |name: &str| variable(name).initializer.clone().expect("an initialiser");

    assert!(variable("dynamic").is_unsized && variable("dynamic").size == 0);
    assert_eq!((variable("tile").size, variable("tile").align), (256, 8));
    let weights: Vec<f32> =
        contents("weights").bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    assert_eq!(weights, [1.0, 2.5, -1.0, 1.0]);
    assert_eq!((variable("origin").vector, variable("origin").align, variable("origin").size), (4, 16, 16));
    assert_eq!(contents("origin").bytes.len(), 16);

    assert_eq!(variable("spread").size, 6);
    assert_eq!(contents("spread").bytes, [0, 0, 10, 3, 19, 255]);
    let relocation = |offset, size, symbol: &str, addend, is_generic, mask| Relocation {
        offset,
        size,
        symbol: symbol.into(),
        addend,
        is_generic,
        mask,
    };
    assert_eq!(
        contents("spread").relocations,
        [relocation(0, 1, "weights", 8, true, 0xff), relocation(1, 1, "weights", 0, false, 0xff00)]
    );
    assert_eq!(
        contents("pointers").relocations,
        [relocation(0, 8, "spread", 0, false, u64::MAX), relocation(8, 8, "spread", 4, false, u64::MAX)]
    );
    assert!(variable("counter").is_managed);
    assert_eq!(variable("b").linkage, Linkage::Common);
    assert_eq!((variable("b").size, contents("b").bytes), (6, vec![0xff, 0xff, 0xff, 0x7f]));
}

#[test]
fn the_index_sees_what_the_parser_sees() {
    for name in ["saxpy.ptx", "calls.ptx", "operands.ptx"] {
        let whole = module(name);
        let index = ModuleIndex::new(text(name)).expect(name);
        assert_eq!((index.version(), index.target()), (whole.version, &whole.target[..]));
        for variable in &whole.variables {
            assert_eq!(index.parse_variable(&variable.name).expect("there").as_ref(), Ok(variable));
        }
        for function in &whole.functions {
            let signature = index.function(&function.name).expect("there");
            assert_eq!(signature.params, function.params);
            assert_eq!(signature.body.is_some(), function.body.is_some());
            let part = index.closure(&function.name).expect(name);
            assert_eq!(part.function(&function.name), Some(function));
        }
    }
}

/// Preprocessor lines and those of DWARF may hold anything, braces too.
#[test]
fn the_index_skips_the_lines_that_the_parser_skips() {
    for line in ["#line {", "# }", "@@DWARF }", "@@ {"] {
        let text =
            format!(".version 8.0\n.target sm_80\n.entry f() {{\n{line}\nret; }}\n.entry g() {{ ret; }}");
        let whole = sluice_ptx::parse(text.as_bytes()).expect(line);
        let index = ModuleIndex::new(text.as_bytes()).expect(line);
        assert_eq!((index.functions().len(), whole.functions.len()), (2, 2), "{line}");
    }
}

#[test]
fn a_closure_holds_what_its_root_needs() {
    let index = ModuleIndex::new(text("calls.ptx")).expect("an index");
    let names = |root: &str| {
        let module = index.closure(root).expect("a closure");
        let functions = module.functions.into_iter().map(|function| function.name);
        functions.chain(module.variables.into_iter().map(|variable| variable.name)).collect::<Vec<_>>()
    };
    assert_eq!(names("caller"), ["twice", "by_register", "caller", "trapdoor"].map(Name::from));
    assert_eq!(names("twice"), [Name::from("twice")]);
    assert!(index.closure("table").is_err(), "a variable is no function");
    assert!(index.closure("nothing").is_err());
}
