//! Mipmapped arrays, and texture and surface objects: what they are made of, and what is said of
//! them when the program asks.

use sluice_cuda::*;

use crate::arrays::{self, Array, format};
use crate::program::{Program, Sent, bytes_of, ok};

pub(crate) const FUNCTIONS: crate::Calls = &[
    ("cuMipmappedArrayCreate", levels),
    ("cuMipmappedArrayGetLevel", levels),
    ("cuMipmappedArrayDestroy", levels),
    ("cuTexObjectCreate", texture),
    ("cuTexObjectDestroy", texture),
    ("cuSurfObjectCreate", surface),
    ("cuSurfObjectDestroy", surface),
];

/// What an object is made of, as long as it is.
enum Source {
    Array(Array),
    Mipmapped(Mipmapped),
    Memory,
}

pub(crate) struct Mipmapped {
    pub(crate) handle: CUmipmappedArray,
    pub(crate) number: u64,
    desc: CUDA_ARRAY3D_DESCRIPTOR,
    levels: u32,
}

impl Mipmapped {
    pub(crate) fn create(p: &mut Program) -> Mipmapped {
        let (format, channels, _) = format(p);
        let [width, height, depth] = [p.within(1, 200), p.within(1, 100), p.within(0, 9)].map(|n| n as usize);
        let desc = CUDA_ARRAY3D_DESCRIPTOR {
            Width: width,
            Height: height,
            Depth: depth,
            Format: format,
            NumChannels: channels,
            Flags: if p.once_in(2) { CUDA_ARRAY3D_SURFACE_LDST } else { 0 },
        };
        let levels = p.within(1, (1 + width.max(height).max(depth).ilog2()).into()) as u32;
        let mut sent = Sent::new("cuMipmappedArrayCreate");
        sent.values(&[width, height, depth]);
        sent.values(&[format.0, channels, desc.Flags]);
        sent.value(levels);
        let mut handle = CUmipmappedArray::NULL;
        // SAFETY: a description, and a place.
        let result = unsafe { p.cuda.cuMipmappedArrayCreate.expect("exported")(&mut handle, &desc, levels) };
        p.check(sent, false, result, &[]);
        let number = p.count_of("MipmappedArray");
        p.minted("MipmappedArray", handle.0);
        Mipmapped { handle, number, desc, levels }
    }

    pub(crate) fn destroy(self, p: &mut Program) {
        let mut sent = Sent::new("cuMipmappedArrayDestroy");
        sent.number(self.number);
        // SAFETY: a live array.
        let result = unsafe { p.cuda.cuMipmappedArrayDestroy.expect("exported")(self.handle) };
        p.check(sent, false, result, &[]);
        p.forget("MipmappedArray", self.handle.0);
    }
}

/// Asks for a level of a mipmapped array, twice, and what it looks like.
fn levels(p: &mut Program) {
    if !p.once_in(4) {
        return;
    }
    let whole = Mipmapped::create(p);
    let level = p.within(0, u64::from(whole.levels) - 1) as u32;
    let mut sent = Sent::new("cuMipmappedArrayGetLevel");
    sent.number(whole.number);
    sent.value(level);
    let (mut array, mut again, mut desc) = (CUarray::NULL, CUarray::NULL, whole.desc);
    let get = p.cuda.cuMipmappedArrayGetLevel.expect("exported");
    // SAFETY: a live array, and places.
    let result = unsafe { get(&mut array, whole.handle, level) };
    p.check(sent, false, result, &[]);
    // SAFETY: as above.
    unsafe {
        ok(get(&mut again, whole.handle, level));
        ok(p.cuda.cuArray3DGetDescriptor_v2.expect("exported")(&mut desc, array));
    }
    assert_eq!(array, again, "a level is one array");
    let halved = |size: usize| if size == 0 { 0 } else { (size >> level).max(1) };
    let expected = [whole.desc.Width, whole.desc.Height, whole.desc.Depth].map(halved);
    assert_eq!([desc.Width, desc.Height, desc.Depth], expected, "level {level}");
    p.minted("Array", array.0);
    p.forget("Array", array.0);
    whole.destroy(p);
}

impl Source {
    /// Draws what an object reads. What the union has beyond that is noise, of which nothing
    /// arrives.
    fn draw(p: &mut Program, kind: CUresourcetype, sent: &mut Sent) -> (Source, CUDA_RESOURCE_DESC) {
        let (format, channels, element) = format(p);
        let packed = u64::from(format.0) | u64::from(channels) << 32;
        let (mut words, mut said) = ([0; 16], [0; 16]);
        words.iter_mut().for_each(|word| *word = p.next());
        sent.value(kind.0);
        let source = match kind {
            CUresourcetype::ARRAY => {
                let array = arrays::plain(p);
                words[0] = array.handle.0 as u64;
                said[0] = array.number;
                Source::Array(array)
            }
            CUresourcetype::MIPMAPPED_ARRAY => {
                let array = Mipmapped::create(p);
                words[0] = array.handle.0 as u64;
                said[0] = array.number;
                Source::Mipmapped(array)
            }
            CUresourcetype::LINEAR => {
                let bytes = p.within(1, 100_000);
                said[..3].copy_from_slice(&[p.range(bytes), packed, bytes]);
                words[..3].copy_from_slice(&said[..3]);
                Source::Memory
            }
            _ => {
                let (width, height) = (p.within(1, 400), p.within(1, 60));
                let pitch = width * element as u64 + p.within(0, 99);
                said[..5].copy_from_slice(&[p.range(pitch * height), packed, width, height, pitch]);
                words[..5].copy_from_slice(&said[..5]);
                Source::Memory
            }
        };
        sent.values(&said);
        (source, CUDA_RESOURCE_DESC { resType: kind, words, flags: 0 })
    }

