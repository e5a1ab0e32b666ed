//! The worker's side: from a message to a call of the driver table.

use std::fmt::Write as _;

use super::{declaration::*, source, stubs::extent};

pub(crate) fn generate(api: &Declarations) -> String {
    let mut out = source::header("The worker's dispatch: from a message to a call of the driver.");
    out += "#![allow(non_snake_case)] // CUDA's names\n\n";
    out += "use sluice_cuda::*;\nuse sluice_wire::{Decode, Encode, Op, Reader, Target, commands, product, rows};\n\n";
    out += "use crate::memory::budget::Claim;\nuse crate::session::Session;\nuse crate::session::checks::aligned;\n";
    out += "use crate::session::execute::{Execute, Refusal, finished};\n\n";
    customs(&mut out, api);
    out += "/// Decodes one command, executes it, and appends what its answer carries to `reply`.\n";
    out += "pub(crate) fn dispatch(session: &Session, op: Op, payload: &[u8], reply: &mut Vec<u8>) -> Result<(), Refusal> {\n";
    out += "let mut reader = Reader::new(payload);\nmatch op.target() {\n";
    for function in api.functions.iter().filter(|f| f.class.travels()) {
        let _ = writeln!(out, "Some(Target::Driver(Fn::{})) => {{", function.name);
        match function.has_executor() {
            true => {
                execute(&mut out, &function.name, &limits(function), &function.fields(), &function.delegate)
            }
            false => call(&mut out, function),
        }
        out += "}\n";
    }
    for (index, message) in api.messages.iter().enumerate() {
        let _ = writeln!(out, "Some(Target::Own({index})) => {{");
        execute(&mut out, &message.name, "", &message.fields, &message.delegate);
        out += "}\n";
    }
    out + "_ => Err(Refusal::UnknownOp(op)),\n}\n}\n"
}

/// The trait of what is executed by hand.
fn customs(out: &mut String, api: &Declarations) {
    *out += "/// The commands that are executed by hand. Answers are appended to `reply` by their own `encode`.\npub(crate) trait Custom {\n";
    let functions = api.functions.iter().filter(|f| f.has_executor() && f.delegate.is_none());
    let messages = api.messages.iter().filter(|m| m.delegate.is_none());
    let functions = functions.map(|f| (f.name.as_str(), f.fields()));
    for (name, fields) in functions.chain(messages.map(|m| (m.name.as_str(), m.fields.clone()))) {
        let borrowed = fields.sends.iter().any(|(_, of)| source::wire_type(of).contains("'a"));
        let lifetime = if borrowed { "<'_>" } else { "" };
        let reply = if fields.replies.is_empty() { "" } else { ", reply: &mut Vec<u8>" };
        let _ = writeln!(
            out,
            "fn {name}(&self, command: commands::{name}{lifetime}{reply}) -> Result<(), CUresult>;"
        );
    }
    *out += "}\n\n";
}

/// Executes a command by a function of the worker: its delegate, or the method of its name.
fn execute(out: &mut String, name: &str, checks: &str, fields: &Fields, delegate: &Option<Delegate>) {
    let _ = writeln!(out, "let command = commands::{name}::decode(&mut reader)?;\nreader.end()?;\n{checks}");
    let answers = !fields.replies.is_empty();
    let Some(delegate) = delegate else {
        let reply = if answers { ", reply" } else { "" };
        let _ = writeln!(out, "Ok(session.{name}(command{reply})?)");
        return;
    };
    let call = call_of(delegate);
    if !answers || delegate.replies() {
        let _ = writeln!(out, "Ok({call}?)");
        return;
    }
    let names: Vec<&str> = fields.replies.iter().map(|(name, _)| name.as_str()).collect();
    let names = names.join(", ");
    let pattern = if fields.replies.len() == 1 { names.clone() } else { format!("({names})") };
    let _ =
        writeln!(out, "let {pattern} = {call}?;\ncommands::{name}Reply {{ {names} }}.encode(reply);\nOk(())");
}

/// The call of a delegate.
fn call_of(delegate: &Delegate) -> String {
    let argument = |argument: &String| match argument.as_str() {
        plain @ ("command" | "&command" | "reply") => plain.to_string(),
        path if path.contains("::") => path.to_string(),
        field => match field.strip_prefix('&') {
            Some(field) => format!("&command.{field}"),
            None => format!("command.{field}"),
        },
    };
    let arguments: Vec<String> = delegate.arguments.iter().map(argument).collect();
    match delegate.path.strip_prefix("Session::") {
        Some(method) => format!("session.{method}({})", arguments.join(", ")),
        None => {
            let session = ["session".to_string()].into_iter();
            let arguments: Vec<String> = session.chain(arguments).collect();
            format!("crate::{}({})", delegate.path, arguments.join(", "))
        }
    }
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
    // Fills go where the memory is: they are the generated work that has an address.
    let is_work = function.kind.is_some_and(|kind| kind.effect == Effect::Work);
    let is_fill = is_work && parameters.iter().any(|p| matches!(p.kind, Kind::Address(_)));
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
