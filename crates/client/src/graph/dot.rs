//! `cuGraphDebugDotPrint`: a graph as a picture for Graphviz, in a file of this machine.

use std::ffi::{CStr, c_char};
use std::fmt::Write as _;

use sluice_cuda::*;
use sluice_wire::{GraphNodeId, NodeWork, commands};

use crate::session::issue::Issue;
use crate::session::{self, Session};

/// The work of a node in a few words.
fn label(work: &NodeWork) -> String {
    match work {
        NodeWork::Kernel(kernel) => {
            let mut name = std::ptr::null();
            let function = CUfunction(kernel.f.0 as usize);
            // SAFETY: the place is a local; the name stays as long as the function's module.
            let named = unsafe { crate::module::cuFuncGetName(&mut name, function) };
            let name = match named {
                // SAFETY: the name is a C string of the module's.
                Ok(()) => unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned(),
                Err(_) => "kernel".into(),
            };
            format!("{name}\\n{:?} x {:?}", kernel.grid, kernel.block)
        }
        NodeWork::Copy(copy) => format!("memcpy\\n{} x {} x {}", copy.width, copy.height, copy.depth),
        NodeWork::Fill(fill) => format!("memset\\n{} of {}", fill.width * fill.height, fill.element_bytes),
        other => other.kind().name().unwrap_or("node").to_lowercase(),
    }
}

fn draw(session: &Session, graph: CUgraph) -> Result<String, CUresult> {
    let hGraph = session.find(graph)?;
    let nodes = session.call(&commands::cuGraphGetNodes { hGraph }, |answer| answer.nodes)?;
    let edges = session.call(&commands::cuGraphGetEdges_v2 { hGraph }, |answer| answer)?;
    let mut text = String::from("digraph graph_1 {\n");
    for hNode in nodes {
        let work = session.call(&commands::cuGraphNodeGetParams { hNode }, |answer| answer.work)?;
        let _ = writeln!(text, "  \"{}\" [label=\"{}\"];", name(hNode), label(&work).replace('"', "'"));
    }
    for (from, to) in edges.from_.iter().zip(&edges.to_) {
        let _ = writeln!(text, "  \"{}\" -> \"{}\";", name(*from), name(*to));
    }
    text.push_str("}\n");
    Ok(text)
}

fn name(node: GraphNodeId) -> String {
    format!("node_{:x}", node.0)
}

/// CUDA Driver API, section "Graph Management". Flags choose details, of which there is one set
/// here.
pub(crate) unsafe fn cuGraphDebugDotPrint(
    hGraph: CUgraph,
    path: *const c_char,
    _flags: u32,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    if path.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let text = draw(session, hGraph)?;
    // SAFETY: not null, and the program passes a path.
    let path = unsafe { CStr::from_ptr(path) };
    let path = path.to_str().map_err(|_| CUresult::INVALID_VALUE)?;
    std::fs::write(path, text).map_err(|_| CUresult::OPERATING_SYSTEM)
}
