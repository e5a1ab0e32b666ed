//! Function ids and the facts about each.

use std::fmt::Write as _;

use super::{declaration::*, source};

pub(crate) fn generate(api: &Declarations) -> String {
    let mut out = source::header(
        "The driver's functions: id, symbol and version of `cuGetProcAddress`, variant, class.",
    );
    out += "use crate::function::{Class, functions};\n\nfunctions! {\n";
    for function in &api.functions {
        let variant = match &function.variant {
            Some(variant) => {
                format!("({:?} {})", function.variant_name().unwrap_or_default(), version(variant.version))
            }
            None => "()".into(),
        };
        let class = match &function.class {
            Class::Local => "Local".into(),
            Class::Queued | Class::CustomQueued => "Queued".into(),
            Class::Waiting | Class::CustomWaiting => "Waiting".into(),
            Class::Via(target) => format!("Via(Fn::{target})"),
            Class::Absent(reason) => format!("Absent({reason:?})"),
        };
        let _ = writeln!(
            out,
            "    {} {:?} {} {variant} Class::{class};",
            function.name,
            function.symbol(),
            version(function.version)
        );
    }
    out + "}\n"
}

fn version(version: Option<u32>) -> String {
    version.map_or("None".into(), |version| format!("(Some({version}))"))
}
