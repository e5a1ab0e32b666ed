//! The symbols of the two libraries that programs load as `libcuda.so.1`.
//!
//! Both files are lists of rows for a macro that stands at their top: `how EXPORT FUNCTION (parameters) (arguments);`.

use std::fmt::Write as _;

use super::{declaration::*, source};

/// The client library: hand-written functions, generated stubs, and the absent ones.
pub(crate) fn client(api: &Declarations) -> String {
    let mut out = source::header("The symbols of the client's `libcuda.so.1`.");
    out += "#![allow(non_snake_case, non_upper_case_globals)] // CUDA's names\n\n";
    out += "use std::{ffi::{c_char, c_void}, sync::Once};\n\nuse sluice_cuda::*;\n\nuse crate::{api, evidence, generated::stubs, session};\n\n";
    out += CLIENT_ROWS;
    out += DEFAULT_STREAMS;
    out += MARKER;
    rows(&mut out, api, |function| match function.class {
        Class::Absent(_) | Class::Refused(_) => "absent",
        Class::Queued | Class::Waiting => "travels",
        _ => "hand",
    });
    out
}

/// The software GPU as a library of its own: every export forwards to its driver table.
pub(crate) fn softgpu(api: &Declarations) -> String {
    let mut out = source::header("The symbols of the software GPU's own `libcuda.so.1`.");
    out += "#![allow(non_snake_case)] // CUDA's names\n\n";
    out += "use std::{ffi::{c_char, c_void}, sync::Once};\n\nuse sluice_cuda::*;\n\nuse crate::driver;\n\n";
    out += SOFTGPU_ROWS;
    out += DEFAULT_STREAMS;
    rows(&mut out, api, |function| match function.name.as_str() {
        // These answer with addresses in this library.
        "cuGetProcAddress" | "cuGetProcAddress_v2" => "hand",
        _ if function.parameters.is_none() => "absent",
        _ => "table",
    });
    out
}

/// Writes a row for each export, then the table of their addresses.
fn rows(out: &mut String, api: &Declarations, how: impl Fn(&Function) -> &'static str) {
    *out += "rows! {\n";
    for function in &api.functions {
        let how = how(function);
        row(out, function, how, &function.name, "LEGACY");
        if let Some(name) = function.variant_name() {
            row(out, function, how, &name, "PER_THREAD");
        }
    }
    *out += "}\n\naddresses! {\n";
    for function in &api.functions {
        let _ = writeln!(
            out,
            "    {} {},",
            function.name,
            function.variant_name().unwrap_or(function.name.clone())
        );
    }
    *out += "}\n";
}

fn row(out: &mut String, function: &Function, how: &str, export: &str, stream: &str) {
    let parameters = function.c_parameters();
    let last = match (&function.class, how) {
        (Class::Absent(reason) | Class::Refused(reason), "absent") => format!("{reason:?}"),
        (_, "absent") => "\"not built yet\"".into(),
        _ => {
            let mut arguments: Vec<String> =
                function.parameters.iter().flatten().map(|p| argument(p, stream)).collect();
            if how == "hand" && function.has_hidden_stream() {
                arguments.push(format!("CUstream::{stream}"));
            }
            format!("({})", arguments.join(", "))
        }
    };
    let _ = writeln!(out, "    {how} {export} {} ({parameters}) {last};", function.name);
}

/// A parameter passed on; a null stream is replaced by the one that it means to this export.
fn argument(parameter: &Parameter, stream: &str) -> String {
    match &parameter.kind {
        Kind::Use(handle) if handle == "Stream" && stream == "LEGACY" => {
            format!("legacy({})", parameter.name)
        }
        Kind::Use(handle) if handle == "Stream" => format!("per_thread({})", parameter.name),
        _ => parameter.name.clone(),
    }
}

