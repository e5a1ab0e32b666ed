//! Nodes that copy.

use sluice_cuda::*;
use sluice_wire::{ArrayPlace, CopyNode, CopySide, DevicePtr, Pitched};

use super::Target;
use crate::custom::described;
use crate::graphs::{Insertion, driver_nodes, inner_graph};
use crate::session::Session;
use crate::session::checks;
use crate::session::execute::Execute;
use crate::session::execute::Range;

/// The device memory on the sides of a copy.
pub(crate) fn copy_ranges(copy: &CopyNode) -> Result<Vec<Range>, CUresult> {
    let extent = [copy.width, copy.height, copy.depth];
    let range = |side: &CopySide| match side {
        CopySide::Device(place) => Some(checks::span(place, extent).map(|bytes| (place.start.0, bytes))),
        CopySide::Host(()) | CopySide::Array(_) => None,
    };
    [&copy.dst, &copy.src].into_iter().filter_map(range).collect()
}

impl Session {
    pub(super) fn add_copy(&self, place: &Insertion, copy: &CopyNode) -> Result<CUgraphNode, CUresult> {
        let (before, count) = (place.dependencies.as_ptr(), place.dependencies.len());
        let mut node = CUgraphNode::NULL;
        if let (CopySide::Host(()), CopySide::Host(())) = (&copy.dst, &copy.src) {
            let add = self.table.cuGraphAddHostNode.ok_or(CUresult::NOT_SUPPORTED)?;
            let host = self.host_node(Some(place.graph), copy.ticket)?;
            // SAFETY: graph and nodes are live, and the driver writes to a local.
            unsafe { add(&mut node, place.graph, before, count, &host) }.ok()?;
            return Ok(node);
        }
        if copy.is_across() {
            let add = self.table.cuGraphAddChildGraphNode.ok_or(CUresult::NOT_SUPPORTED)?;
            let pair = self.pair(Some(place.graph), copy)?;
            // SAFETY: as above; the driver copies the pair.
            let added = unsafe { add(&mut node, place.graph, before, count, pair) }.ok();
            self.destroy_pair(pair)?;
            return added.map(|()| node);
        }
        let add = self.table.cuGraphAddMemcpyNode.ok_or(CUresult::NOT_SUPPORTED)?;
        let context = self.context_for(&copy_ranges(copy)?)?;
        let copy = self.describe_copy(copy, std::ptr::null_mut())?;
        // SAFETY: as above; both sides are the session's memory.
        unsafe { add(&mut node, place.graph, before, count, &copy, context) }.ok()?;
        Ok(node)
    }

    pub(super) fn change_copy(
        &self,
        target: Target,
        node: CUgraphNode,
        copy: &CopyNode,
    ) -> Result<(), CUresult> {
        let was = self.graphs.work(node);
        let was_across = was.is_some();
        // A copy that starts or stops being the client's would be another kind of node to the
        // driver.
        if was_across != copy.is_across() {
            return Err(CUresult::NOT_SUPPORTED);
        }
        let context = self.context_for(&copy_ranges(copy)?)?;
        match target {
            Target::Graph(_) if !was_across => {
                let set = self.table.cuGraphMemcpyNodeSetParams.ok_or(CUresult::NOT_SUPPORTED)?;
                // SAFETY: the node is live, and both sides are the session's memory.
                unsafe { set(node, &self.describe_copy(copy, std::ptr::null_mut())?) }.ok()
            }
            Target::Executable(executable) if !was_across => {
                let set = self.table.cuGraphExecMemcpyNodeSetParams.ok_or(CUresult::NOT_SUPPORTED)?;
                // SAFETY: as above.
                unsafe { set(executable, node, &self.describe_copy(copy, std::ptr::null_mut())?, context) }
                    .ok()
            }
            Target::Executable(executable) => {
                let set = self.table.cuGraphExecChildGraphNodeSetParams.ok_or(CUresult::NOT_SUPPORTED)?;
                let pair = self.pair(None, copy)?;
                // SAFETY: as above; the driver takes over what the pair's nodes do.
                let changed = unsafe { set(executable, node, pair) }.ok();
                self.destroy_pair(pair)?;
                changed
            }
            Target::Graph(graph) => {
                let inner = inner_graph(&self.table, node)?;
                self.change_pair(graph, inner, copy)
            }
        }
    }

    /// Gives the two nodes of a copy in a graph other parameters.
    fn change_pair(&self, graph: CUgraph, inner: CUgraph, copy: &CopyNode) -> Result<(), CUresult> {
        let set_copy = self.table.cuGraphMemcpyNodeSetParams.ok_or(CUresult::NOT_SUPPORTED)?;
        let set_host = self.table.cuGraphHostNodeSetParams.ok_or(CUresult::NOT_SUPPORTED)?;
        let get_copy = self.table.cuGraphMemcpyNodeGetParams.ok_or(CUresult::NOT_SUPPORTED)?;
        let get_host = self.table.cuGraphHostNodeGetParams.ok_or(CUresult::NOT_SUPPORTED)?;
        let kind_of = self.table.cuGraphNodeGetType.ok_or(CUresult::NOT_SUPPORTED)?;
        let pair = self.pair(Some(graph), copy)?;
        let change = || {
            for (from, to) in
                driver_nodes(&self.table, pair)?.into_iter().zip(driver_nodes(&self.table, inner)?)
            {
                let mut kind = CUgraphNodeType::EMPTY;
                // SAFETY: the nodes are live, of the same kind, since both pairs go the same way,
                // and what is read from one is written to the other.
                unsafe {
                    kind_of(from, &mut kind).ok()?;
                    if kind == CUgraphNodeType::MEMCPY {
                        let mut params = std::mem::MaybeUninit::zeroed();
                        get_copy(from, params.as_mut_ptr()).ok()?;
                        set_copy(to, params.as_ptr()).ok()?;
                    } else {
                        let mut params = CUDA_HOST_NODE_PARAMS { fn_: None, userData: std::ptr::null_mut() };
                        get_host(from, &mut params).ok()?;
                        set_host(to, &params).ok()?;
                    }
                }
            }
            Ok(())
        };
        let changed = change();
        self.destroy_pair(pair)?;
        changed
    }

