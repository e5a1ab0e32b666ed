//! Vectors against [`sluice_ir::texture::Texture::sample`], to the last bit, for whatever an image
//! and an instruction can be.

use sluice_ir::texture::{AddressMode, Channel, Geometry, Image, Sampler, Sampling, Texture};

use super::super::textures::sample_lanes;
use super::*;

/// Elements on each axis; not a power of two, so that products of coordinates from 0 to 1 round.
const SIZE: [u32; 3] = [21, 7, 5];

const MODES: [AddressMode; 4] =
    [AddressMode::Wrap, AddressMode::Clamp, AddressMode::Mirror, AddressMode::Border];
const CHANNELS: [Channel; 8] = [
    Channel::U8,
    Channel::U16,
    Channel::U32,
    Channel::S8,
    Channel::S16,
    Channel::S32,
    Channel::F16,
    Channel::F32,
];
const GEOMETRIES: [Geometry; 6] =
    [Geometry::D1, Geometry::D2, Geometry::D3, Geometry::A1, Geometry::A2, Geometry::Cube];

/// All lanes in order, and some that are not active.
const ACTIVE: [u32; 3] = [u32::MAX, 0x0f0f_3335, 1 << 31 | 1];

/// Coordinates inside, between, at and beyond the edges, tiny, huge, and what is no place.
const FLOATS: [f32; 30] = [
    0.0,
    -0.0,
    0.5,
    0.499_999_97,
    1.25,
    2.999_999_8,
    6.0,
    6.5,
    7.0,
    20.999_998,
    21.0,
    21.5,
    -0.25,
    -0.5,
    -1.0,
    -7.0,
    -43.75,
    1e-40,
    -1e-40,
    0.333_333_34,
    0.952_380_95,
    12_345.678,
    16_777_216.0,
    2_147_483_600.0,
    -2_147_483_600.0,
    1e30,
    -1e30,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
];
const INTEGERS: [i32; 12] = [0, 1, 4, 5, 6, 7, 20, 21, -1, -22, i32::MAX, i32::MIN];

/// Words that are all kinds of halves, floats and integers.
fn memory() -> Vec<u32> {
    let mut word = 1_u32;
    let mut next = || {
        word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        word ^ word >> 15
    };
    // Signs, zeros and infinities are rare among these.
    let rare = [0, 1 << 31, 0x7f80_0000, 0x7c00_fc00, 0x0001_8001, 0x80ff_7f00];
    (0..4 * SIZE.iter().product::<u32>() as usize)
        .map(|i| if i % 11 == 3 { rare[i / 11 % rare.len()] } else { next() })
        .collect()
}

fn texture(memory: &[u32], channel: Channel, channels: u8, sampler: Sampler) -> Texture {
    let pitch = u64::from(SIZE[0]) * channel.bytes() * u64::from(channels);
    let image = Image {
        base: memory.as_ptr() as u64,
        pieces: None,
        pitch,
        slice: pitch * u64::from(SIZE[1]),
        size: SIZE,
        channel,
        channels,
    };
    Texture { levels: vec![image], sampler }
}

/// Operands of which all lanes differ, in each the coordinates in another order; or those of lanes
/// that read neighbours.
fn operands(has_integers: bool, turn: usize) -> [[u32; LANES]; 3] {
    [1, 7, 11].map(|step| {
        std::array::from_fn(|lane| match (turn, has_integers) {
            (0, true) => lane as u32 / 2 * step,
            (0, false) => (lane as f32 * if step == 1 { 1.0 } else { 0.0 } + 0.5).to_bits(),
            (_, true) => INTEGERS[(lane * step as usize + turn) % INTEGERS.len()] as u32,
            (_, false) => FLOATS[(lane * step as usize + turn) % FLOATS.len()].to_bits(),
        })
    })
}

/// As compiled code has them.
#[repr(align(16))]
struct Arrays<const COUNT: usize>([[u32; LANES]; COUNT]);

impl<const COUNT: usize> Arrays<COUNT> {
    fn words(&mut self) -> [Words; COUNT] {
        self.0.each_mut().map(|words| &raw mut *words)
    }
}

