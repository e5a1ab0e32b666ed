//! Both ends of the byte exchange: a program that calls every generated function with random
//! arguments, and a driver that answers from the bytes that reach it.

use std::fmt::Write as _;

use super::{declaration::*, source, stubs::extent};

/// `tests/exchange`: the calls.
pub(crate) fn program(api: &Declarations) -> String {
    let mut out =
        source::header("Every function that travels by generated code, called with random arguments.");
    out +=
        "#![allow(non_snake_case, unused_mut)] // CUDA's names; a call without arguments sends nothing\n\n";
    out +=
        "use sluice_cuda::*;\nuse sluice_wire::{product, rows};\n\nuse crate::program::{Program, Sent};\n\n";
    let functions = || api.functions.iter().filter(|f| is_exchanged(f));
    out += "type Call = fn(&mut Program);\n\npub(crate) const FUNCTIONS: &[(&str, Call)] = &[\n";
    functions().for_each(|f| _ = writeln!(out, "({:?}, {}),", f.name, f.name));
    out += "];\n\n";
    functions().for_each(|f| call(&mut out, f));
    out
}

/// Whether a function takes part by generated code. Handles of these kinds are made by functions
/// that are not exchanged.
pub(crate) fn is_exchanged(function: &Function) -> bool {
    const BY_HAND: &[&str] =
        &["UserObject", "GreenCtx", "ResourceDesc", "Array", "MipmappedArray", "SurfRef"];
    let by_hand = |kind: &Kind| match kind {
        Kind::Use(of) | Kind::Del(of) | Kind::New(of) | Kind::InArray(of, _) => {
            BY_HAND.contains(&of.as_str())
        }
        _ => false,
    };
    function.class.is_generated() && !function.parameters.iter().flatten().any(|p| by_hand(&p.kind))
}

/// Functions whose entry points are by hand (all files of `tests/exchange-driver` but `generated`).
const BY_HAND: &[&str] = &[
    "cuArray3DCreate_v2",
    "cuArrayDestroy",
    "cuArrayGetMemoryRequirements",
    "cuArrayGetSparseProperties",
    "cuCtxRecordEvent",
    "cuCtxSetLimit",
    "cuCtxWaitEvent",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuStreamWaitEvent",
    "cuEventSynchronize",
    "cuFuncGetAttribute",
    "cuFuncSetAttribute",
    "cuGraphAddBatchMemOpNode",
    "cuGraphAddChildGraphNode",
    "cuGraphAddEmptyNode",
    "cuGraphAddEventRecordNode",
    "cuGraphAddEventWaitNode",
    "cuGraphAddKernelNode_v2",
    "cuGraphAddMemcpyNode",
    "cuGraphAddMemsetNode",
    "cuGraphBatchMemOpNodeGetParams",
    "cuGraphBatchMemOpNodeSetParams",
    "cuGraphChildGraphNodeGetGraph",
    "cuGraphClone",
    "cuGraphDestroy",
    "cuGraphDestroyNode",
    "cuGraphEventRecordNodeGetEvent",
    "cuGraphEventWaitNodeGetEvent",
    "cuGraphExecBatchMemOpNodeSetParams",
    "cuGraphExecChildGraphNodeSetParams",
    "cuGraphExecDestroy",
    "cuGraphExecKernelNodeSetParams_v2",
    "cuGraphExecMemcpyNodeSetParams",
    "cuGraphExecMemsetNodeSetParams",
    "cuGraphExecUpdate_v2",
    "cuGraphGetEdges_v2",
    "cuGraphGetNodes",
    "cuGraphGetRootNodes",
    "cuGraphInstantiateWithFlags",
    "cuGraphKernelNodeGetAttribute",
    "cuGraphKernelNodeGetParams_v2",
    "cuGraphKernelNodeSetAttribute",
    "cuGraphKernelNodeSetParams_v2",
    "cuGraphMemcpyNodeGetParams",
    "cuGraphMemcpyNodeSetParams",
    "cuGraphMemsetNodeGetParams",
    "cuGraphMemsetNodeSetParams",
    "cuGraphNodeFindInClone",
    "cuGraphNodeGetDependencies_v2",
    "cuGraphNodeGetDependentNodes_v2",
    "cuGraphNodeGetType",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cuMemMapArrayAsync",
    "cuMemcpy3DAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyHtoD_v2",
    "cuMipmappedArrayCreate",
    "cuMipmappedArrayDestroy",
    "cuMipmappedArrayGetLevel",
    "cuMipmappedArrayGetMemoryRequirements",
    "cuMipmappedArrayGetSparseProperties",
    "cuModuleGetFunction",
    "cuModuleGetGlobal_v2",
    "cuModuleGetSurfRef",
    "cuModuleGetTexRef",
    "cuModuleLoadDataEx",
    "cuModuleUnload",
    "cuOccupancyMaxActiveClusters",
    "cuOccupancyMaxPotentialClusterSize",
    "cuStreamBeginCaptureToGraph",
    "cuStreamCreateWithPriority",
    "cuStreamDestroy_v2",
    "cuStreamEndCapture",
    "cuStreamGetAttribute",
    "cuStreamGetCaptureInfo_v3",
    "cuStreamSetAttribute",
    "cuStreamUpdateCaptureDependencies_v2",
    "cuSurfObjectCreate",
    "cuSurfObjectDestroy",
    "cuSurfRefGetArray",
    "cuSurfRefSetArray",
    "cuTexObjectCreate",
    "cuTexObjectDestroy",
    "cuTexRefGetArray",
    "cuTexRefGetBorderColor",
    "cuTexRefGetMipmappedArray",
    "cuTexRefSetAddress2D_v3",
    "cuTexRefSetArray",
    "cuTexRefSetMipmappedArray",
];

