//! Arrays whose memory is mapped later: how they are cut, what memory they want, and lists of what
//! is mapped to them. Nothing that is mapped is taken away again but with its array: then the
//! worker asks the driver more than the program did.

use sluice_cuda::*;

use crate::arrays::format;
use crate::program::{Program, Sent, ok};

pub(crate) const FUNCTIONS: crate::Calls = &[
    ("cuArrayGetSparseProperties", |p| lives(p, false, CUDA_ARRAY3D_SPARSE)),
    ("cuMipmappedArrayGetSparseProperties", |p| lives(p, true, CUDA_ARRAY3D_SPARSE)),
    ("cuArrayGetMemoryRequirements", |p| lives(p, false, CUDA_ARRAY3D_DEFERRED_MAPPING)),
    ("cuMipmappedArrayGetMemoryRequirements", |p| lives(p, true, CUDA_ARRAY3D_DEFERRED_MAPPING)),
    ("cuMemMapArrayAsync", |p| lives(p, false, CUDA_ARRAY3D_SPARSE)),
];

/// Bytes of a piece of memory.
const PIECE: usize = 8 << 20;
/// Tiles of the arrays that are made, in each direction.
const COLUMNS: u64 = 5;
const ROWS: u64 = 2;

struct Array {
    /// Plain or mipmapped.
    handle: usize,
    number: u64,
    kind: &'static str,
    desc: CUDA_ARRAY3D_DESCRIPTOR,
    tile: [u32; 3],
}

impl Array {
    fn create(p: &mut Program, is_mipmapped: bool, flags: u32) -> Array {
        let (format, channels, element) = format(p);
        // Of so many bytes each, and as wide as high, or twice as wide.
        let (width, height) = (1_u32 << ((17 - element.ilog2()) / 2), 1_u32 << ((16 - element.ilog2()) / 2));
        let has_layers = p.once_in(2);
        let layers = if has_layers { p.within(1, 3) as usize } else { 0 };
        let desc = CUDA_ARRAY3D_DESCRIPTOR {
            Width: width as usize * COLUMNS as usize - p.within(0, 9) as usize,
            Height: height as usize * ROWS as usize - p.within(0, 9) as usize,
            Depth: layers,
            Format: format,
            NumChannels: channels,
            Flags: flags | if has_layers { CUDA_ARRAY3D_LAYERED } else { 0 },
        };
        let name = if is_mipmapped { "cuMipmappedArrayCreate" } else { "cuArray3DCreate_v2" };
        let mut sent = Sent::new(name);
        sent.values(&[desc.Width, desc.Height, desc.Depth]);
        sent.values(&[desc.Format.0, desc.NumChannels, desc.Flags]);
        let (mut plain, mut mipmapped) = (CUarray::NULL, CUmipmappedArray::NULL);
        // SAFETY: a description, and a place.
        let result = unsafe {
            if is_mipmapped {
                sent.value(2_u32);
                p.cuda.cuMipmappedArrayCreate.expect("exported")(&mut mipmapped, &desc, 2)
            } else {
                p.cuda.cuArray3DCreate_v2.expect("exported")(&mut plain, &desc)
            }
        };
        p.check(sent, false, result, &[]);
        let (kind, handle) = if is_mipmapped { ("MipmappedArray", mipmapped.0) } else { ("Array", plain.0) };
        let number = p.count_of(kind);
        p.minted(kind, handle);
        let array = Array { handle, number, kind, desc, tile: [width, height, 1] };
        // Whoever makes one asks how it is mapped.
        array.say_question(p);
        array
    }

    fn say_question(&self, p: &mut Program) {
        let is_plain = self.kind == "Array";
        let mut sent = Sent::new(match (is_plain, self.desc.is_sparse()) {
            (true, true) => "cuArrayGetSparseProperties",
            (false, true) => "cuMipmappedArrayGetSparseProperties",
            (true, false) => "cuArrayGetMemoryRequirements",
            (false, false) => "cuMipmappedArrayGetMemoryRequirements",
        });
        sent.number(self.number);
        if self.desc.is_deferred() {
            sent.value(0_i32);
        }
        p.check(sent, false, CUresult::SUCCESS, &[]);
    }

