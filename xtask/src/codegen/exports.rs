//! The symbols of the two libraries that programs load as `libcuda.so.1`.
//!
//! Both files are lists of rows for a macro that stands at their top: `how EXPORT FUNCTION
//! (parameters) (arguments);`, in the client's library with `(HOME)` before the arguments: the
//! argument that says where the call belongs, if one does.

use std::fmt::Write as _;

use super::{declaration::*, source};

/// The client library: hand-written functions, generated stubs, and the absent ones.
pub(crate) fn client(api: &Declarations) -> String {
    let mut out = source::header("The symbols of the client's `libcuda.so.1`.");
    out += "#![allow(non_snake_case, non_upper_case_globals)] // CUDA's names\n\n";
    out += "use std::{ffi::{c_char, c_void}, sync::Once};\n\nuse sluice_cuda::*;\n\nuse crate::{abi::call::entered, abi::evidence, api, entry::permission, generated::stubs, link::refusals::told};\nuse crate::session::enter;\nuse crate::entry::routing::{Home, routed};\n\n";
    out += CLIENT_ROWS;
    out += DEFAULT_STREAMS;
    out += MARKER;
    rows(&mut out, api, Some(home), |function| match function.class {
        Class::Absent(_) => "absent",
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
    rows(&mut out, api, None, |function| match function.name.as_str() {
        // These answer with addresses in this library.
        "cuGetProcAddress" | "cuGetProcAddress_v2" => "hand",
        _ if function.parameters.is_none() => "absent",
        _ => "table",
    });
    out
}

type Home = fn(&Function) -> String;

/// Writes a row for each export, then the table of their addresses.
fn rows(out: &mut String, api: &Declarations, home: Option<Home>, how: impl Fn(&Function) -> &'static str) {
    *out += "rows! {\n";
    for function in &api.functions {
        let how = how(function);
        let home = home.map_or(String::new(), |home| home(function));
        row(out, function, (how, &home), &function.name, "LEGACY");
        if let Some(name) = function.variant_name() {
            row(out, function, (how, &home), &name, "PER_THREAD");
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

fn row(out: &mut String, function: &Function, (how, home): (&str, &str), export: &str, stream: &str) {
    let parameters = function.c_parameters();
    let last = match (&function.class, how) {
        (Class::Absent(reason), "absent") => format!("{reason:?}"),
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
    let _ = writeln!(out, "    {how} {export} {} ({parameters}) {home}{last};", function.name);
}

/// Handles by which a call finds its node, a stream before all others.
const HOMES: &[&str] = &[
    "CUevent",
    "CUmodule",
    "CUgraph",
    "CUgraphExec",
    "CUgraphNode",
    "CUarray",
    "CUmipmappedArray",
    "CUmemGenericAllocationHandle",
    "CUmemoryPool",
    "CUuserObject",
];

/// The argument that says to whose node a call goes, and in which context it is made where the
/// calling thread has none: its stream, else its first other handle, else its function, else its
/// first address.
fn home(function: &Function) -> String {
    let parameters: Vec<_> = function.parameters.iter().flatten().map(|p| (p, p.c_type())).collect();
    let first =
        |is_it: &dyn Fn(&str) -> bool| parameters.iter().find(|(_, of)| is_it(of)).map(|(p, _)| &p.name);
    let handle = first(&|of| of == "CUstream").or_else(|| first(&|of| HOMES.contains(&of)));
    if let Some(handle) = handle {
        return format!("(Some(Home::Handle({handle}.0))) ");
    }
    if let Some(function) = first(&|of| of == "CUfunction") {
        return format!("(Some(Home::Function({function}.0))) ");
    }
    match first(&|of| of == "CUdeviceptr") {
        Some(address) => format!("(Some(Home::Address({address}))) "),
        None => "(None) ".into(),
    }
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
/// Makes a call of the program, if it may be made.
fn made(function: Fn, call: impl FnOnce() -> Result<(), CUresult>) -> CUresult {
    permission::check(function).and_then(|()| told(function, call)).into()
}

macro_rules! rows {
    ($($how:ident $export:ident $function:ident ($($parameter:ident: $of:ty),*) $home:tt $last:tt;)*) => {
        $(rows!(@$how $export $function ($($parameter: $of),*) $home $last);)*
    };
    (@hand $export:ident $function:ident ($($parameter:ident: $of:ty),*) ($home:expr) ($($argument:expr),*)) => {
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern \"C\" fn $export($($parameter: $of),*) -> CUresult {
            // SAFETY: the arguments are the caller's, who keeps to CUDA's documentation.
            let call = || unsafe { api::$function($($argument),*) };
            evidence::note(Fn::$function, entered(|| made(Fn::$function, || routed($home, call))))
        }
    };
    (@travels $export:ident $function:ident ($($parameter:ident: $of:ty),*) ($home:expr) ($($argument:expr),*)) => {
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern \"C\" fn $export($($parameter: $of),*) -> CUresult {
            // SAFETY: the arguments are the caller's, who keeps to CUDA's documentation.
            let call = || enter().and_then(|session| unsafe { stubs::$function(session $(, $argument)*) });
            evidence::note(Fn::$function, entered(|| made(Fn::$function, || routed($home, call))))
        }
    };
    (@absent $export:ident $function:ident ($($parameter:ident: $of:ty),*) $home:tt $reason:literal) => {
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
