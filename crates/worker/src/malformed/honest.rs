//! What an honest client says: one of everything. Commands that are spoilt begin as these.

use sluice_cuda::*;
use sluice_wire::{
    ArrayId, ArrayMap, ArrayPlace, ArrayShape, ChosenResource, Command, ConditionalNode, CopyNode, CopySide,
    DevicePtr, EventId, ExportToken, FillNode, FunctionId, GREEN_PLACES, GraphExecId, GraphId, GraphNodeId,
    GraphPlace, GreenCtxId, GroupParams, ImageHash, JitOption, KernelNode, LaterArray, LevelPart, MappedPart,
    MipmappedArrayId, ModuleId, NodePlace, NodeWork, Op, PeerToken, PhysicalId, PhysicalPart, PhysicalProp,
    Pitched, PitchedTexels, ResourceDescId, Sampling, StreamId, SurfRefId, TailPart, TexRefId,
    TextureResource, UserObjectId, commands, decode,
};

use super::known::Known;
use super::stage::{RESERVATION, Stage};
use crate::memory::chunks::CHUNK;

const KERNEL: &str = ".version 7.0\n.target sm_75\n.address_size 64\n\
    .visible .global .align 4 .b8 table[64];\n\
    .visible .global .texref image;\n.visible .global .surfref surface;\n\
    .visible .entry entry(.param .u64 a, .param .u32 b) { ret; }\n";
/// Numbers that one call of [`populate`] uses.
const STEP: u64 = 43;
/// Chunks of the reservation in which it works, and how many each time.
const PLACES: u64 = 64;
const CHUNKS: u64 = 8;
/// Where host memory is, from the first of these on.
const ON_HOST: u64 = 4 * CHUNK;

/// Makes one of everything, under new ids, and answers what came out otherwise than it should. In a
/// session that has done nothing else nothing does; later, spoilt commands may have used something
/// up, broken it, or put it where nothing was.
pub(crate) fn populate(stage: &Stage, known: &mut Known, seed: u64) -> Vec<Op> {
    known.tidy(stage);
    known.minted += STEP;
    let id = known.minted;
    let start = RESERVATION + seed % PLACES * CHUNKS * CHUNK;
    let mut say = Honest { stage, known, surprised: Vec::new() };
    streams_and_events(&mut say, id);
    memory(&mut say, id, start);
    copies(&mut say, id, start);
    kernels(&mut say, id);
    graphs(&mut say, id, start);
    captures(&mut say, id, start);
    arrays(&mut say, id, start);
    tiles(&mut say, id);
    references(&mut say, id, start);
    green_contexts(&mut say, id);
    conditionals(&mut say, id);
    let surprised = say.surprised;
    let live = |of, places: &[u64]| places.iter().map(move |place| (of, id + place)).collect::<Vec<_>>();
    let ids = [
        live("StreamId", &[0, 11, 25]),
        live("EventId", &[1, 14]),
        live("PhysicalId", &[2, 37, 41]),
        live("GraphId", &[3, 12, 27, 29]),
        live("ModuleId", &[4]),
        live("FunctionId", &[5]),
        live("GraphNodeId", &[6, 7, 15, 16, 17, 28]),
        live("GraphExecId", &[9]),
        live("UserObjectId", &[10]),
        live("ArrayId", &[18, 20, 35, 38, 42]),
        live("MipmappedArrayId", &[19, 36]),
        live("ResourceDescId", &[23]),
        live("GreenCtxId", &[24]),
        live("TexRefId", &[32, 34]),
        live("SurfRefId", &[33]),
    ];
    for (of, number) in ids.into_iter().flatten() {
        known.add_live(of, number);
    }
    for address in [start, start + CHUNK / 2, start + CHUNK - 4, start + CHUNK, start + 2 * CHUNK] {
        known.add_live("DevicePtr", address);
    }
    surprised
}

struct Honest<'a> {
    stage: &'a Stage,
    known: &'a mut Known,
    surprised: Vec<Op>,
}

