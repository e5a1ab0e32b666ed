//! Tiles of fused multiply-adds, the inner loop of every matrix product: for all lanes of a warp at
//! once and several sums (*columns*),
//! `sum[c][lane] = fma(factor[i][c], row[i][lane], sum[c][lane])` for one `i` after the other.
//!
//! Cranelift's vectors have 128 bits. These are as wide as the processor's, and what they compute
//! is the same to the last bit: each step is rounded once, in the order of the program. Columns
//! share the rows that are loaded, and their sums stay in registers, as in the micro-kernels of
//! BLAS libraries.

use serde::{Deserialize, Serialize};
use sluice_ir::Type;

/// What stays the same in all calls for one tile. Places and distances are in bytes.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Tile {
    /// From one factor to the next, and from one row to the next.
    pub(crate) factor_stride: i32,
    pub(crate) row_stride: i32,
    /// How many factors each column has, and how many rows there are.
    pub(crate) count: u32,
    pub(crate) columns: Vec<Column>,
}

/// One sum per lane.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Column {
    /// Where the sums are and where the results go, from the start of the warp's memory.
    pub(crate) sum: u32,
    pub(crate) result: u32,
    /// The first factor, from the tile's first one.
    pub(crate) factor: i32,
}

/// A function over the warp's memory, the tile, its first factor and its first row.
pub(crate) type Function = unsafe extern "C" fn(*mut u8, *const Tile, *const u8, *const u8);

/// The function for warps of `lanes` lanes of floats or doubles; `None` where the processor would
/// do the steps in software.
pub(crate) fn fma_tile(ty: Type, lanes: usize) -> Option<Function> {
    #[cfg(target_arch = "x86_64")]
    {
        let has_wide = std::is_x86_feature_detected!("avx512f");
        let has_medium = std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma");
        x86::function(ty, lanes, has_wide, has_medium)
    }
    #[cfg(not(target_arch = "x86_64"))]
    plain::function(ty, lanes)
}

/// Columns that are computed at a time: their sums and a row fit into the registers.
const COLUMNS_MAX: usize = 8;

