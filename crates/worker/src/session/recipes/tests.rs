use sluice_cuda::{CUfunction_attribute, CUlimit};
use sluice_wire::{ImageHash, Kind, for_each_command};

use super::*;

fn note<C: Command + Encode>(recipes: &Recipes, command: &C) {
    let header = Header { kind: Kind::Command, device: 0, op: C::OP.0, lane: 1, sequence: 0 };
    let mut payload = Vec::new();
    command.encode(&mut payload);
    recipes.note(header, &payload, |module| module != ModuleId(99));
}

fn ops(recipes: &Recipes) -> Vec<&'static str> {
    recipes.all().iter().map(|recipe| Op(recipe.op).name()).collect()
}

#[test]
fn recipes_go_with_their_objects_and_the_last_setting_stays() {
    use commands::*;
    let recipes = Recipes::default();
    let (module, function, stream) = (ModuleId(7), FunctionId(8), StreamId(1 << 20));
    let limit = |value| cuCtxSetLimit { limit: CUlimit::STACK_SIZE, value };
    let attribute = |value| cuFuncSetAttribute { hfunc: function, attrib: CUfunction_attribute(8), value };
    let load = |module| cuModuleLoadDataEx { module, image: ImageHash([1; 32]), options: Vec::new() };
    note(&recipes, &limit(1));
    note(&recipes, &load(module));
    note(&recipes, &load(ModuleId(99)));
    note(&recipes, &cuModuleGetFunction { hfunc: function, hmod: module, name: c"f" });
    note(&recipes, &attribute(1));
    note(&recipes, &attribute(2));
    note(&recipes, &limit(2));
    note(&recipes, &cuStreamCreateWithPriority { phStream: stream, flags: 1, priority: 0 });
    note(&recipes, &cuStreamSetAttribute { hStream: stream, attr: 1, words: vec![3] });
    note(&recipes, &cuStreamCopyAttributes { dst: StreamId(2 << 20), src: stream });
    note(&recipes, &cuEventCreate { phEvent: EventId(5), Flags: 2 });
    note(&recipes, &cuStreamSynchronize { hStream: stream });
    let all = [
        "cuModuleLoadDataEx",
        "cuModuleGetFunction",
        "cuFuncSetAttribute",
        "cuCtxSetLimit",
        "cuStreamCreateWithPriority",
        "cuStreamSetAttribute",
        "cuStreamSetAttribute",
        "cuEventCreate",
    ];
    assert_eq!(ops(&recipes), all);
    let last = recipes.all().into_iter().find(|recipe| recipe.op == cuFuncSetAttribute::OP.0).unwrap();
    assert_eq!(last.payload[12..], 2_i32.to_le_bytes());
    note(&recipes, &cuStreamDestroy_v2 { hStream: stream });
    note(&recipes, &cuEventDestroy_v2 { hEvent: EventId(5) });
    note(&recipes, &cuModuleUnload { hmod: module });
    assert_eq!(ops(&recipes), ["cuCtxSetLimit", "cuStreamSetAttribute"]);
    note(&recipes, &attribute(3));
    assert_eq!(recipes.all().len(), 2, "the function is gone");
}

/// A command of a family that is not known here could leave something behind that a move loses.
#[test]
fn every_command_is_one_whose_traces_are_known() {
    const FAMILIES: &[&str] = &[
        // Work, its order and its ends; questions.
        "cuCtxSynchronize",
        "cuCtxRecordEvent",
        "cuCtxWaitEvent",
        "cuMemcpy",
        "cuMemset",
        "cuLaunch",
        "cuEventRecord",
        "cuEventQuery",
        "cuEventSynchronize",
        "cuEventElapsedTime",
        "cuStreamWait",
        "cuStreamWrite",
        "cuStreamSynchronize",
        "cuStreamQuery",
        "cuStreamGet",
        "cuOccupancy",
        "cuTensorMap",
        "cuModuleEnumerate",
        "cuModuleGetFunctionCount",
        "cuMemGet",
        "Submitted",
        "EventWatch",
        "NodeData",
        "HostCallDone",
        "Mirror",
        "FillCaptured",
        // Images, which go with the modules, and memory, whose account is the session's.
        "ImagesQuery",
        "ImageData",
        "MemoryCommit",
        "MemoryDecommit",
        "cuMemAlloc",
        "cuMemFree",
        // Objects that keep a session from moving while they are there (`migration/unmovable.rs`).
        "cuGraph",
        "cuStreamBeginCapture",
        "cuStreamEndCapture",
        "cuStreamUpdateCapture",
        "cuUserObject",
        "cuArray",
        "ArrayCreate",
        "cuMipmapped",
        "cuSurf",
        "cuTex",
        "cuModuleGetSurfRef",
        "cuModuleGetTexRef",
        "cuParamSetTexRef",
        "cuMemCreate",
        "cuMemExport",
        "cuMemImport",
        "cuMemMap",
        "cuMemRelease",
        "cuMemSetAccess",
        "cuMemUnmap",
        "PhysicalCreate",
        "cuDev",
        "cuGreen",
        "AllocationExport",
        "EventExport",
        "EventImport",
        "Peer",
        "Live",
    ];
    macro_rules! check {
        ($($name:ident)*) => {
            $(let (name, op) = (stringify!($name), <commands::$name as Command>::OP);
            let is_known = FAMILIES.iter().any(|family| name.starts_with(family));
            assert!(is_known || concerns(op), "{name}: what it leaves behind");)*
        };
    }
    for_each_command!(check);
}