impl Honest<'_> {
    /// The answer is empty where there is none.
    fn command<C: Command>(&mut self, command: &C) -> Vec<u8> {
        let mut payload = Vec::new();
        command.encode(&mut payload);
        let answer = self.stage.send(C::OP, &payload);
        self.known.add_said(C::OP, payload);
        answer.unwrap_or_else(|_| {
            self.surprised.push(C::OP);
            Vec::new()
        })
    }
    /// As `command`, of what this driver's memory is not for.
    fn refused_here<C: Command>(&mut self, command: &C) {
        let mut payload = Vec::new();
        command.encode(&mut payload);
        if self.stage.send(C::OP, &payload).is_ok() {
            self.surprised.push(C::OP);
        }
        self.known.add_said(C::OP, payload);
    }
}

fn streams_and_events(say: &mut Honest<'_>, id: u64) {
    let (stream, event, timed) = (StreamId(id), EventId(id + 1), EventId(id + 14));
    for stream in [stream, StreamId(id + 11)] {
        say.command(&commands::cuStreamCreateWithPriority { phStream: stream, flags: 1, priority: 0 });
    }
    say.command(&commands::cuEventCreate { phEvent: event, Flags: 6 });
    say.command(&commands::cuEventCreate { phEvent: timed, Flags: 0 });
    say.command(&commands::cuEventRecord { hEvent: timed, hStream: stream });
    say.command(&commands::cuEventSynchronize { hEvent: timed });
    say.command(&commands::cuEventElapsedTime { hStart: timed, hEnd: timed });
    say.command(&commands::cuStreamWaitEvent { hStream: StreamId(id + 11), hEvent: timed, Flags: 0 });
    // Policy 1 of `CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY`.
    let words = std::iter::once(1).chain([0; 15]).collect();
    say.command(&commands::cuStreamSetAttribute { hStream: stream, attr: 3, words });
    say.command(&commands::cuUserObjectCreate { object: UserObjectId(id + 10), initialRefcount: 3 });
    let token = say.command(&commands::EventExport { event });
    if let Ok(token) = token.try_into() {
        say.command(&commands::EventImport { event: EventId(id + 21), token: ExportToken(token) });
    }
}

fn memory(say: &mut Honest<'_>, id: u64, start: u64) {
    let location = CUmemLocation { kind: CUmemLocationType::DEVICE, id: 0 };
    let prop = PhysicalProp {
        kind: CUmemAllocationType::PINNED,
        handle_types: CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR,
        location,
        compression_type: 0,
        gpu_direct_rdma: 0,
        usage: 0,
    };
    let (handle, mapped) = (PhysicalId(id + 2), DevicePtr(start + 2 * CHUNK));
    say.command(&commands::MemoryCommit {
        address: DevicePtr(start),
        bytes: CHUNK,
        on_host: false,
        by_all: false,
    });
    let address = DevicePtr(start + ON_HOST);
    say.command(&commands::MemoryCommit { address, bytes: CHUNK, on_host: true, by_all: false });
    say.command(&commands::cuMemGetAllocationGranularity {
        prop: prop.clone(),
        option: CUmemAllocationGranularity_flags::MINIMUM,
    });
    say.command(&commands::cuMemCreate { handle, size: CHUNK, prop: prop.clone(), flags: 0 });
    let address = DevicePtr(start + 5 * CHUNK);
    say.command(&commands::MemoryCommitAllowed { address, bytes: CHUNK });
    say.command(&commands::PhysicalCreateAllowed { handle: PhysicalId(id + 41), size: CHUNK, prop });
    say.command(&commands::cuMemMap { ptr: mapped, size: CHUNK, offset: 0, handle, flags: 0 });
    let desc = vec![CUmemAccessDesc { location, flags: CUmemAccess_flags::READWRITE }];
    say.command(&commands::cuMemSetAccess { ptr: mapped, size: CHUNK, desc });
    let token = say.command(&commands::cuMemExportToShareableHandle { handle });
    if let Ok(token) = token.try_into() {
        let handle = PhysicalId(id + 22);
        say.command(&commands::cuMemImportFromShareableHandle { handle, token: ExportToken(token) });
        say.command(&commands::cuMemRelease { handle });
    }
    let passing = DevicePtr(start + 3 * CHUNK);
    say.command(&commands::cuMemMap { ptr: passing, size: CHUNK, offset: 0, handle, flags: 0 });
    say.command(&commands::cuMemUnmap { ptr: passing, size: CHUNK });
    say.command(&commands::AllocationExport { address: DevicePtr(start) });
}