/// One function. A question whose answer would be known to the client is asked after work that no
/// call has waited for.
fn call(out: &mut String, function: &Function) {
    let name = &function.name;
    let parameters: Vec<&Parameter> = function.parameters.iter().flatten().collect();
    let _ = writeln!(out, "fn {name}(p: &mut Program) {{\nlet mut sent = Sent::new({name:?});");
    let lengths: Vec<String> = parameters.iter().filter_map(|p| length_of(&p.kind)).collect();
    // Values first: the sizes of the rest are among them.
    for p in &parameters {
        if let Kind::Value(of) = &p.kind {
            let is_length = lengths.iter().any(|length| names(length).any(|word| word == p.name));
            let draw = match p.limit {
                Some(Limit::Range(first, last)) => format!("p.within({first}, {last}) as {of}"),
                Some(Limit::Bits(0)) => "0".into(),
                Some(Limit::Bits(bits)) => format!("p.value::<{of}>() & {bits:#x}"),
                // Rows do not overlap, however wide they are drawn, and consist of whole elements.
                None if is_pitch(&parameters, &p.name) => format!("4 * p.within(16, 20) as {of}"),
                None if is_length => format!("p.small() as {of}"),
                None => "p.value()".into(),
            };
            let _ = writeln!(out, "let {}: {of} = {draw};", p.name);
        }
    }
    let (mut arguments, mut after, mut outputs) = (Vec::new(), String::new(), Vec::new());
    for p in &parameters {
        let name = &p.name;
        let _ = match &p.kind {
            Kind::Value(_) => writeln!(out, "sent.value({name});"),
            Kind::Use(of) => writeln!(out, "let {name} = {}(p.handle(&mut sent, {of:?}));", c(of)),
            Kind::Del(of) => writeln!(out, "let {name} = {}(p.take(&mut sent, {of:?}));", c(of)),
            Kind::New(of) => {
                let _ = writeln!(after, "p.minted({of:?}, {name}.0);");
                writeln!(out, "let mut {name} = {}::NULL;", c(of))
            }
            Kind::Address(length) => {
                writeln!(
                    out,
                    "let {name} = p.address(&mut sent, {});",
                    extent(length, |n| format!("{n} as u64"))
                )
            }
            Kind::In(of) => writeln!(out, "let {name}: {of} = p.value();\nsent.value({name});"),
            Kind::InArray(of, length) => {
                let count = extent(length, |n| format!("{n} as u64"));
                match handle_type(of) {
                    Some(c) => {
                        writeln!(
                            out,
                            "let {name}: Vec<_> = (0..{count}).map(|_| {c}(p.handle(&mut sent, {of:?}))).collect();"
                        )
                    }
                    None => writeln!(
                        out,
                        "let {name}: Vec<{of}> = (0..{count}).map(|_| p.value()).collect();\nsent.values(&{name});"
                    ),
                }
            }
            Kind::InOut(of) => {
                outputs.push(format!("bytes_of(&{name})"));
                writeln!(out, "let mut {name}: {of} = p.value();\nsent.value({name});")
            }
            Kind::Out { of, .. } => {
                outputs.push(format!("bytes_of(&{name})"));
                writeln!(out, "let mut {name}: {of} = p.value();")
            }
            other => unreachable!("{}: {other:?} has no generated stub", function.name),
        };
        arguments.push(match &p.kind {
            Kind::Value(_) | Kind::Use(_) | Kind::Del(_) | Kind::Address(_) => name.clone(),
            Kind::In(_) => format!("&{name}"),
            Kind::InArray(..) => format!("{name}.as_ptr()"),
            _ => format!("&mut {name}"),
        });
    }
    match name.as_str() {
        "cuEventQuery" | "cuEventSynchronize" => out.push_str("p.record(hEvent);\n"),
        "cuStreamQuery" => out.push_str("let event = CUevent(p.pick(\"Event\").0);\np.record(event);\n"),
        _ => {}
    }
    let _ = writeln!(
        out,
        "// SAFETY: arrays and places are as long as the list says.\n\
         let result = unsafe {{ p.cuda.{name}.expect(\"exported\")({}) }};",
        arguments.join(", ")
    );
    let outputs = outputs.join(", ").replace("bytes_of", "crate::program::bytes_of");
    let _ =
        writeln!(out, "if p.check(sent, {}, result, &[{outputs}]) {{\n{after}}}\n}}\n", may_fail(function));
}

