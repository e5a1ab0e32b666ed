//! Reads at the edges, between elements and between levels.

use super::channel::half;
use super::instruction::GEOMETRIES;
use super::*;

impl Texels for Vec<u8> {
    type Error = ();
    fn read(&mut self, address: u64, to: &mut [u8]) -> Result<(), ()> {
        to.copy_from_slice(self.get(address as usize..address as usize + to.len()).ok_or(())?);
        Ok(())
    }
}

fn sampler() -> Sampler {
    Sampler {
        address_modes: [AddressMode::Clamp; 3],
        is_linear: false,
        is_normalized: false,
        reads_integers: true,
        border: [9.0, 8.0, 7.0, 6.0],
        is_linear_between_levels: false,
        level_bias: 0.0,
        level_min: 0.0,
        level_max: 99.0,
    }
}

fn sampling(geometry: Geometry) -> Sampling {
    Sampling { geometry, has_integer_coordinates: false, has_level: false, gathered: None }
}

/// Floats in rows of four.
fn plane() -> (Vec<u8>, Image) {
    let bytes = (0..16_u8).flat_map(|i| f32::from(i).to_le_bytes()).collect();
    let (size, channel) = ([4, 4, 1], Channel::F32);
    (bytes, Image { base: 0, pieces: None, pitch: 16, slice: 64, size, channel, channels: 1 })
}

fn read(image: Image, sampler: Sampler, sampling: Sampling, at: &[f32], memory: &mut Vec<u8>) -> f32 {
    let object = add_texture(Texture { levels: vec![image], sampler });
    let mut bits = [0; 3];
    at.iter().zip(&mut bits).for_each(|(at, bits)| *bits = at.to_bits());
    let [result, ..] = find(object).unwrap().sample(sampling, bits, 0.0, memory).unwrap();
    remove(object);
    assert!(find(object).is_none());
    f32::from_bits(result)
}

#[test]
fn points_and_blends_of_a_plane() {
    let (mut memory, image) = plane();
    let d2 = sampling(Geometry::D2);
    let linear = Sampler { is_linear: true, ..sampler() };
    let mut check = |sampler, at: [f32; 2], want: f32| {
        assert_eq!(read(image.clone(), sampler, d2, &at, &mut memory), want, "{at:?}");
    };
    check(sampler(), [1.0, 2.0], 9.0);
    check(sampler(), [1.99, 2.99], 9.0);
    check(sampler(), [-5.0, 99.0], 12.0);
    check(linear, [1.5, 2.5], 9.0);
    check(linear, [2.0, 2.5], 9.5);
    check(linear, [2.0, 3.0], 11.5);
    check(linear, [0.0, 0.5], 0.0);
}

#[test]
fn modes_of_coordinates_outside() {
    let (mut memory, image) = plane();
    let mut check = |mode, is_normalized, x: f32, want: f32| {
        let sampler = Sampler { address_modes: [mode; 3], is_normalized, ..sampler() };
        let got = read(image.clone(), sampler, sampling(Geometry::D1), &[x], &mut memory);
        assert_eq!(got, want, "{mode:?} {x}");
    };
    check(AddressMode::Wrap, true, 1.25, 1.0);
    check(AddressMode::Wrap, true, -0.25, 3.0);
    check(AddressMode::Mirror, true, 1.25, 2.0);
    check(AddressMode::Mirror, true, -0.26, 1.0);
    check(AddressMode::Clamp, true, 7.0, 3.0);
    check(AddressMode::Border, true, 7.0, 9.0);
    check(AddressMode::Wrap, false, 7.0, 3.0);
}

#[test]
fn integers_become_fractions_or_stay() {
    let channel = |channel, bytes: [u8; 4], is_float| {
        let mut raw = [0; 16];
        raw[..4].copy_from_slice(&bytes);
        Channel::decode(channel, &raw, 0, is_float)
    };
    assert_eq!(channel(Channel::U8, [255, 0, 0, 0], true), 1.0_f32.to_bits());
    assert_eq!(channel(Channel::S8, [128, 0, 0, 0], true), (-1.0_f32).to_bits());
    assert_eq!(channel(Channel::S8, [255, 0, 0, 0], false), u32::MAX);
    assert_eq!(channel(Channel::U16, [1, 2, 0, 0], false), 0x201);
    assert_eq!(channel(Channel::F16, [0, 0x3c, 0, 0], true), 1.0_f32.to_bits());
    assert_eq!(half(1), 2.0_f32.powi(-24));
    assert_eq!(half(0xfbff), -65504.0);
    assert!(half(0x7e00).is_nan() && half(0x7c00) == f32::INFINITY);
}

#[test]
fn surfaces_trap_clamp_or_ignore() {
    let (_, image) = plane();
    let access = |outside, at| {
        let access = SurfaceAccess { geometry: Geometry::D2, outside, bytes: 4, is_second_half: false };
        assert_eq!(SurfaceAccess::from_bits(access.to_bits()), access);
        image.surface_address(access, at)
    };
    assert_eq!(access(Outside::Trap, [8, 1, 0]), Ok(Some(24)));
    assert_eq!(access(Outside::Trap, [16, 1, 0]), Err(OutsideOfSurface));
    assert_eq!(access(Outside::Clamp, [16, u32::MAX, 0]), Ok(Some(12)));
    assert_eq!(access(Outside::Zero, [0, 4, 0]), Ok(None));
}

#[test]
fn what_has_no_memory_reads_as_zero() {
    /// The second row is where the first seems to be, and nothing else is there.
    #[derive(Debug)]
    struct Moved;
    impl Pieces for Moved {
        fn find(&self, name: u64) -> Option<u64> {
            (name < 16).then_some(name + 16)
        }
    }
    let (mut memory, plane) = plane();
    let image = Image { pieces: Some(Arc::new(Moved)), ..plane };
    let d2 = sampling(Geometry::D2);
    let linear = Sampler { is_linear: true, ..sampler() };
    assert_eq!(read(image.clone(), sampler(), d2, &[1.0, 0.0], &mut memory), 5.0);
    assert_eq!(read(image.clone(), sampler(), d2, &[1.0, 2.0], &mut memory), 0.0);
    assert_eq!(read(image.clone(), linear, d2, &[1.5, 1.0], &mut memory), 2.5);
    let access =
        SurfaceAccess { geometry: Geometry::D2, outside: Outside::Trap, bytes: 4, is_second_half: false };
    assert_eq!(image.surface_address(access, [8, 0, 0]), Ok(Some(24)));
    assert_eq!(image.surface_address(access, [8, 1, 0]), Ok(None));
}

#[test]
fn words_carry_what_instructions_say() {
    for geometry in GEOMETRIES {
        for bits in 0..8 {
            let sampling = Sampling {
                geometry,
                has_integer_coordinates: bits & 1 != 0,
                has_level: bits & 2 != 0,
                gathered: (bits & 4 != 0).then_some(3),
            };
            assert_eq!(Sampling::from_bits(sampling.to_bits()), sampling);
        }
    }
}