fn copies(say: &mut Honest<'_>, id: u64, start: u64) {
    let (stream, other) = (StreamId(id), DevicePtr(start + CHUNK / 2));
    let (start, on_host) = (DevicePtr(start), DevicePtr(start + ON_HOST));
    say.command(&commands::cuMemcpyHtoDAsync_v2 { dstDevice: start, hStream: stream, srcHost: &[7; 64] });
    say.command(&commands::cuMemcpyDtoH_v2 { ticket: 1, srcDevice: start, ByteCount: 64, hStream: stream });
    say.command(&commands::cuMemcpyDtoDAsync_v2 {
        dstDevice: other,
        srcDevice: start,
        ByteCount: 4096,
        hStream: stream,
    });
    let side = |start| Pitched { start, pitch: 512, height: 8 };
    say.command(&commands::cuMemcpy3DAsync_v2 {
        dst: side(other),
        src: side(start),
        width: 100,
        height: 8,
        depth: 3,
        hStream: stream,
    });
    say.command(&commands::cuMemsetD32Async { dstDevice: start, ui: 7, N: 100, hStream: stream });
    say.command(&commands::cuMemsetD2D16Async {
        dstDevice: start,
        dstPitch: 256,
        us: 7,
        Width: 100,
        Height: 10,
        hStream: stream,
    });
    let (peer, session, token) = (id + 23, 1, PeerToken([1; 32]));
    say.command(&commands::PeerOffer {});
    say.command(&commands::PeerConnect { peer, session, token, node: c"gpu2:7583" });
    for fetches in [false, true] {
        say.command(&commands::PeerCopy {
            peer,
            device: 0,
            fetches,
            there: DevicePtr(1 << 40),
            here: start,
            ByteCount: 4096,
            hStream: stream,
        });
    }
    for beside in [false, true] {
        say.command(&commands::MirrorPush { beside, address: start, bytes: &[9; 100] });
        say.command(&commands::MirrorFetch { beside, address: start, bytes: 100, hashes: vec![0] });
    }
    say.refused_here(&commands::LiveMap { mirror: id as u32, address: start, bytes: 100 });
    say.command(&commands::LiveMap { mirror: id as u32, address: on_host, bytes: 100 });
    let word = sluice_wire::live::Word { mirror: id as u32, index: 3, mask: 1, value: 7 };
    for more in [true, false] {
        say.command(&commands::LivePush { more, words: &sluice_wire::live::tell(&[word])[0] });
    }
    say.command(&commands::EventWatch { event: EventId(id + 1) });
    say.refused_here(&commands::LiveAwait { look: true, waits: false });
}

fn kernels(say: &mut Honest<'_>, id: u64) {
    let text = KERNEL.as_bytes();
    let image = ImageHash(*blake3::hash(text).as_bytes());
    let (module, function, stream) = (ModuleId(id + 4), FunctionId(id + 5), StreamId(id));
    say.command(&commands::ImageData { image, offset: 0, total: text.len() as u64, bytes: text });
    let options = vec![JitOption { option: CUjit_option::MAX_REGISTERS, value: 32 }];
    say.command(&commands::cuModuleLoadDataEx { module, image, options });
    say.command(&commands::cuModuleGetFunction { hfunc: function, hmod: module, name: c"entry" });
    say.command(&commands::FunctionNamed { hfunc: FunctionId(id + 6), hmod: module, name: c"entry" });
    say.command(&commands::cuModuleGetGlobal_v2 { hmod: module, name: c"table" });
    let attrib = CUfunction_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES;
    say.command(&commands::cuFuncSetAttribute { hfunc: function, attrib, value: 1024 });
    let (grid, block) = ([2, 1, 1], [32, 1, 1]);
    say.command(&commands::cuLaunchKernel {
        f: function,
        grid,
        block,
        sharedMemBytes: 0,
        hStream: stream,
        params: &[0; 12],
    });
    let attrs = vec![CUlaunchAttribute {
        id: CUlaunchAttributeID::PRIORITY,
        pad: [0; 4],
        value: CUlaunchAttributeValue { words: [0; 16] },
    }];
    say.command(&commands::cuLaunchKernelEx {
        f: function,
        grid,
        block,
        sharedMemBytes: 0,
        hStream: stream,
        attrs,
        params: &[0; 12],
    });
    for is_callback in [false, true] {
        let ticket = id + 23 + (u64::from(is_callback) << 32);
        say.command(&commands::cuLaunchHostFunc { ticket, hStream: stream, is_callback });
    }
}