/// `tests/exchange-driver`: the answers.
pub(crate) fn driver(api: &Declarations) -> String {
    let mut out =
        source::header("A driver whose generated functions answer from their arguments; the others record.");
    out += "#![allow(non_snake_case, non_upper_case_globals)] // CUDA's names\n";
    out += "#![allow(unused_mut)] // a call without arguments has nothing to record\n\n";
    out += "use std::ffi::{c_char, c_void};\n\nuse sluice_cuda::*;\nuse sluice_wire::{product, rows};\n\nuse crate::{call::Call, table};\n\n";
    for function in api
        .functions
        .iter()
        .filter(|f| f.parameters.is_some() && !matches!(f.class, Class::Absent(_)))
        .filter(|f| !BY_HAND.contains(&f.name.as_str()))
    {
        // The worker waits by these itself.
        let waits_for_work = matches!(function.name.as_str(), "cuCtxSynchronize" | "cuStreamSynchronize");
        match is_exchanged(function) && !waits_for_work {
            true => answer(&mut out, function),
            false => forward(&mut out, function),
        }
    }
    out
}

fn signature(out: &mut String, function: &Function) {
    let parameters: Vec<String> =
        function.parameters.iter().flatten().map(|p| format!("{}: {}", p.name, p.c_type())).collect();
    let _ = writeln!(
        out,
        "#[unsafe(no_mangle)]\npub(crate) unsafe extern \"C\" fn {}({}) -> CUresult {{",
        function.name,
        parameters.join(", ")
    );
}

fn forward(out: &mut String, function: &Function) {
    signature(out, function);
    forward_call(out, function, "unsafe { entry({}) }");
    *out += "\n}\n\n";
}

