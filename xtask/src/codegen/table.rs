//! The driver table: one optional function pointer per function.

use std::fmt::Write as _;

use super::{declaration::*, source};

pub(crate) fn generate(api: &Declarations) -> String {
    let mut out = source::header("The prototypes of the driver's functions.");
    out += "use std::ffi::{c_char, c_void};\n\nuse crate::{driver::driver_table, *};\n\ndriver_table! {\n";
    for function in api.functions.iter().filter(|f| f.parameters.is_some()) {
        let _ = writeln!(out, "    {}({});", function.name, function.c_parameters());
    }
    out + "}\n"
}