    fn destroy(self, p: &mut Program) {
        match self {
            Source::Array(array) => arrays::destroy(p, array),
            Source::Mipmapped(array) => array.destroy(p),
            Source::Memory => {}
        }
    }
}

fn same_resource(got: &CUDA_RESOURCE_DESC, given: &CUDA_RESOURCE_DESC) {
    assert_eq!((got.resType, got.words, got.flags), (given.resType, given.words, given.flags));
}

fn draw_view(p: &mut Program) -> CUDA_RESOURCE_VIEW_DESC {
    CUDA_RESOURCE_VIEW_DESC {
        format: p.value(),
        width: p.value(),
        height: p.value(),
        depth: p.value(),
        firstMipmapLevel: p.value(),
        lastMipmapLevel: p.value(),
        firstLayer: p.value(),
        lastLayer: p.value(),
        reserved: [0; 16],
    }
}

fn say_view(sent: &mut Sent, it: &CUDA_RESOURCE_VIEW_DESC) {
    sent.value(it.format);
    sent.values(&[it.width, it.height, it.depth]);
    sent.values(&[it.firstMipmapLevel, it.lastMipmapLevel, it.firstLayer, it.lastLayer]);
    sent.value(it.reserved);
}

fn texture(p: &mut Program) {
    if !p.once_in(2) {
        return;
    }
    use CUresourcetype as Kind;
    let kinds = [Kind::ARRAY, Kind::MIPMAPPED_ARRAY, Kind::LINEAR, Kind::PITCH2D];
    let mut sent = Sent::new("cuTexObjectCreate");
    let kind = kinds[p.within(0, 3) as usize];
    let (source, resource) = Source::draw(p, kind, &mut sent);
    let sampling = CUDA_TEXTURE_DESC { reserved: [0; 12], ..p.value() };
    sent.value(sampling);
    let view = p.once_in(2).then(|| draw_view(p));
    sent.value(u32::from(view.is_some()));
    view.iter().for_each(|view| say_view(&mut sent, view));
    let mut object = 0;
    let seen = view.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let create = p.cuda.cuTexObjectCreate.expect("exported");
    // SAFETY: descriptions of what lives, and a place.
    let result = unsafe { create(&mut object, &resource, &sampling, seen) };
    if p.check(sent, true, result, &[]) {
        let number = p.count_of("TexObject");
        p.minted("TexObject", object as usize);
        described(p, object, (&resource, &sampling, view.as_ref()));
        let mut sent = Sent::new("cuTexObjectDestroy");
        sent.number(number);
        // SAFETY: a live object.
        let result = unsafe { p.cuda.cuTexObjectDestroy.expect("exported")(object) };
        p.check(sent, false, result, &[]);
        p.forget_number("TexObject", number);
    }
    source.destroy(p);
}

/// Asks what a texture object was made of.
fn described(
    p: &Program,
    object: CUtexObject,
    (resource, sampling, view): (&CUDA_RESOURCE_DESC, &CUDA_TEXTURE_DESC, Option<&CUDA_RESOURCE_VIEW_DESC>),
) {
    let mut got = CUDA_RESOURCE_DESC { resType: CUresourcetype(0), words: [0; 16], flags: 1 };
    let mut got_sampling = CUDA_TEXTURE_DESC { flags: !sampling.flags, ..*sampling };
    let mut got_view = CUDA_RESOURCE_VIEW_DESC {
        format: 0,
        width: 0,
        height: 0,
        depth: 0,
        firstMipmapLevel: 0,
        lastMipmapLevel: 0,
        firstLayer: 0,
        lastLayer: 0,
        reserved: [1; 16],
    };
    // SAFETY: a live object, and places for what is asked.
    let result = unsafe {
        ok(p.cuda.cuTexObjectGetResourceDesc.expect("exported")(&mut got, object));
        ok(p.cuda.cuTexObjectGetTextureDesc.expect("exported")(&mut got_sampling, object));
        p.cuda.cuTexObjectGetResourceViewDesc.expect("exported")(&mut got_view, object)
    };
    same_resource(&got, resource);
    assert_eq!(bytes_of(&got_sampling), bytes_of(sampling), "how it reads");
    let Some(view) = view else {
        assert_eq!(result, CUresult::INVALID_VALUE, "there is no view");
        return;
    };
    ok(result);
    let [got, given] = [&got_view, view].map(|view| {
        let mut said = Sent::new("");
        say_view(&mut said, view);
        said.line()
    });
    assert_eq!(got, given, "the view");
}

fn surface(p: &mut Program) {
    if !p.once_in(2) {
        return;
    }
    let mut sent = Sent::new("cuSurfObjectCreate");
    let (source, resource) = Source::draw(p, CUresourcetype::ARRAY, &mut sent);
    let mut object = 0;
    // SAFETY: a description of what lives, and a place.
    let result = unsafe { p.cuda.cuSurfObjectCreate.expect("exported")(&mut object, &resource) };
    if p.check(sent, true, result, &[]) {
        let number = p.count_of("SurfObject");
        p.minted("SurfObject", object as usize);
        let mut got = CUDA_RESOURCE_DESC { resType: CUresourcetype(1), words: [0; 16], flags: 1 };
        // SAFETY: a live object, and a place.
        ok(unsafe { p.cuda.cuSurfObjectGetResourceDesc.expect("exported")(&mut got, object) });
        same_resource(&got, &resource);
        let mut sent = Sent::new("cuSurfObjectDestroy");
        sent.number(number);
        // SAFETY: a live object.
        let result = unsafe { p.cuda.cuSurfObjectDestroy.expect("exported")(object) };
        p.check(sent, false, result, &[]);
        p.forget_number("SurfObject", number);
    }
    source.destroy(p);
}