/// The results of one way to read, whose first result takes the place of the first operand.
fn results(operands: [[u32; LANES]; 3], read: impl FnOnce([Words; 3], [Words; 4])) -> [[u32; LANES]; 4] {
    let (mut operands, mut others) = (Arrays(operands), Arrays([[9; LANES]; 3]));
    let ([x, y, z], [green, blue, alpha]) = (operands.words(), others.words());
    read([x, y, z], [x, green, blue, alpha]);
    let (Arrays([red, ..]), Arrays([green, blue, alpha])) = (operands, others);
    [red, green, blue, alpha]
}

/// As [`Operation::run`].
type Way = unsafe fn(&Operation<'_>, u32) -> u32;

/// Ways to read, of those that this processor can take.
fn ways() -> Vec<(&'static str, Way)> {
    unsafe fn plain(operation: &Operation<'_>, active: u32) -> u32 {
        // SAFETY: by this function's contract.
        unsafe { operation.chunks::<8>(active) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let by_vectors: [(bool, &'static str, Way); 0] = [];
    #[cfg(target_arch = "x86_64")]
    let by_vectors: [(bool, &'static str, Way); 2] =
        [(std::is_x86_feature_detected!("avx2"), "256 bits", medium), (has_wide(), "512 bits", wide)];
    let can_be_taken = by_vectors.into_iter().filter(|(has, ..)| *has).map(|(_, name, way)| (name, way));
    std::iter::once(("plain", plain as Way)).chain(can_be_taken).collect()
}

/// Whose bits a sum of several NaNs has depends on the order of its operands, which Rust leaves
/// open.
fn are_blends_of_nans(one: u32, other: u32) -> bool {
    f32::from_bits(one).is_nan() && f32::from_bits(other).is_nan()
}

/// Compares all ways for one texture and instruction, with operands of two kinds.
fn check(texture: &Texture, sampling: Sampling, turns: [usize; 2]) {
    let Some(read) = texture.plain_read(sampling) else {
        assert_eq!(sampling.geometry, Geometry::Cube);
        return;
    };
    for turn in turns {
        let operands = operands(sampling.has_integer_coordinates, turn);
        let active = ACTIVE[turn % ACTIVE.len()];
        let lanes = |[x, y, z]: [Words; 3], results, active| {
            // SAFETY: arrays of words, and an image that is memory.
            unsafe { sample_lanes(texture, sampling, active, [x, y, z, std::ptr::null_mut()], results) };
        };
        let want = results(operands, |operands, results| lanes(operands, results, active));
        for (name, way) in ways() {
            let got = results(operands, |operands, results| {
                let operation = Operation { read: &read, operands, results };
                // SAFETY: as above.
                let left = unsafe { way(&operation, active) };
                assert!(left & !active == 0, "{name}");
                lanes(operands, results, left);
            });
            for (place, (got, want)) in got.as_flattened().iter().zip(want.as_flattened()).enumerate() {
                let (channel, lane) = (place / LANES, place % LANES);
                assert!(
                    got == want || read.is_linear && are_blends_of_nans(*got, *want),
                    "{name}: {got:#x}, not {want:#x} in channel {channel} of lane {lane}, turn {turn}: \
                     {sampling:?}, {:?}, {:?}",
                    texture.levels,
                    texture.sampler,
                );
            }
        }
    }
}

#[test]
fn lanes_read_what_any_texture_reads() {
    let memory = memory();
    for case in 0..MODES.len() * GEOMETRIES.len() * 16 {
        let (mode, rest) = (case % MODES.len(), case / MODES.len());
        let (geometry, flags) = (GEOMETRIES[rest % GEOMETRIES.len()], rest / GEOMETRIES.len());
        let flag = |bit: usize| flags >> bit & 1 != 0;
        let sampler = Sampler {
            // Not the same on all axes.
            address_modes: [MODES[mode], MODES[(mode + flags) % 4], MODES[mode]],
            is_linear: flag(0),
            is_normalized: flag(1),
            reads_integers: flag(2),
            border: [0.25, -0.0, 300.7, f32::INFINITY],
            is_linear_between_levels: false,
            level_bias: 0.0,
            level_min: 0.0,
            level_max: 0.0,
        };
        let sampling =
            Sampling { geometry, has_integer_coordinates: flag(3), has_level: false, gathered: None };
        for channel in CHANNELS {
            for channels in [1, 2, 4] {
                check(&texture(&memory, channel, channels, sampler), sampling, [0, 1 + case % 3]);
            }
        }
    }
}

#[test]
fn coordinates_beyond_what_vectors_repeat_are_left() {
    let memory = memory();
    let sampler = Sampler {
        address_modes: [AddressMode::Wrap; 3],
        is_linear: false,
        is_normalized: true,
        reads_integers: true,
        border: [0.0; 4],
        is_linear_between_levels: false,
        level_bias: 0.0,
        level_min: 0.0,
        level_max: 0.0,
    };
    let texture = texture(&memory, Channel::F32, 1, sampler);
    let sampling =
        Sampling { geometry: Geometry::D1, has_integer_coordinates: false, has_level: false, gathered: None };
    let read = texture.plain_read(sampling).expect("a plain image");
    let mut x = [0.5_f32.to_bits(); LANES];
    (x[0], x[1]) = (1e30_f32.to_bits(), 1e30_f32.to_bits());
    for (active, any_left) in [(u32::MAX, true), (!3, false)] {
        let mut arrays = Arrays([x, [9; LANES]]);
        let ([x, red], null) = (arrays.words(), std::ptr::null_mut());
        let operation =
            Operation { read: &read, operands: [x, null, null], results: [red, null, null, null] };
        // SAFETY: arrays of words, and an image that is memory.
        let left = unsafe { operation.run(active) };
        assert_eq!(left != 0, any_left);
        let kept = left | !active;
        assert!((0..LANES).all(|lane| (arrays.0[1][lane] == 9) == (kept >> lane & 1 != 0)));
    }
}

#[test]
fn rows_two_gibibytes_from_the_first_are_read() {
    let (columns, pitch) = (64, 1_u64 << 30);
    // Zeros, of which only what is written takes memory.
    let mut memory = vec![0_u8; 2 * pitch as usize + 4 * columns];
    for column in 0..columns {
        let place = 2 * pitch as usize + 4 * column;
        memory[place..place + 4].copy_from_slice(&(column as f32 + 0.5).to_le_bytes());
    }
    let sampler = Sampler {
        address_modes: [AddressMode::Clamp; 3],
        is_linear: false,
        is_normalized: false,
        reads_integers: true,
        border: [0.0; 4],
        is_linear_between_levels: false,
        level_bias: 0.0,
        level_min: 0.0,
        level_max: 0.0,
    };
    let image = Image {
        base: memory.as_ptr() as u64,
        pieces: None,
        pitch,
        slice: 0,
        size: [columns as u32, 3, 1],
        channel: Channel::F32,
        channels: 1,
    };
    let texture = Texture { levels: vec![image], sampler };
    let sampling =
        Sampling { geometry: Geometry::D2, has_integer_coordinates: false, has_level: false, gathered: None };
    let read = texture.plain_read(sampling).expect("a plain image");
    // Neighbours, and every other element.
    for step in [1, 2] {
        let x = std::array::from_fn(|lane| ((lane * step) as f32).to_bits());
        for (name, way) in ways() {
            let mut arrays = Arrays([x, [2.0_f32.to_bits(); LANES], [9; LANES]]);
            let ([x, y, red], null) = (arrays.words(), std::ptr::null_mut());
            let operation =
                Operation { read: &read, operands: [x, y, null], results: [red, null, null, null] };
            // SAFETY: arrays of words, and an image that is memory.
            assert_eq!(unsafe { way(&operation, u32::MAX) }, 0);
            let want = std::array::from_fn(|lane| ((lane * step) as f32 + 0.5).to_bits());
            assert_eq!(arrays.0[2], want, "{name}");
        }
    }
}