/// The call of the driver behind, with its arguments for the braces in `call`.
fn forward_call(out: &mut String, function: &Function, call: &str) {
    let arguments: Vec<&str> = function.parameters.iter().flatten().map(|p| p.name.as_str()).collect();
    let call = call.replace("entry({})", &format!("entry({})", arguments.join(", ")));
    let name = &function.name;
    let _ = write!(
        out,
        "match table().{name} {{\n// SAFETY: the arguments are the caller's.\nSome(entry) => {call},\nNone => CUresult::NOT_SUPPORTED,\n}}"
    );
}

fn answer(out: &mut String, function: &Function) {
    signature(out, function);
    let _ = writeln!(out, "let mut call = Call::new({:?});", function.name);
    let mut writes = String::new();
    for p in function.parameters.iter().flatten() {
        let name = &p.name;
        let _ = match &p.kind {
            Kind::Value(_) => writeln!(out, "call.value({name});"),
            Kind::Use(of) | Kind::Del(of) => writeln!(out, "call.handle({of:?}, {name}.0);"),
            Kind::New(of) => {
                writeln!(
                    writes,
                    "// SAFETY: the caller's place for a handle.\nunsafe {{ answer.mint({of:?}, {name}.cast()) }};"
                )
            }
            Kind::Address(length) => {
                writeln!(out, "call.address({name}, {});", extent(length, |n| format!("{n} as u64")))
            }
            Kind::In(_) => {
                writeln!(out, "// SAFETY: the caller's value.\ncall.value(unsafe {{ {name}.read() }});")
            }
            Kind::InArray(of, length) => {
                let count = extent(length, |n| format!("{n} as u64"));
                match handle_type(of) {
                    Some(_) => writeln!(
                        out,
                        "// SAFETY: the caller's array.\nunsafe {{ call.handles({of:?}, {name}.cast(), {count}) }};"
                    ),
                    None => writeln!(
                        out,
                        "// SAFETY: the caller's array.\nunsafe {{ call.values({name}, {count}) }};"
                    ),
                }
            }
            Kind::InOut(_) => {
                let _ =
                    writeln!(writes, "// SAFETY: the caller's place.\nunsafe {{ answer.write({name}) }};");
                writeln!(out, "// SAFETY: the caller's value.\ncall.value(unsafe {{ {name}.read() }});")
            }
            Kind::Out { .. } => {
                writeln!(writes, "// SAFETY: the caller's place.\nunsafe {{ answer.write({name}) }};")
            }
            other => unreachable!("{}: {other:?} has no generated stub", function.name),
        };
    }
    let waits = may_fail(function);
    if ["Copies", "Memsets"].contains(&function.section.as_str()) {
        // What changes memory happens: its contents are compared, too.
        let _ = writeln!(out, "call.answer({waits});");
        forward_call(out, function, "unsafe { entry({}) }");
    } else {
        let binding = if writes.is_empty() { "let answer" } else { "let mut answer" };
        let _ = writeln!(out, "{binding} = call.answer({waits});\n{writes}answer.result()");
    }
    *out += "\n}\n\n";
}

/// Whether the driver may refuse a call, which its arguments decide. One that says nothing would
/// always have the same answer: what it makes is made.
fn may_fail(function: &Function) -> bool {
    let is_new = |parameter: &Parameter| matches!(parameter.kind, Kind::New(_));
    let mut parameters = function.parameters.iter().flatten().peekable();
    function.class.waits() && (parameters.peek().is_none() || !parameters.all(is_new))
}

/// Whether a parameter says how far rows are apart.
fn is_pitch(parameters: &[&Parameter], name: &str) -> bool {
    let names = |length: &Length| matches!(length, Length::Rows { pitch, .. } if pitch == &[name.to_owned()]);
    parameters.iter().any(|p| matches!(&p.kind, Kind::Address(length) if names(length)))
}

fn c(handle: &str) -> &str {
    handle_type(handle).unwrap_or(handle)
}

/// The length of an argument as text, for the names in it.
fn length_of(kind: &Kind) -> Option<String> {
    match kind {
        Kind::Address(length) | Kind::InArray(_, length) => Some(extent(length, str::to_owned)),
        _ => None,
    }
}

fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
}
