//! `tests/hostile-driver`: a wrapper around every function of a driver that checks each argument as
//! far as the declarations say what it is, and then as the crate's own `ByHand` says.

use std::fmt::Write as _;

use super::{declaration::*, source, stubs::extent};

/// Functions of hand-written parts of the worker that the driver behind may lack: their arguments
/// are checked all the same.
const ALWAYS: &[&str] = &[
    "cuGraphAddBatchMemOpNode",
    "cuGraphBatchMemOpNodeGetParams",
    "cuGraphBatchMemOpNodeSetParams",
    "cuGraphExecBatchMemOpNodeSetParams",
];

pub(crate) fn generate(api: &Declarations) -> String {
    let mut out = source::header(
        "A driver that follows every pointer and lets nothing by that the API does not define.",
    );
    out += "#![allow(non_snake_case, unused_variables)] // CUDA's names; most functions need no check by hand\n\n";
    out += "use std::ffi::{c_char, c_void};\n\nuse sluice_cuda::*;\nuse sluice_wire::{product, rows};\n\n";
    out += "use crate::{by_hand::ByHand, call::{Call, Violation, checked}, inner};\n\n";
    let functions = || {
        let is_there = |f: &&Function| !matches!(f.class, Class::Absent(_));
        api.functions.iter().filter(is_there).filter(|f| f.parameters.is_some())
    };
    let mut sections: Vec<&str> = functions().map(|f| f.section.as_str()).collect();
    sections.dedup();
    for section in sections {
        let _ = writeln!(out, "/// Checks by hand, after those of the declarations: {section}.");
        let _ = writeln!(out, "pub(crate) trait {} {{", trait_name(section));
        functions().filter(|f| f.section == section).for_each(|f| check(&mut out, f));
        out += "}\n\n";
    }
    out += "/// The functions of the driver behind, and those that a worker can ask for.\n\
            pub(crate) fn table() -> DriverTable {\nDriverTable {\n";
    for function in functions() {
        let name = &function.name;
        let always = function.class.travels() || ALWAYS.contains(&name.as_str());
        let _ = match always {
            true => writeln!(out, "{name}: Some({name}),"),
            false => writeln!(out, "{name}: if inner().{name}.is_some() {{ Some({name}) }} else {{ None }},"),
        };
    }
    out += "..DriverTable::EMPTY\n}\n}\n\n";
    functions().for_each(|f| wrapper(&mut out, f));
    out
}

/// The title of a section, as the name of a trait.
fn trait_name(section: &str) -> String {
    let words = section.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(|word| word[..1].to_uppercase() + &word[1..]).collect()
}

/// One that is not overridden refuses pointers that are not described.
fn check(out: &mut String, function: &Function) {
    let parameters = typed(function);
    let is_opaque = |p: &Parameter| {
        matches!(&p.kind, Kind::Raw(_)) || matches!(&p.kind, Kind::Value(of) if of == "CUdeviceptr")
    };
    let body = match function.parameters.iter().flatten().any(is_opaque) {
        true => "call.undescribed()",
        false => "Ok(())",
    };
    let _ = writeln!(
        out,
        "fn {}(call: &Call{parameters}) -> Result<(), Violation> {{\n{body}\n}}",
        function.name
    );
}

fn wrapper(out: &mut String, function: &Function) {
    let name = &function.name;
    let parameters: Vec<&Parameter> = function.parameters.iter().flatten().collect();
    let list = function.c_parameters();
    let arguments: String = parameters.iter().map(|p| format!(", {}", p.name)).collect();
    let _ =
        writeln!(out, "unsafe extern \"C\" fn {name}({list}) -> CUresult {{\nlet check = |call: &Call| {{");
    for p in &parameters {
        let name = &p.name;
        let length = |length| extent(length, |n| format!("{n} as u64"));
        let _ = match &p.kind {
            Kind::Use(_) | Kind::Del(_) => writeln!(out, "call.live({name})?;"),
            Kind::New(_) | Kind::Out { optional: false, .. } => writeln!(out, "call.out({name})?;"),
            Kind::Out { optional: true, .. } => writeln!(out, "call.room({name}, 1)?;"),
            Kind::Address(bytes) => writeln!(out, "call.device({name}, {})?;", length(bytes)),
            Kind::In(_) => writeln!(out, "call.read({name})?;"),
            Kind::InOut(_) => writeln!(out, "call.read({name}.cast_const())?;"),
            Kind::InArray(of, count) => match handle_type(of) {
                Some(_) => writeln!(out, "call.live_list({name}, {})?;", length(count)),
                None => writeln!(out, "call.list({name}, {})?;", length(count)),
            },
            Kind::InBytes(count) => writeln!(out, "call.list({name}.cast::<u8>(), {})?;", length(count)),
            Kind::OutBytes(count) => writeln!(out, "call.out_list({name}.cast::<u8>(), {})?;", length(count)),
            Kind::CStr => writeln!(out, "call.text({name})?;"),
            Kind::Value(_) => match &p.limit {
                Some(Limit::Bits(bits)) => writeln!(out, "call.bits({name} as u64, {bits:#x})?;"),
                Some(Limit::Range(first, last)) => {
                    writeln!(out, "call.within({name} as u64, {first}..={last})?;")
                }
                None => Ok(()),
            },
            Kind::Raw(_) => Ok(()),
        };
    }
    let forwarded: Vec<&str> = parameters.iter().map(|p| p.name.as_str()).collect();
    let _ = writeln!(
        out,
        "ByHand::{name}(call{arguments})\n}};\n\
         let forward = || {{\nlet entry = inner().{name}?;\n\
         // SAFETY: the arguments are the caller's, and have been checked.\nSome(unsafe {{ entry({}) }})\n}};\n\
         checked({name:?}, check, forward)\n}}\n",
        forwarded.join(", ")
    );
}

/// The parameters after another one.
fn typed(function: &Function) -> String {
    function.parameters.iter().flatten().map(|p| format!(", {}: {}", p.name, p.c_type())).collect()
}
