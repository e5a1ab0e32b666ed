//! The messages of a session with their codec.

use std::fmt::Write as _;

use super::{declaration::*, source};

pub(crate) fn generate(api: &Declarations) -> String {
    let mut out =
        source::header("One message per driver function that travels, and the answers to those that wait.");
    out += "#![allow(non_camel_case_types, non_snake_case)] // CUDA's names\n\n";
    out += "use std::ffi::CStr;\n\nuse sluice_cuda::*;\n\nuse crate::{codec::message, command::{Command, Op}, graph::*, handshake::PeerToken, array::*, types::*};\n\n";
    let mut names = Vec::new();
    for function in api.functions.iter().filter(|f| f.class.travels()) {
        let op = format!("Op::of(Fn::{})", function.name);
        command(&mut out, &function.name, &function.fields(), function.class.waits(), &op);
        names.push(function.name.as_str());
    }
    for (index, own) in api.messages.iter().enumerate() {
        command(&mut out, &own.name, &own.fields, own.waits, &format!("Op::own({index})"));
        names.push(&own.name);
    }
    let own: Vec<&str> = api.messages.iter().map(|message| message.name.as_str()).collect();
    let _ = writeln!(
        out,
        "/// The session's own messages, in the order of their numbers.\npub(crate) const OWN: &[&str] = &{own:?};\n"
    );
    let _ = writeln!(
        out,
        "/// Calls a macro with the name of every message.\n#[macro_export]\nmacro_rules! for_each_command {{"
    );
    let _ = writeln!(out, "($call:ident) => {{ $call! {{ {} }} }};\n}}", names.join(" "));
    out
}

fn command(out: &mut String, name: &str, fields: &Fields, waits: bool, op: &str) {
    let lifetime = structure(out, name, &fields.sends);
    let reply = if fields.replies.is_empty() {
        "()".to_string()
    } else {
        let reply = format!("{name}Reply");
        let lifetime = structure(out, &reply, &fields.replies);
        format!("{reply}{lifetime}")
    };
    let _ = writeln!(
        out,
        "impl Command for {name}{} {{\nconst OP: Op = {op};\nconst WAITS: bool = {waits};\ntype Reply<'a> = {reply};\n}}\n",
        lifetime.replace("'a", "'_")
    );
}

/// Writes one structure; says with which lifetime.
fn structure(out: &mut String, name: &str, fields: &[(String, String)]) -> &'static str {
    let types: Vec<String> = fields.iter().map(|(_, of)| source::wire_type(of)).collect();
    let lifetime = if types.iter().any(|of| of.contains("'a")) { "<'a>" } else { "" };
    let list: Vec<String> =
        fields.iter().zip(&types).map(|((name, _), of)| format!("{name}: {of}")).collect();
    let _ = writeln!(out, "message! {{\npub struct {name}{lifetime} {{ {} }}\n}}\n", list.join(", "));
    lifetime
}