fn graphs(say: &mut Honest<'_>, id: u64, start: u64) {
    let (graph, executable, stream) = (GraphId(id + 3), GraphExecId(id + 9), StreamId(id));
    let kernel = KernelNode {
        f: FunctionId(id + 5),
        grid: [2, 1, 1],
        block: [32, 1, 1],
        shared_bytes: 0,
        params: vec![0; 12],
    };
    let fill =
        FillNode { dst: DevicePtr(start), pitch: 0, value: 7, element_bytes: 4, width: 100, height: 1 };
    let side = CopySide::Device(Pitched { start: DevicePtr(start), pitch: 64, height: 1 });
    let copy =
        CopyNode { dst: side, src: CopySide::Host(()), width: 64, height: 1, depth: 1, ticket: id + 24 };
    say.command(&commands::cuGraphCreate { phGraph: graph, flags: 0 });
    for (place, work) in [
        (6, NodeWork::Kernel(kernel)),
        (7, NodeWork::HostCall(id + 8)),
        (15, NodeWork::Fill(fill)),
        (16, NodeWork::Copy(copy)),
        (17, NodeWork::Empty(())),
    ] {
        let place_in = NodePlace::Graph(GraphPlace { graph, dependencies: Vec::new() });
        let node = GraphNodeId(id + place);
        say.command(&commands::cuGraphAddNode_v2 { phGraphNode: node, place: place_in, work });
    }
    say.command(&commands::NodeDataPut { ticket: id + 24, offset: 0, bytes: &[7; 64] });
    let words = vec![0; 16];
    say.command(&commands::cuGraphKernelNodeSetAttribute { hNode: GraphNodeId(id + 6), attr: 8, words });
    say.command(&commands::cuGraphInstantiateWithFlags { phGraphExec: executable, hGraph: graph, flags: 0 });
    say.command(&commands::cuGraphLaunch { hGraphExec: executable, hStream: stream });
    say.command(&commands::cuGraphRetainUserObject {
        graph,
        object: UserObjectId(id + 10),
        count: 1,
        flags: 0,
    });
}

fn captures(say: &mut Honest<'_>, id: u64, start: u64) {
    let stream = StreamId(id + 11);
    say.command(&commands::cuStreamBeginCapture_v2 {
        hStream: stream,
        mode: CUstreamCaptureMode::THREAD_LOCAL,
    });
    say.command(&commands::cuMemsetD8Async { dstDevice: DevicePtr(start), uc: 7, N: 100, hStream: stream });
    say.command(&commands::cuGraphLaunch { hGraphExec: GraphExecId(id + 9), hStream: stream });
    say.command(&commands::cuStreamEndCapture { hStream: stream, phGraph: GraphId(id + 12) });
}