/// Declares `$name::tile`, for vectors of one type and for `PASS` of them at a time.
macro_rules! tiles {
    ($($name:ident: $element:ty, $vector:ty, $width:literal, $load:path, $store:path, $splat:path, $fma:path
        $(, $feature:literal)?;)*) => {$(
        mod $name {
            use super::*;

            /// Computes `VECTORS` vectors of all columns, `PASS` vectors at a time.
            ///
            /// # Safety
            /// The warp's memory has the tile's sums and results, of as many lanes as `VECTORS`
            /// have; behind the pointers there are as many factors and rows as the tile says.
            /// The processor has the instructions.
            $(#[target_feature(enable = $feature)])?
            pub(super) unsafe extern "C" fn tile<const VECTORS: usize, const PASS: usize>(
                frame: *mut u8,
                tile: *const Tile,
                factor: *const u8,
                row: *const u8,
            ) {
                // SAFETY: the caller's promise.
                let tile = unsafe { &*tile };
                for first in (0..VECTORS).step_by(PASS) {
                    let bytes = first * $width * size_of::<$element>();
                    // Wide passes leave registers for fewer columns.
                    let most = COLUMNS_MAX * 2 / PASS.max(2);
                    let mut columns = &tile.columns[..];
                    while let Some(&one) = columns.first() {
                        let (frame, row) = (frame.wrapping_add(bytes), row.wrapping_add(bytes));
                        // SAFETY: the caller's promise, for a part of the lanes and of the columns.
                        let done = unsafe {
                            match columns {
                                [a, b, c, d, e, f, g, h, ..] if most >= 8 => {
                                    let group = [*a, *b, *c, *d, *e, *f, *g, *h];
                                    columns_of::<PASS, 8>(frame, group, tile, factor, row)
                                }
                                [a, b, c, d, ..] => {
                                    columns_of::<PASS, 4>(frame, [*a, *b, *c, *d], tile, factor, row)
                                }
                                [a, b, ..] => columns_of::<PASS, 2>(frame, [*a, *b], tile, factor, row),
                                _ => columns_of::<PASS, 1>(frame, [one], tile, factor, row),
                            }
                        };
                        columns = &columns[done..];
                    }
                }
            }

            /// Computes some columns; returns how many.
            ///
            /// # Safety
            /// As [`tile`], for these columns and for `PASS` vectors.
            #[inline]
            $(#[target_feature(enable = $feature)])?
            unsafe fn columns_of<const PASS: usize, const COLUMNS: usize>(
                frame: *mut u8,
                columns: [Column; COLUMNS],
                tile: &Tile,
                mut factor: *const u8,
                mut row: *const u8,
            ) -> usize {
                let place = |offset: u32, vector: usize| {
                    frame.wrapping_add(offset as usize).cast::<$element>().wrapping_add(vector * $width)
                };
                // SAFETY: the caller's promise; addresses behind the last ones are not used.
                unsafe {
                    let mut sums: [[$vector; PASS]; COLUMNS] = [[$splat(0.0); PASS]; COLUMNS];
                    for (own, column) in sums.iter_mut().zip(&columns) {
                        for (vector, sum) in own.iter_mut().enumerate() {
                            *sum = $load(place(column.sum, vector));
                        }
                    }
                    for _ in 0..tile.count {
                        let mut values: [$vector; PASS] = [$splat(0.0); PASS];
                        for (vector, value) in values.iter_mut().enumerate() {
                            *value = $load(row.cast::<$element>().wrapping_add(vector * $width));
                        }
                        for (own, column) in sums.iter_mut().zip(&columns) {
                            let factor = factor.wrapping_offset(column.factor as isize).cast::<$element>();
                            let factor = $splat(*factor);
                            for (sum, value) in own.iter_mut().zip(&values) {
                                *sum = $fma(factor, *value, *sum);
                            }
                        }
                        factor = factor.wrapping_offset(tile.factor_stride as isize);
                        row = row.wrapping_offset(tile.row_stride as isize);
                    }
                    for (own, column) in sums.iter().zip(&columns) {
                        for (vector, sum) in own.iter().enumerate() {
                            $store(place(column.result, vector), *sum);
                        }
                    }
                }
                COLUMNS
            }
        }
    )*};
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{COLUMNS_MAX, Column, Function, Tile};
    use sluice_ir::Type;

    tiles! {
        wide_floats: f32, __m512, 16, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_set1_ps, _mm512_fmadd_ps,
            "avx512f";
        wide_doubles: f64, __m512d, 8, _mm512_loadu_pd, _mm512_storeu_pd, _mm512_set1_pd, _mm512_fmadd_pd,
            "avx512f";
        floats: f32, __m256, 8, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_set1_ps, _mm256_fmadd_ps,
            "avx2,fma";
        doubles: f64, __m256d, 4, _mm256_loadu_pd, _mm256_storeu_pd, _mm256_set1_pd, _mm256_fmadd_pd,
            "avx2,fma";
    }

    /// The function for a processor with 512-bit vectors, or with 256-bit ones. These have 16
    /// registers, so a pass has one vector and eight sums.
    pub(super) fn function(ty: Type, lanes: usize, has_wide: bool, has_medium: bool) -> Option<Function> {
        Some(match (ty, lanes) {
            (Type::F32, 32) if has_wide => wide_floats::tile::<2, 2>,
            (Type::F32, 16) if has_wide => wide_floats::tile::<1, 1>,
            (Type::F64, 32) if has_wide => wide_doubles::tile::<4, 4>,
            (Type::F64, 16) if has_wide => wide_doubles::tile::<2, 2>,
            (Type::F64, 8) if has_wide => wide_doubles::tile::<1, 1>,
            (Type::F32, 32) if has_medium => floats::tile::<4, 1>,
            (Type::F32, 16) if has_medium => floats::tile::<2, 1>,
            (Type::F32, 8) if has_medium => floats::tile::<1, 1>,
            (Type::F64, 32) if has_medium => doubles::tile::<8, 1>,
            (Type::F64, 16) if has_medium => doubles::tile::<4, 1>,
            (Type::F64, 8) if has_medium => doubles::tile::<2, 1>,
            _ => return None,
        })
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod plain {
    use super::{COLUMNS_MAX, Column, Function, Tile};
    use sluice_ir::Type;

    tiles! {
        floats: f32, f32, 1, load, store, splat, fma32;
        doubles: f64, f64, 1, load, store, splat, fma64;
    }

    unsafe fn load<T: Copy>(place: *const T) -> T {
        // SAFETY: the caller's place.
        unsafe { place.read_unaligned() }
    }

    unsafe fn store<T: Copy>(place: *mut T, value: T) {
        // SAFETY: the caller's place.
        unsafe { place.write_unaligned(value) }
    }

    fn splat<T: Copy>(value: T) -> T {
        value
    }

    fn fma32(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }

    fn fma64(a: f64, b: f64, c: f64) -> f64 {
        a.mul_add(b, c)
    }

    pub(super) fn function(ty: Type, lanes: usize) -> Option<Function> {
        Some(match (ty, lanes) {
            (Type::F32, 32) => floats::tile::<32, 2>,
            (Type::F32, 16) => floats::tile::<16, 2>,
            (Type::F32, 8) => floats::tile::<8, 2>,
            (Type::F64, 32) => doubles::tile::<32, 2>,
            (Type::F64, 16) => doubles::tile::<16, 2>,
            (Type::F64, 8) => doubles::tile::<8, 2>,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: usize = 5;

    /// Sums of floats in the warp's memory, column behind column, before and after a tile.
    fn run(function: Function, lanes: usize, columns: usize) {
        let factors: Vec<f32> = (0..COUNT * columns).map(|i| 0.1 * i as f32 - 0.3).collect();
        let rows: Vec<f32> = (0..COUNT * 40).map(|i| (i as f32).sqrt()).collect();
        let mut sums: Vec<f32> = (0..columns * lanes).map(|place| place as f32 / 3.0).collect();
        let wanted: Vec<f32> = (0..columns * lanes)
            .map(|place| {
                let (column, lane) = (place / lanes, place % lanes);
                let step = |sum, i: usize| factors[columns * i + column].mul_add(rows[40 * i + lane], sum);
                (0..COUNT).fold(sums[place], step)
            })
            .collect();
        let columns_of_sums = (0..columns as u32).map(|column| {
            let place = column * lanes as u32 * 4;
            Column { sum: place, result: place, factor: 4 * column as i32 }
        });
        let tile = Tile {
            factor_stride: 4 * columns as i32,
            row_stride: 160,
            count: COUNT as u32,
            columns: columns_of_sums.collect(),
        };
        // SAFETY: the sums of all columns, and as many factors and rows as the tile says, of each
        // row of 40 the first `lanes`.
        unsafe { function(sums.as_mut_ptr().cast(), &tile, factors.as_ptr().cast(), rows.as_ptr().cast()) };
        assert_eq!(sums, wanted, "{lanes} lanes, {columns} columns");
    }

    #[test]
    fn a_tile_is_its_steps() {
        for lanes in [8, 16, 32] {
            for columns in [1, 2, 3, 7, 8, 13] {
                if let Some(function) = fma_tile(Type::F32, lanes) {
                    run(function, lanes, columns);
                }
            }
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_tile_of_256_bit_vectors_is_its_steps() {
        let has_medium = std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma");
        for lanes in [8, 16, 32] {
            if let Some(function) = x86::function(Type::F32, lanes, false, has_medium) {
                run(function, lanes, 7);
            }
        }
    }

    #[test]
    fn a_tile_of_doubles_is_its_steps() {
        for lanes in [8, 16, 32] {
            let Some(function) = fma_tile(Type::F64, lanes) else { continue };
            let factors: [f64; 4] = [0.1, -7.5, 3.0, 1e-30];
            let rows: Vec<f64> = (0..2 * lanes).map(|i| (i as f64).sqrt()).collect();
            let mut memory: Vec<f64> = (0..4 * lanes).map(|place| place as f64 / 3.0).collect();
            let wanted: Vec<f64> = (0..2 * lanes)
                .map(|place| {
                    let (column, lane) = (place / lanes, place % lanes);
                    let first = factors[column].mul_add(rows[lane], memory[place]);
                    factors[2 + column].mul_add(rows[lanes + lane], first)
                })
                .collect();
            let bytes = 8 * lanes as u32;
            let column = |number: u32| Column {
                sum: number * bytes,
                result: (2 + number) * bytes,
                factor: 8 * number as i32,
            };
            let tile = Tile {
                factor_stride: 16,
                row_stride: bytes as i32,
                count: 2,
                columns: vec![column(0), column(1)],
            };
            // SAFETY: four arrays of `lanes` numbers, two factors for each of two rows.
            unsafe {
                function(memory.as_mut_ptr().cast(), &tile, factors.as_ptr().cast(), rows.as_ptr().cast());
            }
            assert_eq!(memory[2 * lanes..], wanted, "{lanes} lanes");
        }
    }
}
