//! The worker's side: from a message to a call of the driver table.

use std::fmt::Write as _;

use super::{declaration::*, source, stubs::extent};

pub(crate) fn generate(api: &Declarations) -> String {
    let mut out = source::header("The worker's dispatch: from a message to a call of the driver.");
    out += "#![allow(non_snake_case)] // CUDA's names\n\n";
    out += "use sluice_cuda::*;\nuse sluice_wire::{Decode, Encode, Op, Reader, Target, commands, product, rows};\n\n";
    out += "use crate::session::checks::aligned;\nuse crate::session::execute::{Execute, Refusal, finished};\n\n";
    customs(&mut out, api);
    out += "/// Decodes one command, executes it, and appends what its answer carries to `reply`.\n";
    out += "pub fn dispatch<S: Execute + Custom>(session: &S, op: Op, payload: &[u8], reply: &mut Vec<u8>) -> Result<(), Refusal> {\n";
    out += "let mut reader = Reader::new(payload);\nmatch op.target() {\n";
    for function in api.functions.iter().filter(|f| f.class.travels()) {
        let _ = writeln!(out, "Some(Target::Driver(Fn::{})) => {{", function.name);
        if function.class.is_generated() && !function.is_kept {
            call(&mut out, function);
        } else {
            custom(&mut out, &function.name, &limits(function), !function.fields().replies.is_empty());
        }
        out += "}\n";
    }
    for (index, message) in api.messages.iter().enumerate() {
        let _ = writeln!(out, "Some(Target::Own({index})) => {{");
        custom(&mut out, &message.name, "", !message.fields.replies.is_empty());
        out += "}\n";
    }
    out + "_ => Err(Refusal::UnknownOp(op)),\n}\n}\n"
}

/// The trait of what is executed by hand; a method that a session does not have refuses.
fn customs(out: &mut String, api: &Declarations) {
    *out += "/// The commands that are executed by hand. Answers are appended to `reply` by their own `encode`.\npub trait Custom {\n";
    let functions =
        api.functions.iter().filter(|f| f.class.travels() && (f.is_kept || !f.class.is_generated()));
    let names = functions.map(|f| (f.name.as_str(), f.class.waits(), f.fields())).chain(
        api.messages.iter().map(|m| {
            (
                m.name.as_str(),
                m.waits,
                Fields { sends: m.fields.sends.clone(), replies: m.fields.replies.clone() },
            )
        }),
    );
    for (name, _, fields) in names {
        let borrowed = fields.sends.iter().any(|(_, of)| source::wire_type(of).contains("'a"));
        let lifetime = if borrowed { "<'_>" } else { "" };
        let (reply, last) = match fields.replies.is_empty() {
            true => ("", "let _ = command;"),
            false => (", reply: &mut Vec<u8>", "let _ = (command, reply);"),
        };
        let _ = writeln!(
            out,
            "fn {name}(&self, command: commands::{name}{lifetime}{reply}) -> Result<(), CUresult> {{\n{last}\nErr(CUresult::NOT_SUPPORTED)\n}}"
        );
    }
    *out += "}\n\n";
}

fn custom(out: &mut String, name: &str, checks: &str, answers: bool) {
    let _ = writeln!(out, "let command = commands::{name}::decode(&mut reader)?;\nreader.end()?;\n{checks}");
    let reply = if answers { ", reply" } else { "" };
    let _ = writeln!(out, "Ok(session.{name}(command{reply})?)");
}

/// Refuses numbers that the API does not define.
fn limits(function: &Function) -> String {
    let mut out = String::new();
    // Only what travels as itself is a field of the message.
    for parameter in function.parameters.iter().flatten().filter(|_| function.message.is_none()) {
        if let Some(undefined) = parameter.is_undefined(&format!("command.{}", parameter.name)) {
            let _ = writeln!(out, "if {undefined} {{\nreturn Err(CUresult::INVALID_VALUE.into());\n}}");
        }
    }
    out
}

