//! The client's side of the functions that only travel.

use std::fmt::Write as _;

use super::{declaration::*, source};

pub(crate) fn generate(api: &Declarations) -> String {
    let mut out = source::header(
        "Client stubs of the functions that only travel: check, translate handles, send, and write what came back.",
    );
    out += "#![allow(non_snake_case)] // CUDA's names\n\n";
    out += "use sluice_cuda::*;\nuse sluice_wire::{commands, product, rows};\n\nuse crate::session::issue::{About, Issue, list, wanted};\n\n";
    for function in api.functions.iter().filter(|f| f.class.is_generated()) {
        stub(&mut out, function);
    }
    out
}

fn stub(out: &mut String, function: &Function) {
    let parameters: Vec<&Parameter> = function.parameters.iter().flatten().collect();
    let _ = writeln!(
        out,
        "pub(crate) unsafe fn {}<S: Issue>(session: &S{}) -> Result<(), CUresult> {{",
        function.name,
        parameters.iter().map(|p| format!(", {}: {}", p.name, p.c_type())).collect::<String>()
    );
    for p in &parameters {
        if let Some(undefined) = p.is_undefined(&p.name) {
            let _ = writeln!(out, "if {undefined} {{ return Err(CUresult::INVALID_VALUE); }}");
        }
    }
    if function.is_guarded {
        let arguments: Vec<&str> = parameters.iter().map(|parameter| &*parameter.name).collect();
        let _ = writeln!(
            out,
            "if crate::entry::guards::{}({})?.is_break() {{ return Ok(()); }}",
            function.name,
            arguments.join(", ")
        );
    }
    let mut fields = Vec::new();
    let mut after = Vec::new();
    for parameter in parameters {
        let name = &parameter.name;
        match &parameter.kind {
            Kind::Value(of) if of == "usize" => fields.push(format!("{name}: {name} as u64")),
            Kind::Value(_) => fields.push(name.clone()),
            Kind::Use(_) => fields.push(format!("{name}: session.find({name})?")),
            Kind::Del(_) => {
                fields.push(format!("{name}: session.find({name})?"));
                after.push(format!("session.forget({name});"));
            }
            Kind::New(handle) => {
                let _ = writeln!(
                    out,
                    "wanted({name})?;\nlet minted = session.mint::<{}>()?;",
                    handle_type(handle).unwrap_or(handle)
                );
                fields.push(format!("{name}: session.find(minted)?"));
                after.push(format!("{SAFE} unsafe {{ {name}.write_unaligned(minted) }};"));
            }
            Kind::InArray(of, length) => {
                let count = extent(length, |name| format!("{name} as u64"));
                let _ = writeln!(out, "{LIST}let {name} = unsafe {{ list({name}, {count}) }}?;");
                let _ = match handle_type(of) {
                    Some(_) => writeln!(
                        out,
                        "let {name} = {name}.iter().map(|handle| session.find(*handle)).collect::<Result<_, _>>()?;"
                    ),
                    None => writeln!(out, "let {name} = {name}.to_vec();"),
                };
                fields.push(name.clone());
            }
            Kind::Address(length) => {
                fields.push(format!(
                    "{name}: session.range({name}, {})?",
                    extent(length, |name| format!("{name} as u64"))
                ));
            }
            Kind::Out { of, optional } => {
                if !optional {
                    let _ = writeln!(out, "wanted({name})?;");
                }
                let value = format!("answer.{name}{}", if of == "usize" { " as usize" } else { "" });
                let write = format!("{SAFE} unsafe {{ {name}.write_unaligned({value}) }};");
                after.push(if *optional { format!("if !{name}.is_null() {{ {write} }}") } else { write });
            }
            Kind::InOut(_) => {
                let _ = writeln!(out, "wanted({name})?;");
                fields.push(format!("{name}: {INOUT} unsafe {{ {name}.read_unaligned() }}"));
                after.push(format!("{SAFE} unsafe {{ {name}.write_unaligned(answer.{name}) }};"));
            }
            other => unreachable!("{}: {other:?} needs a stub by hand", function.name),
        }
    }
    let send = match function.class.waits() {
        true if function.is_constant => format!("ask({}, ", about(function)),
        true => "call(".to_string(),
        false => "queue(".to_string(),
    };
    let command = format!("&commands::{} {{ {} }}", function.name, fields.join(", "));
    let has_answer = !function.fields().replies.is_empty();
    let minted = function.parameters.iter().flatten().any(|p| matches!(p.kind, Kind::New(_)));
    let sent = format!(
        "session.{send}{command}{})",
        if has_answer {
            ", |answer| answer"
        } else if function.class.waits() {
            ", |()| ()"
        } else {
            ""
        }
    );
    let undo = if minted { ".inspect_err(|_| session.forget(minted))" } else { "" };
    let binding = if has_answer { "let answer = " } else { "" };
    let _ = writeln!(out, "{binding}{sent}{undo}?;");
    for line in after {
        out.push_str(&line);
        out.push('\n');
    }
    out.push_str("Ok(())\n}\n\n");
}

/// On what a constant answer depends beside its arguments.
fn about(function: &Function) -> String {
    match function.parameters_of(&Kind::Use("Function".into())).next() {
        Some(parameter) => format!("About::Function({})", parameter.name),
        None => "About::Nothing".to_string(),
    }
}

const LIST: &str = "// SAFETY: null is refused, else it points to so many, as CUDA's documentation says.\n";
const INOUT: &str = "// SAFETY: not null, and the caller's to be read.\n";
const SAFE: &str = "// SAFETY: not null, and the caller's to be written.\n";

/// A length as an expression, in bytes; `name` turns a parameter into an expression.
pub(crate) fn extent(length: &Length, name: impl Fn(&str) -> String) -> String {
    let factor = |factor: &String| match factor.parse::<u64>() {
        Ok(number) => number.to_string(),
        Err(_) => name(factor),
    };
    let product = |factors: &Product| match factors.as_slice() {
        [one] => factor(one),
        many => format!("product(&[{}])", many.iter().map(factor).collect::<Vec<_>>().join(", ")),
    };
    match length {
        Length::Product(factors) => product(factors),
        Length::Less(of, number) => format!("({}).saturating_sub({number})", name(of)),
        Length::Rows { count, length, pitch } => {
            format!("rows({}, {}, {})", product(count), product(length), product(pitch))
        }
    }
}