    fn question(&self, p: &mut Program) {
        let (plain, mipmapped) = (CUarray(self.handle), CUmipmappedArray(self.handle));
        let mut cut = CUDA_ARRAY_SPARSE_PROPERTIES { reserved: [9; 4], ..Default::default() };
        let mut wanted = CUDA_ARRAY_MEMORY_REQUIREMENTS { reserved: [9; 4], ..Default::default() };
        let cuda = &p.cuda;
        // SAFETY: a live array, and places.
        ok(unsafe {
            match (self.kind == "Array", self.desc.is_sparse()) {
                (true, true) => cuda.cuArrayGetSparseProperties.expect("exported")(&mut cut, plain),
                (false, true) => {
                    cuda.cuMipmappedArrayGetSparseProperties.expect("exported")(&mut cut, mipmapped)
                }
                (true, false) => cuda.cuArrayGetMemoryRequirements.expect("exported")(&mut wanted, plain, 0),
                (false, false) => {
                    cuda.cuMipmappedArrayGetMemoryRequirements.expect("exported")(&mut wanted, mipmapped, 0)
                }
            }
        });
        self.say_question(p);
        if self.desc.is_sparse() {
            // The second level may be less than a tile high.
            assert_eq!((cut.tileExtent, cut.reserved), (self.tile, [0; 4]));
            let has_tail = self.kind != "Array" && self.desc.Height / 2 < self.tile[1] as usize;
            assert_eq!((cut.miptailFirstLevel, cut.miptailSize > 0), (u32::from(has_tail), has_tail));
        } else {
            let bytes = self.desc.extent(0).and_then(|extent| extent.bytes()).expect("a small array");
            assert!((wanted.size as u64) >= bytes && wanted.size <= PIECE && wanted.reserved == [0; 4]);
            assert_eq!(wanted.alignment as u64, TILE_BYTES);
        }
    }

    fn destroy(self, p: &mut Program) {
        let is_plain = self.kind == "Array";
        let mut sent = Sent::new(if is_plain { "cuArrayDestroy" } else { "cuMipmappedArrayDestroy" });
        sent.number(self.number);
        // SAFETY: a live array.
        let result = unsafe {
            match is_plain {
                true => p.cuda.cuArrayDestroy.expect("exported")(CUarray(self.handle)),
                false => p.cuda.cuMipmappedArrayDestroy.expect("exported")(CUmipmappedArray(self.handle)),
            }
        };
        p.check(sent, false, result, &[]);
        p.forget(self.kind, self.handle);
    }

    /// An entry for a part; without memory some is taken away.
    fn entry(&self, part: &ArrayPart, memory: Option<(CUmemGenericAllocationHandle, u64)>) -> CUarrayMapInfo {
        let (memHandle, offset) = memory.unwrap_or_default();
        let operation = if memory.is_some() { CUmemOperationType::MAP } else { CUmemOperationType::UNMAP };
        let is_plain = self.kind == "Array";
        let mut info = CUarrayMapInfo {
            resourceType: if is_plain { CUresourcetype::ARRAY } else { CUresourcetype::MIPMAPPED_ARRAY },
            resource: self.handle,
            subresourceType: CUarraySparseSubresourceType::SPARSE_LEVEL,
            subresource: [0; 4],
            memOperationType: operation,
            memHandleType: CUmemHandleType::GENERIC,
            memHandle,
            offset,
            deviceBitMask: 1,
            flags: 0,
            reserved: [0; 2],
        };
        info.set_part(part);
        info
    }