/// Bytes of what an address points to many of.
fn word_bytes(length: &Length) -> u64 {
    let of = |product: &Product| product.last().and_then(|factor| factor.parse().ok()).unwrap_or(1);
    match length {
        Length::Product(product) => of(product),
        Length::Rows { length, .. } => of(length),
        Length::Less(..) => 1,
    }
}

fn call(out: &mut String, function: &Function) {
    let name = &function.name;
    let parameters: Vec<&Parameter> = function.parameters.iter().flatten().collect();
    let _ = writeln!(out, "let command = commands::{name}::decode(&mut reader)?;\nreader.end()?;");
    let _ = writeln!(out, "let function = session.table().{name}.ok_or(CUresult::NOT_SUPPORTED)?;");
    let mut arguments = Vec::new();
    let mut after = Vec::new();
    *out += &limits(function);
    // Fills go where the memory is.
    let is_fill = name.starts_with("cuMemset");
    for parameter in &parameters {
        let field = format!("command.{}", parameter.name);
        let local = &parameter.name;
        arguments.push(match &parameter.kind {
            Kind::Value(of) if of == "usize" => format!("{field} as usize"),
            Kind::Value(_) => field,
            Kind::Use(_) if is_fill => local.clone(),
            Kind::Use(_) => format!("session.find({field})?"),
            Kind::Del(_) => format!("session.remove({field})?"),
            Kind::New(handle) => {
                let c = handle_type(handle).unwrap_or(handle);
                let _ = writeln!(out, "session.vacant({field})?;\nlet mut {local} = {c}::NULL;");
                after.push(format!("session.insert({field}, {local})?;"));
                format!("&mut {local}")
            }
            Kind::Address(length) => {
                let bytes = extent(length, |name| format!("command.{name}"));
                let address = match word_bytes(length) {
                    1 => field,
                    word => format!("aligned({field}, {word})?"),
                };
                if is_fill {
                    let _ = writeln!(out, "let bytes = {bytes};\nlet {local} = session.range({address}, bytes)?;");
                    local.clone()
                } else {
                    format!("session.range({address}, {bytes})?")
                }
            }
            Kind::InArray(of, length) => {
                let count = extent(length, |name| format!("command.{name}"));
                let _ = writeln!(
                    out,
                    "if {field}.len() as u64 != ({count}) as u64 {{\nreturn Err(CUresult::INVALID_VALUE.into());\n}}"
                );
                match handle_type(of) {
                    Some(c) => {
                        let _ = writeln!(
                            out,
                            "let {local}: Vec<{c}> = {field}.iter().map(|id| session.find(*id)).collect::<Result<_, _>>()?;"
                        );
                        format!("{local}.as_ptr()")
                    }
                    None => format!("{field}.as_ptr()"),
                }
            }
            Kind::Out { of, .. } => {
                let _ = writeln!(out, "let mut {local}: {of} = Default::default();");
                format!("&mut {local}")
            }
            Kind::InOut(_) => {
                let _ = writeln!(out, "let mut {local} = {field};");
                format!("&mut {local}")
            }
            other => unreachable!("{name}: {other:?} is executed by hand"),
        });
    }
    let call = format!(
        "// SAFETY: handles and addresses were checked against the session, pointers are to locals.\nfinished(unsafe {{ function({}) }})",
        arguments.join(", ")
    );
    let _ = match is_fill {
        true => writeln!(
            out,
            "session.near((dstDevice, bytes), session.find(command.hStream)?, |hStream| {{\n{call}\n}})?;"
        ),
        false => writeln!(out, "{call}?;"),
    };
    for line in after {
        let _ = writeln!(out, "{line}");
    }
    let replies: Vec<String> = parameters
        .iter()
        .filter_map(|p| match &p.kind {
            Kind::Out { of, .. } if of == "usize" => Some(format!("{0}: {0} as u64", p.name)),
            Kind::Out { .. } | Kind::InOut(_) => Some(p.name.clone()),
            _ => None,
        })
        .collect();
    if !replies.is_empty() {
        let _ = writeln!(out, "commands::{name}Reply {{ {} }}.encode(reply);", replies.join(", "));
    }
    *out += "Ok(())\n";
}