const CLIENT_ROWS: &str = "\
macro_rules! rows {
    ($($how:ident $export:ident $function:ident ($($parameter:ident: $of:ty),*) $last:tt;)*) => {
        $(rows!(@$how $export $function ($($parameter: $of),*) $last);)*
    };
    (@hand $export:ident $function:ident ($($parameter:ident: $of:ty),*) ($($argument:expr),*)) => {
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern \"C\" fn $export($($parameter: $of),*) -> CUresult {
            // SAFETY: the arguments are the caller's, who keeps to CUDA's documentation.
            evidence::note(Fn::$function, guard(|| unsafe { api::$function($($argument),*) }.into()))
        }
    };
    (@travels $export:ident $function:ident ($($parameter:ident: $of:ty),*) ($($argument:expr),*)) => {
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern \"C\" fn $export($($parameter: $of),*) -> CUresult {
            let call = |session: &session::Session| {
                // SAFETY: the arguments are the caller's, who keeps to CUDA's documentation.
                unsafe { stubs::$function(session $(, $argument)*) }
            };
            evidence::note(Fn::$function, guard(|| session::enter().and_then(|session| call(&session)).into()))
        }
    };
    (@absent $export:ident $function:ident ($($parameter:ident: $of:ty),*) $reason:literal) => {
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern \"C\" fn $export($(_: $of),*) -> CUresult {
            static SAID: Once = Once::new();
            guard(|| absent(stringify!($export), $reason, &SAID))
        }
    };
}

";

const MARKER: &str = "\
/// By this a worker knows that the library is no driver; see `sluice_cuda::CLIENT_MARKER`.
#[unsafe(no_mangle)]
static sluice_client_marker: u8 = 1;

";

const SOFTGPU_ROWS: &str = "\
macro_rules! rows {
    ($($how:ident $export:ident $function:ident ($($parameter:ident: $of:ty),*) $last:tt;)*) => {
        $(rows!(@$how $export $function ($($parameter: $of),*) $last);)*
    };
    (@hand $export:ident $function:ident ($($parameter:ident: $of:ty),*) ($($argument:expr),*)) => {
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern \"C\" fn $export($($parameter: $of),*) -> CUresult {
            // SAFETY: the arguments are the caller's, who keeps to CUDA's documentation.
            guard(|| unsafe { driver::$function($($argument),*) })
        }
    };
    (@table $export:ident $function:ident ($($parameter:ident: $of:ty),*) ($($argument:expr),*)) => {
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern \"C\" fn $export($($parameter: $of),*) -> CUresult {
            static SAID: Once = Once::new();
            guard(|| match driver::table().$function {
                // SAFETY: the arguments are the caller's, who keeps to CUDA's documentation.
                Some(function) => unsafe { function($($argument),*) },
                None => absent(stringify!($export), \"not built yet\", &SAID),
            })
        }
    };
    (@absent $export:ident $function:ident ($($parameter:ident: $of:ty),*) $reason:literal) => {
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern \"C\" fn $export($(_: $of),*) -> CUresult {
            static SAID: Once = Once::new();
            guard(|| absent(stringify!($export), $reason, &SAID))
        }
    };
}

";

const DEFAULT_STREAMS: &str = "\
macro_rules! addresses {
    ($($legacy:ident $own:ident,)*) => {
        /// Each function and its per-thread variant (itself where it has none), in the order of `Fn`.
        static ADDRESSES: [[Address; 2]; Fn::COUNT] =
            [$([Address($legacy as *const c_void), Address($own as *const c_void)]),*];
    };
}

/// A function in this library, for programs that know its prototype.
struct Address(*const c_void);

// SAFETY: code is there for all threads.
unsafe impl Sync for Address {}

/// Where a function, or its per-thread variant, is in this library.
pub(crate) fn address(function: Fn, per_thread: bool) -> *mut c_void {
    let [legacy, own] = &ADDRESSES[function as usize];
    if per_thread { own.0.cast_mut() } else { legacy.0.cast_mut() }
}

/// A stream of a function that takes null for the legacy default stream.
fn legacy(stream: CUstream) -> CUstream {
    if stream.is_null() { CUstream::LEGACY } else { stream }
}

/// A stream of a `_ptds` or `_ptsz` function, which takes null for the calling thread's own stream.
fn per_thread(stream: CUstream) -> CUstream {
    if stream.is_null() { CUstream::PER_THREAD } else { stream }
}

";