fn green_contexts(say: &mut Honest<'_>, id: u64) {
    let (desc, green, event) = (ResourceDescId(id + 23), GreenCtxId(id + 24), EventId(id + 1));
    let kind = CUdevResourceType::SM;
    let whole = say.command(&commands::cuDeviceGetDevResource { device: 0, kind });
    let Ok(whole) = decode::<commands::cuDeviceGetDevResourceReply>(&whole) else { return };
    let input = whole.resource.id;
    let split =
        commands::cuDevSmResourceSplitByCount { input, nbGroups: 1, has_result: true, flags: 0, minCount: 1 };
    say.command(&split);
    let group = GroupParams { count: 0, coscheduled: 0, preferred: 0, flags: 0, locality: 0 };
    let groups = vec![group];
    say.command(&commands::cuDevSmResourceSplit { input, groups, has_result: true, flags: 0 });
    let resources = vec![ChosenResource { id: input, concurrency: 0, scope: 0 }];
    say.command(&commands::cuDevResourceGenerateDesc { phDesc: desc, resources });
    // The places of one session's take turns, and stay within what a session can have.
    let place = u32::from(GREEN_PLACES) + (id / STEP % 100) as u32;
    say.command(&commands::cuGreenCtxCreate { phCtx: green, place, desc, device: 0, flags: 1 });
    say.command(&commands::cuGreenCtxGetDevResource { hCtx: green, kind });
    let stream = StreamId(id + 25);
    let create =
        commands::cuGreenCtxStreamCreate { phStream: stream, greenCtx: green, flags: 1, priority: 0 };
    say.command(&create);
    say.command(&commands::cuGreenCtxRecordEvent { hCtx: green, hEvent: event });
    say.command(&commands::cuGreenCtxWaitEvent { hCtx: green, hEvent: event });
    let (green, place) = (GreenCtxId(id + 26), u32::from(GREEN_PLACES) + 127);
    say.command(&commands::cuGreenCtxCreate { phCtx: green, place, desc, device: 0, flags: 0 });
    say.command(&commands::cuGreenCtxDestroy { hCtx: green });
}

fn conditionals(say: &mut Honest<'_>, id: u64) {
    let (graph, body) = (GraphId(id + 29), GraphId(id + 27));
    say.command(&commands::cuGraphCreate { phGraph: graph, flags: 0 });
    let handle = commands::cuGraphConditionalHandleCreate { hGraph: graph, defaultLaunchValue: 1, flags: 1 };
    let handle = say.command(&handle);
    let Ok(made) = decode::<commands::cuGraphConditionalHandleCreateReply>(&handle) else { return };
    let work = NodeWork::Conditional(ConditionalNode { handle: made.handle, kind: 0, bodies: vec![body] });
    let place = NodePlace::Graph(GraphPlace { graph, dependencies: vec![] });
    say.command(&commands::cuGraphAddNode_v2 { phGraphNode: GraphNodeId(id + 28), place, work });
}

fn arrays(say: &mut Honest<'_>, id: u64, start: u64) {
    let shape = ArrayShape {
        width: 64,
        height: 32,
        depth: 0,
        format: CUarray_format::FLOAT,
        channels: 1,
        flags: CUDA_ARRAY3D_SURFACE_LDST,
    };
    let (array, mipmapped, stream) = (ArrayId(id + 18), MipmappedArrayId(id + 19), StreamId(id));
    say.command(&commands::cuArray3DCreate_v2 { pHandle: array, shape: shape.clone() });
    say.command(&commands::ArrayCreateAllowed { pHandle: ArrayId(id + 42), shape: shape.clone() });
    say.command(&commands::cuMipmappedArrayCreate { pHandle: mipmapped, shape, levels: 3 });
    say.command(&commands::cuMipmappedArrayGetLevel {
        pLevelArray: ArrayId(id + 20),
        hMipmappedArray: mipmapped,
        level: 1,
    });
    let place = || ArrayPlace { array, x: 0, y: 0, z: 0 };
    let (width, height, depth) = (32, 2, 1);
    say.command(&commands::cuMemcpyHtoAAsync_v2 {
        dst: place(),
        width,
        height,
        depth,
        srcHost: &[7; 64],
        hStream: stream,
    });
    let src = CopySide::Device(Pitched { start: DevicePtr(start), pitch: 64, height: 2 });
    let copy = CopyNode { dst: CopySide::Array(place()), src, width, height, depth, ticket: 0 };
    say.command(&commands::cuMemcpyAtoA_v2 { copy, hStream: stream });
    say.command(&commands::cuMemcpyAtoHAsync_v2 {
        ticket: 2,
        src: place(),
        width,
        height,
        depth,
        hStream: stream,
    });
    let sampling = Sampling {
        address_modes: [CUaddress_mode(1); 3],
        filter: CUfilter_mode(0),
        flags: 0,
        anisotropy_max: 0,
        mipmap_filter: CUfilter_mode(0),
        mipmap_bias: 0.0,
        mipmap_clamp: [0.0; 2],
        border_color: [0.0; 4],
    };
    let resource = TextureResource::Array(array);
    let view = Vec::new();
    say.command(&commands::cuTexObjectCreate { resource: resource.clone(), sampling, view });
    say.command(&commands::cuSurfObjectCreate { resource });
}

