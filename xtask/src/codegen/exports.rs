//! The symbols of the two libraries that programs load as `libcuda.so.1`.

use std::fmt::Write as _;

use super::{declaration::*, source};

/// The client library: hand-written functions, generated stubs, and the absent ones.
pub(crate) fn client(api: &Declarations) -> String {
    let mut out = source::header("The symbols of the client's `libcuda.so.1`.");
    out += "#![allow(non_snake_case)] // CUDA's names\n\n";
    out += "use std::{ffi::{c_char, c_void}, sync::Once};\n\nuse sluice_cuda::*;\n\nuse crate::{api, generated::stubs, session};\n\n";
    out += DEFAULT_STREAMS;
    for function in &api.functions {
        export(&mut out, function, |function, stream| match &function.class {
            Class::Absent(reason) => absent(function, reason),
            Class::Queued | Class::Waiting => format!(
                "let call = || {{\nlet session = session::enter()?;{SAFE}unsafe {{ stubs::{}(&*session{}) }}\n}};\ncall().into()",
                function.name,
                arguments(function, stream).map(|argument| format!(", {argument}")).collect::<String>(),
            ),
            _ => format!(
                "{SAFE}let result = unsafe {{ api::{}({}) }};\nresult.into()",
                function.name,
                arguments(function, stream)
                    .chain(function.has_hidden_stream().then(|| format!("CUstream::{stream}")))
                    .collect::<Vec<_>>()
                    .join(", ")
            ),
        });
    }
    out + &addresses(api)
}

/// The software GPU as a library of its own: every export forwards to its driver table.
pub(crate) fn softgpu(api: &Declarations) -> String {
    let mut out = source::header("The symbols of the software GPU's own `libcuda.so.1`.");
    out += "#![allow(non_snake_case)] // CUDA's names\n\n";
    out += "use std::{ffi::{c_char, c_void}, sync::Once};\n\nuse sluice_cuda::*;\n\nuse crate::driver;\n\n";
    out += DEFAULT_STREAMS;
    for function in &api.functions {
        export(&mut out, function, |function, stream| {
            let list: Vec<String> = arguments(function, stream).collect();
            match function.name.as_str() {
                "cuGetProcAddress" | "cuGetProcAddress_v2" => {
                    format!("{SAFE} unsafe {{ driver::{}({}) }}", function.name, list.join(", "))
                }
                _ if function.parameters.is_none() => absent(function, "not built yet"),
                name => format!(
                    "match driver::table().{name} {{\n{SAFE}\nSome(function) => unsafe {{ function({}) }},\nNone => {},\n}}",
                    list.join(", "),
                    absent(function, "not built yet")
                ),
            }
        });
    }
    out + &addresses(api)
}

const SAFE: &str = "\n// SAFETY: the arguments are the caller's, who keeps to CUDA's documentation.\n";

const DEFAULT_STREAMS: &str = "\
/// A stream of a function that takes null for the legacy default stream.
fn legacy(stream: CUstream) -> CUstream {
    if stream.is_null() { CUstream::LEGACY } else { stream }
}

/// A stream of a `_ptds` or `_ptsz` function, which takes null for the calling thread's own stream.
fn per_thread(stream: CUstream) -> CUstream {
    if stream.is_null() { CUstream::PER_THREAD } else { stream }
}

";

/// Writes a function and its per-thread variant; `body` gets the name of the stream that null means.
fn export(out: &mut String, function: &Function, body: impl Fn(&Function, &'static str) -> String) {
    let mut one = |name: &str, stream| {
        let _ = writeln!(
            out,
            "#[unsafe(no_mangle)]\npub unsafe extern \"C\" fn {name}({}) -> CUresult {{\nguard(|| {{\n{}\n}})\n}}\n",
            function.c_parameters(),
            body(function, stream)
        );
    };
    one(&function.name, "LEGACY");
    if let Some(name) = function.variant_name() {
        one(&name, "PER_THREAD");
    }
}

/// The parameters passed on, streams with their null replaced where the function knows two meanings of it.
fn arguments<'a>(function: &'a Function, stream: &'static str) -> impl Iterator<Item = String> + 'a {
    let call = if stream == "LEGACY" { "legacy" } else { "per_thread" };
    function.parameters.iter().flatten().map(move |parameter| match &parameter.kind {
        Kind::Use(handle) if handle == "Stream" => format!("{call}({})", parameter.name),
        _ => parameter.name.clone(),
    })
}

fn absent(function: &Function, reason: &str) -> String {
    let unused: String = function
        .parameters
        .iter()
        .flatten()
        .map(|parameter| format!("let _ = {};\n", parameter.name))
        .collect();
    format!("{{ static SAID: Once = Once::new(); {unused} absent({:?}, {reason:?}, &SAID) }}", function.name)
}

/// Where each symbol is, for `cuGetProcAddress`.
fn addresses(api: &Declarations) -> String {
    let mut out = String::from(
        "/// Where a function, or its per-thread variant, is in this library.\n\
         pub(crate) fn address(function: Fn, per_thread: bool) -> *mut c_void {\n\
         let [legacy, own] = ADDRESSES[function as usize];\n\
         (if per_thread { own } else { legacy }) as *mut c_void\n}\n\n\
         type Address = unsafe extern \"C\" fn();\n\n",
    );
    let _ = writeln!(
        out,
        "// Addresses only: whoever calls one knows its prototype.\nstatic ADDRESSES: [[Address; 2]; {}] = {{\n\
         // SAFETY: all pointers to functions have one size, and these are never called through this type.\nunsafe {{\n[\n",
        api.functions.len()
    );
    for function in &api.functions {
        let pointer =
            |name: &str| format!("std::mem::transmute::<{}, Address>({name})", function.pointer_type());
        let own = function.variant_name().unwrap_or_else(|| function.name.clone());
        let _ = writeln!(out, "[{}, {}],", pointer(&function.name), pointer(&own));
    }
    out + "]\n}\n};\n"
}
