//! The kinds of commands, by which the worker queues and executes them.

use std::fmt::Write as _;

use super::{declaration::*, source};

pub(crate) fn generate(api: &Declarations) -> String {
    let mut out = source::header("The kind of each command.");
    out += "use sluice_wire::{Command, Op, commands};\n\nuse crate::pipeline::kinds::{Effect, Kind};\n\n";
    out += "/// Each command with its kind, in the order of the declarations.\npub(crate) const KINDS: &[(Op, Kind)] = &[\n";
    let functions = api.functions.iter().filter_map(|f| Some((f.name.as_str(), f.kind?)));
    for (name, kind) in functions.chain(api.messages.iter().map(|m| (m.name.as_str(), m.kind))) {
        let (effect, waits) = (kind.effect, kind.is_transient.is_none());
        let is_transient = kind.is_transient == Some(true);
        let _ = writeln!(
            out,
            "(commands::{name}::OP, Kind {{ effect: Effect::{effect:?}, waits: {waits}, is_transient: {is_transient} }}),"
        );
    }
    out + "];\n"
}