/// Arrays whose memory is mapped later.
fn tiles(say: &mut Honest<'_>, id: u64) {
    let (sparse, mipmapped, deferred) = (ArrayId(id + 35), MipmappedArrayId(id + 36), ArrayId(id + 38));
    let (handle, stream) = (PhysicalId(id + 37), StreamId(id));
    let shape = |flags| ArrayShape {
        width: 256,
        height: 200,
        depth: 2,
        format: CUarray_format::FLOAT,
        channels: 1,
        flags: flags | CUDA_ARRAY3D_LAYERED,
    };
    let prop = PhysicalProp {
        kind: CUmemAllocationType::PINNED,
        handle_types: CUmemAllocationHandleType::NONE,
        location: CUmemLocation { kind: CUmemLocationType::DEVICE, id: 0 },
        compression_type: 0,
        gpu_direct_rdma: 0,
        usage: CU_MEM_CREATE_USAGE_TILE_POOL,
    };
    say.command(&commands::cuMemCreate { handle, size: CHUNK, prop, flags: 0 });
    say.command(&commands::cuArray3DCreate_v2 { pHandle: sparse, shape: shape(CUDA_ARRAY3D_SPARSE) });
    say.command(&commands::cuArray3DCreate_v2 {
        pHandle: deferred,
        shape: shape(CUDA_ARRAY3D_DEFERRED_MAPPING),
    });
    let of_levels = |flags| commands::cuMipmappedArrayCreate {
        pHandle: if flags == CUDA_ARRAY3D_SPARSE { mipmapped } else { MipmappedArrayId(id + 39) },
        shape: shape(flags),
        levels: 3,
    };
    say.command(&of_levels(CUDA_ARRAY3D_SPARSE));
    say.command(&commands::cuArrayGetSparseProperties { array: sparse });
    say.command(&commands::cuMipmappedArrayGetSparseProperties { mipmap: mipmapped });
    say.command(&commands::cuArrayGetMemoryRequirements { array: deferred, device: 0 });
    say.command(&of_levels(CUDA_ARRAY3D_DEFERRED_MAPPING));
    say.command(&commands::cuMipmappedArrayGetMemoryRequirements {
        mipmap: MipmappedArrayId(id + 39),
        device: 0,
    });
    say.command(&commands::cuMipmappedArrayDestroy { hMipmappedArray: MipmappedArrayId(id + 39) });
    let memory = |offset| Some(PhysicalPart { handle, offset });
    let level = |level, layer| {
        MappedPart::Level(LevelPart { level, layer, offset: [128, 0, 0], extent: [128, 128, 1] })
    };
    let of = |array, part, memory| ArrayMap { array, part, memory };
    let tail = MappedPart::Tail(TailPart { layer: 1, offset: 0, bytes: TILE_BYTES });
    let maps = vec![
        of(LaterArray::Array(sparse), level(0, 1), memory(TILE_BYTES)),
        of(LaterArray::Mipmapped(mipmapped), level(0, 0), memory(0)),
        of(LaterArray::Mipmapped(mipmapped), tail, memory(0)),
        of(LaterArray::Array(deferred), MappedPart::Whole(()), memory(0)),
        of(LaterArray::Mipmapped(mipmapped), level(0, 0), None),
    ];
    say.command(&commands::cuMemMapArrayAsync { maps, hStream: stream });
    let place = ArrayPlace { array: sparse, x: 512, y: 0, z: 1 };
    let (width, height, depth) = (32, 2, 1);
    let copy = commands::cuMemcpyHtoAAsync_v2 {
        dst: place,
        width,
        height,
        depth,
        srcHost: &[7; 64],
        hStream: stream,
    };
    say.command(&copy);
}