    fn pair(&self, graph: Option<CUgraph>, copy: &CopyNode) -> Result<CUgraph, CUresult> {
        let bytes = copy.bytes().ok_or(CUresult::INVALID_VALUE)?;
        let to_device = matches!(copy.src, CopySide::Host(()));
        // Checked before anything is made.
        self.describe_copy(copy, std::ptr::null_mut())?;
        let context = self.context_for(&copy_ranges(copy)?)?;
        self.copy_across(graph, (copy.ticket, bytes), (to_device, context), |buffer| {
            self.describe_copy(copy, buffer)
        })
    }

    fn destroy_pair(&self, pair: CUgraph) -> Result<(), CUresult> {
        let destroy = self.table.cuGraphDestroy.ok_or(CUresult::NOT_SUPPORTED)?;
        // SAFETY: the graph was made for one call, and is not known elsewhere.
        unsafe { destroy(pair) }.ok()
    }

    /// A copy as the driver wants it described; a side of the client's is the buffer.
    pub(crate) fn describe_copy(
        &self,
        copy: &CopyNode,
        buffer: *mut std::ffi::c_void,
    ) -> Result<CUDA_MEMCPY3D, CUresult> {
        let extent = [copy.width, copy.height, copy.depth];
        if extent.contains(&0) {
            return Err(CUresult::INVALID_VALUE);
        }
        let side = |side: &CopySide| match side {
            CopySide::Device(place) => {
                self.range(place.start, checks::span(place, extent)?)?;
                Ok::<_, CUresult>(place.clone())
            }
            CopySide::Host(()) => {
                Ok(Pitched { start: DevicePtr(buffer as u64), pitch: copy.width, height: copy.height })
            }
            CopySide::Array(place) => {
                self.arrays.check(place, extent)?;
                Ok(Pitched { start: DevicePtr(0), pitch: 0, height: 0 })
            }
        };
        let mut params = described(&side(&copy.dst)?, &side(&copy.src)?, extent);
        if matches!(copy.dst, CopySide::Host(())) {
            params.dstMemoryType = CUmemorytype::HOST;
            params.dstHost = buffer;
        }
        if matches!(copy.src, CopySide::Host(())) {
            params.srcMemoryType = CUmemorytype::HOST;
            params.srcHost = buffer;
        }
        if let CopySide::Array(place) = &copy.dst {
            params.dstMemoryType = CUmemorytype::ARRAY;
            params.dstArray = self.find(place.array)?;
            [params.dstXInBytes, params.dstY, params.dstZ] =
                [place.x, place.y, place.z].map(|at| at as usize);
        }
        if let CopySide::Array(place) = &copy.src {
            params.srcMemoryType = CUmemorytype::ARRAY;
            params.srcArray = self.find(place.array)?;
            [params.srcXInBytes, params.srcY, params.srcZ] =
                [place.x, place.y, place.z].map(|at| at as usize);
        }
        Ok(params)
    }

    pub(super) fn get_copy(&self, node: CUgraphNode) -> Result<CopyNode, CUresult> {
        let get = self.table.cuGraphMemcpyNodeGetParams.ok_or(CUresult::NOT_SUPPORTED)?;
        let mut of = std::mem::MaybeUninit::<CUDA_MEMCPY3D>::zeroed();
        // SAFETY: the node is live, and the driver fills a local, for which zeros are valid too.
        let of = unsafe {
            get(node, of.as_mut_ptr()).ok()?;
            of.assume_init()
        };
        let side = |kind, base: u64, array: CUarray, corner: [usize; 3], pitch: usize, height: usize| {
            let [x, y, z] = corner.map(|at| at as u64);
            match kind {
                CUmemorytype::DEVICE | CUmemorytype::UNIFIED => {
                    let row = z.wrapping_mul(height as u64).wrapping_add(y);
                    let start = base.wrapping_add(row.wrapping_mul(pitch as u64)).wrapping_add(x);
                    let (start, pitch, height) = (DevicePtr(start), pitch as u64, height as u64);
                    Ok(CopySide::Device(Pitched { start, pitch, height }))
                }
                CUmemorytype::ARRAY => {
                    let array = self.objects.number_of(array).ok_or(CUresult::NOT_SUPPORTED)?;
                    Ok(CopySide::Array(ArrayPlace { array, x, y, z }))
                }
                _ => Err(CUresult::NOT_SUPPORTED),
            }
        };
        let dst = side(
            of.dstMemoryType,
            of.dstDevice,
            of.dstArray,
            [of.dstXInBytes, of.dstY, of.dstZ],
            of.dstPitch,
            of.dstHeight,
        )?;
        let src = side(
            of.srcMemoryType,
            of.srcDevice,
            of.srcArray,
            [of.srcXInBytes, of.srcY, of.srcZ],
            of.srcPitch,
            of.srcHeight,
        )?;
        Ok(CopyNode {
            dst,
            src,
            width: of.WidthInBytes as u64,
            height: of.Height as u64,
            depth: of.Depth as u64,
            ticket: 0,
        })
    }
}