    /// Entries that name no tile twice where they map one.
    fn entries(&self, p: &mut Program, pieces: [CUmemGenericAllocationHandle; 2]) -> Vec<CUarrayMapInfo> {
        let draw = |p: &mut Program, tiles: u64| {
            let last = PIECE as u64 / TILE_BYTES - tiles;
            Some((pieces[p.within(0, 1) as usize], p.within(0, last) * TILE_BYTES))
        };
        if self.desc.is_deferred() {
            let memory = Some((pieces[p.within(0, 1) as usize], 0));
            return [None, memory].map(|memory| self.entry(&ArrayPart::Whole, memory)).to_vec();
        }
        let layer = p.within(0, (self.desc.Depth as u64).max(1) - 1) as u32;
        let [width, height, _] = self.tile;
        let part = |column: u64, rows: u64| ArrayPart::Level {
            level: 0,
            layer,
            offset: [column as u32 * width, 0, 0],
            extent: [width, rows as u32 * height, 1],
        };
        let mut entries = vec![self.entry(&part(0, ROWS), None)];
        for column in 0..p.within(1, COLUMNS) {
            let rows = p.within(1, ROWS);
            let memory = draw(p, rows);
            entries.push(self.entry(&part(column, rows), memory));
        }
        entries
    }

    fn map(&self, p: &mut Program, pieces: [CUmemGenericAllocationHandle; 2]) {
        let region = p.pick_region(true);
        let mut list = self.entries(p, pieces);
        let mut sent = Sent::new("cuMemMapArrayAsync");
        sent.number(p.region(region).number);
        let mut numbers: Vec<(CUmemGenericAllocationHandle, u64)> = Vec::new();
        for info in &mut list {
            sent.value(info.resourceType.0);
            sent.number(self.number);
            sent.value(info.subresourceType.0);
            sent.value(info.subresource);
            sent.values(&[info.memOperationType.0, info.memHandleType.0]);
            if !info.memHandle.is_null() {
                // Memory gets its number when it is first mapped.
                let known = numbers.iter().find(|(handle, _)| *handle == info.memHandle).map(|known| known.1);
                let number = known.unwrap_or_else(|| p.reserve("Physical"));
                numbers.push((info.memHandle, number));
                sent.number(number);
            }
            sent.value(info.offset);
            sent.values(&[info.deviceBitMask, info.flags, info.reserved[0], info.reserved[1]]);
            if self.desc.is_deferred() {
                // What part is named does not matter, and nothing of it arrives.
                info.subresourceType = CUarraySparseSubresourceType(p.next() as u32);
                info.subresource = [p.next(); 4];
            }
        }
        let (map, stream) = (p.cuda.cuMemMapArrayAsync.expect("exported"), p.stream_of(region));
        // SAFETY: so many entries.
        let result = unsafe { map(list.as_mut_ptr(), list.len() as u32, stream) };
        p.check(sent, false, result, &[]);
    }
}

fn piece(p: &Program) -> CUmemGenericAllocationHandle {
    // SAFETY: plain numbers and null pointers, for all of which zero is a value.
    let mut properties: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.kind = CUmemAllocationType::PINNED;
    properties.location = CUmemLocation { kind: CUmemLocationType::DEVICE, id: 0 };
    properties.usage = CU_MEM_CREATE_USAGE_TILE_POOL;
    let mut handle = CUmemGenericAllocationHandle::NULL;
    // SAFETY: properties, and a place.
    ok(unsafe { p.cuda.cuMemCreate.expect("exported")(&mut handle, PIECE, &properties, 0) });
    handle
}

/// An array from its making to its end, with memory that nobody holds any more by then.
fn lives(p: &mut Program, is_mipmapped: bool, flags: u32) {
    if !p.once_in(4) {
        return;
    }
    let array = Array::create(p, is_mipmapped, flags);
    array.question(p);
    let pieces = [piece(p), piece(p)];
    array.map(p, pieces);
    for handle in pieces {
        // SAFETY: a live handle.
        ok(unsafe { p.cuda.cuMemRelease.expect("exported")(handle) });
    }
    array.destroy(p);
}