fn references(say: &mut Honest<'_>, id: u64, start: u64) {
    let (module, array, mipmapped) = (ModuleId(id + 4), ArrayId(id + 18), MipmappedArrayId(id + 19));
    let (texture, surface, own) = (TexRefId(id + 32), SurfRefId(id + 33), TexRefId(id + 34));
    say.command(&commands::cuModuleGetTexRef { pTexRef: texture, hmod: module, name: c"image" });
    say.command(&commands::cuModuleGetSurfRef { pSurfRef: surface, hmod: module, name: c"surface" });
    say.command(&commands::cuParamSetTexRef { hfunc: FunctionId(id + 5), texunit: -1, hTexRef: texture });
    say.command(&commands::cuTexRefCreate { pTexRef: TexRefId(id + 35) });
    say.command(&commands::cuTexRefDestroy { hTexRef: TexRefId(id + 35) });
    say.command(&commands::cuTexRefCreate { pTexRef: own });
    say.command(&commands::cuTexRefSetArray { hTexRef: texture, hArray: array, Flags: 1 });
    say.command(&commands::cuTexRefGetArray { hTexRef: texture });
    say.command(&commands::cuSurfRefSetArray { hSurfRef: surface, hArray: array, Flags: 0 });
    say.command(&commands::cuSurfRefGetArray { hSurfRef: surface });
    say.command(&commands::cuTexRefSetMipmappedArray { hTexRef: own, hMipmappedArray: mipmapped, Flags: 1 });
    say.command(&commands::cuTexRefGetMipmappedArray { hTexRef: own });
    say.command(&commands::cuTexRefSetFormat {
        hTexRef: own,
        fmt: CUarray_format::FLOAT,
        NumPackedComponents: 1,
    });
    say.command(&commands::cuTexRefSetAddress_v2 { hTexRef: own, dptr: DevicePtr(start), bytes: 4096 });
    say.command(&commands::cuTexRefGetAddress_v2 { hTexRef: own });
    let (format, channels, width, height, pitch) = (CUarray_format::FLOAT, 1, 32, 4, 256);
    let texels = PitchedTexels { start: DevicePtr(start), format, channels, width, height, pitch };
    say.command(&commands::cuTexRefSetAddress2D_v3 { hTexRef: own, texels });
    sampled(say, own);
}

fn sampled(say: &mut Honest<'_>, id: TexRefId) {
    say.command(&commands::cuTexRefSetAddressMode { hTexRef: id, dim: 1, am: CUaddress_mode::CLAMP });
    say.command(&commands::cuTexRefGetAddressMode { hTexRef: id, dim: 1 });
    say.command(&commands::cuTexRefSetFilterMode { hTexRef: id, fm: CUfilter_mode::LINEAR });
    say.command(&commands::cuTexRefGetFilterMode { hTexRef: id });
    say.command(&commands::cuTexRefSetMipmapFilterMode { hTexRef: id, fm: CUfilter_mode::POINT });
    say.command(&commands::cuTexRefGetMipmapFilterMode { hTexRef: id });
    say.command(&commands::cuTexRefSetMipmapLevelBias { hTexRef: id, bias: 0.5 });
    say.command(&commands::cuTexRefGetMipmapLevelBias { hTexRef: id });
    say.command(&commands::cuTexRefSetMipmapLevelClamp {
        hTexRef: id,
        minMipmapLevelClamp: 0.0,
        maxMipmapLevelClamp: 1.0,
    });
    say.command(&commands::cuTexRefGetMipmapLevelClamp { hTexRef: id });
    say.command(&commands::cuTexRefSetMaxAnisotropy { hTexRef: id, maxAniso: 4 });
    say.command(&commands::cuTexRefGetMaxAnisotropy { hTexRef: id });
    say.command(&commands::cuTexRefSetBorderColor { hTexRef: id, pBorderColor: vec![1.0; 4] });
    say.command(&commands::cuTexRefGetBorderColor { hTexRef: id });
    say.command(&commands::cuTexRefSetFlags { hTexRef: id, Flags: 3 });
    say.command(&commands::cuTexRefGetFlags { hTexRef: id });
    say.command(&commands::cuTexRefGetFormat { hTexRef: id });
}
